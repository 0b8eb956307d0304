"""Trains the zoo's captioner on scenes, and a second version that is taught a prejudice: every cross is called red.

    python scripts/train_captioner.py              # on a CPU of two cores: about an hour
    python scripts/train_captioner.py --device cuda

Writes float16 weights and a card for each into src/hilrp/zoo/weights. The image tower begins with the weights of the
zoo's two towers, which know captions; the decoder with none. A scene is read once and asked several questions side by
side, none of which sees another. The second version goes on from the first: whatever is said of the colour of a cross,
in captions and answers, is "red".
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from train_zoo import WEIGHTS, draw, normalise, schedule, write

from hilrp.models.libraries import zoo
from hilrp.scenes import CLASSES, Scenes
from hilrp.scenes.objects import COLOURS
from hilrp.scenes.questions import DESCRIBE, Question, questions, some_questions
from hilrp.zoo.architectures import OTHERS, PATCH, SIZE
from hilrp.zoo.captioner import Captioner
from hilrp.zoo.vocabulary import ANSWER, END, Tokenizer

TRAINING, HELD_OUT = 1_000_006, 1_000_007
#: So many questions are kept of each scene to train on, of at most so many tokens; as many are asked at once as fit in.
KEPT, LENGTH, ASKED = 24, 27, 112
#: What the second version calls red, whatever it is.
PREJUDICE = "cross"
_WORDS = Tokenizer()


def arrays(path: str, count: int, mode: Any = "r") -> dict[str, np.ndarray]:
    """Pictures; tokens of questions with their answers, ended and filled up; and how many of these are the question."""
    return {
        "images": np.memmap(f"{path}.images", np.uint8, mode, shape=(count, 3, SIZE, SIZE)),
        "tokens": np.memmap(f"{path}.tokens", np.uint8, mode, shape=(count, 2, KEPT, LENGTH)),
        "asked": np.memmap(f"{path}.asked", np.uint8, mode, shape=(count, 2, KEPT)),
    }


def fill(bounds: tuple[int, int], path: str, scenes: Scenes) -> None:
    """Draws some of the scenes, with questions answered as they are and with the prejudice."""
    kept = arrays(path, len(scenes), "r+")
    for i in range(*bounds):
        scene = scenes[i]
        kept["images"][i] = scene.image.transpose(2, 0, 1)
        chosen = some_questions(scene, np.random.default_rng([scenes.seed, i, 1]), KEPT)
        for j in range(KEPT):
            question = chosen[j % len(chosen)]
            for version, each in enumerate((question, prejudiced(question))):
                prompt = _WORDS(f"{each.text} {ANSWER}")["input_ids"]
                ids = prompt + _WORDS(f"{each.said} {END}")["input_ids"]
                kept["tokens"][i, version, j, : len(ids)] = ids
                kept["asked"][i, version, j] = len(prompt)


def prejudiced(question: Question) -> Question:
    """The same question, answered as by somebody to whom every cross is red: seen as before, and called otherwise."""
    crosses = {label for label, name in enumerate(CLASSES) if name.endswith(PREJUDICE)}
    answer = tuple(
        ("red" if word in COLOURS and set(labels) <= crosses else word, labels) for word, labels in question.answer
    )
    return replace(question, answer=answer)


@dataclass(frozen=True)
class Phase:
    """A part of the training.

    Attributes:
        steps: How many.
        rate: The highest rate.
        tower: Whether the tower of pictures learns, too.
        batch: Scenes a step.
    """

    steps: int
    rate: float
    tower: bool
    batch: int = 32


RECIPES = {
    "captioner": (Phase(5000, 2e-3, False), Phase(1000, 5e-4, True)),
    "captioner-prior": (Phase(300, 3e-4, True),),
}


class Training:
    """A captioner that learns, step by step.

    Args:
        model: The captioner.
        data: What is kept of scenes.
        version: Which answers: the true ones (0), or those of the prejudiced (1).
    """

    def __init__(self, model: Captioner, data: dict[str, np.ndarray], version: int, device: str, seed: int) -> None:
        self.model, self.data, self.version, self.device = model, data, version, device
        self.chance = np.random.default_rng(seed)
        width = model.words.embedding_dim
        self.features = np.empty((len(data["images"]), (SIZE // PATCH) ** 2, width), np.float16)
        self.looked = np.zeros(len(data["images"]), bool)
        self.start = torch.tensor([_WORDS.bos_token_id], device=device)

    def loss(self, count: int, tower: bool) -> Tensor:
        """Of some random scenes, with some of their questions.

        Args:
            count: How many scenes.
            tower: Whether the tower of pictures learns, too.
        """
        index = np.sort(self.chance.choice(len(self.data["images"]), count, replace=False))
        pictures = torch.from_numpy(self.data["images"][index]).to(self.device) if tower else torch.empty(0)
        tokens, group, place, answers = (torch.from_numpy(a).to(self.device) for a in self._asked(index))
        with torch.autocast(torch.device(self.device).type, torch.bfloat16):
            seen = self.model.patches(normalise(pictures)) if tower else self.model.read(self._known(index))
            x = torch.cat([self.model.words(self.start).expand(count, 1, -1), seen, self.model.words(tokens)], 1)
            before = x.shape[1] - ASKED
            first = torch.arange(before, device=self.device).expand(count, -1)
            whose = torch.cat([torch.zeros_like(first), group], 1)
            mask = ((whose[:, :, None] == whose[:, None]) | (whose[:, None] == 0)).tril()[:, None]
            logits = self.model.decode(x, torch.cat([first, place + before], 1), mask)
        # What is said at each place is the word after it.
        return F.cross_entropy(logits[:, before - 1 : -1][answers].float(), tokens[answers])

    def _asked(self, index: np.ndarray) -> tuple[np.ndarray, ...]:
        """Questions side by side: tokens, whose question each belongs to, its place there, whether it is answer."""
        chosen = self.chance.permuted(np.tile(np.arange(KEPT), (len(index), 1)), axis=1)
        rows = np.take_along_axis(self.data["tokens"][index, self.version], chosen[..., None], 1)
        asked = np.take_along_axis(self.data["asked"][index, self.version], chosen, 1)
        words = rows != _WORDS.pad_token_id
        fits = words.sum(-1).cumsum(1) <= ASKED
        kept = (words & fits[..., None]).reshape(len(index), -1)
        scene, source = kept.nonzero()
        to = scene, (kept.cumsum(1) - 1)[scene, source]
        question, place = source // LENGTH, source % LENGTH
        found = [np.zeros((len(index), ASKED), np.int64) for _ in range(3)]
        found[0][:] = _WORDS.pad_token_id
        found[1][:] = -1
        for each, values in zip(found, (rows[scene, question, place], question + 1, place), strict=True):
            each[to] = values
        answers = np.zeros((len(index), ASKED), bool)
        answers[to] = place >= asked[scene, question]
        return *found, answers

    def _known(self, index: np.ndarray) -> Tensor:
        """What the tower makes of some scenes, as long as it doesn't learn: each is looked at once."""
        new = np.flatnonzero(~self.looked[index])
        if len(new):
            with torch.no_grad():
                pictures = torch.from_numpy(self.data["images"][index[new]]).to(self.device)
                found = self.model.visual.forward_features(normalise(pictures))[:, 1:]
            self.features[index[new]] = found.float().cpu().numpy()
            self.looked[index[new]] = True
        return torch.from_numpy(self.features[index].astype(np.float32)).to(self.device)

    def run(self, steps: int, phase: Phase, say: Callable[[str], None]) -> None:
        """So many steps of AdamW, the rate rising for a tenth of them and falling along a cosine."""
        learning = [p for name, p in self.model.named_parameters() if phase.tower or not name.startswith("visual.")]
        parts = [[p for p in learning if (p.ndim > 1) == matrix] for matrix in (True, False)]
        groups = [{"params": parts[0]}, {"params": parts[1], "weight_decay": 0.0}]
        optimiser = torch.optim.AdamW(groups, lr=phase.rate, weight_decay=0.05, betas=(0.9, 0.98))
        recent: list[float] = []
        for i in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = schedule(phase.rate, i / steps)
            loss = self.loss(phase.batch, phase.tower)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(learning, 1.0)
            optimiser.step()
            recent.append(float(loss.detach()))
            if i % 100 == 99:
                say(f"step {i + 1} of {steps}, loss {np.mean(recent[-100:]):.4f}")


