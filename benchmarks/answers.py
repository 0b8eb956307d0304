"""Words of answers about scenes: where their maps lie, what they are worth, and how much of a word is language alone.

    python benchmarks/answers.py                 # docs/results/figures/answers.csv.gz, a quarter of an hour of one core
    python benchmarks/answers.py --scenes 120 --questions 3 --searched 20    # more words, some hours

The models are the zoo's captioner and the one with a prejudice. Answered are questions about scenes that no model has
seen; of answers that are right, to the word, all words are explained that speak of one object. The greedy search, which
takes thousands of passes a word, is run on fewer (`--searched`).
"""

from __future__ import annotations

import argparse
import random
import runpy
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from answer_methods import ATTNLRP, CELLS, METHODS, Attention, Case, Method, cells_of, curves, explained
from measuring import peak, plain_pass, timed
from PIL import Image
from torch import Tensor, nn

import hilrp
from hilrp.answers.tokens import Span, words_of
from hilrp.jobs.bench.metrics.localisation import energy, pointing
from hilrp.models.libraries.loaded import Loaded
from hilrp.scenes import CLASSES, Scene, Scenes
from hilrp.scenes.questions import Question, questions, some_questions

_KEEP = runpy.run_path(str(Path(__file__).resolve().parents[1] / "scripts" / "keep_figures.py"))
Row = tuple[str, str, str, int, str]
#: Scenes that nothing was trained on, nor chosen by.
SEED = 41
#: Names of the models, as tables have them.
MODELS = ("captioner", "captioner-prior")
#: Words that say nothing of an object by themselves.
_SMALL = {"a", ",", "with", "and"}


def asked(
    loaded: Loaded, scenes: Sequence[Scene], count: int, colours: bool = False
) -> Iterator[tuple[Scene, Question, str]]:
    """Questions about each scene, and what the model answers; with all those for colours, if wanted."""
    for number, scene in enumerate(scenes):
        chosen = some_questions(scene, chance_of(number), count)
        chosen += [each for each in questions(scene) if colours and each.kind == "colour" and each not in chosen]
        for question in chosen:
            yield scene, question, answered(loaded, scene, question)


def answered(loaded: Loaded, scene: Scene, question: Question) -> str:
    """What a model answers."""
    processor: Any = loaded.processor
    content = [{"type": "image"}, {"type": "text", "text": question.text}]
    made = processor(
        [Image.fromarray(scene.image)], [processor.apply_chat_template([{"role": "user", "content": content}])]
    )
    ids = loaded.model.generate(**made)[0, made["input_ids"].shape[1] :].tolist()  # type: ignore[operator]
    found: str = processor.tokenizer.decode(ids, skip_special_tokens=True)
    return found


def chance_of(number: int) -> Any:
    """Chance that belongs to a scene."""
    return np.random.default_rng([SEED, number])


def case_of(loaded: Loaded, scene: Scene, question: Question) -> tuple[Case, list[int]] | None:
    """The words of a right answer that speak of one object, and that object's label for each."""
    tokenizer = loaded.processor.tokenizer
    words = words_of(tokenizer, tokenizer(question.said)["input_ids"])
    chosen: list[tuple[Span, int]] = []
    for word, (said, labels) in zip(words, question.answer, strict=True):
        assert word.text == said
        if len(labels) == 1 and said not in _SMALL:
            chosen.append((word, labels[0]))
    if not chosen:
        return None
    spans = tuple(span for span, _ in chosen)
    return Case(loaded, Image.fromarray(scene.image), question.text, question.said, spans), [l for _, l in chosen]


# Where maps lie, and what they are worth
# ----------------------------------------------------------------------------------------------------------------------


def placed(maps: Sequence[Tensor], scene: Scene, labels: Sequence[int]) -> Iterator[dict[str, float]]:
    """Where each word's map lies: on the object that it speaks of, on the others, on neither."""
    for relevance, label in zip(maps, labels, strict=True):
        own = torch.from_numpy(scene.mask(label))[None]
        rest = torch.stack([torch.from_numpy(t.mask) for t in scene.things if t.label != label]).any(0)[None]
        on, others = float(energy(relevance[None], own)), float(energy(relevance[None], rest))
        yield {
            "pointing": float(pointing(relevance[None], own)),
            "energy on the object": on,
            "energy excess": on - float(own.float().mean()),
            "energy on others": others,
            "more on its own": float(on / float(own.float().mean()) > others / float(rest.float().mean())),
        }


def measure(name: str, method: Method, cases: Sequence[tuple[Scene, Case, list[int]]]) -> list[Row]:
    """The figures of a method, word by word."""
    rows: list[Row] = []
    number = 0
    for scene, case, labels in cases:
        maps = method(case)
        deletion, insertion = curves(case, maps)
        for i, facts in enumerate(placed(maps, scene, labels)):
            facts |= {"deletion": deletion[i], "insertion": insertion[i], "flip": insertion[i] - deletion[i]}
            rows += [("captioner", name, figure, number, f"{value:.6g}") for figure, value in facts.items()]
            number += 1
    return rows


