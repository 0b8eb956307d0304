"""Volumes: what they promise about lesions, spots and chance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import binary_dilation, label

from hilrp.jobs.bench.methods.controls import bell
from hilrp.scenes.volumes import Volumes
from hilrp.util.errors import InputError


@pytest.fixture(scope="module")
def volumes():
    return Volumes(seed=11, count=120)[:]


def test_a_volume_does_not_depend_on_what_came_before():
    again = Volumes(seed=3)
    assert np.array_equal(Volumes(seed=3)[7].image, again[7].image)
    assert np.array_equal(Volumes(seed=3, count=9)[-2].image, again[7].image)
    assert not np.array_equal(Volumes(seed=4)[7].image, again[7].image)


def test_lesions_lie_in_blobs_and_spots_outside(volumes):
    assert {len(v.blobs) for v in volumes} == {1, 2, 3}
    assert {len(v.lesions) for v in volumes} == {len(v.spots) for v in volumes} == {0, 1, 2}
    for volume in volumes:
        blobs, lesions = volume.places
        assert volume.image.shape == blobs.shape == (32, 32, 32)
        assert volume.image.dtype == np.uint8
        assert label(blobs)[1] == len(volume.blobs)  # none touches another
        for lesion in volume.lesions:
            assert not (lesion & ~blobs).any()
            assert 12 <= lesion.sum() <= 90  # whole: balls of radius 1.6 to 2.6
        for spot in volume.spots:
            assert not (binary_dilation(spot) & blobs).any()
        assert sum(m.astype(int) for m in (*volume.lesions, *volume.spots, np.zeros_like(blobs))).max() <= 1
        assert np.array_equal(lesions, np.any([*volume.lesions, np.zeros_like(blobs)], axis=0))


def test_brightness_alone_does_not_tell_a_lesion(volumes):
    """Lesions and spots are as bright and as large as each other; both are brighter than blobs, and these than haze."""
    means = {"lesion": [], "spot": [], "blob": [], "haze": []}
    sizes = {"lesion": [], "spot": []}
    for volume in volumes:
        blobs, lesions = volume.places
        means["blob"].append(volume.image[blobs & ~binary_dilation(lesions)].mean())
        means["haze"].append(volume.image[~binary_dilation(blobs)].mean())
        for name, masks in (("lesion", volume.lesions), ("spot", volume.spots)):
            means[name] += [volume.image[mask].mean() for mask in masks]
            sizes[name] += [mask.sum() for mask in masks]
    assert np.mean(means["lesion"]) == pytest.approx(np.mean(means["spot"]), rel=0.06)
    # A spot may be cut by the border, a lesion not.
    assert np.mean(sizes["lesion"]) == pytest.approx(np.mean(sizes["spot"]), rel=0.25)
    assert min(means["lesion"]) > max(means["blob"]) > min(means["blob"]) > max(means["haze"])


@pytest.mark.parametrize("size", [24, 40])
def test_other_sizes(size):
    """As full as can be: a lesion in each blob, whole and inside of it."""
    volume = Volumes(seed=1, size=size, blobs=(6, 6), lesions=(6, 6), spots=(6, 6))[0]
    blobs, lesions = volume.places
    assert volume.image.shape == (size,) * 3
    assert len(volume.lesions) == len(volume.blobs) >= 4
    assert not (lesions & ~blobs).any()


def test_taking_a_lesion_away_changes_what_it_covered_and_nothing_else(volumes):
    for volume in volumes:
        for i, lesion in enumerate(volume.lesions):
            changed = volume.without(i) != volume.image
            assert changed[lesion].all()
            assert not (changed & ~binary_dilation(lesion, np.ones((3, 3, 3)))).any()
    with pytest.raises(InputError, match="has 0 lesions"):
        next(v for v in volumes if not v.lesions).without(0)


def test_the_middle_is_worth_little():
    """A lesion keeps away from the border, within its blob: a bell over the middle has no more of it than that."""
    masks = [m for v in Volumes(seed=21, count=400) for m in v.lesions]
    coverage, weights = np.mean(masks, axis=0), bell(32, 32, 32).numpy()
    assert (coverage * weights).sum() / weights.sum() < 1.9 * coverage.mean()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"seed": -1}, "seed=-1"), ({"blobs": (0, 2)}, "blobs="), ({"spots": (3, 2)}, "spots="), ({"size": 8}, "size=8")],
)
def test_what_can_not_be_drawn(options, words):
    with pytest.raises(InputError, match=words):
        Volumes(**options)
    with pytest.raises(IndexError):
        Volumes(count=3)[3]
