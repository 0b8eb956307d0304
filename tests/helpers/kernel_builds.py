"""Compiles every kernel for generations of GPUs and types of numbers (``90:bf16``), without a GPU.

Prints, as JSON, how large each became.
"""

from __future__ import annotations

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hilrp.method.fast import kernels
from hilrp.method.fast import triton_kernels as fused

#: Types of what isn't of the type of the model's numbers.
TYPES = {
    "total_p": "*fp64",
    "sign_p": "*i8",
    "inverse_p": "*fp32",
    "fine": "fp32",
    "eps": "fp32",
    "share": "fp32",
    "scale": "fp32",
    "steepness": "fp32",
}
CONSTANTS = {"block": 1024, "height": 4, "width": 256, "steps": 4}


def signatures(kernel: triton.JITFunction, kind: str):
    """All that a kernel is called with: types by name, and the values of its constants."""
    names = [parameter.name for parameter in kernel.params]
    constants = [parameter.name for parameter in kernel.params if parameter.is_constexpr]
    types = {
        name: "constexpr" if name in constants else TYPES.get(name, f"*{kind}" if name.endswith("_p") else "i32")
        for name in names
    }
    if "kind" in constants:
        for number in range(len(kernels.ACTIVATIONS)):
            yield types, {"kind": number, "reads": kind != "fp32", "block": 1024}
        return
    options = [name for name in constants if name not in CONSTANTS]
    for chosen in (True, False) if options else (True,):
        yield types, {name: CONSTANTS.get(name, chosen) for name in constants}
    if kernel is fused._with_sign:
        yield types | {"x_p": "*i8"}, {"adds": True, "block": 1024}
    if kernel is fused._normalised_back:
        yield types | {"scale_p": "*fp32"}, {"scaled": True, "centre": True, "height": 2, "width": 1024}


def main(targets: list[str]) -> None:
    sizes: dict[str, dict[str, int]] = {}
    # Those without pointers are parts of others.
    found = {name: kernel for name, kernel in vars(fused).items() if isinstance(kernel, triton.JITFunction)}
    whole = {name: kernel for name, kernel in found.items() if any(p.name.endswith("_p") for p in kernel.params)}
    for target in targets:
        capability, kind = target.split(":")
        sizes[target] = {}
        for name, kernel in whole.items():
            for types, constants in signatures(kernel, kind):
                source = ASTSource(kernel, signature=types, constexprs=constants)
                compiled = triton.compile(source, target=GPUTarget("cuda", int(capability), 32))
                sizes[target][f"{name} {types.get('x_p', '')} {constants}"] = len(compiled.asm["cubin"])
    print(json.dumps(sizes))


if __name__ == "__main__":
    main(sys.argv[1:])
