"""The same model under this library and under others, in one run: time, peak memory, and how far the maps agree.

    python benchmarks/peers.py [--device cuda] [--batch 8] [--models vgg16 vit_b_16 swin_t] [--json FILE]

Models are torchvision's, with random weights. zennit: Gamma or Epsilon on linear layers and convolutions, Pass on
activations; sums, norms and attention as it leaves them, on their gradients. captum: its LRP, on VGG. LXT: CP-LRP for
torchvision's ViT, on zennit's Gamma. On VGG each layer has the same rule in zennit as here, and epsilon's also in
captum; that is compared in float64 (`diff`: the largest difference beside the largest value). Elsewhere the column has
Pearson's correlation (`corr`: the median over samples). A peer that can't be imported or run has a row that says so.
"""

from __future__ import annotations

import argparse
import copy
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
import torchvision
from measuring import (
    CALLS_TO_RECORD,
    add_options,
    attempt,
    environment,
    explainer,
    header,
    heading,
    interleaved,
    line,
    on_gpu,
    peak,
    plain_pass,
    precision,
    ratio,
    recording_of,
    release,
    save,
)
from torch import Tensor, nn

import hilrp

RULES = {"epsilon": hilrp.Rules(linear="epsilon"), "gamma": hilrp.Rules(gamma=0.25)}
COLUMNS = ("model", "batch", "rule", "by", "ms", "/ plain", "memory / plain", "agreement with hilrp", "remark")
DIFFER = (
    "zennit has no rule for sums, norms and attention, and passes relevance on as their gradient, "
    "also to queries and keys"
)


@dataclass(frozen=True)
class Peer:
    """How another library explains, on which models, and in which of them with the rules that are ours.

    Attributes:
        ready: Makes a model ready for as long as it is open, and gives what explains the predicted class of the inputs.
        models: How names of the models begin that it can explain.
        same: The rules that are the same in all layers, by how names of the models begin.
        remark: Why maps of the others differ.
    """

    ready: Callable[[nn.Module, Tensor, str], Any]
    models: tuple[str, ...] = ("",)
    same: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remark: str = ""


def one_hot(output: Tensor) -> Tensor:
    """The scores of the predicted classes, and zeros: where relevance starts."""
    index = output.detach().argmax(1, keepdim=True)
    return torch.zeros_like(output).scatter_(1, index, output.detach().gather(1, index))


@contextmanager
def zennit(model: nn.Module, x: Tensor, rule: str) -> Iterator[Callable[[], Tensor]]:
    composites, rules, types = (importlib.import_module(f"zennit.{name}") for name in ("composites", "rules", "types"))
    # Stabilisers as good as none, like ours.
    own = rules.Gamma(gamma=0.25, stabilizer=1e-30) if rule == "gamma" else rules.Epsilon(epsilon=1e-30)
    # zennit counts attention among its activations: Pass there would leave it out altogether.
    composite = composites.LayerMapComposite([((nn.ReLU, nn.GELU), rules.Pass()), (types.Linear, own)])

    def run() -> Tensor:
        leaf = x.clone().requires_grad_()
        output = model(leaf)
        return torch.autograd.grad(output, leaf, one_hot(output))[0]

    with composite.context(model):
        yield run


@contextmanager
def captum(model: nn.Module, x: Tensor, rule: str) -> Iterator[Callable[[], Tensor]]:
    attr, rules = (importlib.import_module(f"captum.attr{name}") for name in ("", "._utils.lrp_rules"))
    with torch.no_grad():
        target = model(x).argmax(1)

    def run() -> Tensor:
        for module in model.modules():  # captum takes the rules away after each call
            if rule == "gamma" and isinstance(module, (nn.Conv2d, nn.Linear)):
                module.rule = rules.GammaRule(gamma=0.25)
        return attr.LRP(model).attribute(x.clone().requires_grad_(), target=target).detach()

    yield run


