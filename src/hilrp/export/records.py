"""What every destination is sent of an explanation: of each sample a picture, a sentence, a verdict and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from hilrp.attribution.explanation import Explanation
from hilrp.method.ledger import REFERENCE
from hilrp.util.errors import InputError
from hilrp.util.nested import tensors

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

#: What is told to install where a package of the extra is missing.
EXTRA = "'hilrp[export]'"


@dataclass(frozen=True)
class Record:
    """What is sent of one sample.

    Attributes:
        name: The tag and the sample's number: ``hilrp/0``.
        figures: Score, reference score, difference, the pixels' share and residual, as the ledger has them.
        sentence: What is explained, in plain words.
        verdict: What the ledger and the checks say of the map, in a word.
        overlay: Relevance on the picture, ``[H,W,3]`` in bytes; ``None`` where there is no picture.
    """

    name: str
    figures: dict[str, float]
    sentence: str
    verdict: str
    overlay: np.ndarray | None

    @property
    def named(self) -> dict[str, float]:
        """The figures under their whole names: ``hilrp/0/score``."""
        return {f"{self.name}/{name}": value for name, value in self.figures.items()}

    @property
    def caption(self) -> str:
        """Sentence and verdict."""
        return f"{self.sentence} ({self.verdict})"

    @property
    def picture(self) -> Image.Image | None:
        """The overlay as a PIL image."""
        from PIL import Image

        return None if self.overlay is None else Image.fromarray(self.overlay)


def records(
    explanation: Explanation,
    tag: str = "hilrp",
    loaded: Any = None,
    samples: Sequence[int] | None = None,
    pictures: bool = True,
) -> list[Record]:
    """What is sent of each sample. All of it is made before any of it is sent.

    Args:
        explanation: What `hilrp.explain` returned.
        tag: What all names begin with.
        loaded: What `hilrp.load` returned, or the names of the classes.
        samples: Which samples; by default all.
        pictures: Draw them.

    Example:
        >>> import torch, hilrp
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
        >>> (record,) = records(hilrp.explain(model, torch.randn(3, 3, 2, 2)), samples=[2])
        >>> record.name, record.overlay.shape, *record.figures
        ('hilrp/2', (512, 512, 3), 'score', 'reference_score', 'difference', 'pixel_share', 'residual')
    """
    from hilrp.attribution.pictures import composed
    from hilrp.attribution.shown import Shown

    chosen = chosen_samples(explanation, samples)
    if not isinstance(tag, str) or not tag.strip("/ "):
        raise InputError(f'tag={tag!r}: give what all names are to begin with, tag="hilrp".')
    shown = Shown(explanation, loaded)
    has_map = any(t.ndim == 4 for t in tensors(explanation.relevance))
    return [
        Record(
            name=f"{tag.rstrip('/')}/{i}",
            figures=figures(explanation, i),
            sentence=shown.words(i).sentence if has_map else explanation.sentence(i, loaded),
            verdict=str(explanation.verdicts[i]),
            overlay=composed(shown.panel(i)) if has_map and pictures else None,
        )
        for i in chosen
    ]


def figures(explanation: Explanation, sample: int) -> dict[str, float]:
    """The figures of a sample, named as `Explanation.facts` names them."""
    ledger = explanation.ledger
    found = {"score": explanation.score}
    if REFERENCE in ledger.entries:
        found |= {"reference_score": ledger.entries[REFERENCE], "difference": ledger.explained}
    found |= {"pixel_share": ledger.share, "residual": ledger.residual}
    return {name: float(values[sample]) for name, values in found.items()}


def chosen_samples(explanation: Any, samples: Sequence[int] | None = None) -> list[int]:
    """The numbers of the samples that are to be sent; by default of all."""
    if not isinstance(explanation, Explanation):
        raise InputError(f"explanation is a {type(explanation).__name__}: give what hilrp.explain returned.")
    return checked_samples(samples, len(explanation))


def checked_samples(samples: Sequence[int] | None, count: int) -> list[int]:
    """Which of so many samples are named; all, if none are."""
    chosen = list(range(count) if samples is None else samples)
    for each in chosen:
        if isinstance(each, bool) or not isinstance(each, Integral) or not 0 <= each < count:
            raise InputError(f"samples has {each!r}: what is explained has samples from 0 to {count - 1}.")
    return [int(each) for each in chosen]


def checked_step(step: Any) -> int | None:
    """A step of a training, a whole number; or none."""
    if step is not None and (isinstance(step, bool) or not isinstance(step, Integral)):
        raise InputError(f"step={step!r} is a {type(step).__name__}: give a whole number, step=trainer.global_step.")
    return None if step is None else int(step)


def checked_receiver(name: str, given: Any, methods: Sequence[str], remedy: str) -> None:
    """Whether something has the methods that are called; else an error that says what to give."""
    missing = [each for each in methods if not callable(getattr(given, each, None))]
    if missing:
        raise InputError(f"{name} is a {type(given).__name__}, which has no {missing[0]}(): give {remedy}.")
