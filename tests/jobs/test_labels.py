"""From the names of ImageNet's folders to a model's classes: none is better than a wrong one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from timm.data import ImageNetInfo

import hilrp
from hilrp.jobs.labels import label_index

INFO = ImageNetInfo("imagenet-1k")
NAMES = INFO.label_names()


def knowing(classes: list[str]):
    return replace(hilrp.load("zoo/vit"), classes=classes)


@pytest.mark.parametrize("called", [str, INFO.label_name_to_description])
def test_a_thousand_classes_in_imagenets_order_or_in_another(called):
    classes = [called(name) for name in NAMES]
    turned = classes[::-1]
    assert [label_index(knowing(classes), name) for name in NAMES[:1000:99]] == list(range(0, 1000, 99))
    for name in NAMES[:1000:99]:
        found = label_index(knowing(turned), name)
        assert found is None or turned[found] == called(name)
    other = knowing([f"thing {i}" for i in range(1000)])
    assert label_index(other, NAMES[0]) is None


@pytest.mark.parametrize(
    ("synset", "classes", "found"),
    [
        ("n02012849", ["lorry", "crane"], None),  # a bird, called as the machine is
        ("n02127052", ["cougar, catamount", "tabby"], None),  # the lynx is a catamount, too
        ("n02127052", ["cougar, catamount", "lynx, catamount"], 1),
        ("n02113186", ["cardigan"], None),  # a dog, and no garment
        ("n02113186", ["cardigan", "Cardigan Welsh corgi"], 1),
    ],
)
def test_a_name_that_several_of_imagenets_classes_have_is_none(synset, classes, found):
    assert label_index(knowing(classes), synset) == found
