"""The table: names of operations, and what each row promises."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import roi_align

import hilrp
from hilrp.method.composite import Surrogate
from hilrp.method.table import BY_PARTS, NAIVE, TABLE, secant_form
from hilrp.method.torch_calls import is_python_source, operation_name, shaping

# Names ----------------------------------------------------------------------------------------------------------------

#: Names that the engine gives to parts of what it runs; and what torch hands over as ``rdiv``.
OTHERS = {"squash", "write", "set_item", "laid_out", "rtruediv"}


def functions(name: str) -> list[Any]:
    """What torch calls so, in all of its namespaces."""
    space, _, short = name.partition("_")
    places = [(home, name) for home in (torch, Tensor, F, torch._C._nn, torch.ops.aten)] + [(Tensor, f"__{name}__")]
    places += [(getattr(torch, space), short)] if space in ("fft", "linalg") else []
    found = [getattr(home, key) for home, key in places if hasattr(home, key)]
    return [f.__get__ if inspect.isdatadescriptor(f) else f for f in found]


@pytest.mark.parametrize("name", [name for name in TABLE if "::" not in name and name not in OTHERS])
def test_names_are_those_of_torch(name):
    """A row under a name that no function has would never be used."""
    assert (name, False) in {operation_name(function) for function in functions(name)}


@pytest.mark.parametrize(
    ("function", "name", "in_place"),
    [
        (torch.add, "add", False),
        (Tensor.add_, "add", True),
        (Tensor.__add__, "add", False),
        (Tensor.__radd__, "add", False),
        (Tensor.__iadd__, "add", True),
        (Tensor.__rsub__, "rsub", False),
        (Tensor.__rtruediv__, "rdiv", False),
        (Tensor.__matmul__, "matmul", False),
        (Tensor.__getitem__, "getitem", False),
        (torch.multiply, "mul", False),
        (torch.clip, "clamp", False),
        (torch.special.expit, "sigmoid", False),
        (torch.concat, "cat", False),
        (F.gelu, "gelu", False),
        (F.relu_, "relu", True),
        (torch._softmax, "_softmax", False),
        (Tensor.T.__get__, "T", False),
        (Tensor.data.__set__, "data =", True),
        (Tensor.float, "float", False),
        (Tensor.__float__, "item", False),
        (Tensor.__bool__, "item", False),
        (torch.ops.aten.mul.Tensor, "mul", False),
        (torch.ops.torchvision.roi_align, "torchvision::roi_align", False),
    ],
)
def test_names_of_functions(function, name, in_place):
    """``float(tensor)`` reads a number out; ``tensor.float()`` is a cast."""
    assert operation_name(function) == (name, in_place)


def test_functions_that_torch_writes_in_python():
    assert is_python_source(F.normalize)
    assert is_python_source(F.multi_head_attention_forward)
    assert not is_python_source(torch.add)
    assert not is_python_source(F.gelu)
    assert not is_python_source(roi_align)  # torchvision's own


# Rows -----------------------------------------------------------------------------------------------------------------


def test_overlays_change_operations_that_there_are():
    """By parts: made of others. Naive: with another rule, but still the same operation."""
    assert set(BY_PARTS) | set(NAIVE) <= set(TABLE)
    assert all(isinstance(row.rule, Surrogate) for row in BY_PARTS.values())
    for name, row in NAIVE.items():
        assert row.rule is not TABLE[name].rule
        assert replace(row, rule=TABLE[name].rule) == TABLE[name]


def test_every_rule_of_the_table_has_a_form_relative_to_a_reference():
    for name, row in TABLE.items():
        if not isinstance(row.rule, Surrogate):
            assert callable(secant_form(row, name))
    with pytest.raises(hilrp.AuditError, match=r"`mine` has no form relative to a reference.*hilrp.register"):
        secant_form(replace(TABLE["relu"], secant="mine"), "mine")


# Shapes that depend on values -----------------------------------------------------------------------------------------

X, N, MASK = torch.zeros(3), torch.tensor(2), torch.tensor([True, False, True])


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "expected"),
    [
        ("nonzero", (X,), {}, [X]),
        ("nonzero", (), {"input": X}, [X]),
        ("masked_select", (X, MASK), {}, [MASK]),
        ("masked_select", (X,), {"mask": MASK}, [MASK]),
        ("repeat_interleave", (X, N), {}, [N]),
        ("repeat_interleave", (N,), {}, [N]),
        ("where", (MASK,), {}, [MASK]),
        ("where", (MASK, X, X), {}, []),
        ("getitem", (X, MASK), {}, [MASK]),
        ("getitem", (X, torch.tensor([0, 1])), {}, []),
        ("getitem", (X, slice(None, N)), {}, [N]),
        ("setitem", (X, MASK, 0.0), {}, []),
        ("setitem", (X, (slice(N, None),), 0.0), {}, [N]),
        ("zeros", (N,), {}, [N]),
        ("expand", (X, N, 3), {}, [N]),
        ("topk", (X, N), {}, [N]),
        ("narrow", (X, 0, torch.tensor(0), N), {}, [torch.tensor(0), N]),
    ],
)
def test_what_a_shape_depends_on(name, args, kwargs, expected):
    found = shaping(name, args, kwargs)
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
