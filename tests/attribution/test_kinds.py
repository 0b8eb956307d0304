"""Inputs that are no flat pictures: their maps, regions, chains, references, sentences and figures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from torch import nn

import hilrp
from hilrp import Chains, InputError, Kind
from hilrp.attribution.montages import montage
from hilrp.attribution.references import Blurred

#: A kind, an input of that kind, the shape of a sample's map, and what its places and its reference are called.
FORMS = [
    (None, (3, 6, 5), (6, 5), "picture", "pixels", "the picture's mean colour"),
    (None, (7, 6, 5), (6, 5), "bands", "pixels", "each channel's mean"),
    (None, (1, 4, 6, 5), (4, 6, 5), "volume", "voxels", "the volume's mean"),
    (None, (2, 4, 6, 5), (4, 6, 5), "volume", "voxels", "each channel's mean"),
    ("volume", (4, 6, 5), (4, 6, 5), "volume", "voxels", "the volume's mean"),
    ("volume", (3, 4, 6, 5), (4, 6, 5), "volume", "voxels", "each channel's mean"),
    (None, (3, 4, 6, 5), (4, 6, 5), "video", "pixels", "each channel's mean"),
    (None, (4, 3, 6, 5), (4, 6, 5), "frames", "pixels", "each channel's mean"),
    ("video", (4, 3, 6, 5), (4, 6, 5), "frames", "pixels", "each channel's mean"),
    ("frames", (3, 1, 6, 5), (3, 6, 5), "frames", "pixels", "the video's mean"),
    ("video", (4, 6, 5), (4, 6, 5), "video", "pixels", "the video's mean"),
    ("sound", (6, 9), (6, 9), "sound", "values", "the sound's mean"),
    ("sound", (1, 6, 9), (6, 9), "sound", "values", "the sound's mean"),
    ("sound", (1, 20), (20,), "sound", "values", "zero"),
    ("sound", (20,), (20,), "sound", "values", "zero"),
    (None, (9,), (9,), "table", "features", "zero"),
    (None, (6, 4), (6,), "tokens", "tokens", "zero"),
    ("tokens", (6,), (6,), "tokens", "tokens", "zero"),
]


class Curved(nn.Module):
    """Two classes of what is given, whatever its form."""

    def __init__(self, *shape):
        super().__init__()
        torch.manual_seed(0)
        count = int(np.prod(shape))
        self.first, self.second = nn.Linear(count, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x.flatten(1))))


def explained(shape, kind=None, batch=2, **options):
    x = torch.randn(batch, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return hilrp.explain(Curved(*shape).double().eval(), x, 0, kind=kind, **options)


@pytest.mark.parametrize(("kind", "shape", "own", "name", "places", "reference"), FORMS)
def test_map_of_each_kind(kind, shape, own, name, places, reference):
    """It has the input's own axes, sums to the difference, and is called what it is."""
    found = explained(shape, kind)
    assert found.kind == name
    assert found.relative_to == reference
    assert found.map.shape == (2, *own)
    torch.testing.assert_close(found.map.flatten(1).sum(1), found.ledger.explained, rtol=1e-12, atol=1e-14)
    assert list(found.ledger.arrived) == [places]
    assert places in found.ledger.table()
    assert [str(verdict) for verdict in found.verdicts] == ["valid", "valid"]
    mask = torch.zeros(own)
    mask.view(-1)[:3] = 1
    held = found.region(mask)
    torch.testing.assert_close(held.relevance, found.map.flatten(1)[:, :3].sum(1), rtol=1e-12, atol=1e-14)
    assert found[1].kind == name
    marked = "the marked region" if name not in ("table", "tokens") else f"the marked {places}"
    assert f"comes from {marked}; nothing is missing." in found.sentence(0)


@pytest.mark.parametrize(("kind", "shape", "own", "name", "places", "reference"), FORMS)
def test_chains_of_each_kind(kind, shape, own, name, places, reference):
    """The map is the mean over pairs of chains, and still sums to the difference."""
    found = explained(shape, kind, passes=16)
    assert found.stderr.shape == found.map.shape
    torch.testing.assert_close(found.pair_maps.mean(1), found.map, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.map.flatten(1).sum(1), found.ledger.explained, rtol=1e-12, atol=1e-14)
    assert bool((found.stderr > 0).any())
    assert " ± " in found.sentence(0)


