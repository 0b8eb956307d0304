"""The result: an answer, and where each of its words comes from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from torch import Tensor

from hilrp.answers.sentences import sentence
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.verdicts import Verdict
from hilrp.method.ledger import REFERENCE, Ledger
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import InputError
from hilrp.util.nested import jsonable

#: What a score is called relative to a reference, when neither pictures nor words are there.
WITHOUT = "without any of them"


@dataclass(frozen=True, repr=False)
class Word:
    """A word of an answer, or a phrase that is explained as one.

    Attributes:
        text: What it says.
        ids: Its tokens.
        start: How many tokens of the answer come before it.
        against: What it is contrasted with.
        score: By how much its logit is above that: the sum over its tokens.
        prior: The same without the pictures: what language alone makes of it.
        nothing: The same without words, too; 0 without a reference.
        log_likelihood: The logarithm of how likely the model finds it.
        maps: Relevance of each picture, on its own pixels, ``[H,W]``.
        prompt: Relevance of each token of the prompt.
        earlier: Relevance of each token of the answer before the last of the word.
        ledger: ``score = image + prompt + earlier words + constants``.
        verdict: What the ledger and the checks say.
        image: What all pictures together hold.
    """

    text: str
    ids: tuple[int, ...]
    start: int
    against: str
    score: float
    prior: float
    nothing: float
    log_likelihood: float
    maps: list[Tensor]
    prompt: Tensor
    earlier: Tensor
    ledger: Ledger
    verdict: Verdict
    image: float

    @property
    def parts(self) -> dict[str, float]:
        """What the score is the sum of, in words; what is missing is in the ledger (`Ledger.residual`)."""
        found = {f"the {self.seen}": self.image} if self.has_pictures else {}
        found["the prompt"] = float(self.prompt.sum())
        if len(self.earlier):
            found["earlier words"] = float(self.earlier.sum())
        left = WITHOUT if REFERENCE in self.ledger.entries else "constants of the model"
        return found | {left: float(self.ledger.constants)}

    @property
    def seen(self) -> str:
        """What was there beside words: a picture, pictures, or what no map can be drawn of (a sound)."""
        return {0: "other input", 1: "picture"}.get(len(self.maps), "pictures")

    @property
    def has_pictures(self) -> bool:
        """Whether there was a picture to see."""
        return "image" in self.ledger.inputs

    @property
    def prior_share(self) -> float | None:
        """The part of the score that is there without the pictures; ``None`` for a score that isn't above zero.

        Above 1 the pictures speak against the word; below 0 language alone would say something else.
        """
        return self.prior / self.score if self.score > 0 else None

    def __repr__(self) -> str:
        return (
            f"Word({self.text!r}, score {self.score:.3g}: image {self.image:.3g}, "
            f"prompt {float(self.prompt.sum()):.3g}, earlier words {float(self.earlier.sum()):.3g}, {self.verdict})"
        )


@dataclass(frozen=True, repr=False)
class Answer:
    """An answer that is explained word by word.

    Attributes:
        text: The answer.
        words: What was explained of it.
        prompt_tokens: What the tokens of the prompt are called.
        tokens: What those of the answer are called.
        prompt_labels, labels: What each of them adds to the text; marks by their names.
        explanation: All of it as an explanation with a row for each word.
        steps: The explanations that it is the sum of: words without a picture relative to nothing, and words with
            pictures relative to words without; text alone, and rules without a reference, take one.
        prompt_marks: Which tokens of the prompt are marks, and no words.
        pictures: The pictures that maps belong on, ``[H,W,3]`` from 0 to 1.
        notes: What is worth saying of it.
    """

    text: str
    words: list[Word]
    prompt_tokens: list[str]
    tokens: list[str]
    prompt_labels: list[str]
    labels: list[str]
    prompt_marks: list[bool]
    explanation: Explanation
    steps: list[Explanation]
    pictures: list[Tensor]
    notes: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Answer({self.text!r}, {len(self.words)} words explained)"

    def __len__(self) -> int:
        return len(self.words)

    @property
    def part_names(self) -> list[str]:
        """What the scores of all words are sums of: see `Word.parts`. The first word has no earlier ones."""
        return max((list(word.parts) for word in self.words), key=len)

    def __getitem__(self, word: int | str) -> Word:
        """A word by its number, or the first that says so."""
        if isinstance(word, int):
            return self.words[word]
        found = next((each for each in self.words if each.text == word), None)
        if found is None:
            raise KeyError(f"{word!r} is not among {', '.join(each.text for each in self.words)}")
        return found

    def sentence(self, word: int | str) -> str:
        """What a word owes to the pictures and to other words, in plain words."""
        return sentence(self[word], self)

    def table(self) -> str:
        """A row for each word: its score, and what it is the sum of."""
        heads = ["word", "score", "image", "prompt", "earlier", "constants", "prior", "verdict"]
        rows = []
        for each in self.words:
            numbers = [
                each.score, each.image, float(each.prompt.sum()), float(each.earlier.sum()),
                float(each.ledger.constants), each.prior,
            ]  # fmt: skip
            rows.append([each.text, *(f"{number:.4g}" for number in numbers), str(each.verdict)])
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        left = (0, len(heads) - 1)
        lines = []
        for row in [heads, *rows]:
            cells = zip(row, widths, strict=True)
            lines.append("  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(cells)).rstrip())
        return "\n".join(lines)

    def facts(self) -> dict[str, Any]:
        """All figures as plain numbers, for JSON."""
        words = []
        for each in self.words:
            words.append(
                {
                    "text": each.text,
                    "ids": list(each.ids),
                    "against": each.against,
                    "score": each.score,
                    "prior": each.prior,
                    "prior_share": each.prior_share,
                    "log_likelihood": each.log_likelihood,
                    "image": each.image,
                    "pictures": [float(m.sum()) for m in each.maps],
                    "prompt": each.prompt.tolist(),
                    "earlier": each.earlier.tolist(),
                    "constants": {name: float(value) for name, value in each.ledger.entries.items()},
                    "residual": float(each.ledger.residual),
                    "verdict": str(each.verdict),
                }
            )
        found: dict[str, Any] = jsonable(
            {
                "text": self.text,
                "tokens": self.tokens,
                "prompt_tokens": self.prompt_tokens,
                "words": words,
                "notes": list(self.notes),
                "unchecked": list(self.explanation.unchecked),
                "rules": self.explanation.rules.described(),
            }
        )
        return found

    def overlay(self, word: int | str, picture: int = 0, height: int = 512) -> Any:
        """A word's map on a picture, as a PIL image: red speaks for the word, blue against it.

        Args:
            word: Its number, or what it says.
            picture: Which picture.
            height: How many pixels high, at least.
        """
        from hilrp.answers.drawing import overlay

        if not 0 <= picture < len(self.pictures):
            raise InputError(f"picture={picture}: this answer has {len(self.pictures)} pictures, counted from 0.")
        return overlay(self[word], self.pictures[picture], picture, height)

    def save(self, folder: str | Path) -> list[Path]:
        """Writes ``answer.npz`` (maps and relevance of tokens), ``answer.png`` and, last, ``answer.json``.

        The figure has each word's map on each picture; of text alone there is none.

        Args:
            folder: Where; it is made if it isn't there.

        Returns:
            The paths of the files. Each appears whole or not at all.
        """
        base = Path(folder)
        made = {kind: self.encode(kind) for kind in ("npz", *(["png"] if self.pictures else []), "json")}
        written = [base / f"answer.{kind}" for kind in made]
        for file, content in zip(written, made.values(), strict=True):
            write_whole(file, content)
        return written

    def encode(self, kind: str) -> bytes:
        """What `save` writes, as bytes: ``npz`` or ``json``, or the figure as ``png``, ``svg`` or ``pdf``."""
        if kind == "json":
            return json.dumps(self.facts(), indent=1).encode()
        if kind in ("png", "svg", "pdf"):
            from hilrp.answers.drawing import encoded

            return encoded(self, kind)
        if kind != "npz":
            raise InputError(f"encode({kind!r}): choose from npz, json, png, svg, pdf.")
        import numpy as np

        buffer, arrays = BytesIO(), dict[str, Any]()
        for i, each in enumerate(self.words):
            arrays |= {f"{i}/prompt": each.prompt.numpy(), f"{i}/earlier": each.earlier.numpy()}
            arrays |= {f"{i}/map/{j}": m.cpu().numpy() for j, m in enumerate(each.maps)}
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()