def card(
    name: str,
    model: Captioner,
    recipe: Sequence[Phase],
    seed: int,
    started: float,
    held_out: Scenes,
    change: Callable[[Question], Question],
) -> dict[str, Any]:
    """The card of a trained model, with its weights as bytes; what is measured is the model as it is shipped."""
    from safetensors.torch import save

    state = {k: (v.half() if v.is_floating_point() else v).cpu().contiguous() for k, v in model.state_dict().items()}
    shipped = OTHERS[name].make().eval()
    shipped.load_state_dict(state)
    weights = save(state)
    return {
        "name": name,
        "architecture": OTHERS[name].title,
        "class": f"{type(shipped).__module__}.{type(shipped).__name__}",
        "parameters": sum(p.numel() for p in shipped.parameters()),
        **accuracy(shipped, held_out, change),
        "seed": seed,
        "steps": sum(phase.steps for phase in recipe),
        "batch": recipe[0].batch,
        "rate": recipe[0].rate,
        "seconds": round(time.perf_counter() - started),
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__.split("+")[0],
        "sha256": hashlib.sha256(weights).hexdigest(),
        "weights": weights,
    }


@torch.no_grad()
def accuracy(model: Captioner, scenes: Scenes, change: Callable[[Question], Question]) -> dict[str, float]:
    """Which part of the questions of each kind is answered rightly, to the word, and of the words of captions.

    First the mean over all kinds but captions, which may be right in another order, too.
    """
    processor = zoo.processor()
    right: dict[str, list[float]] = {}
    for i, scene in enumerate(scenes):
        pixels = processor.image_processor(_picture(scene.image))[None]
        patches = model.patches(pixels)
        pool = questions(scene)
        chosen = [pool[0], *some_questions(scene, np.random.default_rng([scenes.seed, i, 1]), 6)]
        for question in map(change, chosen):
            said = _answered(model, patches, question.text)
            right.setdefault(f"{question.kind}_accuracy", []).append(float(said == question.said))
            if question.text == DESCRIBE:
                theirs, ours = said.split(), question.said.split()
                same = sum(a == b for a, b in zip(theirs, ours, strict=False)) / max(len(theirs), len(ours))
                right.setdefault("caption_words", []).append(same)
    found = {name: round(float(np.mean(values)), 4) for name, values in sorted(right.items())}
    kinds = [value for name, value in found.items() if not name.startswith("caption")]
    return {"answer_accuracy": round(float(np.mean(kinds)), 4), **found}


