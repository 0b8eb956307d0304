"""The result of an explanation: it knows how to show, save and check itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hilrp.attribution.error_bars import RegionSum, region_sum, standard_error
from hilrp.attribution.verdicts import Verdict, verdict
from hilrp.method.ledger import Ledger
from hilrp.method.rules import Rules
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import InputError
from hilrp.util.nested import concatenated, jsonable, map_tensors, tensors

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Explanation:
    """A decomposition of a score.

    Attributes:
        relevance: Relevance of each input value, in the form of the input (a mapping or tuple if the model has
            several inputs).
        input: What was explained, in the same form.
        score: The explained scalar of each sample, ``[B]``.
        target: The explained class of each sample, ``[B]``, where the target is a class.
        against: The classes that they are contrasted with, ``[B]``, where the target is a contrast.
        output: The model's own output.
        stages: Name -> relevance map of that stage, ``[B,h,w]``; of a stage with several streams, the others are
            ``name[1]``, ...
        trace: Name -> sum of relevance at that stage (or stream) / score, ``[B]``, from the input to the last stage.
        ledger: Where every unit of relevance went.
        rules: The rules that were used.
        tolerance: How far books may be from closing, by the precision of the pass.
        notes: What the engine found worth saying, with counts (for instance even splits).
        reference: What relevance is relative to, in the form of the input, where there is such a thing; of several,
            their mean.
        unchecked: What could make the map wrong and was not ruled out; where that is nothing, a map can be *valid*.
        passes: How many passes the map is the result of: see `hilrp.Chains`.
        pairs: The relevance from each pair of chains, in the form of the input, ``[B,pairs,...]`` with the channels of
            images summed; ``None`` with fewer than two pairs.
    """

    relevance: Any
    input: Any
    score: Tensor
    target: Tensor | None
    against: Tensor | None
    output: Any
    stages: dict[str, Tensor]
    trace: dict[str, Tensor]
    ledger: Ledger
    rules: Rules
    tolerance: float
    notes: dict[str, int] = field(default_factory=dict)
    reference: Any = None
    unchecked: tuple[str, ...] = ()
    passes: int = 1
    pairs: Any = None

    @property
    def map(self) -> Tensor:
        """The relevance of each pixel, ``[B,H,W]``: channels summed."""
        return self.image_of(self.relevance).sum(1)

    @property
    def stderr(self) -> Tensor | None:
        """The standard error of `map`, by the spread of the pairs of chains; ``None`` with fewer than two pairs."""
        pairs = self._pairs_of_image
        return None if pairs is None else standard_error(pairs)

    def region(self, mask: Any) -> RegionSum:
        """What a region holds of the difference that is explained, and how sure that is.

        Args:
            mask: Which pixels belong to it, ``[H,W]`` or one for each sample, ``[B,H,W]``: true and false, or the part
                of each pixel from 0 to 1.

        Example:
            >>> import torch, hilrp
            >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).eval()
            >>> found = hilrp.explain(model, torch.randn(1, 3, 2, 2), rules="secant").region(torch.ones(2, 2))
            >>> found.text(), found.stderr
            ('100 %', None)
        """
        return region_sum(self.map, self._pairs_of_image, mask, self.ledger.explained)

    @property
    def _pairs_of_image(self) -> Tensor | None:
        """The pairs of the input that `map` is of, ``[B,pairs,H,W]``: those of tokens have four axes, too."""
        if self.pairs is None:
            return None
        image = self.image_of(self.relevance)
        both = zip(tensors(self.relevance), tensors(self.pairs), strict=True)
        return next(pairs for relevance, pairs in both if relevance is image)

    @staticmethod
    def image_of(tree: Any) -> Tensor:
        """The images ``[B,C,H,W]`` in something of the form of the input."""
        image = next((t for t in tensors(tree) if t.ndim == 4), None)
        if image is None:
            raise InputError("This explanation has no image input [B,C,H,W], hence no map; use .relevance.")
        return image

    @property
    def verdicts(self) -> list[Verdict]:
        """What the books and the checks say of each sample's map, in a word: see `Verdict`."""
        # Relative to a reference it is the difference of the scores that is on the pixels, or isn't.
        explained = self.ledger.explained
        share = torch.where(explained == self.ledger.pixels, 1, self.ledger.pixels / explained)
        figures = zip(share.tolist(), self.ledger.residual.tolist(), self.ledger.contrast.tolist(), strict=True)
        checked = not self.unchecked
        return [verdict(part, residual, self.tolerance, contrast, checked) for part, residual, contrast in figures]

    def __len__(self) -> int:
        return self.score.shape[0]

    def __getitem__(self, samples: int | slice) -> Explanation:
        """Some of the samples, as an explanation of their own."""
        if isinstance(samples, int):
            if not -len(self) <= samples < len(self):
                raise IndexError(f"sample {samples} of {len(self)}")
            samples = slice(samples, samples + 1 or None)
        count, chosen = len(self), samples

        def pick(t: Tensor) -> Tensor:
            return t[chosen] if t.ndim and t.shape[0] == count else t

        parts = ("relevance", "input", "score", "target", "against", "output", "stages", "trace", "ledger", "reference")
        return replace(self, **{name: map_tensors(pick, getattr(self, name)) for name in (*parts, "pairs")})

    def __repr__(self) -> str:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors(self.relevance))
        share, residual = float(self.ledger.share.median()), float(self.ledger.residual.max())
        holders = " and ".join(self.ledger.arrived)
        return (
            f"Explanation({len(self)} samples, relevance {shapes}, share of {holders} {share:.3f}, "
            f"largest residual {residual:.1e})"
        )

    def facts(self) -> dict[str, Any]:
        """The figures of the explanation as plain numbers, per sample, for JSON."""
        plain: dict[str, Any] = jsonable(self._facts())
        return plain

    def _facts(self) -> dict[str, Any]:
        return {
            "score": self.score.tolist(),
            "target": None if self.target is None else self.target.tolist(),
            "against": None if self.against is None else self.against.tolist(),
            "pixels": self.ledger.pixels.tolist(),
            "inputs": {name: value.tolist() for name, value in self.ledger.arrived.items()},
            "pixel_share": self.ledger.share.tolist(),
            "entries": {name: value.tolist() for name, value in self.ledger.entries.items()},
            "residual": self.ledger.residual.tolist(),
            "leak": self.ledger.leak.tolist(),
            "verdict": [str(each) for each in self.verdicts],
            "trace": {name: value.tolist() for name, value in self.trace.items()},
            "notes": self.notes,
            "unchecked": list(self.unchecked),
            "passes": self.passes,
            "rules": {name: getattr(self.rules, name) for name in self.rules.__dataclass_fields__},
        }

    def plot(
        self,
        classes: list[str] | None = None,
        samples: Sequence[int] | None = None,
        pictures: Tensor | None = None,
        all_stages: bool = False,
        titles: Sequence[str] | None = None,
        outlines: Tensor | None = None,
    ) -> Figure:
        """A figure: input, overlay, signed map, stage maps and the books with their verdict, one row per sample.

        Args:
            classes: Names of the classes, for the titles.
            samples: Which samples to draw; by default the first ten.
            pictures: What the model saw, ``[B,3,H,W]`` from 0 to 1; by default the input, stretched to its range.
            all_stages: Draw the maps of all stages, and not only of four.
            titles: What is explained, in words, of each sample; by default the name of its class.
            outlines: What is drawn around, ``[B,H,W]``: a region, the box of a detection.
        """
        from matplotlib.figure import Figure

        from hilrp.attribution.plotting import draw

        return draw(self, Figure(), classes, samples, pictures, all_stages, titles, outlines)

    def show(self, classes: list[str] | None = None, samples: Sequence[int] | None = None) -> None:
        """Shows `plot` in a window or notebook."""
        import matplotlib.pyplot as plt

        from hilrp.attribution.plotting import draw

        draw(self, plt.figure(), classes, samples)
        plt.show()

    def save(
        self,
        path: str | Path,
        classes: list[str] | None = None,
        pictures: Tensor | None = None,
        all_stages: bool = False,
        facts: Mapping[str, Any] | None = None,
        titles: Sequence[str] | None = None,
        outlines: Tensor | None = None,
    ) -> list[Path]:
        """Writes ``path.npz`` (arrays), of images ``path.png`` (`plot`), last ``path.json`` (figures, your ``facts``).

        With several inputs the arrays are named by them (``relevance/0`` or ``relevance/pixel_values``). Each file
        appears whole or not at all. Returns their paths.
        """
        base = Path(path)
        base = base.with_suffix("") if base.suffix in (".npz", ".json", ".png") else base
        if not base.name:
            raise InputError(f"save({str(path)!r}): give a file name; .npz, .json and .png are added to it.")
        kinds = ["npz", *(["png"] if self._has_map else []), "json"]
        # Made before anything is written: names that don't fit are noticed here.
        made = {k: self.encode(k, classes, pictures, all_stages, facts, titles, outlines) for k in kinds}
        written = [base.with_name(f"{base.name}.{kind}") for kind in kinds]
        for file, content in zip(written, made.values(), strict=True):
            write_whole(file, content)
        return written

    def encode(
        self,
        kind: str,
        classes: list[str] | None = None,
        pictures: Tensor | None = None,
        all_stages: bool = False,
        facts: Mapping[str, Any] | None = None,
        titles: Sequence[str] | None = None,
        outlines: Tensor | None = None,
    ) -> bytes:
        """What `save` writes, as bytes: ``npz`` or ``json``; or the figure as ``png``, ``svg`` or ``pdf``.

        Example:
            >>> import torch, hilrp
            >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).eval()
            >>> hilrp.explain(model, torch.randn(1, 3, 2, 2)).encode("pdf")[:4]
            b'%PDF'
        """
        import numpy as np

        buffer = BytesIO()
        if kind == "npz":
            np.savez_compressed(buffer, **{name: _array(value) for name, value in self._arrays().items()})
        elif kind == "json":
            buffer.write(json.dumps(dict(facts or {}) | self.facts(), indent=1).encode())
        elif kind in ("png", "svg", "pdf"):
            from matplotlib import rc_context

            figure = self.plot(classes, None, pictures, all_stages, titles, outlines)
            # Letters stay letters, so that the figure can be edited and its text be found.
            with rc_context({"svg.fonttype": "none", "pdf.fonttype": 42}):
                figure.savefig(buffer, format=kind)
        else:
            raise InputError(f"encode({kind!r}): choose from npz, json, png, svg, pdf.")
        return buffer.getvalue()

    @property
    def _has_map(self) -> bool:
        return any(t.ndim == 4 for t in tensors(self.relevance))

    def _arrays(self) -> dict[str, Tensor]:
        arrays = {f"stage/{name}": value for name, value in self.stages.items()} | {"score": self.score}
        for kind, tree in (("relevance", self.relevance), ("input", self.input)):
            if isinstance(tree, Tensor):
                arrays[kind] = tree
            else:
                parts = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
                arrays |= {f"{kind}/{name}": value for name, value in parts if isinstance(value, Tensor)}
        if self._has_map:
            arrays["map"] = self.map
            arrays |= {} if self.stderr is None else {"stderr": self.stderr}
        return arrays | ({} if self.target is None else {"target": self.target})


