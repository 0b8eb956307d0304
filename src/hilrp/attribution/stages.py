"""Stages: where in a model the stage maps and the conservation trace are read.

timm models say so themselves (``feature_info``). For others the containers of their blocks are found. Before them
comes the patch embedding, or the stem: the paper's algorithm begins its trace there (line 8).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from hilrp.util.errors import InputError
from hilrp.util.nested import tensors

#: Containers with less than this share of the parameters are stems.
_LARGE = 0.01
#: What the towers for pictures are called: open_clip's and the zoo's, transformers'.
_TOWERS = ("visual", "vision_model")
#: After the path of a module whose relevance is kept: that of what it is given, by position.
OF_INPUT = ":input"
#: What makes the first features of a picture is called: timm's names, those of transformers, torchvision's.
_EMBEDDINGS = {"patch_embed", "patch_embed1", "patch_embeds", "patch_embeddings", "patch_embedding", "conv_proj"}
_EMBEDDINGS |= {"stem", "conv_stem"}


def find_stages(model: nn.Module, stages: str | Sequence[str] | None) -> list[str]:
    """Paths of the stage modules: found automatically, as named by the user, or none."""
    if stages is None:
        return []
    modules = dict(model.named_modules())
    if isinstance(stages, str):
        if stages != "auto":
            raise InputError(f'stages={stages!r}: use "auto", a list of module paths, or None.')
        return _automatic(model, modules)
    if not isinstance(stages, Sequence):
        raise InputError(f'stages={stages!r}: use "auto", a list of module paths, or None.')
    unknown = [name for name in stages if name not in modules]
    if unknown:
        raise InputError(
            f"stages: the model has no module named {', '.join(map(repr, unknown))}. model.named_modules() lists the "
            f"names; hilrp would choose {_automatic(model, modules)}."
        )
    return list(stages)


def find_kept(model: nn.Module, keep: Sequence[str], recomputed: frozenset[int] = frozenset()) -> list[str]:
    """The paths of modules whose relevance is to be kept whole: at their outputs, or with `OF_INPUT` at their inputs.

    Modules that run again in the backward pass, which are given by identity, and what is in them have several runs that
    can't be told apart by their order.

    Example:
        >>> find_kept(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), ["0", "1:input"])
        ['0', '1:input']
    """
    if isinstance(keep, str) or not isinstance(keep, Sequence):
        raise InputError(f'keep={keep!r}: give a list of module paths, ["layer4"], or ["layer4:input"] for its input.')
    modules = dict(model.named_modules())
    unknown = [name for name in keep if not isinstance(name, str) or name.removesuffix(OF_INPUT) not in modules]
    if unknown:
        raise InputError(
            f"keep: the model has no module named {', '.join(map(repr, unknown))}. model.named_modules() lists the "
            'names; "name:input" is for what a module is given.'
        )
    again = [path for path, module in modules.items() if id(module) in recomputed]
    for name in keep:
        if any(f"{name.removesuffix(OF_INPUT)}.".startswith(f"{path}.") for path in again):
            raise InputError(
                f"keep: {name!r} runs again in the backward pass. Name other modules, here or in recompute=."
            )
    return list(keep)


def _automatic(model: nn.Module, modules: dict[str, nn.Module]) -> list[str]:
    """What the model says of itself; of a model of pictures and words, the stages of the picture's tower."""
    tower = next((name for name in modules if name.rpartition(".")[2] in _TOWERS), None)
    if tower is None:
        found = _from_feature_info(model, modules) or _from_structure(model)
        return [*_embeddings(modules, found), *found]
    return [f"{tower}.{name}" for name in find_stages(modules[tower], "auto")]


def _embeddings(modules: dict[str, nn.Module], stages: list[str]) -> list[str]:
    """The patch embedding or the stem of a model, unless a stage is in it; of several branches, that of each.

    A list of embeddings (PVT's, one before each stage) begins with the one that takes the picture.
    """
    for name, module in modules.items():
        if name.rpartition(".")[2] not in _EMBEDDINGS and not (name == "conv1" and _makes_patches(module)):
            continue
        if any(f"{stage}.".startswith(f"{name}.") or f"{name}.".startswith(f"{stage}.") for stage in stages):
            return []
        return [part for part in _that_run(name, module) if _channels(modules[part]) == _channels(module)]
    return []


def _channels(module: nn.Module) -> int | None:
    """How many channels the first convolution in a module takes."""
    return next((m.in_channels for m in module.modules() if isinstance(m, nn.Conv2d)), None)


def _makes_patches(module: nn.Module) -> bool:
    """Whether it is a convolution over patches that don't overlap: open_clip's embedding is called as ResNet's stem."""
    return isinstance(module, nn.Conv2d) and module.stride == module.kernel_size and module.stride[0] > 1


def _from_feature_info(model: nn.Module, modules: dict[str, nn.Module]) -> list[str]:
    info = getattr(model, "feature_info", None)
    entries = getattr(info, "info", info)
    if not isinstance(entries, (list, tuple)):
        return []
    names = [entry.get("module") for entry in entries if isinstance(entry, dict)]
    return [name for name in dict.fromkeys(names) if name in modules and name]


