"""Small random models that answer, each with a processor made here: nothing is fetched.

Weights are larger than a fresh model's, so that pictures and words both matter, and norms compute in the model's own
type: those of transformers round to float32 inside, whatever the model's is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = "a red blue green cat dog house on the left right what is this colour and of two pictures one".split()
PROMPT = "what colour is the cat"
MARKS = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}
#: Sizes of language models.
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: Sizes of towers of pictures.
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
#: What image processors of square pictures are given.
SQUARE = {"size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}


def tokenizer(*special: str, **named: str) -> Any:
    """A tokeniser of whole words: `WORDS`, four marks, and special tokens."""
    marks = [*MARKS.values(), *special, *named.values()]
    table = {word: i for i, word in enumerate(dict.fromkeys([*marks, *WORDS]))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        **{f"{name}_token": token for name, token in MARKS.items()},
        extra_special_tokens=named,
    )
    found.add_special_tokens({"additional_special_tokens": [*special]}, replace_extra_special_tokens=False)
    return found


def enlarged(model: nn.Module, norms: bool = True) -> Any:
    """A model in float64 whose words and pictures matter."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            scale = 1.0 if "embed" in name else 0.3
            if p.ndim > 1:
                p.copy_(torch.randn(p.shape, generator=generator) * scale)
            elif "norm" in name.lower() or "ln" in name:
                p.add_(torch.randn(p.shape, generator=generator) * 0.1)
            else:
                p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    model = model.double().eval()
    for module in model.modules():
        for name, child in module.named_children():
            if norms and type(child).__name__.endswith("RMSNorm"):
                setattr(module, name, _norm(child))
    config = getattr(model, "generation_config", None)
    if config is not None:
        config.eos_token_id, config.pad_token_id = 2, 0
    return model


def _norm(module: Any) -> nn.Module:
    eps = getattr(module, "variance_epsilon", None) or getattr(module, "eps", 1e-6)
    weight = module.weight.detach()
    made = nn.RMSNorm(weight.shape, eps).double()
    made.weight.data = 1 + weight if "Gemma" in type(module).__name__ else weight.clone()
    return made


# Text alone
# ------------------------------------------------------------------------------------------------------------------

_SMALL = TEXT | {"vocab_size": 40}
#: Name -> a model of text alone.
TEXT_MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SMALL)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=4, vocab_size=40, n_positions=64, bos_token_id=1, eos_token_id=2
        )
    ),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**_SMALL, sliding_window=3)),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**_SMALL, sliding_window=4, attn_implementation="eager")
    ),
    "mixtral": lambda: _with_experts(
        transformers.MixtralForCausalLM(transformers.MixtralConfig(**_SMALL, num_local_experts=4))
    ),
    "qwen3_moe": lambda: _with_experts(
        transformers.Qwen3MoeForCausalLM(
            transformers.Qwen3MoeConfig(**_SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
        )
    ),
}


def _with_experts(model: Any) -> Any:
    model.set_experts_implementation("batched_mm")
    return model


def text_model(name: str, norms: bool = True) -> Any:
    """A model of text alone."""
    torch.manual_seed(3)
    return enlarged(TEXT_MODELS[name](), norms)


# Pictures and text
# ------------------------------------------------------------------------------------------------------------------


def _llava() -> tuple[Any, Any]:
    words = tokenizer("<image>")
    pictures = transformers.CLIPImageProcessor(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}, image_mean=[0.5] * 3, image_std=[0.25] * 3
    )
    processor = transformers.LlavaProcessor(
        pictures, words, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**TEXT, vocab_size=len(words)),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    return transformers.LlavaForConditionalGeneration(config), processor


def _paligemma() -> tuple[Any, Any]:
    words = tokenizer(image_token="<image>")
    pictures = transformers.SiglipImageProcessor(**SQUARE)
    pictures.image_seq_length = 16
    processor = transformers.PaliGemmaProcessor(pictures, words)
    config = transformers.PaliGemmaConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION, projection_dim=32),
        text_config=transformers.GemmaConfig(**TEXT, vocab_size=len(words) + 2000),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        projection_dim=32,
    )
    return transformers.PaliGemmaForConditionalGeneration(config), processor


