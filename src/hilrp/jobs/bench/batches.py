"""How many pictures go through a model at once: what a processor's caches hold, and what keeps a GPU busy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from hilrp.targets import logits_of
from hilrp.util.memory import in_parts

#: From logits ``[n,classes]`` and classes ``[n]`` to what is read of each picture: a number, ``[n]``, or several,
#: ``[n,k]``.
Read = Callable[[Tensor, Tensor], Tensor]


def without_graph(device: torch.device) -> int:
    """Pictures at once where nothing is kept for a backward pass."""
    return 512 if device.type == "cuda" else 16


def with_graph(device: torch.device) -> int:
    """Pictures at once where everything is kept."""
    return 256 if device.type == "cuda" else 32


def logit(logits: Tensor, target: Tensor) -> Tensor:
    """The logits of the classes ``target``."""
    return logits.gather(1, target[:, None])[:, 0]


def one_class(logits: Tensor, target: Tensor) -> Tensor:
    """Of a model whose classes exclude each other: the class's probability, and whether it is the prediction.

    Example:
        >>> one_class(torch.tensor([[0.0, 0.0], [0.0, 99.0]]), torch.tensor([1, 1])).tolist()
        [[0.5, 0.0], [1.0, 1.0]]
    """
    return torch.stack([logit(logits.softmax(1), target), (logits.argmax(1) == target).to(logits)], 1)


def each_class(logits: Tensor, target: Tensor) -> Tensor:
    """Of a model that says of each class whether it is there: the class's probability, and whether it says so.

    Example:
        >>> each_class(torch.tensor([[9.0, 0.0], [5.0, 99.0]]), torch.tensor([1, 1])).tolist()
        [[0.5, 0.0], [1.0, 1.0]]
    """
    probability = logit(logits, target).sigmoid()
    return torch.stack([probability, (probability > 0.5).to(logits)], 1)


def scores(model: nn.Module, pictures: Tensor, target: Tensor, fast: bool = True, read: Read = logit) -> Tensor:
    """The logits of the classes ``target``, one for each picture, without a graph; or what else is read of them.

    Fast ones in `TensorFloat-32`, where a GPU has it.
    """

    def run(part: slice) -> Tensor:
        return read(logits_of(model(pictures[part])), target[part])

    # Not in inference mode: models that keep attention biases would keep ones that no later gradient may use.
    with torch.no_grad(), _fast() if fast else nullcontext():
        parts, _ = in_parts(run, len(pictures), without_graph(pictures.device))
    return torch.cat(parts)


def scores_of_changed(
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    each: int,
    change: Callable[[Tensor, Tensor], Tensor],
    read: Read = logit,
) -> Tensor:
    """The scores of so many changed pictures of each image, ``[B,each]``; ``[B,each,k]`` where several are read.

    Made where the images are, a full batch at a time.

    Args:
        model: The model.
        x: Images.
        target: Their classes.
        each: How many pictures are made of an image.
        change: From the numbers of images, ``[n]``, and of pictures of them, ``[n]``, to these pictures.
        read: What is read of a picture's logits.
    """
    if not each:
        return x.new_zeros(len(x), 0)
    found = []
    for part in torch.arange(len(x) * each, device=x.device).split(without_graph(x.device)):
        image = part // each
        found.append(scores(model, change(image, part % each), target[image], read=read))
    return torch.cat(found).unflatten(0, (len(x), each))


@contextmanager
def _fast() -> Iterator[None]:
    """Products in TensorFloat-32 where a GPU has it.

    What millions of changed pictures score needs no more digits than that.
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def gradients(model: nn.Module, pictures: Tensor, target: Tensor) -> Tensor:
    """The gradients of the logits of the classes ``target``, one for each picture."""
    leaf = pictures.detach().requires_grad_()
    with torch.enable_grad():
        score = logits_of(model(leaf)).gather(1, target[:, None]).sum()
        return torch.autograd.grad(score, leaf)[0]
