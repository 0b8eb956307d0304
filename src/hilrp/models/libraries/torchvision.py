"""torchvision: classification, segmentation, detection and video models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models

from hilrp.models import checkpoint_files, weights
from hilrp.models.libraries.detectors import Detector
from hilrp.models.libraries.loaded import Loaded, Preprocess
from hilrp.models.libraries.recipe import Recipe, download, images
from hilrp.util.errors import InputError

#: The part of a detector that gives class scores for its anchors or proposals.
_SCORERS = ("roi_heads.box_predictor", "head.classification_head")


def names() -> list[str]:
    """All models but the quantised ones (no gradient) and optical flow (no class)."""
    return [name for name in models.list_models() if _task(name) not in ("quantization", "optical_flow")]


def kinds() -> list[str]:
    """The smallest model of each file of torchvision, which is about one paper."""
    smallest: dict[str, str] = {}
    for name in names():
        kind = models.get_model_builder(name).__module__
        if kind not in smallest or _parameters(name) < _parameters(smallest[kind]):
            smallest[kind] = name
    return list(smallest.values())


def _parameters(name: str) -> int:
    count: int = models.get_model_weights(name).DEFAULT.meta["num_params"]
    return count


def find(name: str) -> str | None:
    """The name itself, if torchvision has it."""
    return name if name in models.list_models() else None


def recipe(name: str, pretrained: bool = False, size: int | None = None) -> Recipe:
    """A model of torchvision."""
    task = _task(name)
    if task in ("quantization", "optical_flow"):
        why = "quantised models have no gradient" if task == "quantization" else "optical flow has no class score"
        raise InputError(f"torchvision/{name} can't be explained: {why}.")
    options: dict[str, Any] = {"weights": "DEFAULT" if pretrained else None}
    if task in ("segmentation", "detection"):
        options["weights_backbone"] = None
    if name in ("googlenet", "inception_v3") and not pretrained:
        options |= {"init_weights": False, "aux_logits": False}
    if task == "detection" and not name.startswith("ssd"):
        # The detector resizes its input by itself: to this.
        options |= {"min_size": size or 256, "max_size": size or 256}

    if task == "video":
        # MViT is built for the size of its published weights, and S3D needs about as much.
        side = size or (_crop(name) if pretrained or name.startswith(("mvit", "s3d")) else _FILM[-1])
        if name.startswith("mvit") and side != _crop(name):
            raise InputError(f"torchvision/{name} takes frames of {_crop(name)} x {_crop(name)}.")

    def make() -> nn.Module:
        return models.get_model(name, **options)

    model = download(name, make, models.get_model_weights(name).DEFAULT.url) if pretrained else make()
    if task == "detection":
        return Recipe(Scores(model), images(size or (300 if name.startswith("ssd300") else 320)), strongest_box, 1)
    if task == "video":
        return Recipe(model, images((*_FILM[:2], side, side)))
    return Recipe(model, images(size or (299 if name == "inception_v3" else 224)))


#: A film: channels, frames, the side of its frames where weights are random.
_FILM = (3, 16, 112)


def _crop(name: str) -> int:
    """The side of the frames that a model's published weights are for."""
    side: int = models.get_model_weights(name).DEFAULT.transforms().crop_size[0]
    return side


def _films(transform: Any) -> Callable[[Any], Any]:
    """The preprocessing of a model of films, for a `hilrp.Recording`: where its values lie stays known.

    It does what torchvision's own does (tests compare them): scale, crop the middle, normalise.
    """
    (high, wide), (down, across) = ((each[0], each[-1]) for each in (transform.resize_size, transform.crop_size))
    mean, std = (torch.tensor(each).view(3, 1, 1, 1) for each in (transform.mean, transform.std))

    def prepare(recording: Any) -> Any:
        if len(recording.grid) != 3 or recording.values.shape[0] != 3:
            raise InputError(f"it takes films of three colours, not values of the form {tuple(recording.values.shape)}")
        count, *sides = recording.grid
        rows, columns = high, wide
        if len(transform.resize_size) == 1:  # the shorter side
            rows, columns = (high if side == min(sides) else int(high * side / min(sides)) for side in sides)
        start = (0, round((rows - down) / 2), round((columns - across) / 2))
        seen = recording.resized(count, rows, columns).cropped(start, (count, down, across))
        return seen.with_values((seen.values - mean) / std)

    return prepare


#: What can be made ready for pictures.
_LOADED = ("classification", "segmentation", "detection")


def trained() -> list[str]:
    """Classifiers, segmentation models and detectors, which have published weights."""
    return [name for name in names() if _task(name) in _LOADED]


def load(name: str, checkpoint: str | Path | None = None) -> Loaded:
    """A classifier, segmentation model or detector of torchvision, with published weights or those of a checkpoint."""
    task = _task(name)
    if task not in _LOADED and task != "video":
        raise InputError(
            f"torchvision/{name} does {task.replace('_', ' ')}; hilrp.load takes classifiers (of films, too), "
            "segmentation models and detectors. Load it with torchvision, and pass hilrp.explain a target: a function "
            "of its output."
        )
    published = models.get_model_weights(name).DEFAULT
    categories = list(published.meta["categories"])
    if checkpoint is None:
        model = download(name, lambda: models.get_model(name, weights=published), published.url)
    else:
        state = checkpoint_files.read(checkpoint)
        options = _options(name, task, state)

        def make(classes: int | None) -> nn.Module:
            return models.get_model(name, **options, **({} if classes is None else {"num_classes": classes}))

        model = weights.fitted(make, state, name, checkpoint, own_classes=len(categories))
    transform = published.transforms()
    if task == "video":
        return Loaded(f"torchvision/{name}", model, Preprocess(_films(transform)), categories)
    # Detectors normalise by themselves.
    mean, std = ((0.0,) * 3, (1.0,) * 3) if task == "detection" else (tuple(transform.mean), tuple(transform.std))
    ready = Detector(model) if task == "detection" else model
    return Loaded(f"torchvision/{name}", ready, Preprocess(transform, mean, std), categories)


def _options(name: str, task: str, state: checkpoint_files.State) -> dict[str, Any]:
    """How the architecture is made that these weights are of."""
    options: dict[str, Any] = {"weights": None}
    if name in ("googlenet", "inception_v3"):
        # Their published weights expect inputs that the model itself scales; torchvision tells it so only where it
        # loads them.
        options["transform_input"] = True
    if task != "classification":
        options["weights_backbone"] = None
    if any(each.startswith("aux_classifier.") for each in state):
        options["aux_loss"] = True
    return options


class Scores(nn.Module):
    """A detector of a batch of images that returns the class scores of its boxes, before softmax and selection."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector
        parts = dict(detector.named_modules())
        scorer = next(parts[name] for name in _SCORERS if name in parts)
        scorer.register_forward_hook(self._keep)
        self._scores: list[Tensor] = []

    def _keep(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._scores.append(output[0] if isinstance(output, tuple) else output)

    def forward(self, x: Tensor) -> Tensor:
        """``[boxes, classes]`` for the first image's boxes, and so on."""
        self._scores.clear()
        self.detector(list(x))
        scores = self._scores.pop()
        return scores.flatten(0, -2)


def strongest_box(scores: Tensor) -> Tensor:
    """The largest score of any class but the background (0) over all boxes."""
    return scores[:, 1:].max().reshape(1)


def _task(name: str) -> str:
    """``"classification"``, ``"detection"``, ...: the package that the builder is in."""
    parts = models.get_model_builder(name).__module__.split(".")
    return parts[2] if len(parts) > 3 else "classification"
