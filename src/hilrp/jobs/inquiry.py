"""What a model is asked about pictures, in the words of the command line and of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hilrp.answers.answer import Answer
from hilrp.answers.explaining import explain_answer
from hilrp.answers.pictures import STANDS_FOR_NONE
from hilrp.attribution.references import NAMED
from hilrp.jobs.reference_text import check_passes, reference_name
from hilrp.method.rules import DEFAULT_RULES
from hilrp.models.images import read
from hilrp.models.libraries.loaded import Loaded
from hilrp.util.errors import InputError
from hilrp.util.regular_files import printable

#: What of an answer can be explained, beside its words and phrases.
_WHOLES = ("words", "tokens", "answer")


@dataclass(frozen=True)
class Inquiry:
    """A question about pictures, and how its answer is explained.

    Attributes:
        question: The question; of a model of text alone, the text that it goes on with.
        images: The pictures, or their files.
        answer: What is explained instead of what the model answers.
        explain: ``("words",)``, ``("tokens",)``, ``("answer",)``, or words and phrases of the answer.
        against: What a word is contrasted with.
        without: Words of the question that the reference doesn't have; by default all.
        reference: What stands for no picture: a name, or an image file.
        rules: A preset.
        passes: How many passes are spent on the pictures, and on the words.
        longest: At most so many tokens are answered.
    """

    question: str
    images: tuple[Any, ...] = ()
    answer: str | None = None
    explain: tuple[str, ...] = ("words",)
    against: str | None = None
    without: tuple[str, ...] = ()
    reference: str | None = None
    rules: str = DEFAULT_RULES
    passes: int = 1
    longest: int = 40

    def __post_init__(self) -> None:
        reference = reference_name(self.reference, self.rules)
        if reference in NAMED and reference not in STANDS_FOR_NONE:
            raise InputError(
                f"--reference {reference}: it can't stand for no picture. Choose from {', '.join(STANDS_FOR_NONE)}, or "
                "give an image file."
            )
        check_passes(self.passes, self.rules, reference or ("words" if self.without else None))
        if len(self.explain) > 1 and any(each in _WHOLES for each in self.explain):
            raise InputError(f"--explain {', '.join(self.explain)}: one of {', '.join(_WHOLES)}, or words alone.")

    @staticmethod
    def split(given: Sequence[str]) -> tuple[str, tuple[Path, ...]]:
        """The question and the image files of a command line, on which the question comes last.

        Example:
            >>> Inquiry.split(["What is torch?"])
            ('What is torch?', ())
        """
        *files, question = given
        if Path(question).is_file():
            raise InputError(f"{printable(Path(question))}: that is a file. Write the question behind the image files.")
        missing = next((each for each in files if not Path(each).is_file()), None)
        if missing is not None:
            raise InputError(
                f"{missing}: no such file. Image files come first, and the question last, between quotation marks."
            )
        return question, tuple(map(Path, files))

    def run(self, loaded: Loaded) -> Answer:
        """The answer of a model, explained.

        Args:
            loaded: A model that answers in words.
        """
        if loaded.processor is None:
            raise InputError(
                f"{loaded.name} answers no questions. Ask a model that does: zoo/captioner (of scenes), or one of "
                "transformers (LLaVA, Qwen-VL, ...), transformers/owner/name. Or explain its scores: hilrp explain."
            )
        images = [read(each)[0] if isinstance(each, Path) else each for each in self.images]
        return explain_answer(
            loaded.model,
            loaded.processor,
            images or None,
            self.question,
            self.answer,
            max_new_tokens=self.longest,
            explain=self.explain[0] if self.explain[0] in _WHOLES else list(self.explain),
            against=self.against,
            reference=self._reference(),
            without=list(self.without) or None,
            rules=self.rules,
            passes=self.passes,
        )

    def _reference(self) -> Any:
        named = self.reference is None or self.reference in STANDS_FOR_NONE
        return self.reference if named else read(Path(str(self.reference)))[0]

    def about(self, loaded: Loaded, names: Sequence[str]) -> str:
        """The pictures, by their names, the model and the rules, in words."""
        passes = f", {self.passes} passes" if self.passes > 1 else ""
        return f"{', '.join([*names, loaded.name])} ({loaded.weights}), rules {self.rules}{passes}"

    def code(self, loaded: Loaded, images: str, opening: str = "", checkpoint: str | None = None) -> str:
        """Lines of Python that explain the same answer.

        Args:
            loaded: The model.
            images: The pictures, as they are written in these lines.
            opening: Lines that open them: imports, an empty line, the rest, which may use ``loaded``.
            checkpoint: The file that the model's weights are from, where they are somebody's own.
        """
        weights = f", checkpoint={checkpoint!r}" if checkpoint else ""
        usual = Inquiry(self.question)
        simple = ("answer", "against", "rules", "passes", "reference")
        own = {name: getattr(self, name) for name in simple}
        options: dict[str, Any] = {name: value for name, value in own.items() if value != getattr(usual, name)}
        if self.explain != usual.explain:
            options["explain"] = self.explain[0] if self.explain[0] in _WHOLES else list(self.explain)
        if self.without:
            options["without"] = list(self.without)
        given = [images, repr(self.question), *(f"{name}={value!r}" for name, value in options.items())]
        needed, _, opened = opening.partition("\n\n")
        lines = [
            f"loaded = hilrp.load({loaded.name!r}{weights})",
            *opened.splitlines(),
            "answer = hilrp.explain_answer(",
            f"    loaded.model, loaded.processor, {', '.join(given)}, max_new_tokens={self.longest}",
            ")",
            "print(answer.text)",
            "print(answer.table())",
            'answer.save("answer")',
        ]
        return "\n".join([*needed.splitlines(), *([""] if needed else []), "import hilrp", "", *lines, ""])