@pytest.mark.parametrize(
    ("kind", "shape", "summed"),
    [
        ("volume", (2, 3, 4, 5), 1),
        ("frames", (4, 3, 5, 6), 2),
        ("video", (3, 4, 5, 6), 1),
        ("sound", (5, 9), ()),
        ("tokens", (6, 4), 2),
    ],
)
def test_map_of_a_linear_model_is_the_formula(kind, shape, summed):
    """Weight times difference to the mean (or to zero), summed over channels."""
    x = torch.randn(1, *shape, dtype=torch.float64)
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 1)).double().eval()
    axes = {"volume": (2, 3, 4), "frames": (1, 3, 4), "video": (2, 3, 4), "sound": (1, 2)}.get(kind)
    mean = x.mean(axes, keepdim=True) if axes else torch.zeros(())
    wanted = model[1].weight.detach().view(1, *shape) * (x - mean)
    found = hilrp.explain(model, x, 0, rules="epsilon", reference=mean.expand_as(x), kind=kind)
    torch.testing.assert_close(found.map, wanted.sum(summed) if summed else wanted, rtol=1e-9, atol=1e-12)
    again = hilrp.explain(model, x, 0, kind=kind)
    torch.testing.assert_close(again.map.sum(), wanted.sum(), rtol=1e-9, atol=1e-12)


def test_cells_of_a_volume():
    """With as many steps as cells each cell joins alone: in a model of its cells' sums they get what they add."""
    cells = torch.arange(8).reshape(2, 2, 2).repeat_interleave(2, 0).repeat_interleave(2, 1).repeat_interleave(2, 2)
    x = torch.rand(1, 1, 4, 4, 4, dtype=torch.float64)
    weight = torch.linspace(-1, 1, 8, dtype=torch.float64)

    class Cells(nn.Module):
        def forward(self, x):
            sums = torch.stack([(x[:, 0] * (cells == i)).sum((1, 2, 3)) for i in range(8)], 1)
            return (sums.square() * weight).sum(1, keepdim=True)

    found = hilrp.explain(Cells().eval(), x, 0, reference=0.0, passes=Chains(steps=8, draws=2, cells=cells))
    sums = torch.stack([x[0, 0][cells == i].sum() for i in range(8)])
    own = torch.stack([found.map[0][cells == i].sum() for i in range(8)])
    torch.testing.assert_close(own, sums.square() * weight, rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match=r"shape \(4, 4\), the input \(1, 1, 4, 4, 4\): give \(4, 4, 4\)"):
        hilrp.explain(Cells().eval(), x, 0, reference=0.0, passes=Chains(steps=2, draws=2, cells=cells[0]))


@pytest.mark.parametrize("shape", [(5,), (5, 3)])
def test_cells_of_a_table_and_of_tokens(shape):
    """Columns that belong together join together: each cell's features get what the cell adds in the mean."""
    cells = torch.tensor([0, 1, 0, 1, 1])
    x = torch.rand(1, *shape, dtype=torch.float64)

    class Product(nn.Module):
        def forward(self, x):
            own = x.reshape(len(x), 5, -1).sum(2)
            return (own[:, cells == 0].sum(1) * own[:, cells == 1].sum(1))[:, None]

    found = hilrp.explain(Product().eval(), x, 0, reference=0.0, passes=Chains(steps=2, draws=4, cells=cells))
    # The parts of the product join one after the other: whatever is first adds nothing, in each pair of draws.
    own = found.pair_maps[0]
    torch.testing.assert_close(own[:, cells == 0].sum(1), own[:, cells == 1].sum(1), rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match=r"shape \(4,\), the input .*: give \(5,\)"):
        hilrp.explain(Product().eval(), x, 0, passes=Chains(steps=2, draws=2, cells=cells[:4]))