def _gemma3() -> tuple[Any, Any]:
    words = tokenizer(boi_token="<boi>", eoi_token="<eoi>", image_token="<image>")
    pictures = transformers.Gemma3ImageProcessor(**SQUARE)
    processor = transformers.Gemma3Processor(pictures, words, image_seq_length=4)
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**TEXT, vocab_size=len(words), sliding_window=8),
        vision_config=transformers.SiglipVisionConfig(**VISION),
        mm_tokens_per_image=4,
        boi_token_index=words.convert_tokens_to_ids("<boi>"),
        eoi_token_index=words.convert_tokens_to_ids("<eoi>"),
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    return transformers.Gemma3ForConditionalGeneration(config), processor


_ROWS = [f"<row_{i + 1}_col_{j + 1}>" for i in range(6) for j in range(6)]


def _idefics3(kind: str) -> tuple[Any, Any]:
    """SmolVLM takes what Idefics3 takes; its own processor needs a package that writes numbers as words."""
    words = tokenizer("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *_ROWS)
    sizes: dict[str, Any] = {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}
    pictures = getattr(transformers, f"{kind}ImageProcessor")(**sizes, image_mean=[0.5] * 3, image_std=[0.25] * 3)
    processor = transformers.Idefics3Processor(pictures, words, image_seq_len=4)
    config = getattr(transformers, f"{kind}Config")(
        vision_config=VISION,
        text_config=transformers.LlamaConfig(**TEXT, vocab_size=len(words)),
        scale_factor=2,
        image_token_id=words.convert_tokens_to_ids("<image>"),
        pad_token_id=0,
    )
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config), processor


_QWEN = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")


def _qwen(kind: str) -> tuple[Any, Any]:
    words = tokenizer(*_QWEN)
    ids = dict(
        zip(
            ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
            words.convert_tokens_to_ids(list(_QWEN)),
            strict=True,
        )
    )
    pictures = transformers.Qwen2VLImageProcessor(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=1024,
        image_mean=[0.5] * 3, image_std=[0.25] * 3,
    )  # fmt: skip
    videos = transformers.Qwen2VLVideoProcessor(patch_size=4, merge_size=2, temporal_patch_size=2)
    text = TEXT | {
        "vocab_size": len(words),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
    }
    vision: dict[str, Any] = {"depth": 2, "num_heads": 4, "patch_size": 4, "temporal_patch_size": 2}
    vision |= {"spatial_merge_size": 2, "in_channels": 3}
    if kind == "qwen2_vl":
        vision |= {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}
        config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **ids)
        return (
            transformers.Qwen2VLForConditionalGeneration(config),
            transformers.Qwen2VLProcessor(pictures, words, videos),
        )
    if kind == "qwen2_5_vl":
        vision |= {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 48, "window_size": 16}
        vision |= {"fullatt_block_indexes": [1]}
        config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids)
        return (
            transformers.Qwen2_5_VLForConditionalGeneration(config),
            transformers.Qwen2_5_VLProcessor(pictures, words, videos),
        )
    vision |= {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 48, "num_position_embeddings": 64}
    vision |= {"deepstack_visual_indexes": [0]}
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **ids)
    videos = transformers.Qwen3VLVideoProcessor(patch_size=4, merge_size=2, temporal_patch_size=2)
    return transformers.Qwen3VLForConditionalGeneration(config), transformers.Qwen3VLProcessor(pictures, words, videos)


def _llava_onevision() -> tuple[Any, Any]:
    words = tokenizer("<image>", "<video>")
    pins = [[16, 32], [32, 16], [32, 32]]
    pictures = transformers.LlavaOnevisionImageProcessor(**SQUARE, image_grid_pinpoints=pins)
    videos = transformers.LlavaOnevisionVideoProcessor(**SQUARE)
    processor = transformers.LlavaOnevisionProcessor(
        pictures, words, videos, num_image_tokens=16, vision_feature_select_strategy="full"
    )
    config = transformers.LlavaOnevisionConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=transformers.Qwen2Config(**TEXT, vocab_size=len(words)),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        video_token_index=words.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=pins,
    )
    return transformers.LlavaOnevisionForConditionalGeneration(config), processor


def _internvl() -> tuple[Any, Any]:
    words = tokenizer(
        start_image_token="<img>", end_image_token="</img>", context_image_token="<IMG>", video_token="<video>"
    )
    pictures = transformers.GotOcr2ImageProcessor(**SQUARE, crop_to_patches=True, min_patches=1, max_patches=4)
    videos = transformers.InternVLVideoProcessor(**SQUARE)
    processor = transformers.InternVLProcessor(pictures, words, videos, image_seq_length=4)
    vision = transformers.InternVLVisionConfig(
        **VISION | {"image_size": [16, 16], "patch_size": [4, 4]}, use_absolute_position_embeddings=True
    )
    config = transformers.InternVLConfig(
        vision_config=vision,
        text_config=transformers.Qwen2Config(**TEXT, vocab_size=len(words)),
        image_token_id=words.convert_tokens_to_ids("<IMG>"),
        image_seq_length=4,
    )
    return transformers.InternVLForConditionalGeneration(config), processor