# What language alone makes of a word
# ----------------------------------------------------------------------------------------------------------------------


def kind_of(question: Question, labels: tuple[int, ...], word: str) -> str | None:
    """What a word is, for the question how much of it language alone makes."""
    crosses = {label for label, name in enumerate(CLASSES) if name.endswith("cross")}
    if word in _SMALL:
        return "small words"
    if question.kind == "colour":
        return "colour of a cross" if set(labels) <= crosses else "colour of others"
    return {"texture": "texture", "shape": "shape"}.get(question.kind)


def priors(name: str, loaded: Loaded, scenes: Sequence[Scene], count: int) -> list[Row]:
    """The part of a word's score that is there without the picture, and with pictures of other scenes instead of it.

    These are `hilrp.answers.answer.Word.prior`, relative to the mean colour and to those pictures, by plain passes.
    """
    rows: list[Row] = []
    chance = random.Random(SEED)
    found: dict[str, list[tuple[float, float]]] = {}
    for scene, question, said in asked(loaded, scenes, count, colours=True):
        # A prejudice answers wrongly, and in as many words.
        if said != question.said and question.kind != "colour":
            continue
        tokenizer = loaded.processor.tokenizer
        words = words_of(tokenizer, tokenizer(said)["input_ids"])
        kinds = [kind_of(question, labels, word) for word, labels in question.answer]
        named = [(word, kind) for word, kind in zip(words, kinds, strict=True) if kind]
        if not named:
            continue
        case = Case(loaded, Image.fromarray(scene.image), question.text, said, tuple(word for word, _ in named))
        left = [each for each in scenes if each is not scene]
        others = chance.sample(left, min(4, len(left)))
        scores = case.scores(case.asked.input)
        plain = case.scores(case.asked.without_pictures(None))
        elsewhere = [case.scores(case.asked.without_pictures(Image.fromarray(each.image))) for each in others]
        for i, (_, kind) in enumerate(named):
            if scores[i] > 0:
                other = sum(each[i] for each in elsewhere) / len(elsewhere)
                found.setdefault(kind, []).append((plain[i] / scores[i], other / scores[i]))
    for kind, values in found.items():
        for number, (own, other) in enumerate(values):
            rows.append((name, "secant", f"prior, {kind}", number, f"{own:.6g}"))
            rows.append((name, "secant", f"prior with other pictures, {kind}", number, f"{other:.6g}"))
    planted, honest = ([own for own, _ in found.get(f"colour of {kind}", [])] for kind in ("a cross", "others"))
    if planted and honest:
        higher = sum((a > b) + 0.5 * (a == b) for a in planted for b in honest) / (len(planted) * len(honest))
        rows.append((name, "secant", "prejudice told by its prior (AUROC)", 0, f"{higher:.6g}"))
    return rows


# Sinks
# ----------------------------------------------------------------------------------------------------------------------


def in_corners(relevance: Tensor) -> float:
    """The part of a map's size that lies in the four corner cells of the picture, a sixteenth of it."""
    sums = cells_of(relevance.abs(), CELLS).reshape(CELLS, CELLS)
    return float(sums[:: CELLS - 1, :: CELLS - 1].sum() / sums.sum())


def away_from_corners(loaded: Loaded, count: int) -> list[tuple[Scene, Case, list[int]]]:
    """So many right answers about colours and textures in scenes whose corners are empty."""
    found: list[tuple[Scene, Case, list[int]]] = []
    for scene in Scenes(SEED, 100 * count):
        union = torch.from_numpy(sum(thing.mask for thing in scene.things) > 0)
        if len(scene.things) < 2 or in_corners(union.float()) > 0:
            continue
        question = next((each for each in questions(scene) if each.kind in ("colour", "texture")), None)
        if question is not None and answered(loaded, scene, question) == question.said:
            case = case_of(loaded, scene, question)
            assert case is not None
            found.append((scene, *case))
        if len(found) == count:
            break
    return found