@pytest.mark.parametrize(
    ("kind", "shape", "pictures", "texts"),
    [
        (None, (7, 9, 8), 1, ["band 1 of 7", "0.", "pixel"]),
        (None, (1, 6, 9, 8), 1, ["axis 1, slice", "axis 2, slice", "axis 3, slice", "strongest along axis 1", "voxel"]),
        (None, (3, 12, 9, 8), 1, ["frame 1 of 12", "frame 12 of 12", "pixel"]),
        ("sound", (30, 9), 1, ["time (axis 1) from left to right", "value"]),
        ("sound", (60,), 0, ["relevance by time"]),
        (None, (25,), 0, ["feature ", "5 others"]),
        (None, (6, 4), 0, ["token 5"]),
    ],
)
def test_figures_of_each_kind(kind, shape, pictures, texts, tmp_path):
    found = explained(shape, kind, batch=1)
    figure = found.plot()
    figure.canvas.draw()
    said = [text.get_text() for text in figure.findobj(match=lambda each: hasattr(each, "get_text"))]
    for text in texts:
        assert any(text in each for each in said), (text, said)
    drawn = [axis for axis in figure.axes if axis.get_gid() == "picture"]
    assert len(drawn) == pictures
    files = found.save(tmp_path / "it")
    assert {file.name for file in files} == {"it.npz", "it.png", "it.details.png", "it.json"}
    assert np.load(tmp_path / "it.npz")["map"].shape == tuple(found.map.shape)
    assert json.loads((tmp_path / "it.json").read_text())["inputs"].keys() == found.ledger.arrived.keys()
    if pictures:
        assert found.overlay(array=True).shape[2] == 3
    else:
        with pytest.raises(InputError, match=r"is no picture \(kind='\w+'\): plot\(\) draws a chart of it"):
            found.overlay()


def test_strongest_voxel_is_where_slices_meet():
    """A model that looks at one voxel: its three slices, and the place of the strongest red in the first."""

    class One(nn.Module):
        def forward(self, x):
            return x[:, :, 4, 7, 2]

    x = torch.zeros(1, 1, 6, 16, 12)
    x[0, 0, 4, 7, 2] = 5
    found = hilrp.explain(One().eval(), x, 0, reference=0.0)
    said = [text.get_text() for text in found.plot().texts]
    assert {"axis 1, slice 5 of 6", "axis 2, slice 8 of 16", "axis 3, slice 3 of 12"} <= set(said)
    panel = montage(found, 0, None, 512)
    first = panel.relevance[~panel.blank.all(1)][:, ~panel.blank.all(0)]
    high, wide = (~panel.blank)[: panel.blank.shape[0] // 2].any(1).sum(), (~panel.blank)[25].nonzero()[0]
    wide = int(np.flatnonzero(np.diff(wide, append=-1) != 1)[0]) + 1
    row, column = np.unravel_index(first[:high, :wide].argmax(), (high, wide))
    assert (row / high * 16, column / wide * 12) == pytest.approx((7.5, 2.5), abs=0.6)


def test_bars_are_the_largest_features_by_name():
    model = nn.Linear(30, 1).eval()
    with torch.no_grad():
        model.weight.copy_(torch.arange(30.0) - 5)
    found = hilrp.explain(model, torch.ones(1, 30), 0)
    axis = found.plot(features=[f"name {i}" for i in range(30)]).axes[0]
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names[:3] == ["name 29", "name 28", "name 27"]
    assert names[-1] == "10 others"
    lengths = [bar.get_width() for bar in axis.patches]
    assert lengths[0] == pytest.approx(24)
    assert sum(lengths) == pytest.approx(float(found.ledger.explained), rel=1e-5)
    bold = {label.get_text() for label in axis.get_yticklabels() if label.get_fontweight() == "bold"}
    assert bold == {f"name {int(i)}" for i in found.marked().mask[0].nonzero()}
    with pytest.raises(InputError, match="name of each of 30 features, not of 2"):
        found.plot(features=["a", "b"])


def test_long_names_leave_room_for_the_sentence():
    found = hilrp.explain(nn.Linear(4, 1).eval(), torch.ones(1, 4), 0)
    for length in (30, 500):
        figure = found.plot(features=[f"{i} {'long name' * length}"[:length] for i in range(4)])
        figure.draw_without_rendering()
        said = figure.axes[0].xaxis.label.get_window_extent()
        names = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
        assert said.x1 <= figure.bbox.x1
        assert min(name.x0 for name in names) >= 0


def test_a_curve_has_each_place_in_full_width():
    axis = explained((1, 1, 4, 4), batch=1).plot_details().axes[0]
    assert axis.get_xlim() == (0.5, 1.5)
    drawn = [collection.get_datalim(axis.transData) for collection in axis.collections]
    assert all((box.x0, box.x1) == (0.5, 1.5) for box in drawn)


def test_a_single_moment_that_is_marked_is_grey():
    found = explained((9,), "sound", batch=1)
    figure = found.plot(outlines=torch.eye(9)[4:5])
    figure.set_dpi(100)
    figure.draw_without_rendering()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels, axis = np.asarray(canvas.buffer_rgba())[..., :3], figure.axes[0]
    columns = [int(axis.transData.transform((place, 0))[0]) for place in (5.3, 7.3)]
    row = pixels.shape[0] - int(axis.get_window_extent().y1) + 3
    assert [pixels[row, column].tolist() for column in columns] == [[0xDD] * 3, [0xFF] * 3]


def test_kind_by_shape_and_model():
    pytest.importorskip("transformers")
    from torchvision.models.video import mc3_18
    from transformers import ASTConfig, ASTModel

    listens = ASTModel(
        ASTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, max_length=32)
    )
    assert Kind.of(torch.zeros(1, 32, 16), listens) is Kind.SOUND
    assert Kind.of(torch.zeros(1, 32, 16)) is Kind.TOKENS
    assert Kind.of(torch.zeros(1, 1, 8, 9, 9), mc3_18()) is Kind.VIDEO
    assert Kind.of(torch.zeros(1, 1, 8, 9, 9)) is Kind.VOLUME
    assert Kind.of(torch.zeros(2)) is None
    assert Kind.of(torch.zeros(2, 3, dtype=torch.long)) is None


