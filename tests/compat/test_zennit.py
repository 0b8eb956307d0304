"""The page for those who come from zennit: nothing that zennit has is left out."""

from __future__ import annotations

import inspect

import pytest

from helpers.paths import ROOT

#: What rules of zennit are made of, which nobody names in a composite.
PARTS = {"ClampMod", "GammaMod", "NoMod"}


@pytest.mark.parametrize("kind", ["rules", "composites"])
def test_each_rule_and_composite_has_a_row(kind):
    module = pytest.importorskip(f"zennit.{kind}")
    rows = [line for line in (ROOT / "docs" / "from-zennit-and-lxt.md").read_text().splitlines() if line[:1] == "|"]
    first = " ".join(line.split("|")[1] for line in rows)
    names = {
        name for name, each in vars(module).items() if inspect.isclass(each) and each.__module__ == module.__name__
    }
    assert not {name for name in names - PARTS if name not in first}
    assert len(names) > 10
