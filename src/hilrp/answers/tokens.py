"""Words of an answer: which tokens they are made of, and which tokens another word would have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from hilrp.util.errors import InputError

#: What a tokeniser puts in place of bytes that are no letter yet.
_INCOMPLETE = "\ufffd"


@dataclass(frozen=True)
class Span:
    """Tokens of an answer that are explained together.

    Attributes:
        text: What they say.
        start, stop: The first of them, and the one after the last.
    """

    text: str
    start: int
    stop: int


def text_of(tokenizer: Any, ids: Sequence[int], special: bool = False) -> str:
    """The text of some tokens; without a tokeniser, their numbers."""
    if tokenizer is None:
        return " ".join(map(str, ids))
    found: str = tokenizer.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
    return found


def names_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """What each token is called."""
    if tokenizer is None:
        return [str(each) for each in ids]
    return [str(each) for each in tokenizer.convert_ids_to_tokens(list(ids))]


def pieces_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text; those of a letter that isn't whole yet add nothing, and the last of them all.

    Example:
        >>> pieces_of(None, [7, 12])
        ['7', ' 12']
    """
    found, said = [], ""
    for stop in range(1, len(ids) + 1):
        now = text_of(tokenizer, ids[:stop])
        if now.endswith(_INCOMPLETE) and stop < len(ids):
            found.append("")
            continue
        found.append(now[len(said) :] if now.startswith(said) else now.removeprefix(_alike(now, said)))
        said = now
    return found


def labels_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """What each token is shown as: what it adds to the text, with the space before it; a mark by its name.

    Example:
        >>> labels_of(None, [7, 12])
        ['7', ' 12']
    """
    special = set() if tokenizer is None else set(tokenizer.all_special_ids)
    names, found, start = names_of(tokenizer, ids), [], 0
    for stop in range(len(ids) + 1):
        if stop < len(ids) and ids[stop] not in special:
            continue
        found += pieces_of(tokenizer, ids[start:stop])
        found += names[stop : stop + 1]
        start = stop + 1
    return found


def _alike(one: str, other: str) -> str:
    """What two texts begin with."""
    count = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:count]


def words_of(tokenizer: Any, ids: Sequence[int]) -> list[Span]:
    """The words of an answer: tokens up to the next space, or to the next mark.

    A token that says nothing by itself (of a letter that isn't whole yet) belongs to what follows, and a special one is
    a word of its own, under its name.

    Example:
        >>> [word.text for word in words_of(None, [7, 12])]
        ['7', '12']
    """
    special = set() if tokenizer is None else set(tokenizer.all_special_ids)
    found: list[Span] = []
    start, text, waits = 0, "", True
    pieces = pieces_of(tokenizer, ids)

    def close(stop: int) -> None:
        if stop > start:
            found.append(Span(text.strip() or " ".join(names_of(tokenizer, ids[start:stop])), start, stop))

    for i, (token, piece) in enumerate(zip(ids, pieces, strict=True)):
        alone = token in special and not piece
        begins = alone or piece[:1].isspace() or (piece[:1] and text and _is_mark(piece[0]) != _is_mark(text[-1]))
        if begins and not waits:
            close(i)
            start, text = i, ""
        text += piece
        waits = not piece and not alone
        if alone:
            close(i + 1)
            start, text, waits = i + 1, "", True
    close(len(ids))
    return found


def _is_mark(letter: str) -> bool:
    return not (letter.isalnum() or letter in "'-_")


def spans_of(tokenizer: Any, ids: Sequence[int], explain: str | Sequence[Any]) -> list[Span]:
    """What is explained of an answer.

    Args:
        tokenizer: Of the answer.
        ids: Its tokens.
        explain: ``"words"``, ``"tokens"``, ``"answer"`` for all of it as one, or some of its words and phrases, each as
            text or as a pair of tokens (the first, and the one after the last).
    """
    if isinstance(explain, str) and explain == "words":
        return words_of(tokenizer, ids)
    if isinstance(explain, str) and explain == "tokens":
        names = names_of(tokenizer, ids)
        pieces = pieces_of(tokenizer, ids)
        return [
            Span(piece.strip() or name, i, i + 1) for i, (name, piece) in enumerate(zip(names, pieces, strict=True))
        ]
    if isinstance(explain, str) and explain == "answer":
        return [Span(text_of(tokenizer, ids).strip() or " ".join(names_of(tokenizer, ids)), 0, len(ids))]
    if not isinstance(explain, (str, Sequence)):
        raise InputError(f'explain={explain!r}: give "words", "tokens", "answer", or some words of the answer.')
    asked = [explain] if isinstance(explain, str) else list(explain)
    if not asked:
        raise InputError('explain is empty: give "words", "tokens", "answer", or some words of the answer.')
    return [_span(tokenizer, ids, each) for each in asked]


