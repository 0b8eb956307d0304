"""`hilrp.load`: every library's models with their own preprocessing and class names.

Checkpoints that nobody vouches for.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import hilrp
from helpers.real_data import shared
from hilrp.models.libraries.loaded import Loaded, Preprocess
from hilrp.targets import Region
from hilrp.util.errors import InputError


@pytest.fixture
def weights():
    """A small model with seven classes of its own."""
    return timm.create_model("test_convnext", num_classes=7).state_dict()


@pytest.fixture
def picture():
    return Image.fromarray((torch.rand(120, 90, 3) * 255).byte().numpy())


def same(model, weights):
    return all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_timm(weights, tmp_path, picture):
    save_file(weights, tmp_path / "w.safetensors")
    loaded = hilrp.load("test_convnext", tmp_path / "w.safetensors")
    assert loaded.name == "timm/test_convnext"
    assert same(loaded.model, weights)
    assert not loaded.model.training
    assert loaded.classes is None
    config = timm.data.resolve_data_config({}, model=loaded.model)
    assert torch.equal(loaded.preprocess(picture), timm.data.create_transform(**config)(picture))
    assert loaded.batch([picture, picture]).shape == (2, 3, 160, 160)
    for mode in ("L", "RGBA", "CMYK", "P", "I", "1"):
        assert loaded.batch([picture.convert(mode)]).shape == (1, 3, 160, 160)
    picture.save(tmp_path / "p.png")
    assert torch.equal(loaded.batch([str(tmp_path / "p.png"), tmp_path / "p.png"]), loaded.batch([picture, picture]))
    with pytest.raises(InputError, match="expected a list"):
        loaded.batch("p.png")
    (tmp_path / "names.txt").write_text("\n".join("abcdefg"))
    for file in (tmp_path / "names.txt", str(tmp_path / "names.txt")):
        from_file = hilrp.load("test_convnext", tmp_path / "w.safetensors", classes=file)
        assert from_file.classes == list("abcdefg")
    named = hilrp.load("test_convnext", tmp_path / "w.safetensors", classes=list("abcdefg"))
    assert named.index("c") == 2
    with pytest.raises(InputError, match="3 names, but timm/test_convnext tells 7"):
        hilrp.load("test_convnext", tmp_path / "w.safetensors", classes=["a", "b", "c"])


def test_a_real_checkpoint_names_what_it_sees():
    """The published TinyViT on a photograph of a known class, by name."""
    import json

    file = shared("checkpoints", "tiny_vit_5m_224.safetensors")
    loaded = hilrp.load("timm/tiny_vit_5m_224.dist_in22k_ft_in1k", file)
    index = json.loads(shared("images", "imagenet_val", "index.json").read_text())[:24]
    truth = json.loads(shared("images", "imagenet_classes.json").read_text())
    pictures = [Image.open(shared("images", "imagenet_val", i["file"])).convert("RGB") for i in index]
    with torch.no_grad():
        best = loaded.model(loaded.batch(pictures)).argmax(1).tolist()
    assert sum(b == i["label"] for b, i in zip(best, index, strict=True)) >= 16
    for label in (0, 207, 807):
        # The two lists of names are of different hands; most agree in their first word.
        assert loaded.classes[label].split(",")[0].lower().split() == truth[label].replace("_", " ").lower().split()
    assert loaded.index("golden retriever") == 207
    assert loaded.index("Tinca tinca") == 0


def test_a_model_without_classes():
    """DINOv2 has no classifier."""
    file = shared("checkpoints", "vit_small_patch14_dinov2.safetensors")
    ordinary = hilrp.load("vit_small_patch14_dinov2", file)
    assert ordinary.classes is None
    assert ordinary.model.pos_embed.shape == (1, 1 + 37**2, 384)


def test_the_authors_own_format_is_translated(tmp_path):
    """Microsoft's Swin checkpoints name their stages otherwise and hold masks; timm knows how to read them."""
    from timm.models.swin_transformer import SwinTransformer

    name = "swin_tiny_patch4_window7_224"
    source = timm.create_model(name, num_classes=4)
    assert isinstance(source, SwinTransformer)
    original = {}
    for key, value in source.state_dict().items():
        key = key.replace("head.fc.", "head.")
        for i in (1, 2, 3):  # timm merges patches at the start of a stage, the authors at the end of the one before
            key = key.replace(f"layers.{i}.downsample", f"layers.{i - 1}.downsample")
        original[key] = value
    original["layers.0.blocks.1.attn_mask"] = torch.zeros(64, 49, 49)
    torch.save({"model": original}, tmp_path / "swin.pth")
    loaded = hilrp.load(name, tmp_path / "swin.pth")
    assert same(loaded.model, source.state_dict())


