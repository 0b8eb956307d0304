"""Maps on the pixels of photographs: the same relevance, where the model saw it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import hilrp
from hilrp.attribution import photographs
from hilrp.scenes import Scenes
from hilrp.util.errors import InputError


@pytest.fixture(scope="module")
def loaded():
    return hilrp.load("zoo/resnet")


@pytest.fixture(scope="module")
def photos():
    """A scene in the middle of a wide photograph, and in that of a tall one."""
    scene = Image.fromarray(Scenes(seed=0)[14].image)
    found = [Image.new("RGB", size, "grey") for size in ((320, 160), (128, 256))]
    for photo in found:
        photo.paste(scene, ((photo.width - 128) // 2, (photo.height - 128) // 2))
    return found


@pytest.fixture(scope="module")
def explanation(loaded, photos):
    return hilrp.explain(loaded.model, loaded.batch(photos))


def test_a_map_lies_where_the_model_looked(loaded, photos, explanation):
    for i, photo in enumerate(photos):
        placed, window = explanation.photo_map(i, loaded, photo), loaded.window(photo)
        assert placed.shape == (photo.height, photo.width)
        torch.testing.assert_close(placed.sum(), explanation.map[i].sum(), rtol=1e-4, atol=1e-4)
        rows, columns = (placed.abs().sum(axis).nonzero().flatten() for axis in (1, 0))
        assert rows[0] >= int(window.top)
        assert rows[-1] <= window.bottom
        assert columns[0] >= int(window.left)
        assert columns[-1] <= window.right
    assert placed[:60].abs().sum() == 0  # of the tall one the model saw the square in the middle


def test_files_hold_both(loaded, photos, explanation, tmp_path):
    explanation.save(tmp_path / "two", loaded, photos)
    arrays = np.load(tmp_path / "two.npz")
    assert arrays["map"].shape == (2, 128, 128)
    assert "photo_map" not in arrays
    for i, photo in enumerate(photos):
        np.testing.assert_allclose(arrays[f"photo_map/{i}"], explanation.photo_map(i, loaded, photo), atol=1e-6)
    (tmp_path / "alike.npz").write_bytes(explanation.encode("npz", loaded, [photos[0]] * 2))
    assert np.load(tmp_path / "alike.npz")["photo_map"].shape == (2, 160, 320)
    (tmp_path / "without.npz").write_bytes(explanation.encode("npz", loaded))
    assert "photo_map" not in np.load(tmp_path / "without.npz")


def test_large_photographs_have_none_in_files(loaded, photos, explanation, monkeypatch):
    windows = [loaded.window(photo) for photo in photos]
    monkeypatch.setattr(photographs, "MOST", 40_000)
    assert list(photographs.restored(explanation.map, windows)) == ["photo_map/1"]
    assert photographs.restored(explanation.map[:1], windows[:1]) == {}


def test_what_can_not_be_placed_is_named(loaded, photos, explanation):
    with pytest.raises(InputError, match="Give loaded="):
        explanation.photo_map(0, None, photos[0])
    with pytest.raises(InputError, match="Give loaded="):
        explanation.encode("npz", None, photos)
    with pytest.raises(InputError, match=r"the map is \[8, 8\], and the model of loaded= sees 128 x 128 pixels"):
        photographs.placed(torch.zeros(8, 8), loaded.window(photos[0]))
    with pytest.raises(InputError, match="photos has 1 pictures, the explanation 2 samples"):
        explanation.encode("npz", loaded, photos[:1])