def _array(value: Tensor) -> Any:
    return value.detach().cpu().to(torch.float32 if value.dtype == torch.bfloat16 else value.dtype).numpy()


def mean_of(explanations: Sequence[Explanation]) -> Explanation:
    """The mean of explanations of the same inputs, relative to several references."""
    return weighted(explanations, [1 / len(explanations)] * len(explanations))


def weighted(explanations: Sequence[Explanation], weights: Sequence[float]) -> Explanation:
    """The weighted sum of explanations of the same inputs; what can't be added up is the first's."""
    first = explanations[0]

    def total(parts: Sequence[Tensor]) -> Tensor:
        if not parts[0].is_floating_point():
            return parts[0]
        exact = parts[0].dtype if parts[0].dtype == torch.float64 else torch.float32
        sums = sum(
            (w * t.to(exact) for w, t in zip(weights, parts, strict=True)), torch.zeros_like(parts[0], dtype=exact)
        )
        return sums.to(parts[0].dtype)

    def like_input(name: str) -> Any:
        trees = [getattr(each, name) for each in explanations]
        if trees[0] is None:
            return None
        sums = {id(own[0]): total(own) for own in zip(*map(tensors, trees), strict=True)}
        return map_tensors(lambda t: sums[id(t)], trees[0])

    def by_name(name: str) -> dict[str, Tensor]:
        parts: list[dict[str, Tensor]] = [getattr(each, name) for each in explanations]
        known = {key: t for part in parts for key, t in part.items()}
        # A stage that no relevance reaches in some of them has none there.
        return {key: total([part.get(key, torch.zeros_like(t)) for part in parts]) for key, t in known.items()}

    return replace(
        first,
        relevance=like_input("relevance"),
        reference=like_input("reference"),
        pairs=like_input("pairs"),
        stages=by_name("stages"),
        trace=by_name("trace"),
        ledger=Ledger.weighted([each.ledger for each in explanations], weights),
        tolerance=max(each.tolerance for each in explanations),
        notes={note: count for each in explanations for note, count in each.notes.items()},
        unchecked=_unchecked(explanations),
    )


