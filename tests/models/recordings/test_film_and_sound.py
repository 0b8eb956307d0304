"""Films and sounds: frames and moments, and maps of the same length."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import hilrp
from hilrp import InputError

av = pytest.importorskip("av")
soundfile = pytest.importorskip("soundfile")


@pytest.fixture
def clip(tmp_path):
    """Twenty grey frames, each a little lighter, with a red square that moves."""
    frames = (
        np.repeat((np.arange(20) * 10 + 20).astype(np.uint8)[:, None, None, None], 48, 1).repeat(64, 2).repeat(3, 3)
    )
    for i, frame in enumerate(frames):
        frame[16:32, 2 * i : 2 * i + 16] = (220, 20, 20)
    return _filmed(tmp_path / "clip.mp4", frames, Fraction(10)), frames


def _filmed(path, frames, rate):
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=rate, options={"crf": "10"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return path


def test_frames_are_those_of_the_film(clip):
    path, frames = clip
    recording = hilrp.read_file(path)
    assert (recording.kind, tuple(recording.values.shape)) == ("video", (3, 20, 48, 64))
    wanted = torch.from_numpy(frames).permute(3, 0, 1, 2) / 255
    assert float((recording.values - wanted).abs().mean()) < 0.02  # lossy
    assert recording.geometry.rate == 10
    np.testing.assert_allclose(recording.geometry.times, np.arange(20) / 10, atol=1e-6)
    some = hilrp.read_file(path, frames=4)
    torch.testing.assert_close(some.values, recording.values[:, [2, 7, 12, 17]])
    assert some.notes == ("4 of 20 frames were taken, evenly spread",)
    assert some.geometry.rate == 2
    part = hilrp.read_file(path, span=(0.5, 1.0))
    torch.testing.assert_close(part.values, recording.values[:, 5:10])
    many = hilrp.read_file(path, frames=40)
    assert many.grid[0] == 40
    assert many.notes == ("it has 20 frames; some were taken more than once to make 40",)


def test_a_film_of_the_map(clip, tmp_path):
    """As many frames of the same size and rate: red lies where relevance does."""
    path, _ = clip
    recording = hilrp.read_file(path)
    held = torch.zeros(recording.grid)
    held[12, 30:40, 50:60] = 1
    file = recording.write(tmp_path / "map.mp4", held)
    after = hilrp.read_file(file)
    assert after.grid == recording.grid
    assert after.geometry.rate == 10
    redness = after.values[0] - after.values[2]
    # The end of the scale is a dark red: 0.40 of red, 0.12 of blue, under 0.85 of cover.
    assert float(redness[12, 32:38, 52:58].mean()) == pytest.approx(0.85 * (0.404 - 0.122), abs=0.05)
    assert float(redness[3, 30:40, 50:60].mean()) < 0.1
    small = recording.resized(10, 24, 32)
    again = hilrp.read_file(small.write(tmp_path / "small.mp4", torch.zeros(10, 24, 32)))
    assert again.grid == (10, 24, 32)
    assert again.geometry.rate == 5


def test_films_that_cannot_be_read(clip, tmp_path, monkeypatch):
    path, _ = clip
    whole = path.read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut.mp4: not a readable video"):
        hilrp.read_file(tmp_path / "cut.mp4")
    (tmp_path / "text.avi").write_bytes(b"no film" * 99)
    with pytest.raises(InputError, match=r"text.avi: not a readable video"):
        hilrp.read_file(tmp_path / "text.avi")
    (tmp_path / "list.mp4").write_text("#EXTM3U\n#EXTINF:1,\nhttp://localhost:1/a.ts\n")
    with pytest.raises(InputError, match=r"list.mp4: "):
        hilrp.read_file(tmp_path / "list.mp4")
    soundfile.write(tmp_path / "song.wav", np.zeros(800), 8000)
    (tmp_path / "song.wav").rename(tmp_path / "song.mkv")
    with pytest.raises(InputError, match=r"song.mkv: there are no pictures in it"):
        hilrp.read_file(tmp_path / "song.mkv")
    with pytest.raises(InputError, match=r"no frame of it between 7 s and 9 s can be decoded"):
        hilrp.read_file(path, span=(7, 9))
    with pytest.raises(InputError, match=r"frames=0: give at least 1"):
        hilrp.read_file(path, frames=0)
    monkeypatch.setattr("hilrp.models.recordings.recording.MOST", 3 * 4 * 48 * 64)
    assert hilrp.read_file(path, frames=4).grid[0] == 4
    with pytest.raises(InputError, match=r"Give frames=16, evenly spread, or span"):
        hilrp.read_file(path)


@pytest.mark.parametrize(("ending", "channels"), [("wav", 1), ("flac", 2), ("wav", 3)])
def test_sounds(tmp_path, ending, channels):
    values = np.random.default_rng(0).uniform(-0.9, 0.9, (400, channels)).astype(np.float32)
    path = tmp_path / f"sound.{ending}"
    soundfile.write(path, values, 16000, subtype="PCM_24")
    recording = hilrp.read_file(path)
    assert (recording.kind, tuple(recording.values.shape)) == ("sound", (channels, 400))
    np.testing.assert_allclose(recording.values.T, values, atol=1e-6)
    part = hilrp.read_file(path, span=(0.01, 0.02))
    torch.testing.assert_close(part.values, recording.values[:, 160:320])
    assert part.geometry.facts() == {"rate": 16000.0, "start": 0.01}
    if channels == 1:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv1d(1, 2, 9), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()).eval()
        found = hilrp.explain(model, recording.values[None], 0, kind=recording.kind)
        written, rate = soundfile.read(recording.write(tmp_path / "map.wav", found), dtype="float32")
        assert rate == 16000
        np.testing.assert_array_equal(written, found.map[0].numpy())


def test_sounds_that_cannot_be_read(tmp_path):
    path = tmp_path / "sound.wav"
    soundfile.write(path, np.linspace(-1, 1, 900), 8000)
    whole = path.read_bytes()
    (tmp_path / "cut.flac").write_bytes(whole[:30])
    (tmp_path / "text.wav").write_bytes(b"no sound" * 99)
    for name in ("cut.flac", "text.wav"):
        with pytest.raises(InputError, match=f"{name}: not a readable sound"):
            hilrp.read_file(tmp_path / name)
    with pytest.raises(InputError, match=r"span=\(0, 2\): give two times from 0 to 0.1125 s"):
        hilrp.read_file(path, span=(0, 2))
    half = hilrp.read_file(path).resized(450)
    assert half.geometry.rate == 4000
    with pytest.raises(InputError, match="whole moments a second"):
        hilrp.read_file(path).resized(700).write(tmp_path / "map.wav", torch.zeros(700))
    soundfile.write(tmp_path / "none.wav", np.zeros(0), 8000)
    with pytest.raises(InputError, match="it holds no values"):
        hilrp.read_file(tmp_path / "none.wav")