def test_of_several_inputs_the_picture_has_the_map():
    class Both(nn.Module):
        def forward(self, row, picture):
            return row.sum(1, keepdim=True) + picture.square().flatten(1).sum(1, keepdim=True)

    found = hilrp.explain(Both().eval(), (torch.rand(2, 4), torch.rand(2, 3, 5, 5)), 0)
    assert found.map.shape == (2, 5, 5)
    assert list(found.ledger.arrived) == ["input 0", "pixels"]
    rows = hilrp.explain(Both().eval(), (torch.rand(2, 4), torch.rand(2, 3, 5, 5)), 0, kind="table")
    assert rows.map.shape == (2, 4)


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        ("film", (3, 4, 4), r"kind='film': use one of 'picture', 'bands', 'volume'"),
        ("volume", (9,), r"kind='volume': an input of shape \[B,9\] is none. Volumes are \[B,C,D,H,W\] or \[B,D,H,W\]"),
        ("table", (3, 4, 4), r"kind='table': an input of shape \[B,3,4,4\] is none. Tables are \[B,F\]"),
    ],
)
def test_kinds_that_are_refused(kind, shape, message):
    with pytest.raises(InputError, match=message):
        explained(shape, kind)


def test_what_is_no_picture_has_no_photograph():
    found = explained((9,))
    with pytest.raises(InputError, match=r"no picture \(kind='table'\). Leave them out"):
        found.plot(photos=["a.jpg", "b.jpg"])
    alone = hilrp.explain(nn.Linear(1, 1).eval(), torch.rand(2, 1), 0)
    assert alone.map.shape == (2, 1)


def test_shares_of_frames_are_those_of_the_map():
    """Not of what is drawn, which is smoothed: that would spread what lies at a corner past the edge."""

    class Corner(nn.Module):
        def forward(self, x):
            return (x[:, :, 0, 0, 0] + x[:, :, 2, 20, 20]).sum(1, keepdim=True)

    found = hilrp.explain(Corner().eval(), torch.ones(1, 3, 4, 40, 40), 0, reference=0.0)
    said = [label.text for label in montage(found, 0, None, 300).labels]
    assert said == [f"frame {i} of 4: {share} %" for i, share in zip(range(1, 5), (50, 0, 50, 0), strict=True)]


def test_shares_of_a_sum_of_zero_are_not_said():
    class Balanced(nn.Module):
        def forward(self, x):
            return (x[:, :, 0] - x[:, :, 1]).flatten(1).sum(1, keepdim=True) * 0.1

    found = hilrp.explain(Balanced().eval(), torch.full((1, 3, 2, 9, 9), 0.3), 0, reference=0.0)
    assert [label.text for label in montage(found, 0, None, 300).labels] == ["frame 1 of 2", "frame 2 of 2"]