def _unchecked(explanations: Sequence[Explanation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reason for each in explanations for reason in each.unchecked))


def joined(explanations: Sequence[Explanation], x: Any) -> Explanation:
    """The explanations of the parts of an input ``x``, in order, as one of the whole."""
    sizes = [len(each) for each in explanations]

    def every(name: str) -> list[Any]:
        return [getattr(each, name) for each in explanations]

    def cat(parts: list[Any]) -> Any:
        return None if parts[0] is None else torch.cat(parts)

    def like_input(trees: list[Any]) -> Any:
        # Which of its tensors are held fixed can be told of the whole input alone: a part may have their length.
        columns = zip(tensors(x), *map(tensors, trees), strict=True) if trees[0] is not None else ()
        whole = {id(first): torch.cat([first, *rest]) for t, first, *rest in columns if t.shape[:1] == (sum(sizes),)}
        return map_tensors(lambda t: whole.get(id(t), t), trees[0])

    def by_name(parts: list[dict[str, Tensor]]) -> Any:
        known = {name: value for part in parts for name, value in part.items()}
        # A stage that no relevance reaches in some part has none there.
        none = [{name: t.new_zeros(size, *t.shape[1:]) for name, t in known.items()} for size in sizes]
        filled = [zeros | part for zeros, part in zip(none, parts, strict=True)]
        return {name: torch.cat([part[name] for part in filled]) for name in known}

    return replace(
        explanations[0],
        **{name: like_input(every(name)) for name in ("relevance", "reference", "pairs")},
        **{name: cat(every(name)) for name in ("score", "target", "against")},
        **{name: by_name(every(name)) for name in ("stages", "trace")},
        input=map_tensors(Tensor.detach, x),
        output=concatenated(every("output"), sizes),
        ledger=Ledger.joined(every("ledger")),
        tolerance=max(every("tolerance")),
        notes=dict(sum(map(Counter, every("notes")), Counter())),
        unchecked=_unchecked(explanations),
    )