def test_torchvision(tmp_path, picture):
    from torchvision import models

    source = models.squeezenet1_1(num_classes=9)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    loaded = hilrp.load("torchvision/squeezenet1_1", tmp_path / "w.safetensors")
    assert same(loaded.model, source.state_dict())
    weights = models.get_model_weights("squeezenet1_1").DEFAULT
    assert torch.equal(loaded.preprocess(picture), weights.transforms()(picture))
    full = models.resnet18()
    save_file(full.state_dict(), tmp_path / "full.safetensors")
    assert hilrp.load("torchvision/resnet18", tmp_path / "full.safetensors").index("goldfish") == 1
    assert loaded.classes is None  # nine, of which the names aren't known
    with pytest.raises(InputError, match="does optical flow"):
        hilrp.load("torchvision/raft_small", tmp_path / "full.safetensors")


@pytest.mark.parametrize(("name", "shape"), [("r3d_18", (150, 200)), ("swin3d_t", (240, 300)), ("s3d", (256, 256))])
def test_films_are_prepared_as_torchvision_does(name, shape):
    """Scaled, cropped and normalised alike; here where the values lie stays known."""
    from torchvision import models

    from hilrp.models.libraries.torchvision import _films
    from hilrp.models.recordings.film import Frames

    transform = models.get_model_weights(name).DEFAULT.transforms()
    film = hilrp.Recording(torch.rand(3, 4, *shape), hilrp.Kind.VIDEO, Frames(10, (0, 0.1, 0.2, 0.3)), Path("a.mp4"))
    made = _films(transform)(film)
    torch.testing.assert_close(made.values, transform(film.values.transpose(0, 1)), rtol=1e-4, atol=1e-4)
    assert made.geometry.rate == 10
    with pytest.raises(InputError, match="films of three colours"):
        _films(transform)(film.with_values(torch.rand(1, 4, *shape)))


@pytest.mark.parametrize(
    ("name", "options"), [("deeplabv3_mobilenet_v3_large", {"aux_loss": True}), ("lraspp_mobilenet_v3_large", {})]
)
def test_torchvisions_segmentation_models(name, options, tmp_path, picture):
    """Own preprocessing and names; a checkpoint with the auxiliary head that published weights have, or without."""
    from torchvision import models

    published = models.get_model_weights(name).DEFAULT
    for count, extra in ((21, options), (4, {})):
        source = models.get_model(name, weights=None, weights_backbone=None, num_classes=count, **extra)
        save_file(source.state_dict(), tmp_path / f"{count}.safetensors")
        loaded = hilrp.load(f"torchvision/{name}", tmp_path / f"{count}.safetensors")
        assert same(loaded.model, source.state_dict())
        assert torch.equal(loaded.preprocess(picture), published.transforms()(picture))
        assert loaded.classes == (published.meta["categories"] if count == 21 else None)
    small = loaded.batch([picture])[..., :64, :64]
    found = hilrp.explain(loaded.model, small, Region(2, box=(8, 8, 24, 40)))
    with torch.no_grad():
        expected = loaded.model(small)["out"][:, 2, 8:40, 8:24].mean((1, 2))
    torch.testing.assert_close(found.score, expected, rtol=1e-4, atol=1e-6)
    assert float(found.ledger.residual.max()) < 1e-4


