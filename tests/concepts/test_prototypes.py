"""Clusters that were planted are found, and the vector that fits none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hilrp
from hilrp.concepts import Concepts
from hilrp.concepts.galleries import Gallery
from hilrp.concepts.prototypes import cluster, directions


def planted(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = np.eye(3, 12)
    labels = rng.permutation(np.repeat([0, 1, 2], [30, 20, 10]))
    sizes = rng.uniform(0.1, 10, (60, 1))
    return sizes * (centres[labels] + 0.05 * rng.standard_normal((60, 12))), labels


@pytest.mark.parametrize("seed", range(5))
def test_planted_clusters_are_found(seed):
    vectors, labels = planted(seed)
    found = cluster(directions(vectors), 3)
    pairs = {*zip(found.labels.tolist(), labels.tolist(), strict=True)}
    assert len(pairs) == 3
    for i in range(3):
        own = directions(vectors)[found.labels == i]
        assert np.allclose(found.centres[i], own.mean(0))
        assert np.allclose(found.distances[found.labels == i], np.linalg.norm(own - own.mean(0), axis=1))


def test_vectors_that_are_alike_or_zero():
    found = cluster(directions(np.zeros((4, 3))), 2)
    assert not found.distances.any()
    assert not np.isnan(found.centres).any()
    assert cluster(directions(np.ones((1, 3))), 1).labels.tolist() == [0]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory) -> Gallery:
    loaded = hilrp.load("zoo/resnet")
    made = Gallery(loaded, Concepts(loaded.model, "layer4"), Path(tmp_path_factory.mktemp("gallery")), piece=4)
    [*made.scan("scenes:0:6")]
    vectors, _ = planted()
    vectors[7] = np.eye(12)[11]
    about = {"relevance": vectors, "target": np.array([2] * 50 + [1] * 10), "score": np.ones(60)}
    vars(made)["_found"] = about
    # The pictures are those of six scenes, over and over.
    own = made._example
    object.__setattr__(made, "_example", lambda number, value: (number, own(number % 6, value)))
    return made


def test_prototypes_and_outliers_of_a_class(gallery):
    found = gallery.prototypes(2, 4)
    assert sorted(each.concepts[0] for each in found) == [0, 1, 2, 11]
    assert sum(len(each.examples) for each in found) == 50
    sizes = [len(each.examples) for each in found]
    assert sizes == sorted(sizes, reverse=True)
    for each in found:
        distances = [example.value for _, example in each.examples]
        assert distances == sorted(distances)
    numbers = [number for number, _ in gallery.outliers(2, 1, 1)]
    assert numbers == [7]
    assert {number for each in found for number, _ in each.examples} == {*range(50)}


@pytest.mark.parametrize(("target", "count"), [(5, 1), (1, 11), (2, 0)])
def test_too_few_pictures_are_told(gallery, target, count):
    with pytest.raises(hilrp.InputError, match=f"target={target}"):
        gallery.prototypes(target, count)
