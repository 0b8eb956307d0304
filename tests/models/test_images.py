"""Image files of every sort."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from hilrp.models import images, picture_files
from hilrp.models.images import as_rgb, find, read
from hilrp.models.libraries.zoo import _preprocess
from hilrp.util.errors import InputError

RED, GREEN = (200, 30, 30), (30, 200, 30)


def two_halves(mode="RGB", left=RED, right=GREEN):
    image = Image.new(mode, (40, 20), left)
    image.paste(right, (20, 0, 40, 20))
    return image


def corners(image):
    values = np.asarray(image).astype(int)
    return values[3, 3].tolist(), values[-4, -4].tolist()


def test_plain(tmp_path):
    two_halves().save(tmp_path / "a.png")
    image, notes = read(tmp_path / "a.png")
    assert (image.mode, notes, corners(image)) == ("RGB", [], (list(RED), list(GREEN)))


def test_exif_rotation(tmp_path):
    """Orientation 6 of the EXIF standard: the stored picture has to be turned by 90 degrees clockwise."""
    exif = Image.Exif()
    exif[0x0112] = 6
    two_halves().save(tmp_path / "a.png", exif=exif)
    image, _ = read(tmp_path / "a.png")
    assert image.size == (20, 40)
    assert corners(image) == (list(RED), list(GREEN))
    assert np.asarray(image)[3, -4].tolist() == list(RED)


def test_cmyk(tmp_path):
    two_halves("CMYK", (0, 255, 255, 0), (255, 0, 255, 0)).save(tmp_path / "a.jpg", quality=95)
    first, second = corners(read(tmp_path / "a.jpg")[0])
    assert first[0] > 220
    assert first[1] < 40
    assert second[1] > 220
    assert second[0] < 40


@pytest.mark.parametrize(("ending", "mode"), [("png", "I;16"), ("tif", "I;16"), ("tif", "I"), ("tif", "F")])
def test_sixteen_bits_keep_their_contrast(tmp_path, ending, mode):
    values = np.linspace(0, 65535, 256).round().reshape(16, 16)
    kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
    Image.fromarray(values.astype(kind)).save(tmp_path / f"a.{ending}")
    image, notes = read(tmp_path / f"a.{ending}")
    grey = np.asarray(image)[..., 0].astype(int).flatten()
    assert len(notes) == 1
    assert np.abs(grey - np.arange(256)).max() <= 1


@pytest.mark.parametrize(("high", "top"), [(4095, 4095), (3000, 4095), (1023, 1023), (2**20, 2**20)])
def test_fewer_or_more_bits_than_sixteen(tmp_path, high, top):
    """Scanners store 12 bits in 16: such a picture must not come out black."""
    values = np.linspace(0, high, 256).round().reshape(16, 16)
    Image.fromarray(values.astype(np.int32)).save(tmp_path / "a.tif")
    image, notes = read(tmp_path / "a.tif")
    assert np.abs(np.asarray(image)[..., 0] - values * 255 / top).max() <= 1
    assert f"to {high:g}" in notes[0]


def test_negative_values_keep_their_place(tmp_path):
    """Hounsfield units begin below zero."""
    Image.fromarray(np.linspace(-1000, 3095, 256, dtype=np.float32).reshape(16, 16)).save(tmp_path / "a.tif")
    grey = np.asarray(read(tmp_path / "a.tif")[0])[..., 0].flatten().astype(int)
    assert grey[0] == 0
    assert (np.diff(grey) >= 0).all()
    assert grey[-1] > 200


def test_values_that_are_no_numbers(tmp_path):
    Image.fromarray(np.full((4, 4), np.nan, dtype=np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(InputError, match="not finite"):
        read(tmp_path / "a.tif")


def test_floats_up_to_one(tmp_path):
    Image.fromarray(np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)).save(tmp_path / "a.tif")
    assert np.abs(np.asarray(read(tmp_path / "a.tif")[0])[..., 0].flatten().astype(int) - np.arange(256)).max() <= 1


@pytest.mark.parametrize("form", ["RGBA", "LA", "P"])
def test_transparent_places_become_white(tmp_path, form):
    image = two_halves("RGBA", (*RED, 0), (*GREEN, 255))
    if form == "P":
        image = image.quantize(4)
    image.convert(form).save(tmp_path / "a.png")
    found, notes = read(tmp_path / "a.png")
    assert corners(found)[0] == [255, 255, 255]
    assert corners(found)[1] != [255, 255, 255]
    assert "white" in notes[0]


def test_an_opaque_picture_with_an_alpha_channel_is_not_noted(tmp_path):
    two_halves().convert("RGBA").save(tmp_path / "a.png")
    assert read(tmp_path / "a.png")[1] == []


def test_animation(tmp_path):
    two_halves().save(tmp_path / "a.gif", save_all=True, append_images=[two_halves(left=GREEN)])
    image, notes = read(tmp_path / "a.gif")
    assert corners(image)[0][0] > 150
    assert notes == ["the first of several pictures was taken"]


def test_grey_and_bilevel(tmp_path):
    for mode, value in (("L", 99), ("1", 1)):
        Image.new(mode, (8, 8), value).save(tmp_path / "a.png")
        assert read(tmp_path / "a.png")[0].mode == "RGB"


def test_broken_files(tmp_path):
    whole = tmp_path / "whole.jpg"
    Image.effect_noise((200, 200), 50).save(whole)
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:2000])
    (tmp_path / "text.png").write_text("hello")
    (tmp_path / "empty.png").write_bytes(b"")
    for name, words in (("cut.jpg", "not a readable image"), ("text.png", "it holds none of"), ("empty.png", "empty")):
        with pytest.raises(InputError, match=rf"{name}: .*{words}"):
            read(tmp_path / name)


def test_a_bomb(tmp_path, monkeypatch):
    """Whoever has set Pillow's own limit lower gets an error of the same kind."""
    two_halves().save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match="Scale it down"):
        read(tmp_path / "a.png")