def test_the_input_of_a_map_is_one_in_all_places():
    """A row before a spectrogram is a sound, too, once the kind is known; what has no row for each sample is none."""

    class Hears(nn.Module):
        main_input_name = "input_values"

        def forward(self, row, heard):
            return row.sum(1, keepdim=True) + heard.square().flatten(1).sum(1, keepdim=True)

    found = hilrp.explain(Hears().eval(), (torch.rand(2, 4), torch.rand(2, 1, 5, 8)), 0, passes=16)
    assert found.kind == "sound"
    assert found.map.shape == found.stderr.shape == (2, 5, 8)

    class Tables(nn.Module):
        def forward(self, tokens, weights):
            return tokens.square().flatten(1) @ weights[:, :1]

    with pytest.raises(InputError, match=r"kind='table': an input of shape \[B,6,2\] is none"):
        hilrp.explain(Tables().eval(), (torch.rand(2, 6, 2), torch.rand(12, 7)), 0, kind="table")
    for name, said in (("pixel_values", "pixels"), ("prompt", "prompt")):
        model = type(
            "Takes", (nn.Module,), {"forward": lambda self, **x: next(iter(x.values())).square().sum((1, 2))}
        )()
        picture = {name: torch.rand(2, 3, 5, 5)}
        assert list(hilrp.explain(model.eval(), picture, 0).ledger.arrived) == [said]


class FirstFolded(nn.Module):
    """Convolves pictures of frames, which come first."""

    def __init__(self, channels):
        super().__init__()
        self.convolution = nn.Conv2d(channels, 2, 3)

    def forward(self, x):
        return self.convolution(x.flatten(0, 1)).square().mean((2, 3)).unflatten(0, x.shape[:2]).mean(1)


@pytest.mark.parametrize(
    ("shape", "model", "kind", "own"),
    [
        ((3, 3, 8, 8), FirstFolded(3), "video", (3, 8, 8)),
        ((1, 3, 8, 8), FirstFolded(3), "frames", (1, 8, 8)),
        ((3, 1, 8, 8), FirstFolded(1), "frames", (3, 8, 8)),
        ((5, 2, 8, 8), FirstFolded(2), "frames", (5, 8, 8)),
        ((3, 1, 8, 8), nn.Conv3d(3, 2, (1, 3, 3)), "video", (1, 8, 8)),
        ((2, 3, 8, 8), nn.Conv3d(2, 2, 3), "volume", (3, 8, 8)),
        ((2, 3, 8, 8), nn.Flatten(), "frames", (2, 8, 8)),
    ],
)
def test_which_axis_holds_frames_is_said_by_the_first_convolution(shape, model, kind, own):
    """Not by sizes alone: videos of one frame, of three, and of one channel."""
    found = hilrp.explain(model.eval(), torch.rand(2, *shape), lambda out: out.flatten(1).sum(1))
    assert (found.kind, found.map.shape) == (kind, (2, *own))
    said = hilrp.explain(model.eval(), torch.rand(2, *shape), lambda out: out.flatten(1).sum(1), kind="video")
    assert said.kind == ("frames" if kind == "frames" else "video")
    assert said.map.shape == (2, *own)


def test_models_of_transformers_take_frames_first():
    transformers = pytest.importorskip("transformers")
    config = transformers.VideoMAEConfig(
        image_size=16, patch_size=8, num_frames=3, tubelet_size=1, hidden_size=8, num_hidden_layers=1,
        num_attention_heads=1, intermediate_size=8, num_labels=2,
    )  # fmt: skip
    model = transformers.VideoMAEForVideoClassification(config).eval()
    torch.manual_seed(0)
    x = torch.rand(1, 3, 3, 16, 16)
    found = hilrp.explain(model, x, 0)
    assert found.kind == "frames"
    torch.testing.assert_close(found.map, found.relevance.sum(2))
    assert found.passes == 1
    several = hilrp.explain(model, x, 0, passes=4)
    torch.testing.assert_close(several.map, several.relevance.sum(2))


