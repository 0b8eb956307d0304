"""The result of an explanation: it knows how to show, save and check itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hilrp.attribution.error_bars import RegionSum, region_sum, standard_error
from hilrp.attribution.kinds import Kind, main_input
from hilrp.attribution.marking import Marked, marked, marked_part
from hilrp.attribution.photographs import placed, restored, window_of
from hilrp.attribution.sentences import sentence
from hilrp.attribution.verdicts import Verdict, verdict
from hilrp.method.ledger import REFERENCE, Ledger
from hilrp.method.rules import Rules
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import InputError
from hilrp.util.nested import jsonable, map_tensors, tensors

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
        trace: Name -> the part of the score, or of its difference to the reference's, that a stage (or stream) holds,
            ``[B]``, from the input to the last stage.
        ledger: Where every unit of relevance went.
        rules: The rules that were used.
        tolerance: How far books may be from closing, by the precision of the pass.
        notes: What the engine found worth saying, with counts (for instance even splits).
        reference: What relevance is relative to, in the form of the input, where there is such a thing; of several,
            their mean.
        unchecked: What could make the map wrong and was not ruled out; where that is nothing, a map can be *valid*.
        passes: How many passes the map is the result of: see `hilrp.Chains`.
        pairs: The relevance from each pair of chains, in the form of the input, ``[B,pairs,...]``, of the input that
            `map` is of as such a map; ``None`` with fewer than two pairs.
        layers: Name -> relevance at a module that was named (``Explainer(keep=)``), in the form of its output; of
            one that returns several tensors, the others are ``name[1]``, ..., and of one that runs several times,
            later runs are ``name#2``, ...
        layer_rows: How many rows of each of these are a sample's, one after the other (windows: several); 0, where
            samples have no rows of their own.
        kind: What kind of thing the input is, for its map and figures: "picture", "volume", ...; see `hilrp.Kind`.
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
    layers: dict[str, Tensor] = field(default_factory=dict)
    layer_rows: dict[str, int] = field(default_factory=dict)
    kind: Kind | None = None

    @property
    def map(self) -> Tensor:
        """The relevance of each place, with the input's own axes.

        Of pictures that of each pixel, ``[B,H,W]``, with channels summed; of volumes ``[B,D,H,W]``, of videos
        ``[B,T,H,W]``, of sounds ``[B,F,T]`` or ``[B,T]``, of tables ``[B,F]``, of tokens ``[B,L]``. Of several inputs
        it is that of the picture.

        Example:
            >>> import torch, hilrp
            >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(24, 2)).eval()
            >>> hilrp.explain(model, torch.randn(1, 3, 2, 2, 2), kind="volume").map.shape
            torch.Size([1, 2, 2, 2])
        """
        relevance, kind = self.main_of(self.relevance)
        return kind.map_of(relevance)

    def main_of(self, tree: Any) -> tuple[Tensor, Kind]:
        """The input that `map` is of, in something of the form of the input, and its kind."""
        found = main_input(tree, self.kind, len(self))
        if found is None:
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors(tree)) or "none"
            raise InputError(f"No input has a map (the shapes are {shapes}); use .relevance.")
        return found

    @property
    def relative_to(self) -> str | None:
        """What the reference is called ("the picture's mean colour"), where there is one."""
        return self.ledger.relative_to

    def sentence(self, sample: int = 0, loaded: Any = None, region: Any = None) -> str:
        """How much is explained, how much of it comes from a region, and whether anything is missing, in plain words.

        How sure a share is (±) is known of a region that is given from 8 passes on, and of the marked one from 16 on:
        half of the chains choose it, and the others say what it holds.

        Args:
            sample: Of which sample.
            loaded: What `hilrp.load` returned, or the names of the classes.
            region: The region to speak of, as for `region`; by default the one that is `marked`.

        Example:
            >>> import torch, hilrp
            >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
            >>> with torch.no_grad():
            ...     _ = model[1].weight.fill_(1), model[1].bias.fill_(2)
            >>> found = hilrp.explain(model, torch.eye(2).expand(1, 3, 2, 2), 0, reference=0.0)
            >>> print(found.sentence(0, ["cat", "dog"]).partition(", ")[2])
            50 % comes from the marked region; nothing is missing.
        """
        from hilrp.attribution.panels import classes_of, names_of

        name, against = classes_of(self, sample, names_of(loaded))
        if region is None and not self._has_map:
            return str(sentence(self, sample, name, None, against=against))
        held = self.marked().held if region is None else self.region(region)
        where = marked_part(self.main_of(self.relevance)[1]) if region is None else "the region"
        return str(sentence(self, sample, name, held, where, against))

    def comparison(self, sample: int = 0) -> str:
        """How much higher the score is than on the reference: "6.000 higher than on zero"; without one, nothing."""
        if self.relative_to is None:
            return ""
        difference = float(self.ledger.explained[sample])
        return f"{abs(difference):.3f} {'lower' if difference < 0 else 'higher'} than on {self.relative_to}"

    @property
    def stderr(self) -> Tensor | None:
        """The standard error of `map`, by the spread of the pairs of chains; ``None`` with fewer than two pairs."""
        pairs = self.pair_maps
        return None if pairs is None else standard_error(pairs)

    def region(self, mask: Any) -> RegionSum:
        """What a region holds of the difference that is explained, and how sure that is.

        Args:
            mask: Which pixels (voxels, features) belong to it, in the form of a sample's map, or one for each sample:
                true and false, or the part of each from 0 to 1.

        Example:
            >>> import torch, hilrp
            >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).eval()
            >>> found = hilrp.explain(model, torch.randn(1, 3, 2, 2), rules="secant").region(torch.ones(2, 2))
            >>> found.text(), found.stderr
            ('100 %', None)
        """
        return region_sum(self.map, self.pair_maps, mask, self.ledger.explained)

    def marked(self) -> Marked:
        """The smallest region that holds half of the evidence, by the smoothed map, and what the map has there.

        With more than one pair of chains half of them choose the region, and the others say what it holds.

        Example:
            >>> import torch, hilrp
            >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
            >>> hilrp.explain(model, torch.randn(1, 3, 2, 2)).marked().mask.shape
            torch.Size([1, 2, 2])
        """
        return marked(self.map.detach(), self.pair_maps, self.ledger.explained)

    @property
    def pair_maps(self) -> Tensor | None:
        """The map from each pair of chains, ``[B,pairs,...]``: `map` is their mean; ``None`` with fewer than two."""
        if self.pairs is None:
            return None
        main, _ = self.main_of(self.relevance)
        both = zip(tensors(self.relevance), tensors(self.pairs), strict=True)
        return next(pairs for relevance, pairs in both if relevance is main)

    @staticmethod
    def image_of(tree: Any) -> Tensor:
        """The images ``[B,C,H,W]`` in something of the form of the input."""
        image = next((t for t in tensors(tree) if t.ndim == 4), None)
        if image is None:
            raise InputError("This explanation has no picture among its inputs ([B,C,H,W]); use .map or .relevance.")
        return image

    @property
    def verdicts(self) -> list[Verdict]:
        """What the books and the checks say of each sample's map, in a word: see `Verdict`."""
        # Relative to a reference it is the difference of the scores that is on the pixels, or isn't.
        share = torch.where(self.ledger.explained == self.ledger.pixels, 1, self.ledger.share)
        # What is missing of a score may be nothing beside the scores of other classes, and much of its own.
        checked = (self.ledger.own_residual <= self.tolerance) & (not self.unchecked)
        columns = share, self.ledger.residual, self.ledger.contrast, checked
        return [
            verdict(part, residual, self.tolerance, contrast, sure)
            for part, residual, contrast, sure in zip(*(column.tolist() for column in columns), strict=True)
        ]

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
        picked = {name: map_tensors(pick, getattr(self, name)) for name in (*parts, "pairs")}
        # What has no rows for each sample can't be cut.
        own = {name: t for name, t in self.layers.items() if self.layer_rows[name]}
        layers = {n: t.unflatten(0, (count, -1))[chosen].flatten(0, 1) for n, t in own.items()}
        return replace(self, **picked, layers=layers, layer_rows={name: self.layer_rows[name] for name in layers})

    def __repr__(self) -> str:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors(self.relevance))
        share, residual = float(self.ledger.share.median()), float(self.ledger.residual.max())
        holders = " and ".join(self.ledger.arrived)
        of_what = "" if self.relative_to is None else f" of the difference to {self.relative_to}"
        return (
            f"Explanation({len(self)} samples, relevance {shapes}, share of {holders} {share:.3f}{of_what}, "
            f"largest residual {residual:.1e})"
        )

    def facts(self) -> dict[str, Any]:
        """The figures of the explanation as plain numbers, per sample, for JSON."""
        plain: dict[str, Any] = jsonable(self._facts())
        return plain

    def _facts(self) -> dict[str, Any]:
        before = self.ledger.entries.get(REFERENCE)
        return {
            "score": self.score.tolist(),
            "relative_to": self.relative_to,
            "reference_score": before if before is None else before.tolist(),
            "difference": None if before is None else self.ledger.explained.tolist(),
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
            "rules": self.rules.described(),
        }

    def overlay(
        self,
        sample: int = 0,
        loaded: Any = None,
        photo: Any = None,
        region: Any = None,
        height: int = 512,
        array: bool = False,
    ) -> Any:
        """Relevance on the picture, as a PIL image: red speaks for what is explained, blue against it.

        Of a volume three slices through its strongest voxel and the strongest of each column, of a video frames, of
        bands those that hold most, beside each other. A table, tokens and a wave have a chart instead: see `plot`.

        Args:
            sample: Of which sample.
            loaded: What `hilrp.load` returned: without it, colours are those of the input, stretched to their range.
            photo: The photograph, or its file, of which the model saw a part: it is drawn whole, with the map in its
                place. Needs ``loaded``.
            region: What is drawn around, ``[H,W]`` of the map; by default what is `marked`, with ``False`` nothing.
            height: How many pixels high, at least.
            array: Return an array ``[H,W,3]`` of bytes instead.

        Example:
            >>> import torch, hilrp
            >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
            >>> hilrp.explain(model, torch.randn(1, 3, 2, 2)).overlay().size
            (512, 512)
        """
        from hilrp.attribution.pictures import composed
        from hilrp.attribution.shown import Shown

        photos = None if photo is None else {sample: photo}
        outlines = None if region is None or region is False else {sample: region}
        shown = Shown(self, loaded, photos, outlines=outlines, marks=region is not False, height=height)
        picture = composed(shown.panel(sample))
        if array:
            return picture
        from PIL import Image

        return Image.fromarray(picture)

    def photo_map(self, sample: int = 0, loaded: Any = None, photo: Any = None) -> Tensor:
        """The map on the pixels of the photograph, ``[H,W]``: scaling and cropping are undone, its sum stays.

        What the model did not see of the photograph holds zero; relevance of padding is no pixel's of it.

        Args:
            sample: Of which sample.
            loaded: What `hilrp.load` returned.
            photo: The photograph, or its file.

        Example:
            >>> import hilrp
            >>> from PIL import Image
            >>> loaded, photo = hilrp.load("zoo/resnet"), Image.new("RGB", (320, 240), "orange")
            >>> hilrp.explain(loaded.model, loaded.batch([photo]), reference=0.0).photo_map(0, loaded, photo).shape
            torch.Size([240, 320])
        """
        return placed(self.map[sample], window_of(loaded, photo))

    def plot(
        self,
        loaded: Any = None,
        samples: Sequence[int] | None = None,
        photos: Any = None,
        titles: Sequence[str] | None = None,
        outlines: Tensor | None = None,
        pictures: Tensor | None = None,
        features: Sequence[str] | None = None,
    ) -> Figure:
        """A figure: each sample large, with what is explained, how likely it is, and a sentence.

        Args:
            loaded: What `hilrp.load` returned, or the names of the classes.
            samples: Which samples to draw; by default all, or the first 24: the figure says so.
            photos: The photographs, or their files, of which the model saw parts; one for each sample.
            titles: What is explained, in words, of each sample; by default the name of its class.
            outlines: What is drawn around, ``[B,H,W]``: a region, the box of a detection; by default what is `marked`.
            pictures: What the model saw, ``[B,3,H,W]`` from 0 to 1, where ``loaded`` doesn't know.
            features: The names of a table's features, or of tokens.
        """
        from hilrp.attribution.shown import Shown

        return Shown(self, loaded, photos, titles, outlines, pictures, features=features).figure(samples)

    def plot_details(
        self,
        loaded: Any = None,
        samples: Sequence[int] | None = None,
        titles: Sequence[str] | None = None,
        outlines: Tensor | None = None,
        pictures: Tensor | None = None,
        all_stages: bool = False,
        features: Sequence[str] | None = None,
    ) -> Figure:
        """A figure: input, signed map, stage maps and the ledger with its verdict, one row per sample.

        Of what is no picture: a chart of the map (bars, or a curve over slices, frames or time) and the ledger.

        Args:
            loaded: As for `plot`.
            samples: As for `plot`; by default all, or the first ten.
            titles: As for `plot`.
            outlines: As for `plot`; by default none.
            pictures: As for `plot`.
            all_stages: Draw the maps of all stages, and not only of four.
            features: As for `plot`.
        """
        from hilrp.attribution.shown import Shown

        return Shown(self, loaded, None, titles, outlines, pictures, features=features).details(samples, all_stages)

    def show(self, loaded: Any = None, samples: Sequence[int] | None = None, photos: Any = None) -> None:
        """Shows `plot` in a window or notebook."""
        import matplotlib.pyplot as plt

        from hilrp.attribution.shown import Shown

        Shown(self, loaded, photos).figure(samples, plt.figure())
        plt.show()

    def save(
        self,
        path: str | Path,
        loaded: Any = None,
        photos: Any = None,
        all_stages: bool = False,
        facts: Mapping[str, Any] | None = None,
        titles: Sequence[str] | None = None,
        outlines: Tensor | None = None,
        pictures: Tensor | None = None,
        features: Sequence[str] | None = None,
    ) -> list[Path]:
        """Writes arrays (``path.npz``), two figures, and last the figures in numbers (``path.json``).

        The figures are `plot` (``path.png``) and `plot_details` (``path.details.png``). With several inputs the arrays
        are named by them (``relevance/0`` or ``relevance/pixel_values``). With ``photos`` there are maps on their
        pixels, too: ``photo_map``, ``[B,H,W]``, or ``photo_map/0``, ..., where they are of several sizes; not of
        photographs with more than two million pixels, for which there is `photo_map`. Each file appears whole or not
        at all.

        Args:
            path: Where, without an ending.
            loaded: As for `plot`.
            photos: As for `plot`.
            all_stages: As for `plot_details`.
            facts: What else goes into the json.
            titles: As for `plot`.
            outlines: As for `plot`.
            pictures: As for `plot`.
            features: As for `plot`.

        Returns:
            The paths of the files.
        """
        base = Path(path)
        base = base.with_suffix("") if base.suffix in (".npz", ".json", ".png") else base
        if not base.name:
            raise InputError(f"save({str(path)!r}): give a file name; .npz, .json and .png are added to it.")
        kinds = ["npz", *(["png", "details.png"] if self._has_map else []), "json"]
        # Made before anything is written: names that don't fit are noticed here.
        shown = (loaded, photos, all_stages, facts, titles, outlines, pictures, features)
        made = {kind: self.encode(kind, *shown) for kind in kinds}
        written = [base.with_name(f"{base.name}.{kind}") for kind in kinds]
        for file, content in zip(written, made.values(), strict=True):
            write_whole(file, content)
        return written

    def encode(
        self,
        kind: str,
        loaded: Any = None,
        photos: Any = None,
        all_stages: bool = False,
        facts: Mapping[str, Any] | None = None,
        titles: Sequence[str] | None = None,
        outlines: Tensor | None = None,
        pictures: Tensor | None = None,
        features: Sequence[str] | None = None,
    ) -> bytes:
        """What `save` writes, as bytes: ``npz`` or ``json``, or a figure as ``png``, ``svg`` or ``pdf``.

        With ``details.`` before the kind it is the figure of details.

        Example:
            >>> import torch, hilrp
            >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).eval()
            >>> hilrp.explain(model, torch.randn(1, 3, 2, 2)).encode("details.pdf")[:4]
            b'%PDF'
        """
        import numpy as np

        buffer = BytesIO()
        if kind == "npz":
            there = self._on_photos(loaded, photos) if photos is not None and self._has_map else {}
            np.savez_compressed(buffer, **self.arrays(), **{name: _array(each) for name, each in there.items()})
        elif kind == "json":
            buffer.write(json.dumps(dict(facts or {}) | self.facts(), indent=1).encode())
        elif kind.removeprefix("details.") in ("png", "svg", "pdf"):
            from hilrp.attribution.shown import Shown

            shown = Shown(self, loaded, photos, titles, outlines, pictures, features=features)
            return shown.encoded(kind, all_stages)
        else:
            raise InputError(f"encode({kind!r}): choose from npz, json, png, svg, pdf, details.png, ...")
        return buffer.getvalue()

    def _on_photos(self, loaded: Any, photos: Any) -> dict[str, Tensor]:
        if isinstance(photos, Sequence) and len(photos) != len(self):
            raise InputError(f"photos has {len(photos)} pictures, the explanation {len(self)} samples.")
        return restored(self.map, [window_of(loaded, photos[i]) for i in range(len(self))])

    @property
    def _has_map(self) -> bool:
        return main_input(self.relevance, self.kind, len(self)) is not None

    def arrays(self) -> dict[str, Any]:
        """What `save` writes into an npz, as numpy arrays by name: map, relevance, input, stages, scores."""
        return {name: _array(value) for name, value in self._tensors().items()}

    def _tensors(self) -> dict[str, Tensor]:
        arrays = {f"stage/{name}": value for name, value in self.stages.items()} | {"score": self.score}
        arrays |= {f"layer/{name}": value for name, value in self.layers.items()}
        for kind, tree in (("relevance", self.relevance), ("input", self.input)):
            if isinstance(tree, Tensor):
                arrays[kind] = tree
            else:
                parts = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
                arrays |= {f"{kind}/{name}": value for name, value in parts if isinstance(value, Tensor)}
        if self._has_map:
            arrays["map"] = self.map
            arrays |= {} if self.stderr is None else {"stderr": self.stderr}
        arrays["passes"] = torch.tensor(self.passes)
        return arrays | ({} if self.target is None else {"target": self.target})


def _array(value: Tensor) -> Any:
    return value.detach().cpu().to(torch.float32 if value.dtype == torch.bfloat16 else value.dtype).numpy()
