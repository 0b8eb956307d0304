"""What methods and metrics of many passes take, beside captum's and Quantus' own, in the same run.

    python benchmarks/multipass.py [--device cpu] [--images 4] [--model vit_tiny_patch16_224] [--repeats 1]

Prints a table: the times of the peer and of ours for all images together (medians over the repeats), their ratio, and
how far the results are apart at most, relative to the largest of them, with their correlation. Model, images, windows,
masks, permutations and steps are the same for both, weights are random, and on a GPU all products are in
TensorFloat-32. Peers run with their default, one change of each image per pass, and with passes as large as ours. A
peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.compat.quantus import explain_func_of
from hilrp.jobs.bench.batches import without_graph
from hilrp.jobs.bench.measures import randomised
from hilrp.jobs.bench.methods import find
from hilrp.jobs.bench.methods.perturbation import grid, occlusion, rise, rise_masks
from hilrp.jobs.bench.metrics.faithfulness import flipping, pearson
from hilrp.jobs.bench.metrics.shapley import orders, shapley_values, spearman

CELLS, STEPS, PATCH = 8, 16, 32
QUIET = {"abs": False, "normalise": False, "disable_warnings": True, "display_progressbar": False}


@dataclass
class Bench:
    """A model, images and what is spent on them."""

    model: nn.Module
    x: Tensor
    target: Tensor
    repeats: int
    masks: int
    permutations: int

    @property
    def shown(self) -> int:
        """Changes of each image per pass, where a pass is as large as ours."""
        return max(1, without_graph(self.x.device) // len(self.x))

    def timed(self, run: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds, and what was found."""
        self._wait()
        start = time.perf_counter()
        found = run()
        self._wait()
        return time.perf_counter() - start, found

    def _wait(self) -> None:
        if self.x.device.type == "cuda":
            torch.cuda.synchronize()

    def compare(
        self,
        what: str,
        peers: dict[str, Callable[[], Any]],
        ours: Callable[[], Any],
        agree: Callable[[Any, Any], str],
        per: tuple[Callable[[Any], int], Callable[[Any], int]] = (lambda _: 1, lambda _: 1),
    ) -> None:
        """Prints a line for each peer; times are divided by what ``per`` says of the peer's results, and of ours."""
        runs = {"": ours, **peers}
        times: dict[str, list[float]] = {name: [] for name in runs}
        found = {}
        # A GPU's first run of a shape is slow.
        for repeat in range(self.repeats + (self.x.device.type != "cpu")):
            for name, run in runs.items():
                seconds, found[name] = self.timed(run)
                if repeat or self.x.device.type == "cpu":
                    times[name].append(seconds)
        own = statistics.median(times[""]) / per[1](found[""])
        for name in peers:
            theirs = statistics.median(times[name]) / per[0](found[name])
            print(
                f"| {what} | {name} | {theirs:.3g} s | {own:.3g} s | {theirs / own:.1f} | "
                f"{agree(found[name], found[''])} |",
                flush=True,
            )


def apart(theirs: Any, ours: Tensor) -> str:
    theirs, ours = torch.as_tensor(theirs).to(ours.device).double(), ours.double()
    if torch.equal(theirs, ours):
        return "equal"
    far = float((theirs - ours).abs().max() / ours.abs().max())
    return f"{far:.0e} apart, correlation {float(pearson(theirs.flatten(), ours.flatten())):.5f}"


