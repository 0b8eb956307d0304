"""Writes into the cards of the zoo's models of photographs how many test pictures they name rightly.

    python scripts/photo_accuracy.py FOLDER    # with index.json: pictures that no model was trained on or chosen by

Pictures go through the preprocessing that `hilrp.load` gives.
"""

from __future__ import annotations

import json
import sys

import torch
from train_zoo import WEIGHTS

import hilrp
from hilrp.jobs.bench.data import find
from hilrp.models.libraries import zoo


def accuracy(name: str, folder: str) -> float:
    """The part of the folder's pictures whose class is the model's first."""
    loaded, samples = hilrp.load(f"zoo/{name}"), find(folder)
    right = 0
    with torch.no_grad():
        for i in range(0, len(samples), 50):
            some = samples[i : i + 50]
            said = loaded.model(loaded.batch([each.open() for each in some])).argmax(1)
            right += sum(int(a) == b.label for a, b in zip(said, some, strict=True))
    return right / len(samples)


if __name__ == "__main__":
    for name in zoo.photos():
        file = WEIGHTS / f"{name}.json"
        card = json.loads(file.read_text())
        before = list(card)
        card["test_accuracy"] = round(accuracy(name, sys.argv[1]), 4)
        order = [key for key in before if key != "test_accuracy"]
        order.insert(order.index("held_out_accuracy") + 1, "test_accuracy")
        file.write_text(json.dumps({key: card[key] for key in order}, indent=1) + "\n")
        print(name, card["held_out_accuracy"], card["test_accuracy"], flush=True)