def _span(tokenizer: Any, ids: Sequence[int], asked: Any) -> Span:
    """A phrase of the answer, or a pair of its tokens."""
    if isinstance(asked, (tuple, list)) and len(asked) == 2 and all(isinstance(each, int) for each in asked):
        start, stop = asked
        if not 0 <= start < stop <= len(ids):
            raise InputError(
                f"explain: {asked} is no part of an answer of {len(ids)} tokens. Give (first, after last)."
            )
        return Span(text_of(tokenizer, ids[start:stop]).strip() or str(asked), start, stop)
    return phrases_in(tokenizer, ids, asked, "explain", "the answer")[0]


def phrases_in(tokenizer: Any, ids: Sequence[int], asked: Any, argument: str, where: str) -> list[Span]:
    """Where a phrase of whole words is in a text.

    Args:
        tokenizer: Of the text.
        ids: Its tokens.
        asked: The phrase.
        argument: How the argument is called in errors.
        where: How the text is called there.
    """
    if not isinstance(asked, str) or not asked.strip():
        raise InputError(f"{argument}: {asked!r} is no phrase of {where}.")
    words, wanted = words_of(tokenizer, ids), "".join(asked.split())
    found = []
    for first in range(len(words)):
        said = ""
        for last in range(first, len(words)):
            said += "".join(words[last].text.split())
            if said == wanted:
                found.append(Span(asked, words[first].start, words[last].stop))
            if not wanted.startswith(said):
                break
    if not found:
        raise InputError(
            f"{argument}: {asked!r} is not in {where}. Its words are {', '.join(word.text for word in words)}."
        )
    return found


def tokens_of(tokenizer: Any, answer: str | Sequence[int], vocabulary: int) -> list[int]:
    """The tokens of an answer that is given: of a text, those that say it again."""
    if not isinstance(answer, str):
        ids = _numbers(answer)
        if not ids:
            raise InputError("answer is empty: it has no token.")
        wrong = next((each for each in ids if not 0 <= each < vocabulary), None)
        if wrong is not None:
            raise InputError(f"answer: {wrong} is no token, which are numbered from 0 to {vocabulary - 1}.")
        return ids
    if tokenizer is None:
        raise InputError("answer is a text: give processor=, too, or the numbers of its tokens.")
    if not answer.strip():
        raise InputError("answer is empty: it has no token. Leave it out, and the model's own is explained.")
    ids = [int(each) for each in tokenizer(answer, add_special_tokens=False)["input_ids"]]
    said = text_of(tokenizer, ids, special=True)
    unknown = tokenizer.unk_token_id
    if "".join(said.split()) != "".join(answer.split()) or (unknown is not None and unknown in ids) or not ids:
        raise InputError(
            f"answer: {answer!r} can't be tokenised back; its tokens say {said!r}. Use words that the model knows, or "
            "give the numbers of the tokens."
        )
    return ids


def _numbers(answer: Any) -> list[int]:
    """The numbers of tokens, of a sequence or of a tensor of them."""
    given = answer.tolist() if hasattr(answer, "tolist") else answer
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, Integral) for each in given):
        raise InputError(f"answer={answer!r}: give a text, or the numbers of its tokens, as a list of whole numbers.")
    return [int(each) for each in given]


def instead(tokenizer: Any, ids: Sequence[int], span: Span, other: str) -> tuple[int, int]:
    """Where an answer with another word in place of a span departs from it, and the token that it has there.

    Returns:
        The place in the answer, and the other token.
    """
    if tokenizer is None:
        raise InputError(f"against={other!r} is a word: give processor=, too.")
    pieces = pieces_of(tokenizer, ids)
    own = "".join(pieces[span.start : span.stop])
    before = "".join(pieces[: span.start])
    space = own[: len(own) - len(own.lstrip())]
    for text, skipped in ((before + space + other, 0), (space + other, span.start), (other, span.start)):
        found = [int(each) for each in tokenizer(text, add_special_tokens=False)["input_ids"]]
        if found[: span.start - skipped] != list(ids[skipped : span.start]):
            continue  # the words before it would be other tokens
        theirs, mine = found[span.start - skipped :], list(ids[span.start : span.stop])
        if not theirs or tokenizer.unk_token_id in theirs:
            break
        place = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
        if place is None:
            raise InputError(
                f"against: {other!r} has the same first tokens as {span.text!r}. Give a word that is another from its "
                "beginning."
            )
        return span.start + place, theirs[place]
    raise InputError(
        f"against: {other!r} can't be tokenised in the place of {span.text!r}. Use a word the model knows."
    )
