"""Many people on the page of `hilrp serve` at once: how long the slowest step takes, and what memory the server needs.

    python benchmarks/serve_load.py                                  # this tree
    python benchmarks/serve_load.py --trees . ../before --turns 2    # two trees, in turns

Each client opens the page, and then in every round sends a picture of its own, clicks the second prediction and reads
the explanation. The servers are started here, on this machine's loopback address, and nothing else is asked. It ends
after ``--seconds`` at the latest.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from PIL import Image

#: However many are asked for.
MOST_CLIENTS, MOST_ROUNDS = 60, 10


class Client:
    """One tab, and what its steps took."""

    def __init__(self, address: str, seed: int, deadline: float) -> None:
        self.address, self.deadline, self.tab = address, deadline, secrets.token_hex(8)
        self.took: list[tuple[str, float]] = []
        self.rng = np.random.default_rng(seed)
        self.config: dict[str, Any] = {}

    def run(self, rounds: int) -> None:
        """All that a person does."""
        self._step("open", self._open)
        for _ in range(rounds):
            self._step("send a picture", self._send)
            answer = self._step("click", self._click)
            self._step("read", lambda answer=answer: self._get(f"explanation/{self._shown(answer)}"))

    def _step(self, name: str, act: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        found = act()
        self.took.append((name, time.perf_counter() - started))
        return found

    def _open(self) -> None:
        self._get("")
        self.config = json.loads(self._get("config"))
        self._event("load", [], None)

    def _send(self) -> None:
        image = io.BytesIO()
        Image.fromarray(self.rng.integers(0, 255, (200, 200, 3), dtype=np.uint8)).save(image, "PNG")
        head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="mine.png"\r\n\r\n'
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        path = json.loads(self._get("gradio_api/upload", head + image.getvalue() + b"\r\n--b--\r\n", kind))[0]
        self.answer = self._event("upload", [[{"path": path, "meta": {"_type": "gradio.FileData"}}]], "upload")

    def _click(self) -> list[Any]:
        outputs = self._dependency("input", "predictions")["outputs"]
        choices = self.answer[outputs.index(self._component("predictions"))]["choices"]
        return self._event("input", [choices[1][1]], "predictions")

    def _shown(self, answer: list[Any]) -> str:
        """The token of the explanation that an answer shows."""
        frame = answer[self._dependency("input", "predictions")["outputs"].index(self._component("viewer"))]
        return str(frame).partition("explanation/")[2].partition('"')[0]

    def _event(self, event: str, data: list[Any], element: str | None) -> list[Any]:
        """Asks for something, and waits for the answer."""
        number = self._dependency(event, element)["id"]
        body = json.dumps({"data": data, "fn_index": number, "session_hash": self.tab}).encode()
        sent = json.loads(self._get("gradio_api/queue/join", body, {"Content-Type": "application/json"}))
        found: list[Any] = []
        with urlopen(f"{self.address}gradio_api/queue/data?session_hash={self.tab}", timeout=self._left()) as answer:
            for line in answer:
                message = json.loads(line[6:]) if line.startswith(b"data: ") else {}
                if message.get("msg") == "process_completed" and message["event_id"] == sent["event_id"]:
                    if not message["success"]:
                        raise RuntimeError(f"{event}: {message['output']}")
                    found = message["output"]["data"]
                if message.get("msg") == "close_stream":
                    break
        return found

    def _component(self, element: str) -> int:
        return next(each["id"] for each in self.config["components"] if each["props"].get("elem_id") == element)

    def _dependency(self, event: str, element: str | None) -> dict[str, Any]:
        own = None if element is None else self._component(element)
        return next(
            each
            for each in self.config["dependencies"]
            if any(name == event and own in (None, target) for target, name in each["targets"])
        )

    def _get(self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        with urlopen(Request(f"{self.address}{path}", body, headers or {}), timeout=self._left()) as answer:
            return bytes(answer.read())

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time is over")
        return left


@contextmanager
def served(tree: Path) -> Iterator[tuple[str, int]]:
    """The page of a tree of the sources; its address, and the server's process."""
    command = [sys.executable, "-m", "hilrp", "serve", "--port", "0"]
    env = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        line = next((line for line in process.stdout or () if "Look at http" in line), "")
        if not line:
            raise RuntimeError(f"{tree}: the page does not start")
        try:
            yield line.split()[2].replace("localhost", "127.0.0.1"), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def peak(process: int) -> float:
    """The most memory that a process had, in GB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e6


def worked(process: int) -> float:
    """The seconds that a process has computed, which others on the machine hardly change."""
    times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def measure(tree: Path, clients: int, rounds: int, seconds: float) -> dict[str, float]:
    """What the steps of all clients took at most, in seconds, and the server's peak of memory."""
    deadline = time.monotonic() + seconds
    failed: list[str] = []
    with served(tree) as (address, process):
        Client(address, 1000, deadline).run(1)  # models and libraries are loaded once
        people = [Client(address, seed, deadline) for seed in range(clients)]

        def act(client: Client) -> None:
            try:
                client.run(rounds)
            except Exception as error:
                failed.append(f"{type(error).__name__}: {error}")

        started, before = time.perf_counter(), worked(process)
        threads = [threading.Thread(target=act, args=(client,)) for client in people]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took: defaultdict[str, float] = defaultdict(float)
        for name, value in (step for client in people for step in client.took):
            took[name] = max(took[name], value)
        found = dict(took) | {"slowest": max(took.values(), default=0.0), "all": time.perf_counter() - started}
        found |= {"computing": worked(process) - before, "failed": len(failed), "GB": peak(process)}
    for why in sorted(set(failed)):
        print(f"  failed: {why}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, nargs="+", default=[Path(__file__).resolve().parent.parent])
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=1, help="how often each tree is measured")
    parser.add_argument("--seconds", type=float, default=240.0, help="the end of each measurement")
    options = parser.parse_args()
    clients, rounds = min(options.clients, MOST_CLIENTS), min(options.rounds, MOST_ROUNDS)
    least: dict[Path, float] = {}
    for turn in range(options.turns):
        for tree in options.trees if turn % 2 == 0 else reversed(options.trees):
            found = measure(tree, clients, rounds, options.seconds)
            print(f"{tree}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()), flush=True)
            least[tree] = min(least.get(tree, float("inf")), found["slowest"])
    print("slowest step, the best of all turns: " + ", ".join(f"{tree} {value:.2f} s" for tree, value in least.items()))


if __name__ == "__main__":
    main()