def test_finding(tmp_path):
    for name in ("b/x.png", "b/deep/y.JPG", "b/.hidden.png", "b/notes.txt", "c/x.png", "z.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "empty").mkdir()
    found, problems = find([tmp_path / "b"])
    assert [s.name for s in found] == ["deep/y", "x"]
    assert problems == {}
    found, _ = find([tmp_path / "*" / "x.png", tmp_path / "z.bin", tmp_path / "b" / "x.png"])
    assert [s.name for s in found] == ["x-1", "x-2", "z"]
    found, problems = find([tmp_path / "none*.png", tmp_path / "empty"])
    assert found == []
    assert "no such file" in problems[str(tmp_path / "none*.png")]
    assert "there are no images in it" in problems[str(tmp_path / "empty")]
    (tmp_path / "folder.png").mkdir()
    found, problems = find([tmp_path / "[bc]", tmp_path / "emp*", tmp_path])
    assert [s.name for s in found] == ["deep/y", "x-1", "x-2"]
    assert list(problems) == [str(tmp_path / "emp*")]


def test_results_are_not_taken_for_images(tmp_path):
    for name in ("a.png", "out/a.png", "out2/b.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [s.name for s in find([tmp_path], tmp_path / "out")[0]] == ["a", "out2/b"]


def test_names_of_results_do_not_collide(tmp_path):
    for name in ("scan.png", "scan.png.jpg"):
        (tmp_path / name).write_bytes(b"")
    assert [s.name for s in find([tmp_path])[0]] == ["scan", "scan_png"]
    (tmp_path / "scan_png.jpg").write_bytes(b"")
    names = [s.name for s in find([tmp_path])[0]]
    assert len(set(names)) == 3
    for name in ("x/a.png", "y/a.png", "z/a-1.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"")
    names = [s.name for s in find([tmp_path / "x/a.png", tmp_path / "y/a.png", tmp_path / "z/a-1.png"])[0]]
    assert names == ["a-2", "a-3", "a-1"]


def test_a_link_to_itself_beside_results(tmp_path):
    two_halves().save(tmp_path / "a.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    assert [source.name for source in find([tmp_path], tmp_path / "out")[0]] == ["a"]


def test_what_is_neither_file_nor_folder(tmp_path):
    os.mkfifo(tmp_path / "x.png")
    found, problems = find([tmp_path / "x.png"])
    assert found == []
    assert "a pipe, a device or a socket" in problems[str(tmp_path / "x.png")]


def at_once(image):
    """A picture in RGB, all of it at once."""
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "L", "1", "P", "CMYK", "YCbCr", "I;16"])
def test_strips_make_the_same_picture(monkeypatch, mode):
    """Bit for bit what is made at once."""
    monkeypatch.setattr(images, "_STRIP", 1000)
    values = np.random.default_rng(0).integers(0, 256, (61, 47, 4), dtype=np.uint8)
    values[0, 0] = 255
    if mode == "I;16":
        picture = Image.fromarray(values[..., 0].astype(np.uint16) * 257)
        expected = Image.fromarray(values[..., 0]).convert("RGB")
    else:
        layers = Image.fromarray(values)
        picture = (layers if mode in ("RGBA", "LA") else layers.convert("RGB")).convert(mode)
        expected = at_once(picture)
    found = as_rgb(picture)[0]
    assert np.array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_ordinary_photographs_are_decoded_as_ever(tmp_path, orientation):
    """What models get of JPEGs is, bit for bit, what Pillow makes of them."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    noise = np.random.default_rng(1).integers(0, 256, (70, 110, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((2200, 1400)).save(tmp_path / "a.jpg", exif=exif)
    with Image.open(tmp_path / "a.jpg") as image:
        expected = ImageOps.exif_transpose(image).convert("RGB")
    found, notes = read(tmp_path / "a.jpg")
    assert notes == []
    assert np.array_equal(np.asarray(found), np.asarray(expected))
    assert torch.equal(_preprocess(as_rgb(found)[0]), _preprocess(expected))


def smooth(width, height):
    """A large picture that is quickly made: it changes slowly from left to right and from top to bottom."""
    small = np.stack(np.meshgrid(np.arange(64) * 3, np.arange(64) * 2), -1).astype(np.uint8)
    return Image.fromarray(np.dstack([small, small[..., :1]])).resize((width, height))


def test_very_large_photographs_are_decoded_at_half_their_size(tmp_path, monkeypatch):
    """They differ a little from what the whole gives, and that is said."""
    smooth(1600, 1200).save(tmp_path / "a.jpg", quality=95)
    whole, _ = read(tmp_path / "a.jpg")
    monkeypatch.setattr(picture_files, "_REDUCED", 1599 * 1200)
    found, notes = read(tmp_path / "a.jpg")
    assert found.size == (800, 600)
    assert notes == ["it was decoded at half its width and height, since it is very large"]
    assert np.abs(np.asarray(found) - np.asarray(whole.reduce(2)).astype(int)).max() <= 3
    assert read(tmp_path / "a.jpg", reduce=False)[0].size == (1600, 1200)


def test_what_is_reduced_counts_as_what_it_becomes(tmp_path, monkeypatch):
    smooth(1600, 1200).save(tmp_path / "a.jpg")
    smooth(1600, 1200).save(tmp_path / "progressive.jpg", progressive=True)
    smooth(1600, 1200).save(tmp_path / "a.png")
    monkeypatch.setattr(picture_files, "_REDUCED", 10**6)
    monkeypatch.setattr(picture_files, "_allowed", 10**6)
    assert read(tmp_path / "a.jpg")[0].size == (800, 600)
    for name, options in (("a.jpg", {"reduce": False}), ("progressive.jpg", {}), ("a.png", {})):
        with pytest.raises(InputError, match="1600 x 1200, 2 megapixels"):
            read(tmp_path / name, **options)


def test_more_can_be_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(picture_files, "_allowed", picture_files.allowed())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    smooth(1600, 1200).save(tmp_path / "a.png")
    picture_files.allow(1)
    with pytest.raises(InputError, match="--max-megapixels"):
        read(tmp_path / "a.png")
    picture_files.allow(2)
    assert read(tmp_path / "a.png")[0].size == (1600, 1200)
    assert picture_files.most_bytes() == 8 * 10**6
    assert Image.MAX_IMAGE_PIXELS < 10**8  # others that use Pillow in this process keep their limit
    picture_files.allow(1000)
    assert Image.MAX_IMAGE_PIXELS == 2 * 10**9
