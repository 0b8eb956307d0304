"""An explanation as it is shown: what is known of its model and pictures, brought together for figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from hilrp.attribution import charts
from hilrp.attribution.kinds import Kind
from hilrp.attribution.marking import DRAWN_AROUND, Marked, marked_part
from hilrp.attribution.montages import montage
from hilrp.attribution.panels import Panel, Words, classes_of, likelihood_of, names_of, panel
from hilrp.attribution.photographs import window_of
from hilrp.attribution.pictures import ends, figure_of, places
from hilrp.attribution.plotting import displayable, draw
from hilrp.attribution.sentences import sentence, titled
from hilrp.util.errors import InputError

if TYPE_CHECKING:
    from hilrp.attribution.explanation import Explanation

#: At most this many samples are drawn, unless they are named.
MOST = 24
#: The same for the figure of details, whose rows are wide.
_MOST_DETAILS = 10


@dataclass(frozen=True)
class Shown:
    """An explanation, and what its figures are made of; see `Explanation.plot` for the attributes.

    Attributes:
        explanation: The explanation.
        loaded: What `hilrp.load` returned, or the names of the classes.
        photos: The photographs of which the model saw parts, by sample.
        titles: What is explained, of each sample.
        outlines: What is drawn around, by sample.
        pictures: What the model saw.
        marks: Whether what is marked is drawn around where no outlines are given.
        height: How many pixels high a picture is at least.
        features: The names of a table's features, or of tokens.
    """

    explanation: Explanation
    loaded: Any = None
    photos: Sequence[Any] | Mapping[int, Any] | None = None
    titles: Sequence[str] | None = None
    outlines: Any = None
    pictures: Tensor | None = None
    marks: bool = True
    height: int = 512
    features: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.photos is not None and self.kind is not Kind.PICTURE:
            raise InputError(f"photos: what was explained is no picture (kind={str(self.kind)!r}). Leave them out.")
        if self.photos is not None and (self.loaded is None or isinstance(self.loaded, Sequence)):
            raise InputError("photo: which part of it the model saw is known of a loaded model. Give loaded=, too.")
        if isinstance(self.photos, Sequence) and len(self.photos) != len(self.explanation):
            raise InputError(
                f"photos has {len(self.photos)} pictures, the explanation {len(self.explanation)} samples."
            )

    @cached_property
    def names(self) -> list[str] | None:
        """The names of the classes."""
        return names_of(self.loaded)

    @cached_property
    def kind(self) -> Kind:
        """What kind of thing is shown."""
        return self.explanation.main_of(self.explanation.relevance)[1]

    @cached_property
    def is_chart(self) -> bool:
        """Whether it is drawn as bars or a curve, and not as a picture."""
        relevance, kind = self.explanation.main_of(self.explanation.relevance)
        return charts.is_chart(kind, kind.axes(tuple(relevance.shape)))

    @cached_property
    def _marked(self) -> Marked:
        return self.explanation.marked()

    @cached_property
    def _seen(self) -> np.ndarray:
        """What the model saw of all samples, ``[B,H,W,3]``."""
        x = self.explanation.image_of(self.explanation.input).detach().float()
        known = self.pictures
        if known is None and self.loaded is not None and not isinstance(self.loaded, Sequence) and x.shape[1] == 3:
            known = self.loaded.picture(x)
        if known is None:
            return np.stack([displayable(each) for each in x.cpu().numpy()])
        seen: np.ndarray = known.permute(0, 2, 3, 1).float().cpu().numpy()
        return seen

    def _outline(self, sample: int) -> Tensor | None:
        if self.outlines is not None:
            return torch.as_tensor(self.outlines[sample]).float()
        return self._marked.mask[sample].float() if self.marks else None

    def title(self, sample: int) -> str | None:
        """What is explained of a sample."""
        return titled(*self._subject(sample))

    def _subject(self, sample: int) -> tuple[str | None, str | None]:
        """What is explained of a sample, and what it is contrasted with."""
        return classes_of(self.explanation, sample, self.names) if self.titles is None else (self.titles[sample], None)

    def words(self, sample: int) -> Words:
        """What is said of a sample."""
        found, (name, against), held = self.explanation, self._subject(sample), None
        where = marked_part(self.kind)
        if self.outlines is not None:
            shape = found.map.shape
            masks = torch.stack([torch.as_tensor(self.outlines[i]).float() for i in range(len(found))]).reshape(shape)
            held, where = found.region((masks > 0.5).float()), DRAWN_AROUND
        elif self.marks:
            held = self._marked.held
        said = sentence(found, sample, name, held, where, against)
        return Words(titled(name, against) or "the score", likelihood_of(found, sample, self.loaded), str(said))

    def panel(self, sample: int) -> Panel:
        """What is drawn of a sample."""
        if self.is_chart:
            raise InputError(f"What was explained is no picture (kind={str(self.kind)!r}): plot() draws a chart of it.")
        if self.kind is not Kind.PICTURE:
            return montage(self.explanation, sample, self._outline(sample), self.height)
        if self.photos is None:
            return panel(self.explanation, sample, self._seen[sample], self._outline(sample), None, self.height)
        photo = self.loaded.photo(self.photos[sample])
        window = window_of(self.loaded, photo)
        whole = np.asarray(photo.convert("RGB"), np.float32) / 255
        return panel(self.explanation, sample, whole, self._outline(sample), window, self.height)

    def figure(self, samples: Sequence[int] | None, drawing: Figure | None = None) -> Figure:
        """Each sample large, with its words."""
        chosen, note = self._chosen(samples, MOST)
        if self.is_chart:
            said = [self.words(i) for i in chosen]
            regions = [self._outline(i) for i in chosen]
            return charts.figure_of(self.explanation, chosen, said, self.features, regions, note, drawing)
        return figure_of([self.panel(i) for i in chosen], [self.words(i) for i in chosen], note, drawing)

    @cached_property
    def _whole(self) -> Figure:
        return self.figure(None)

    def drawn(self) -> list[dict[str, Any]]:
        """Where each sample is in the figure that is written, and what stands beside it, for pages."""
        found = []
        for i, place in enumerate(places(self._whole)):
            words, panel = self.words(i), self.panel(i)
            low, high = ends(panel.limit, panel.place)
            about = {"title": words.title, "likelihood": words.likelihood, "pale": bool(panel.unseen.any())}
            found.append({"place": place, "low": low, "high": high} | about)
        return found

    def details(self, samples: Sequence[int] | None, all_stages: bool = False) -> Figure:
        """Input, signed map, stage maps and the ledger, a row for each sample."""
        chosen, note = self._chosen(samples, _MOST_DETAILS)
        titles = [self.title(i) or "the score" for i in range(len(self.explanation))]
        if self.kind is not Kind.PICTURE:
            return charts.details(self.explanation, Figure(), chosen, titles, self.features, note)
        outlines = None if self.outlines is None else [np.asarray(torch.as_tensor(o).cpu()) for o in self.outlines]
        return draw(self.explanation, Figure(), chosen, self._seen, titles, outlines, all_stages, note)

    def encoded(self, kind: str, all_stages: bool = False) -> bytes:
        """A figure as ``png``, ``svg`` or ``pdf``; that of details with ``details.`` before it."""
        form = kind.removeprefix("details.")
        figure = self._whole if form == kind else self.details(None, all_stages)
        buffer = BytesIO()
        # Letters stay letters, so that the figure can be edited and its text be found.
        with rc_context({"svg.fonttype": "none", "pdf.fonttype": 42}):
            figure.savefig(buffer, format=form)
        return buffer.getvalue()

    def _chosen(self, samples: Sequence[int] | None, most: int) -> tuple[list[int], str]:
        """Which samples are drawn, and what is said of the others."""
        total = len(self.explanation)
        if samples is not None:
            if not len(samples) or not all(-total <= i < total for i in samples):
                raise InputError(f"samples={list(samples)}: give at least one of the {total} samples, from 0 on.")
            return list(samples), ""
        if total <= most:
            return list(range(total)), ""
        return list(range(most)), f"Samples 0 to {most - 1} of {total}; the others are drawn with samples=[...]."
