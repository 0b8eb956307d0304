"""Runs random programs and torch's samples of operations until the time is over, and says what was found.

    python scripts/fuzz.py --seconds 600 --seed 0 [--programs 20000] [--only programs|operations]

Each finding comes with the seed that repeats it (``--seed SEED --programs 1 --only programs``), programs with their
smallest form.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
warnings.simplefilter("ignore")

from fuzz.calls import check_choice  # noqa: E402
from fuzz.drawing import random_program, with_dead_branch  # noqa: E402
from fuzz.operations import random_choice  # noqa: E402
from fuzz.pairs import check_program, shrunk  # noqa: E402

#: How many findings of a kind are written out.
SHOWN = 3


class Report:
    """What ran, what was left out and why, and what was found."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.found: Counter[str] = Counter()

    def program(self, seed: int) -> None:
        """Runs a program."""
        program = random_program(seed)
        found = check_program(program)
        if isinstance(found, str):
            self.left_out[found] += 1
            return
        self.ran["programs"] += 1
        for kind in dict.fromkeys(each.kind for each in found):
            self.found[f"programs: {kind}"] += 1
            if self.found[f"programs: {kind}"] <= SHOWN:
                detail = next(each for each in found if each.kind == kind)
                small = shrunk(program, kind)
                print(f"\n# program, --seed {seed}\n{detail}\n{small}", flush=True)
                if "dead branch" in kind:
                    print(f"with its dead branch:\n{with_dead_branch(small)}", flush=True)

    def operation(self, seed: int) -> None:
        """Runs a sample of an operation."""
        choice = random_choice(seed)
        found = check_choice(choice, seed)
        if isinstance(found, str):
            self.left_out[found] += 1
            return
        self.ran["samples of operations"] += 1
        for each in found:
            key = f"{choice.operation}: {each.kind}"
            self.found[key] += 1
            if self.found[key] == 1:
                print(f"\n# operation, --seed {seed}\n{choice}\n{each}", flush=True)

    def __str__(self) -> str:
        lines = [f"{count} {what}" for what, count in sorted(self.ran.items())] or ["nothing ran"]
        lines += [f"left out: {count} ({why})" for why, count in self.left_out.most_common()]
        lines += [f"FOUND {count} x {what}" for what, count in self.found.most_common()] or ["nothing found"]
        return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="budget of time")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--programs", type=int, help="stop after this many seeds")
    parser.add_argument("--only", choices=["programs", "operations"], help="leave out the other")
    options = parser.parse_args()
    report, seed, end = Report(), options.seed, time.monotonic() + options.seconds
    while time.monotonic() < end and (options.programs is None or seed < options.seed + options.programs):
        if options.only != "operations":
            report.program(seed)
        if options.only != "programs":
            report.operation(seed)
        seed += 1
    print(f"\nseeds {options.seed} to {seed - 1}\n{report}")
    return 1 if report.found else 0


if __name__ == "__main__":
    sys.exit(main())
