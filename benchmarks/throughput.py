"""What `hilrp run` costs beside a bare loop of explanations, and what several workers bring.

    python benchmarks/throughput.py [--device cpu] [--model vit_tiny_patch16_224] [--images 192] [--batch 16] [--workers
    2]

Prints a table: images per second of the bare loop (inputs already on the device), of a run in one process (files read,
decoded, prepared, explained, written as Parquet), of one and of several workers of Ray on as many cores; and what a run
adds per image. Weights are random, pictures are JPEG files of 500 x 375. Times begin when the first piece is done:
loading is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from hilrp.attribution.explainer import Explainer
from hilrp.jobs.run import executors as engines
from hilrp.jobs.run.items import find
from hilrp.jobs.run.store import Store
from hilrp.jobs.run.worker import Job, Worker


def make():
    """The model, as a worker loads it: benchmarks/ is where it looks."""
    import timm

    from hilrp.models.libraries.timm import preprocessing

    torch.manual_seed(0)
    model = timm.create_model(os.environ["HILRP_BENCHMARK_MODEL"]).eval().requires_grad_(False)
    return model, preprocessing(model), None


def pictures(folder: Path, count: int) -> None:
    """Smooth noise: files of the size of photographs."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(count):
        coarse = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{i:05d}.jpg", quality=90)


def store_for(out: Path, data: Path, piece: int) -> Store:
    store = Store(out)
    store.begin(find(str(data)), {"data": str(data), "maps": "none"}, piece, None)
    return store


def bare(worker: Worker, images: int) -> float:
    """Images per second of the explanations alone."""
    _, loaded = worker.models[0]
    job = worker.job
    size = loaded.model.default_cfg["input_size"]
    x = torch.randn(job.batch, *size, device=job.device)
    explainer = Explainer(loaded.model, "hilrp", stages=None, compile=job.device.startswith("cuda"))
    for _ in range(3):
        explainer.explain(x)
    start = time.perf_counter()
    for _ in range(-(-images // job.batch)):
        explainer.explain(x).map.cpu()
    return -(-images // job.batch) * job.batch / (time.perf_counter() - start)


def prepared(worker: Worker, store: Store) -> float:
    """Images per second that are read, decoded and preprocessed, and nothing else."""
    start, count = time.perf_counter(), 0
    with ThreadPoolExecutor(worker.job.readers) as pool:
        for _ in worker._ahead(pool, store.pieces()):
            count += 1
    store.settle(store.pieces())
    return count / (time.perf_counter() - start)


def rate(done) -> float:
    """Images per second after the first piece."""
    times, counts = [], []
    for each in done:
        times.append(time.perf_counter())
        counts.append(each.images)
    return sum(counts[1:]) / (times[-1] - times[0])


def written(out: Path, workers: int, piece: int) -> float:
    """Images per second by when the files of pieces appeared, after each worker's first."""
    times = sorted(path.stat().st_mtime for path in (out / "rows").glob("*.parquet"))
    return piece * (len(times) - workers) / (times[-1] - times[workers - 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--images", type=int, default=192)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--piece", type=int, default=32, help="images that are written together; by default 256")
    parser.add_argument("--workers", type=int, default=0, help="also measure one and so many workers of Ray")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    here = Path(__file__).resolve().parent
    os.environ["HILRP_BENCHMARK_MODEL"] = chosen.model
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
    cores = os.cpu_count() or 1
    threads = 1 if chosen.workers else 0
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        pictures(data, chosen.images)
        readers = 1 if chosen.workers else min(16, cores)

        def job(out: str) -> Job:
            return Job(
                str(Path(folder) / out),
                ("throughput:make",),
                ("hilrp",),
                batch=chosen.batch,
                device=chosen.device,
                threads=threads,
                readers=readers,
            )

        store = store_for(Path(folder) / "one", data, chosen.piece)
        worker = Worker(job("one"))
        alone, ahead = bare(worker, chosen.images), prepared(worker, store)
        one = rate(worker.run(store.pieces()))
        again = bare(worker, chosen.images)
        alone = (alone + again) / 2
        size = sum(path.stat().st_size for path in (Path(folder) / "one" / "rows").iterdir()) / chosen.images
        found = {
            "model": chosen.model,
            "device": chosen.device,
            "batch": chosen.batch,
            "threads": torch.get_num_threads(),
            "bare": alone,
            "one process": one,
            "bytes per row": size,
        }
        for count in (1, chosen.workers) if chosen.workers else ():
            store = store_for(Path(folder) / f"ray{count}", data, chosen.piece)
            list(engines.on_ray(job(f"ray{count}"), store.pieces(), count, None))
            found[f"{count} workers"] = written(store.folder, count, chosen.piece)
    print(
        f"torch {torch.__version__}, {chosen.model}, {chosen.device}, batch {chosen.batch}, {chosen.images} images, "
        f"{cores} cores, {found['threads']} threads of torch per worker\n"
    )
    print("| | images / s | relative | added per image |\n|---|---|---|---|")
    print(f"| bare loop | {alone:.1f} | 1 | |")
    print(f"| reading and preparing alone | {ahead:.1f} | {ahead / alone:.2f} of the bare loop | |")
    print(
        f"| hilrp run, this process | {one:.1f} | {one / alone:.2f} of the bare loop | "
        f"{1000 * (1 / one - 1 / alone):.2f} ms |"
    )
    if chosen.workers:
        first, several = found["1 workers"], found[f"{chosen.workers} workers"]
        print(f"| one worker of Ray | {first:.1f} | {first / alone:.2f} of the bare loop | |")
        print(f"| {chosen.workers} workers of Ray | {several:.1f} | {several / first:.2f} of one worker | |")
    print(f"\n{size:.0f} bytes of Parquet per image")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