def _from_structure(model: nn.Module) -> list[str]:
    """The blocks of a model that says nothing about itself.

    Several large containers side by side are its stages (``layer1`` to ``layer4``); the children of a single one are;
    where there is none, its largest child is looked into.
    """
    path, node = "", model
    while True:
        children = dict(node.named_children())
        sizes = {name: sum(p.numel() for p in child.parameters()) for name, child in children.items()}
        total = sum(sizes.values())
        large = {name: size for name, size in sizes.items() if total and size >= _LARGE * total}
        containers = [name for name in large if _is_container(children[name])]
        largest = max(sizes, key=lambda name: sizes[name], default=None)
        if len(containers) > 1:
            names = [each for name in containers for each in _that_run(name, children[name])]
        elif containers:
            path, node = f"{path}.{containers[0]}", children[containers[0]]
            names = [name for name, child in node.named_children() if any(True for _ in child.parameters())]
        elif (
            largest is not None
            and sizes[largest] >= 0.5 * total
            and any(True for _ in children[largest].children())
            and not isinstance(children[largest], torch.jit.ScriptModule)  # what is in it runs unseen
        ):
            path, node = f"{path}.{largest}", children[largest]
            continue
        else:
            names = [name for name, size in sizes.items() if size]
        return [f"{path}.{name}".lstrip(".") for name in names]


def _that_run(name: str, container: nn.Module) -> list[str]:
    """A container, or what is in it where it only holds them (two branches side by side): a list is never called."""
    if not isinstance(container, nn.ModuleList):
        return [name]
    return [f"{name}.{child}" for child, _ in container.named_children()]


def _is_container(module: nn.Module) -> bool:
    if not isinstance(module, (nn.ModuleList, nn.Sequential)):
        return False
    # A classifier has no feature maps.
    if any(isinstance(m, nn.Flatten) for m in module.modules()):
        return False
    return any(not isinstance(m, nn.Linear) for m in module.modules() if any(True for _ in m.parameters(recurse=False)))


def first_map(output: object) -> Tensor | None:
    """The feature map or token sequence in a module's output, if there is one."""
    return next(iter(streams(output)), None)


def streams(output: object) -> list[Tensor]:
    """The feature map or token sequence in a module's output.

    Of one that returns token sequences and nothing else, all of them.

    Feature maps beside another are mostly one stream: what a stage was given, or made on its way.
    """
    found = list({id(t): t for t in tensors(output) if t.requires_grad and t.ndim in (3, 4)}.values())
    sequences = all(t.ndim == 3 for t in tensors(output))
    return found if sequences else found[:1]


def stream_name(path: str, index: int) -> str:
    """What the map of a module's stream is called: the first as the module, others with their number.

    Example:
        >>> stream_name("blocks.0", 0), stream_name("blocks.0", 1)
        ('blocks.0', 'blocks.0[1]')
    """
    return f"{path}[{index}]" if index else path


def of_stage(path: str, names: Iterable[str]) -> list[str]:
    """Those names that are streams of a module, in order.

    Example:
        >>> of_stage("blocks.1", ["blocks.1[1]", "blocks.10", "blocks.1"])
        ['blocks.1', 'blocks.1[1]']
    """
    return sorted((name for name in names if name.partition("[")[0] == path), key=lambda name: (len(name), name))


def channels_last(shape: Sequence[int], image: Sequence[int]) -> bool | None:
    """Whether features ``[B,a,b,c]`` are ``[B,h,w,C]``, by the image's proportions.

    ``None`` if they may as well be ``[B,C,h,w]``.

    Example:
        >>> channels_last((1, 7, 7, 96), (224, 224)), channels_last((1, 32, 32, 32), (128, 128))
        (True, None)
    """
    ratio = image[0] / image[1]
    last, first = (abs(math.log(h / w / ratio)) for h, w in (shape[1:3], shape[2:4]))
    return None if abs(last - first) < 1e-6 else last < first


def to_map(relevance: Tensor, image: Sequence[int], last: bool | None = None) -> Tensor | None:
    """Relevance of features as a map ``[B,h,w]``: `to_features` with the channels summed."""
    features = to_features(relevance, image, last)
    return None if features is None else features.sum(1)


def to_features(features: Tensor, image: Sequence[int], last: bool | None = None) -> Tensor | None:
    """Features ``[B,C,h,w]``, ``[B,h,w,C]`` or tokens ``[B,N,C]`` as ``[B,C,h,w]``.

    ``image`` is the height and width of the input. Tokens before the grid (class, distillation, register
    tokens) aren't part of it. ``None`` if there is no grid of the image's proportions. ``last`` tells where the
    channels are in features whose shape doesn't.
    """
    ratio = image[0] / image[1]
    if features.ndim == 4:
        own = channels_last(features.shape, image)
        return features.permute(0, 3, 1, 2) if (last if own is None else own) else features
    for prefix in range(min(17, features.shape[1])):
        count = features.shape[1] - prefix
        height = round(math.sqrt(count * ratio))
        if count <= prefix or not height or count % height or abs(height / (count // height) / ratio - 1) >= 0.15:
            continue
        if all(_is_grid(side, whole) for side, whole in ((height, image[0]), (count // height, image[1]))):
            return features[:, prefix:].mT.unflatten(2, (height, count // height))
    return None


def _is_grid(side: int, whole: int) -> bool:
    """Whether patches, perhaps merged by twos, can be so many along a side of the image.

    Twelve queries are no grid of three by three.
    """
    halved = {step(whole / 2**k) for k in range(1, 9) for step in (math.floor, math.ceil)}
    patches = {step(whole / size) for size in (7, 12, 14, 24, 28) for step in (math.floor, math.ceil)}
    return whole % side == 0 or side in halved | patches
