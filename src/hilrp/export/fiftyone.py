"""FiftyOne: maps as heatmaps of samples, in the coordinates of their pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hilrp.attribution.explanation import Explanation
from hilrp.export.records import checked_receiver, chosen_samples, figures
from hilrp.util.errors import InputError
from hilrp.util.peers import imported


def to_fiftyone(samples: Any, explanation: Explanation, field: str = "relevance", loaded: Any = None) -> None:
    """Sets a field of samples to a ``Heatmap`` of their relevance, from ``-m`` to ``m``, the largest of the map.

    It also has the sentence, the verdict and the figures. A sample that belongs to a data set is saved.

    FiftyOne stretches a heatmap over the whole picture. With ``loaded``, the map is put where the model looked, at the
    model's resolution, and places that it did not see hold zero. Without it, the model must have seen the whole
    picture.

    Args:
        samples: A sample; or several, a data set or a view, as many and in the same order as were explained.
        explanation: What `hilrp.explain` returned.
        field: The name of the field.
        loaded: What `hilrp.load` returned; or the names of the classes, for the sentence.

    Example:
        >>> import torch, hilrp
        >>> import fiftyone as fo
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
        >>> sample = fo.Sample(filepath="photo.jpg")
        >>> to_fiftyone(sample, hilrp.explain(model, torch.randn(1, 3, 2, 2)))
        >>> sample["relevance"].map.shape, sample["relevance"].verdict
        ((2, 2), 'valid')
    """
    count = len(chosen_samples(explanation))
    if not isinstance(field, str) or not field.isidentifier():
        raise InputError(f'field={field!r}: give the name of a field, field="relevance".')
    heatmap = imported("fiftyone", "fiftyone").Heatmap
    remedy = "a fiftyone.Sample, or several"
    chosen = [samples] if hasattr(samples, "filepath") or not hasattr(samples, "__iter__") else list(samples)
    for each in chosen:
        checked_receiver("samples" if each is samples else "one of samples", each, ("__setitem__",), remedy)
    if len(chosen) != count:
        raise InputError(f"samples has {len(chosen)}, the explanation {count}: give as many, in the same order.")
    # Made before anything is set: a picture that can't be read is noticed here.
    maps = [_placed(explanation.map[i].detach().float().cpu(), chosen[i].filepath, loaded) for i in range(count)]
    for i, (sample, values) in enumerate(zip(chosen, maps, strict=True)):
        most = float(values.abs().max()) or 1.0
        about = {"sentence": explanation.sentence(i, loaded), "verdict": str(explanation.verdicts[i])}
        sample[field] = heatmap(map=values.numpy(), range=[-most, most], **about, **figures(explanation, i))
        if getattr(sample, "in_dataset", False):
            sample.save()


def _placed(values: Tensor, path: str, loaded: Any) -> Tensor:
    """A map ``[h,w]`` of the model's input as one of the whole picture, about as fine."""
    if loaded is None or isinstance(loaded, Sequence):
        return values
    photo = loaded.photo(path)
    window = loaded.window(photo)
    if window is None:
        raise InputError(
            f"loaded: which part of {path} the model saw can't be told, since its preprocessing does more than scale, "
            "crop and pad. Leave it out if the model saw the whole picture."
        )
    if window.seen != (values.shape[1], values.shape[0]):
        raise InputError(
            f"loaded: its preprocessing makes {window.seen[0]} x {window.seen[1]} pixels of {path}, and what was "
            f"explained has {values.shape[1]} x {values.shape[0]}. Explain loaded.batch([...]) of the same pictures."
        )
    if window.is_whole:
        return values
    fineness = max(window.seen[0] / (window.right - window.left), window.seen[1] / (window.bottom - window.top))
    placed: Tensor = window.scaled(fineness).restore(values.double())
    return placed.to(torch.float32)