@contextmanager
def lxt(model: nn.Module, x: Tensor, rule: str) -> Iterator[Callable[[], Tensor]]:
    """Changes torch's classes for good: nothing else can be measured afterwards."""
    efficient = importlib.import_module("lxt.efficient")
    efficient.monkey_patch(torchvision.models.vision_transformer)
    efficient.monkey_patch_zennit()
    composites, rules = (importlib.import_module(f"zennit.{name}") for name in ("composites", "rules"))
    own = rules.Gamma(gamma=0.25) if rule == "gamma" else rules.Epsilon()
    composite = composites.LayerMapComposite([((nn.Conv2d, nn.Linear), own)])

    def run() -> Tensor:
        leaf = x.clone().requires_grad_()
        return leaf.detach() * torch.autograd.grad(model(leaf).amax(1).sum(), leaf)[0]

    with composite.context(model):
        yield run


PEERS = {
    "zennit": Peer(zennit, same={"vgg": ("epsilon", "gamma")}, remark=DIFFER),
    "captum": Peer(
        captum, models=("vgg",), same={"vgg": ("epsilon",)}, remark="its gamma looks at the signs of weights alone"
    ),
}


def ours(model: nn.Module, x: Tensor, rule: str) -> Callable[[], Tensor]:
    return partial(explainer(model, RULES[rule]).attribute, x)


def made(name: str, device: str) -> nn.Module:
    """A model with biases, since rules differ in what they do with them, and a head that isn't zero."""
    torch.manual_seed(0)
    model: nn.Module = getattr(torchvision.models, name)(weights=None)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # captum can't do with what is overwritten
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            if not module.weight.any():
                nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.02)
    return model.eval().requires_grad_(False).to(device)


def agreement(found: Tensor, expected: Tensor, same: bool) -> str:
    if same:
        return f"diff {float((found - expected).abs().max() / expected.abs().max()):.0e}"
    pairs = zip(found.sum(1).flatten(1), expected.sum(1).flatten(1), strict=True)
    return f"corr {median(float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in pairs):.3f}"


def compared(peer: Peer, model: nn.Module, x: Tensor, rule: str, same: bool) -> str:
    """Whether the maps agree, in float64 on few samples, so that what is left is not rounding."""
    double, few = copy.deepcopy(model).double(), x[:2].double()
    expected = ours(double, few, rule)()
    with peer.ready(double, few, rule) as run:
        return agreement(run(), expected, same)


def measured(run: Callable[[], Tensor], plain: Callable[[], Tensor], options: argparse.Namespace) -> dict[str, Any]:
    for _ in range(2):
        run()
    memory = {"own": peak(run, options.device), "plain": peak(plain, options.device)}
    return {
        "seconds": interleaved({"own": run, "plain": plain}, options.device, options.repeats),
        "bytes": memory,
    }


def of_peer(
    name: str, peer: Peer, model: nn.Module, x: Tensor, rule: str, options: argparse.Namespace
) -> dict[str, Any]:
    importlib.import_module(name)
    own = copy.deepcopy(model)  # which some change
    same = any(options.model.startswith(start) and rule in rules for start, rules in peer.same.items())
    plain = plain_pass(model, x)
    for _ in range(2):
        plain()
    with peer.ready(own, x, rule) as run, precision(options.precision, options.device):
        found = measured(run, plain, options)
    agrees, reason = attempt(partial(compared, peer, model, x, rule, same))
    return found | {"agreement": agrees or reason, "remark": "the same rule" if same else peer.remark}


def of_ours(model: nn.Module, x: Tensor, rule: str, options: argparse.Namespace) -> dict[str, Any]:
    plain = plain_pass(model, x)
    for _ in range(2):
        plain()
    with precision(options.precision, options.device):
        return measured(ours(model, x, rule), plain, options)


def of_compiled(model: nn.Module, x: Tensor, rule: str, options: argparse.Namespace) -> dict[str, Any]:
    """Without memory: a recording keeps what it needs, and asks for nothing when it is replayed."""
    plain, recorded = plain_pass(model, x), explainer(model, RULES[rule], compile=True)
    run: Callable[[], Tensor] = partial(recorded.attribute, x)
    with precision(options.precision, options.device):
        for each in (plain, *[run] * CALLS_TO_RECORD):
            each()
        seconds = interleaved({"own": run, "plain": plain}, options.device, options.repeats)
        agrees = agreement(run(), ours(model, x, rule)(), same=True)
    said = recording_of(recorded)
    return {
        "seconds": seconds,
        "agreement": agrees,
        "remark": "recorded as a CUDA graph" if said == "yes" else f"not recorded: {said}",
    }