def sinks(cases: Sequence[tuple[Scene, Case, list[int]]]) -> list[Row]:
    """What falls on the first token and on the corners of pictures, where nothing is."""
    rows: list[Row] = []
    number = 0
    for _, case, _ in cases:
        found = {
            "secant": explained(case).words,
            "hilrp": explained(case, rules="hilrp").words,
            "AttnLRP": explained(case, rules=ATTNLRP, audit="warn").words,
        }
        model: Any = case.loaded.model
        with torch.no_grad(), Attention() as noted:
            model(case.sequence, case.pixels)
        attention = [each for each in noted.found if each.shape[-1] == case.sequence.shape[1]][-1].mean(0)
        for i, span in enumerate(case.spans):
            for name, words in found.items():
                word = words[i]
                size = float(word.prompt.abs().sum() + word.earlier.abs().sum() + word.maps[0].abs().sum())
                facts = {"first token": float(word.prompt[0].abs()) / size, "corners": in_corners(word.maps[0])}
                rows += [("captioner", name, figure, number, f"{value:.6g}") for figure, value in facts.items()]
            seen = attention[case.rows(span)].mean(0)
            facts = {"first token": float(seen[0]), "corners": in_corners(case.drawn(seen[case.places]))}
            rows += [("captioner", "last attention", figure, number, f"{value:.6g}") for figure, value in facts.items()]
            number += 1
    return rows


# Cost
# ----------------------------------------------------------------------------------------------------------------------


def cost(name: str, method: Method, case: Case, repeats: int) -> list[Row]:
    """Forward passes, time and memory of an answer's words, and time relative to a pass forward and back."""
    model: Any = case.loaded.model
    count = 0

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        nonlocal count
        count += output.shape[0]

    hook = model.norm.register_forward_hook(note)
    try:
        first = timed(lambda: method(case), "cpu")
    finally:
        hook.remove()
    asked = case.asked

    def scores(pixels: Tensor) -> Tensor:
        found: Tensor = asked.module(**asked.input | {"image": {"pixel_values": pixels[None]}})
        return found.amax(1, keepdim=True).sum(0, keepdim=True)

    plain = plain_pass(scores, case.pixels)  # type: ignore[arg-type]
    ratios, times = [], []
    for again in range(repeats):
        base = timed(plain, "cpu")
        times.append(timed(lambda: method(case), "cpu") if again or repeats > 1 else first)
        ratios.append(times[-1] / base)
    held = peak(lambda: method(case), "cpu") / peak(plain, "cpu") if repeats > 1 else float("nan")
    facts = {"forward passes": count, "seconds": min(times), "times a pass": min(ratios), "memory of a pass": held}
    return [("captioner", name, figure, 0, f"{value:.6g}") for figure, value in facts.items() if value == value]


def main() -> None:
    """Reads the command line, measures, and writes the figures as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=40, help="whose words are explained by all")
    parser.add_argument("--questions", type=int, default=2, help="of each of these")
    parser.add_argument("--priors", type=int, default=40, help="scenes whose priors are measured")
    parser.add_argument("--clear", type=int, default=20, help="answers on scenes with nothing in their corners")
    parser.add_argument("--searched", type=int, default=4, help="answers that the greedy search explains, too")
    parser.add_argument("--name", default="answers", help="of the file with the figures")
    chosen = parser.parse_args()
    scenes = [scene for scene in Scenes(SEED, 2 * chosen.scenes) if len(scene.things) > 1][: chosen.scenes]
    models = {name: hilrp.load(f"zoo/{name}") for name in MODELS}
    cases = []
    for scene, question, said in asked(models["captioner"], scenes, chosen.questions):
        found = case_of(models["captioner"], scene, question) if said == question.said else None
        if found is not None:
            cases.append((scene, *found))
    words = sum(len(labels) for _, _, labels in cases)
    print(f"{len(cases)} answers, {words} words", flush=True)
    rows: list[Row] = []
    example = min((case for _, case, _ in cases), key=lambda case: len(case.spans))  # a word, of an answer of one
    rows += sinks(away_from_corners(models["captioner"], chosen.clear))
    several = [scene for scene in Scenes(SEED, 2 * chosen.priors) if len(scene.things) > 1][: chosen.priors]
    for name, loaded in models.items():
        started = time.perf_counter()
        rows += priors(name, loaded, several, 1)
        print("priors of", name, f"{time.perf_counter() - started:.0f} s", flush=True)
    for name, method in METHODS.items():
        started = time.perf_counter()
        few = cases[: chosen.searched] if name == "greedy search" else cases
        rows += measure(name, method, few)
        if name not in ("centre Gaussian", "chance"):
            rows += cost(name, method, example, 1 if name == "greedy search" else 5)
        if name == "greedy search":  # the others on the same words
            count = sum(len(labels) for _, _, labels in few)
            placed_or_worth = {figure for _, method, figure, _, _ in rows if method == "chance"}
            rows += [
                (model, f"{method} (few)", figure, number, value)
                for model, method, figure, number, value in rows
                if method in METHODS and method != name and figure in placed_or_worth and number < count
            ]
        print(name, f"{time.perf_counter() - started:.0f} s", _KEEP["write"](chosen.name, rows), flush=True)
    print(len(rows), "values")


if __name__ == "__main__":
    main()
