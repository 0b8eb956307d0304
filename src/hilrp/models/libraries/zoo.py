"""The zoo: small models of every family that come with the package, trained on scenes and on photographs.

And some that are no classifiers.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import load as load_bytes
from torch import Tensor, nn

from hilrp.attribution.texts import ImageTower, ZeroShot
from hilrp.models import checkpoint_files, weights
from hilrp.models.libraries.loaded import ZOO_WEIGHTS, Loaded, Preprocess, Texts, no_pictures, of_answers
from hilrp.models.libraries.recipe import Recipe, images, keyword
from hilrp.scenes import CLASSES
from hilrp.scenes.questions import DESCRIBE
from hilrp.util.errors import InputError
from hilrp.zoo.architectures import ARCHITECTURES, OTHERS, PATCH, PHOTOS, SIZE
from hilrp.zoo.captioner import MERGED, Captioner
from hilrp.zoo.towers import LENGTH, TwoTowers, pieces, tokenise
from hilrp.zoo.vocabulary import Processor

_WEIGHTS = files("hilrp.zoo") / "weights"
#: Those whose weights come with the package.
_ARCHITECTURES = {
    name: each for name, each in (ARCHITECTURES | PHOTOS | OTHERS).items() if (_WEIGHTS / f"{name}.json").is_file()
}
#: What an audit asks of a captioner.
ASKED = {"type": "text", "text": DESCRIBE}
#: What the card of a model says of how good it is -> in words.
FIGURES = {
    "mean_average_precision": "mAP",
    "test_accuracy": "accuracy",
    "caption_average_precision": "mAP of captions",
    "linear_average_precision": "mAP of a linear probe",
    "mean_iou": "mean IoU",
    "average_precision_50": "AP50 of boxes",
    "answer_accuracy": "right answers",
    "dice_lesion": "Dice of lesions",
}


def names() -> list[str]:
    """All families of classifiers of scenes."""
    return list(ARCHITECTURES)


def photos() -> list[str]:
    """The same families, trained on photographs."""
    return [name for name in PHOTOS if name in _ARCHITECTURES]


def others() -> list[str]:
    """The names of the models that are no classifiers."""
    return list(OTHERS)


def trained() -> list[str]:
    """All of them."""
    return list(_ARCHITECTURES)


def find(name: str) -> str | None:
    """The name itself, if the zoo has it."""
    return name if name in _ARCHITECTURES else None


@cache
def card(name: str) -> dict[str, Any]:
    """What is known of a model: architecture, seed, accuracy, date, checksum."""
    found: dict[str, Any] = json.loads((_WEIGHTS / f"{name}.json").read_text())
    return found


def figure(name: str) -> tuple[str, float]:
    """What was measured of a model on held-out scenes or photographs, and its value."""
    found = card(name)
    return next((words, found[key]) for key, words in FIGURES.items() if key in found)


def model(name: str) -> nn.Module:
    """A model with its weights, which are checked against their card."""
    data = (_WEIGHTS / f"{name}.safetensors").read_bytes()
    if hashlib.sha256(data).hexdigest() != card(name)["sha256"]:
        raise InputError(f"zoo/{name}: its weights are not those that were shipped. Install hilrp again.")
    made = _ARCHITECTURES[name].make()
    made.load_state_dict(load_bytes(data))
    return made


def recipe(name: str, pretrained: bool = False, size: int | None = None) -> Recipe:
    """A model of the zoo; always a trained one, for images of 128 x 128, or for volumes or films of its own size."""
    shape = _ARCHITECTURES[name].shape
    if size not in (None, shape[-1]):
        what = "images" if len(shape) == 3 else "inputs"
        raise InputError(f"zoo/{name} takes {what} of {' x '.join(map(str, shape[1:]))}.")
    made = model(name)
    if isinstance(made, Captioner):
        prompt = processor().apply_chat_template([{"role": "user", "content": [{"type": "image"}, ASKED]}])
        ids = processor()([Image.new("RGB", (SIZE, SIZE))], [prompt])["input_ids"][0]
        return Recipe(made, keyword("pixel_values", images(SIZE), input_ids=ids), _next_word)
    return Recipe(ImageTower(made) if isinstance(made, TwoTowers) else made, images(shape))


def _next_word(output: Any) -> Tensor:
    """The logit of the word that is said next."""
    found: Tensor = output.logits[:, -1].amax(1)
    return found


def load(name: str, checkpoint: str | Path | None = None) -> Loaded:
    """A model of the zoo with its own weights, or those of a checkpoint; two towers as a zero-shot classifier."""
    preprocess = Preprocess(_preprocess, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    if checkpoint is None:
        made, origin = model(name), ZOO_WEIGHTS
    else:
        made = weights.fitted(_ARCHITECTURES[name].make, checkpoint_files.read(checkpoint), name, checkpoint)
        origin = f"weights of {Path(checkpoint).name}"
    if isinstance(made, Captioner):
        return Loaded(f"zoo/{name}", made, of_answers(f"zoo/{name}"), None, origin, processor=processor())
    shape = _ARCHITECTURES[name].shape
    if len(shape) == 4:
        ready = no_pictures(
            f"zoo/{name} takes tensors of the shape [B,{','.join(map(str, shape))}], of bytes that are scaled: "
            "hilrp.explain(loaded.model, bytes / 127.5 - 1)."
        )
        return Loaded(f"zoo/{name}", made, ready, list(_ARCHITECTURES[name].classes), origin)
    if not isinstance(made, TwoTowers):
        classes = None if getattr(made, "num_classes", None) == 0 else list(_ARCHITECTURES[name].classes)
        return Loaded(f"zoo/{name}", made, preprocess, classes, origin)
    made.eval()
    with torch.no_grad():
        captions = made.encode_text(torch.stack([tokenise(f"a {each}") for each in CLASSES]))
    classifier = ZeroShot(ImageTower(made), captions, float(made.scale.detach().exp()))
    texts = Texts(made, tokenise, pieces, LENGTH)
    return Loaded(f"zoo/{name}", classifier, preprocess, list(CLASSES), origin, texts)


def processor() -> Processor:
    """What makes the captioner's inputs of a picture and a prompt."""
    return Processor(_preprocess, (SIZE // PATCH // MERGED) ** 2)


def _preprocess(image: Any) -> Tensor:
    """Short side to 128 pixels, the middle of it, values from -1 to 1; a scene stays as it is."""
    fitted = image if image.size == (SIZE, SIZE) else ImageOps.fit(image, (SIZE, SIZE))
    pixels = torch.from_numpy(np.array(fitted.convert("RGB"))).permute(2, 0, 1)
    return pixels.float() / 127.5 - 1