def of_lxt(
    model: nn.Module, x: Tensor, rule: str, expected: Tensor | None, plain: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """Beside the plain pass as it was measured before: LXT changes that of every model."""
    with lxt(model, x, rule) as run, precision(options.precision, options.device):
        for _ in range(2):
            run()
        seconds = interleaved({"own": run}, options.device, options.repeats) | {"plain": plain["seconds"]["plain"]}
        memory = {"own": peak(run, options.device), "plain": plain["bytes"]["plain"]}
        agrees = "" if expected is None else agreement(run(), expected, same=False)
    return {
        "seconds": seconds,
        "bytes": memory,
        "agreement": agrees,
        "remark": "CP-LRP, zennit's rules on layers; products inside attention have no gamma",
    }


def of_plain(model: nn.Module, x: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    with precision(options.precision, options.device):
        return measured(plain_pass(model, x), plain_pass(model, x), options)


def cells(row: dict[str, Any]) -> list[str]:
    start = [row["model"], str(row["batch"]), row["rule"], row["by"]]
    if "failure" in row:
        return [*start, "", "", "", "", row["failure"]]
    seconds, memory = row["seconds"], row.get("bytes")
    return [
        *start,
        f"{median(seconds['own']) * 1000:.1f}",
        ratio(seconds["own"], seconds["plain"]),
        f"{memory['own'] / memory['plain']:.2f}" if memory else "",
        row.get("agreement", ""),
        row.get("remark", ""),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=("vgg16", "vit_b_16", "swin_t"), metavar="MODEL")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rules", nargs="+", choices=tuple(RULES), default=tuple(RULES))
    add_options(parser, repeats=5)
    options = parser.parse_args()
    about = environment(options, torchvision)
    for name in ("zennit", "captum", "lxt"):
        module, reason = attempt(partial(importlib.import_module, name))
        about[name] = str(getattr(module, "__version__", "found")) if module is not None else f"- ({reason})"
    print(header(about) + "\n")
    print(heading(COLUMNS), flush=True)
    rows: list[dict[str, Any]] = []

    def report(rule: str, by: str, run: Callable[[], dict[str, Any]]) -> None:
        found, failure = attempt(run)
        about_row = {"model": options.model, "batch": options.batch, "rule": rule, "by": by}
        rows.append(about_row | (found if found is not None else {"failure": failure}))
        print(line(cells(rows[-1])), flush=True)
        save(options.json, about, rows)
        release()

    def prepared(name: str) -> tuple[nn.Module, Tensor]:
        options.model = name
        return made(name, options.device), torch.randn(options.batch, 3, 224, 224, device=options.device)

    for name in options.models:
        if (ready := attempt(partial(prepared, name))[0]) is None:
            print(line([name, "torchvision has no such model, or it can't be made"]), flush=True)
            continue
        model, x = ready
        report("", "plain", partial(of_plain, model, x, options))
        for rule in options.rules:
            report(rule, "hilrp", partial(of_ours, model, x, rule, options))
            if on_gpu(options.device):
                report(rule, "hilrp, compiled", partial(of_compiled, model, x, rule, options))
            for by, peer in PEERS.items():
                if name.startswith(peer.models):
                    report(rule, by, partial(of_peer, by, peer, model, x, rule, options))
    for name in [row["model"] for row in rows if row["by"] == "plain" and row["model"].startswith("vit")]:
        model, x = prepared(name)
        plain = next(row for row in rows if row["model"] == name)
        expected = {rule: attempt(ours(model, x, rule))[0] for rule in options.rules}
        for rule in options.rules:
            report(rule, "lxt", partial(of_lxt, model, x, rule, expected[rule], plain, options))


if __name__ == "__main__":
    main()