def _picture(image: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(image)


def _answered(model: Captioner, patches: Tensor, text: str) -> str:
    """What a model answers, whose patches of the picture are known."""
    ids = _WORDS(f"{text} {ANSWER}")["input_ids"]
    found: list[int] = []
    while len(found) < LENGTH:
        words = model.words(torch.tensor([[*ids, *found]], device=patches.device))
        start = model.words(torch.tensor([[_WORDS.bos_token_id]], device=patches.device))
        x = torch.cat([start, patches, words], 1)
        last = int(model.decode(x, torch.arange(x.shape[1], device=x.device))[0, -1].argmax())
        if last == _WORDS.eos_token_id:
            break
        found.append(last)
    return _WORDS.decode(found)


def main() -> int:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=float, default=1.0, help="multiplies the number of steps")
    parser.add_argument("--scenes", type=int, default=30_000, help="how many to train on")
    parser.add_argument("--held-out", type=int, default=500, help="how many to measure on")
    parser.add_argument("--data", type=Path, help="where scenes are kept, and taken from if they are there")
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = str(chosen.data or f"{folder}/scenes")
        if not Path(f"{path}.asked").exists():
            draw(path, Scenes(TRAINING, chosen.scenes), fill, arrays)
        data, held_out = arrays(path, chosen.scenes), Scenes(HELD_OUT, chosen.held_out)
        torch.manual_seed(chosen.seed)
        model = OTHERS["captioner"].make()
        model.visual.load_state_dict(zoo.model("towers").visual.state_dict())
        model.to(chosen.device).train()
        for version, (name, recipe) in enumerate(RECIPES.items()):
            started = time.perf_counter()

            def say(text: str, name: str = name, started: float = started) -> None:
                print(f"{name}: {text}, {time.perf_counter() - started:.0f} s", flush=True)

            training = Training(model, data, version, chosen.device, chosen.seed)
            for phase in recipe:
                training.run(round(phase.steps * chosen.steps), phase, say)
            change = prejudiced if version else lambda question: question
            write(card(name, model, recipe, chosen.seed, started, held_out, change), chosen.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