@pytest.mark.parametrize("name", ["fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large"])
def test_torchvisions_detectors(name, tmp_path, picture):
    """As many classes as the checkpoint has, also where a layer holds several values for each."""
    from torchvision import models

    weights = models.get_model_weights(name).DEFAULT
    for count in (91, 5):
        source = models.get_model(name, weights=None, weights_backbone=None, num_classes=count)
        save_file(source.state_dict(), tmp_path / f"{count}.safetensors")
        loaded = hilrp.load(f"torchvision/{name}", tmp_path / f"{count}.safetensors")
        assert same(loaded.model.detector, source.state_dict())
        assert loaded.model.num_classes == count
        assert loaded.classes == (weights.meta["categories"] if count == 91 else None)
        assert torch.equal(loaded.preprocess(picture), weights.transforms()(picture))
        assert torch.equal(loaded.preprocess.picture(loaded.batch([picture])), loaded.batch([picture]))


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_torchvision_models_that_scale_their_input_themselves(name, tmp_path):
    """torchvision tells them to only where it loads published weights; a file of those has to be treated alike."""
    from torchvision import models

    published = models.get_model(name, weights=None, init_weights=False, transform_input=True)
    torch.save(published.state_dict(), tmp_path / "w.pt")
    assert hilrp.load(f"torchvision/{name}", tmp_path / "w.pt").model.transform_input


def test_transformers(tmp_path, picture):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        id2label={0: "cat", 1: "dog", 2: "fox"}, label2id={"cat": 0, "dog": 1, "fox": 2},
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    model.save_pretrained(tmp_path / "vit")
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.4, 0.5, 0.6])
    processor.save_pretrained(tmp_path / "vit")
    loaded = hilrp.load(f"transformers/{tmp_path}/vit")
    assert same(loaded.model, model.state_dict())
    assert loaded.classes == ["cat", "dog", "fox"]
    assert loaded.preprocess.mean == (0.4, 0.5, 0.6)
    torch.testing.assert_close(
        loaded.preprocess(picture), processor(images=picture, return_tensors="pt")["pixel_values"][0]
    )
    found = hilrp.explain(loaded.model, loaded.batch([picture]), loaded.index("dog"))
    assert float(found.ledger.residual.max()) < 1e-4
    pixel = Image.new("RGB", (32, 32), (255, 128, 0))
    torch.testing.assert_close(
        loaded.preprocess.picture(loaded.preprocess(pixel))[:, 0, 0], torch.tensor([1, 128 / 255, 0]), atol=1e-2, rtol=0
    )
    # One that neither normalises nor keeps the order of the channels.
    plain = transformers.MobileViTImageProcessor(
        size={"height": 32, "width": 32}, crop_size={"height": 32, "width": 32}
    )
    plain.save_pretrained(tmp_path / "vit")
    turned = hilrp.load(f"transformers/{tmp_path}/vit")
    torch.testing.assert_close(
        turned.preprocess.picture(turned.preprocess(pixel))[:, 0, 0], torch.tensor([1, 128 / 255, 0]), atol=1e-2, rtol=0
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "body")
    processor.save_pretrained(tmp_path / "body")
    with pytest.raises(InputError, match="is no classifier, segmentation model"):
        hilrp.load(f"transformers/{tmp_path}/body")
    with pytest.raises(InputError, match="a type of model"):
        hilrp.load("transformers/vit")


def test_code_in_a_folder_of_transformers_is_not_run(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "config.json").write_text(
        '{"model_type": "odd", "architectures": ["OddForImageClassification"], "auto_map": {"AutoConfig": '
        '"configuration_evil.Odd"}}'
    )
    (tmp_path / "evil" / "configuration_evil.py").write_text(f"open({str(tmp_path / 'exploded')!r}, 'w')\nOdd = None\n")
    monkeypatch.setattr("builtins.input", lambda *a: "y")
    with pytest.raises(InputError, match="can't be loaded"):
        hilrp.load(f"transformers/{tmp_path}/evil")
    assert not (tmp_path / "exploded").exists()


def test_open_clips_weights_have_the_activation_of_the_model():
    open_clip = pytest.importorskip("open_clip")
    from hilrp.models.libraries.open_clip import _tag, trained

    for name in trained():
        own = open_clip.get_model_config(name).get("quick_gelu", False)
        try:
            tag = _tag(name)
        except InputError as error:
            assert "another activation" in str(error)  # noqa: PT017
            continue
        assert bool(open_clip.get_pretrained_cfg(name, tag).get("quick_gelu", False)) == own
    assert _tag("ViT-B-32") != "openai"
    assert _tag("ViT-B-32-quickgelu") == "openai"