def with_captum(bench: Bench) -> None:
    from captum import attr

    name, model, x, target = f"captum {version('captum')}", bench.model, bench.x, bench.target
    grey, side = x.mean((2, 3), keepdim=True).expand_as(x), x.shape[-1] // 8

    def label(shown: int) -> str:
        return f"{name}, {shown} of each image per pass{' (default)' if shown == 1 else ''}"

    def occluded(shown: int) -> Tensor:
        window, stride = (x.shape[1], side, side), (x.shape[1], side // 2, side // 2)
        found: Tensor = attr.Occlusion(model).attribute(x, window, stride, grey, target, perturbations_per_eval=shown)
        return found.sum(1)

    peers = {label(n): lambda n=n: occluded(n) for n in (1, bench.shown)}
    windows = math.prod(math.ceil((n - side) / (side // 2)) + 1 for n in x.shape[-2:])
    bench.compare(f"Occlusion, {windows} windows", peers, lambda: occlusion(model, x, target), apart)

    cells = grid(x.shape[-2], x.shape[-1], CELLS).to(x.device)
    drawn = orders(CELLS**2, bench.permutations).tolist()

    def sampled(shown: int) -> Tensor:
        method = attr.ShapleyValueSampling(model)
        method.permutation_generator = lambda features, samples: drawn
        return method.attribute(
            x, grey, target, feature_mask=cells[None, None], n_samples=len(drawn), perturbations_per_eval=shown
        )

    def shapley() -> Tensor:
        pairs = zip(x, target, grey, strict=True)
        found = [shapley_values(model, image, label, cells, dull, len(drawn)) for image, label, dull in pairs]
        return torch.stack(found)[:, None, cells].expand_as(x)

    peers = {label(n): lambda n=n: sampled(n) for n in (1, bench.shown)}
    bench.compare(f"Shapley values, {CELLS**2} cells, {len(drawn)} permutations", peers, shapley, apart)


def with_loops(bench: Bench) -> None:
    """Neither captum nor Quantus has RISE. What is copied from page to page takes one mask at a time."""
    model, x, target = bench.model, bench.x, bench.target

    def loop(shown: int) -> Tensor:
        chosen, maps = rise_masks(x.shape[-2], x.shape[-1], bench.masks).to(x), []
        for image, label in zip(x, target.tolist(), strict=True):
            grey, score = image.mean((1, 2), keepdim=True), []
            with torch.no_grad():
                for mask in chosen.split(shown):
                    score += model(image * mask[:, None] + grey * (1 - mask[:, None]))[:, label].tolist()
            mean = statistics.fmean(score)
            total = torch.zeros_like(chosen[0])
            for one, mask in zip(score, chosen, strict=True):
                total += (one - mean) * mask
            maps.append(total / len(chosen) / 0.5)
        return torch.stack(maps)

    peers = {
        "a loop, 1 per pass": lambda: loop(1),
        "a loop, 100 per pass": lambda: loop(100),
    }
    bench.compare(f"RISE, {bench.masks} masks", peers, lambda: rise(model, x, target, bench.masks), apart)


class Repeated(nn.Module):
    """A model of pictures with one channel: of several, Quantus flips single values and not whole pixels."""

    def __init__(self, model: nn.Module, channels: int) -> None:
        super().__init__()
        self.model, self.channels = model, channels

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the model for pictures whose channels are all the same."""
        found: Tensor = self.model(x.expand(-1, self.channels, -1, -1))
        return found


def with_quantus(bench: Bench) -> None:
    import quantus

    name, model, x, target = f"Quantus {version('quantus')}", bench.model, bench.x, bench.target
    device, pixels = str(x.device), x.shape[-2] * x.shape[-1]
    torch.manual_seed(1)
    maps = torch.randn(len(x), *x.shape[-2:], device=x.device)

    def flipped(metric: Any, model: nn.Module, x: Tensor, maps: Tensor) -> Any:
        # Quantus takes arrays; turning tensors into them is part of using it.
        arrays = {"x_batch": x.cpu().numpy(), "y_batch": target.cpu().numpy(), "a_batch": maps[:, None].cpu().numpy()}
        return torch.tensor(np.asarray(metric(model=model, **arrays, device=device, softmax=False))).reshape(len(x), -1)

    single, one = Repeated(model, x.shape[1]).eval(), x[:, :1].contiguous()
    pixel = quantus.PixelFlipping(
        features_in_step=pixels // STEPS, perturb_baseline=0.0, return_auc_per_sample=False, **QUIET
    )
    bench.compare(
        f"deletion, {STEPS} steps of pixels",
        {f"{name}, PixelFlipping": lambda: flipped(pixel, single, one, maps)},
        lambda: flipping(single, one, target, maps, torch.zeros_like(one), STEPS, most_first=True)[:, 1:],
        apart,
    )

    count = pixels // PATCH**2
    region = quantus.Selectivity(patch_size=PATCH, perturb_baseline=0.0, **QUIET)

    def patches() -> Tensor:
        whole = F.avg_pool2d(maps[:, None], PATCH).repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3)[:, 0]
        return flipping(model, x, target, whole, torch.zeros_like(x), count, most_first=True)[:, 1:]

    bench.compare(
        f"deletion, {count} patches",
        {f"{name}, Selectivity": lambda: flipped(region, model, x, maps)},
        patches,
        apart,
    )
    if importlib.util.find_spec("captum") is None:
        print("captum is not installed: without its gradients, randomisation is left out.")
        return

    saliency = find("saliency")
    before = saliency(model, x, target).flatten(1)
    parts = ("head", "half", "all", "one")

    def theirs() -> Any:
        metric = quantus.MPRT(**QUIET)
        return metric(
            model=model,
            x_batch=x.cpu().numpy(),
            y_batch=target.cpu().numpy(),
            a_batch=before.reshape(len(x), 1, *x.shape[-2:]).cpu().numpy(),
            explain_func=explain_func_of(saliency),
            device=device,
        )

    def ours() -> Tensor:
        after = [saliency(randomised(model, part), x, target).flatten(1) for part in parts]
        return torch.stack([spearman(before, each) for each in after])

    def similar(found: dict[str, list[float]], own: Tensor) -> str:
        after = saliency(randomised(model, "head"), x, target).flatten(1)
        same = quantus.correlation_spearman(before.cpu().numpy(), after.cpu().numpy(), batched=True)
        last = statistics.fmean(list(found.values())[-1])
        return (
            f"of the same maps {float((torch.tensor(same).to(own) - own[0]).abs().max()):.0e} apart; "
            f"all weights random: {last:.2f}, ours {float(own[parts.index('all')].mean()):.2f}"
        )

    # Theirs randomises layer after layer and explains the model itself too; ours shuffles four parts, each in a copy.
    bench.compare("randomisation, per model", {f"{name}, MPRT": theirs}, ours, similar, (len, len))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument(
        "--model", default="vit_tiny_patch16_224", help="of timm; its pictures have sides that 32 divides"
    )
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--masks", type=int, default=100)
    parser.add_argument("--permutations", type=int, default=4)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    model = timm.create_model(options.model).eval().requires_grad_(False).to(options.device)
    x = torch.randn(options.images, *model.default_cfg["input_size"]).to(options.device)
    with torch.no_grad():
        target = model(x).argmax(1)
    where = torch.cuda.get_device_name() if x.device.type == "cuda" else options.device
    print(
        f"torch {torch.__version__}, {where}, {torch.get_num_threads()} threads, {options.model}, {options.images} "
        f"images, ours {without_graph(x.device)} pictures per pass\n"
    )
    print("| what | peer | peer's time | ours | ratio | results |\n|---|---|---|---|---|---|")
    bench = Bench(model, x, target, options.repeats, options.masks, options.permutations)
    with_loops(bench)
    missing = []
    for package, run in (("captum", with_captum), ("quantus", with_quantus)):
        if importlib.util.find_spec(package) is None:
            missing.append(package)
        else:
            run(bench)
    for package in missing:
        print(f"\n{package} is not installed: its rows are left out.")


if __name__ == "__main__":
    main()