def _florence2() -> tuple[Any, Any]:
    words = tokenizer(image_token="<image>")
    pictures = transformers.CLIPImageProcessor(
        size={"height": 64, "width": 64}, do_center_crop=False, image_mean=[0.5] * 3, image_std=[0.25] * 3
    )
    pictures.image_seq_length = 5
    processor = transformers.Florence2Processor(pictures, words, num_additional_image_tokens=1)
    config = transformers.Florence2Config(
        vision_config={
            "depths": [1, 1],
            "embed_dim": [16, 32],
            "num_heads": [2, 4],
            "num_groups": [2, 4],
            "patch_size": [7, 3],
            "patch_stride": [8, 4],
            "patch_padding": [3, 1],
            "patch_prenorm": [False, True],
            "window_size": 4,
            "projection_dim": 32,
        },
        text_config={
            "model_type": "bart",
            "vocab_size": len(words),
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": None,
        },
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )
    return transformers.Florence2ForConditionalGeneration(config), processor


def _blip2() -> tuple[Any, Any]:
    words = tokenizer("<image>")
    pictures = transformers.BlipImageProcessor(**SQUARE)
    processor = transformers.Blip2Processor(pictures, words, num_query_tokens=4)
    config = transformers.Blip2Config(
        vision_config=VISION,
        qformer_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "encoder_hidden_size": 32,
            "vocab_size": len(words),
        },
        text_config={
            "model_type": "opt",
            "vocab_size": len(words),
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        num_query_tokens=4,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    return transformers.Blip2ForConditionalGeneration(config), processor


def sound_model() -> tuple[Any, Any]:
    """Qwen2-Audio, with its processor."""
    words = tokenizer("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    processor = transformers.Qwen2AudioProcessor(
        transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=2), words
    )
    sounds = {"num_mel_bins": 16, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4}
    config = transformers.Qwen2AudioConfig(
        audio_config=sounds | {"encoder_ffn_dim": 48, "max_source_positions": 100},
        text_config=TEXT | {"model_type": "qwen2", "vocab_size": len(words)},
        audio_token_index=words.convert_tokens_to_ids("<|AUDIO|>"),
    )
    torch.manual_seed(3)
    return enlarged(transformers.Qwen2AudioForConditionalGeneration(config)), processor


#: Name -> a model of pictures and text with its processor, and what stands in the prompt for a picture.
PICTURE_MODELS: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "llava": (_llava, "<image>"),
    "paligemma": (_paligemma, "<image>"),
    "gemma3": (_gemma3, "<boi>"),
    "idefics3": (lambda: _idefics3("Idefics3"), "<image>"),
    "smolvlm": (lambda: _idefics3("SmolVLM"), "<image>"),
    "qwen2_vl": (lambda: _qwen("qwen2_vl"), "<|vision_start|><|image_pad|><|vision_end|>"),
    "qwen2_5_vl": (lambda: _qwen("qwen2_5_vl"), "<|vision_start|><|image_pad|><|vision_end|>"),
    "qwen3_vl": (lambda: _qwen("qwen3_vl"), "<|vision_start|><|image_pad|><|vision_end|>"),
    "llava_onevision": (_llava_onevision, "<image>"),
    "internvl": (_internvl, "<IMG>"),
    "florence2": (_florence2, ""),
    "blip2": (_blip2, ""),
}


def picture_model(name: str, norms: bool = True) -> tuple[Any, Any]:
    """A model of pictures and text, with its processor."""
    torch.manual_seed(3)
    model, processor = PICTURE_MODELS[name][0]()
    return enlarged(model, norms), processor


def prompt_of(name: str, pictures: int = 1, text: str = PROMPT) -> str:
    """A prompt with places for pictures."""
    return f"{PICTURE_MODELS[name][1] * pictures} {text}".strip()


def photo(width: int = 40, height: int = 24, seed: int = 0) -> Any:
    """A picture of random blocks of colours."""
    import numpy as np
    from PIL import Image

    blocks = np.random.default_rng(seed).integers(0, 255, (4, 4, 3), np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.BILINEAR)