def test_open_clip(tmp_path, picture):
    """A zero-shot classifier: its logits are the model's own similarities of image and captions."""
    open_clip = pytest.importorskip("open_clip")
    name = "ViT-S-32-alt"
    source = open_clip.create_model(name).eval()
    torch.save({"state_dict": source.state_dict()}, tmp_path / "w.pt")
    loaded = hilrp.load(f"open_clip/{name}", tmp_path / "w.pt", classes=["cat", "dog"])
    _, _, transform = open_clip.create_model_and_transforms(name)
    x = loaded.batch([picture])
    torch.testing.assert_close(x[0], transform(picture))
    tokens = open_clip.get_tokenizer(name)(["a photo of a cat", "a photo of a dog"])
    with torch.no_grad():
        expected, _ = source.get_logits(x, tokens)
        torch.testing.assert_close(loaded.model(x), expected, rtol=1e-4, atol=1e-5)
    found = hilrp.explain(loaded.model, x, loaded.index("dog"))
    assert float(found.ledger.residual.max()) < 1e-4


def test_a_function_of_the_users_own(tmp_path, monkeypatch, picture):
    (tmp_path / "mine_to_load.py").write_text(
        "import torch\n"
        "net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))\n"
        "def turn(image): return torch.ones(3, 2, 2)\n"
        "def good(): return net, turn, ['a', 'b']\n"
        "def bad(): return net\n"
    )
    monkeypatch.chdir(tmp_path)
    loaded = hilrp.load("mine_to_load:good")
    assert loaded.index("b") == 1
    assert loaded.batch([picture]).shape == (1, 3, 2, 2)
    assert loaded.preprocess.picture(loaded.batch([picture])) is None
    with pytest.raises(InputError, match="returned Sequential: how pictures are prepared for it isn't known"):
        hilrp.load("mine_to_load:bad")
    with pytest.raises(InputError, match="loads its own weights"):
        hilrp.load("mine_to_load:good", tmp_path / "w.pt")


def test_a_model_of_timm_alone_knows_its_preprocessing(tmp_path, monkeypatch, picture):
    (tmp_path / "mine_of_timm.py").write_text(
        "import timm\n"
        "def plain(): return timm.create_model('test_convnext', num_classes=7)\n"
        "def small(): return timm.create_model('test_vit', img_size=96)\n"
        "def bare(): return timm.models.VisionTransformer(img_size=32, depth=1, embed_dim=8, num_heads=1)\n"
    )
    monkeypatch.chdir(tmp_path)
    loaded = hilrp.load("mine_of_timm:plain")
    config = timm.data.resolve_data_config({}, model=loaded.model)
    assert torch.equal(loaded.preprocess(picture), timm.data.create_transform(**config)(picture))
    assert (loaded.preprocess.mean, loaded.classes) == (config["mean"], None)
    assert not loaded.model.training
    small = hilrp.load("mine_of_timm:small")  # its configuration says 160
    assert small.model(small.batch([picture])).shape == (1, 1000)
    assert len(small.classes) == 1000
    with pytest.raises(InputError, match="how pictures are prepared for it isn't known"):
        hilrp.load("mine_of_timm:bare")


def test_without_a_connection_the_message_says_what_to_do(monkeypatch):
    def offline(*args, **options):
        raise OSError("cannot reach the hub")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(InputError, match=r"could not be loaded .*cannot reach the hub.*checkpoint.*zoo/swin"):
        hilrp.load("resnet50")


@pytest.mark.parametrize("name", ["swinn", "zoo/swinn", "nolibrary/swin"])
def test_unknown_names(name):
    with pytest.raises(InputError, match=r"no model of that name|none of the libraries"):
        hilrp.load(name)


def test_near_names_come_first():
    with pytest.raises(InputError, match=r"Did you mean zoo/swin[,?]"):
        hilrp.load("zoo/swinn")


def test_a_file_for_a_name(tmp_path):
    file = tmp_path / "weights.safetensors"
    file.touch()
    for name in (str(file), f"resnet18@{file}"):
        with pytest.raises(InputError, match=r"that is a file of weights.*checkpoint="):
            hilrp.load(name)


# Checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [
    lambda w: w,
    lambda w: {"state_dict": w, "epoch": 3},
    lambda w: {"model": {f"module.{k}": v for k, v in w.items()}, "optimizer": {"lr": torch.ones(1)}},
    lambda w: {"model": {k: v + 1 for k, v in w.items()}, "model_ema": w},
    lambda w: {f"_orig_mod.{k}": v for k, v in w.items()},
    lambda w: {f"_orig_mod.module.{k}": v for k, v in w.items()},
    lambda w: {k: v.half() for k, v in w.items()},
])  # fmt: skip
def test_files_of_torch_save(weights, tmp_path, wrap):
    weights = {k: v.half().float() for k, v in weights.items()}
    torch.save(wrap(weights), tmp_path / "w.pth")
    assert same(hilrp.load("test_convnext", tmp_path / "w.pth").model, weights)


class _Bomb:
    def __reduce__(self):
        return (open, ("exploded", "w"))


def test_code_in_a_checkpoint_is_not_run(tmp_path, monkeypatch, weights):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": weights, "args": _Bomb()}, tmp_path / "torch.pt")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"state_dict": _Bomb()}))
    for name in ("torch.pt", "plain.pkl"):
        with pytest.raises(InputError, match=name):
            hilrp.load("test_convnext", tmp_path / name)
    assert not (tmp_path / "exploded").exists()
    with pytest.raises(InputError, match="would run code"):
        hilrp.load("test_convnext", tmp_path / "torch.pt")


def test_checkpoints_that_do_not_fit_say_which_names(weights, tmp_path):
    weights = dict(weights)
    weights["stem.0.weight"] = weights["stem.0.weight"][:, :, :1]
    weights["odd.one"] = weights.pop("head.fc.bias")
    save_file({k: v.contiguous() for k, v in weights.items()}, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match="does not fit test_convnext") as found:
        hilrp.load("test_convnext", tmp_path / "w.safetensors")
    for words in ("it lacks head.fc.bias", "the model has no odd.one", "stem.0.weight (", "instead of"):
        assert words in str(found.value)


def test_a_mismatch_is_not_taken_for_the_number_of_classes(tmp_path):
    weights = dict(timm.create_model("test_convnext").state_dict())
    weights["stages.0.blocks.0.mlp.fc1.bias"] = torch.ones(7)
    save_file(weights, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"fc1.bias \(7,\)") as found:
        hilrp.load("test_convnext", tmp_path / "w.safetensors")
    assert "head" not in str(found.value)


def test_a_checkpoint_that_holds_itself(tmp_path):
    around: dict[str, object] = {}
    around["model"] = around
    torch.save(around, tmp_path / "w.pt")
    with pytest.raises(InputError, match="holds no weights"):
        hilrp.load("test_convnext", tmp_path / "w.pt")


def test_files_that_are_no_checkpoints(tmp_path):
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    (tmp_path / "text.pt").write_text("hello")
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    for name, words in (
        ("cut.safetensors", "not a readable safetensors"),
        ("text.pt", "text.pt: it is no checkpoint"),
        ("empty.pt", "holds no weights"),
        ("list.pt", "holds no weights"),
        ("missing.pt", "no such file"),
        (".", "a folder"),
    ):
        with pytest.raises(InputError, match=words):
            hilrp.load("test_convnext", tmp_path / name)


def test_classes_by_name():
    loaded = Loaded(
        "m",
        torch.nn.Identity(),
        Preprocess(lambda i: i, (0,), (1,)),
        ["tench, Tinca tinca", "crane", "crane, tower crane", "red_fox"],
    )
    assert [loaded.index(n) for n in ("tench", "TINCA tinca", "tower crane", "red fox", "2")] == [0, 0, 2, 3, 2]
    for name, words in (("crane", "several: 1"), ("tenc", "Did you mean 'tench'"), ("4", "0 to 3"), ("-1", "0 to 3")):
        with pytest.raises(InputError, match=words):
            loaded.index(name)
    nameless = Loaded("m", torch.nn.Identity(), loaded.preprocess)
    assert nameless.index("7") == 7
    assert nameless.named(7) == "class 7"
    with pytest.raises(InputError, match="no names"):
        nameless.index("cat")