def test_signals_of_several_channels_by_the_model():
    """An electrocardiogram: twelve leads along time. Without a convolution a note says what was guessed."""
    model = nn.Sequential(nn.BatchNorm1d(12), nn.Conv1d(12, 4, 7), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    found = hilrp.explain(model.eval(), torch.rand(2, 12, 50), 0)
    assert (found.kind, found.map.shape) == ("sound", (2, 12, 50))
    assert not any("tokens" in note for note in found.notes)
    words = nn.Sequential(nn.Linear(50, 4), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)).eval()
    guessed = hilrp.explain(words, torch.rand(2, 12, 50), 0)
    assert guessed.kind == "tokens"
    (note,) = guessed.notes
    assert "of shape [B,12,50] is taken for tokens" in note
    assert "kind='sound' if these are signals [B,C,T]" in note
    (note,) = hilrp.explain(words, torch.rand(2, 12, 50), 0, kind="tokens").notes
    assert "kind=" not in note

    class Words(nn.Module):
        """Convolves along words: the numbers of a word are its channels."""

        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv1d(50, 2, 3)

        def forward(self, x):
            return self.convolution(x.mT).square().mean(2)

    assert hilrp.explain(Words().eval(), torch.rand(2, 12, 50), 0).kind == "tokens"


@pytest.mark.parametrize(
    ("kind", "shape", "mean", "blurred"),
    [
        (None, (1, 4, 9, 8), "the volume's mean", "the blurred volume"),
        (None, (2, 4, 9, 8), "each channel's mean", "the blurred volume"),
        (None, (3, 4, 9, 8), "each channel's mean", "the blurred video"),
        ("frames", (4, 3, 9, 8), "each channel's mean", "the blurred video"),
    ],
)
def test_references_of_volumes_and_videos(kind, shape, mean, blurred):
    """A mean over all places; a blur by scipy's bell, of videos frame by frame."""
    ndimage = pytest.importorskip("scipy.ndimage")
    found = explained(shape, kind, batch=1, reference="mean")
    places = tuple(found.kind.axes((1, *shape)))
    torch.testing.assert_close(found.reference, found.input.mean(places, keepdim=True).expand_as(found.input))
    assert found.relative_to == mean
    again = explained(shape, kind, batch=1, reference=Blurred(0.15))
    assert again.relative_to == blurred
    wanted = again.input.numpy()
    for axis in places[-2 if "video" in blurred else -3 :]:
        side = min(wanted.shape[-2:]) if axis in places[-2:] else wanted.shape[axis]
        reach = int(3 * 0.15 * side)
        wanted = ndimage.gaussian_filter1d(wanted, 0.15 * side, axis, radius=reach, mode="mirror")
    np.testing.assert_allclose(again.reference.numpy(), wanted, rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match=r"no images \[B,C,H,W\], of which"):
        explained(shape, kind, batch=1, reference="neutral")
    with pytest.raises(InputError, match="volumes or videos of five axes, of which"):
        explained((9,), batch=1, reference="mean")


def test_samples_that_are_not_there():
    found = explained((9,))
    for samples in ([], [2], [0, -3]):
        for draw in (found.plot, found.plot_details):
            with pytest.raises(InputError, match=r"samples=\[.*\]: give at least one of the 2 samples, from 0 on"):
                draw(samples=samples)


def test_references_for_pictures_are_called_what_they_are():
    names = {
        ("volume", "mean"): "each slice's mean",
        ("volume", "blurred"): "the blurred volume",
        ("video", "mean"): "each frame's mean",
        ("sound", "blurred"): "the blurred sound",
        (None, "mean"): "the picture's mean colour",
    }
    for (kind, reference), name in names.items():
        assert explained((4, 9, 8), kind, reference=reference).relative_to == name


def test_waves_and_scans_by_the_model():
    heard = nn.Sequential(nn.Conv1d(1, 2, 5), nn.ReLU(), nn.Flatten(), nn.Linear(112, 2)).eval()
    assert Kind.of(torch.zeros(1, 1, 60)) is Kind.TOKENS
    assert hilrp.explain(heard, torch.rand(1, 1, 60), 0).map.shape == (1, 60)
    net = type("Net", (nn.Module,), {"__module__": "monai.networks.nets"})()
    assert Kind.of(torch.zeros(1, 4, 3, 8, 8)) is Kind.FRAMES
    assert Kind.of(torch.zeros(1, 4, 3, 8, 8), net) is Kind.VOLUME
