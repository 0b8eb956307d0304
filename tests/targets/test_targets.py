"""Targets beside classes: embeddings, views, regions, detections, pictures with captions.

Books close, values are those of a plain formula.
"""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import hilrp
from helpers.models import small_vit
from hilrp.attribution.texts import ImageText, ImageTower, caption_embeddings, similarity
from hilrp.targets import Cosine, Detection, Direction, Keypoint, Mask, Missed, Region, Views, embedding_of
from hilrp.util.errors import TargetError

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(1)
    return small_vit().double().eval()


class Dense(nn.Module):
    """A segmentation model at a quarter of the resolution: a linear map of what it sees, so that relevance is known."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.head = nn.Conv2d(3, 4, 4, 4, bias=False).double()

    def forward(self, x):
        return {"out": self.head(x)}


class Detector(nn.Module):
    """Five queries that look at the picture: classes and boxes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.embed = nn.Conv2d(3, 16, 8, 8).double()
        self.queries = nn.Parameter(torch.randn(5, 16, dtype=torch.float64))
        self.look = nn.MultiheadAttention(16, 2, batch_first=True).double()
        self.label, self.box = nn.Linear(16, 3).double(), nn.Linear(16, 4).double()

    def forward(self, x):
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        found = self.look(self.queries.expand(len(x), -1, -1), tokens, tokens, need_weights=False)[0]
        return {"logits": self.label(found), "pred_boxes": self.box(found).sigmoid()}


@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "secant"])
def test_books_close_for_every_target(encoder, rules):
    vector = torch.randn(embedding_of(encoder(X)).shape[1], dtype=torch.float64)
    cases = [
        (encoder, Cosine(vector)),
        (encoder, Direction(vector)),
        (encoder, Views()),
        (encoder, Views(lambda x: x.roll(8, -1))),
        (Dense().eval(), Region(2, box=(4, 4, 20, 12))),
        (Detector().eval(), Detection(3)),
        (Detector().eval(), Detection(1, label=2)),
        (Detector().eval(), Detection(1, side="left")),
        (Detector().eval(), Detection(4, side="bottom")),
    ]
    for model, target in cases:
        found = hilrp.explain(model, X, target, rules, itemised=True, stages=None)
        assert float(found.ledger.residual.max()) < 1e-10, target
        assert float(found.ledger.leak.max()) < 1e-10, target


def test_values(encoder):
    with torch.no_grad():
        z, mirrored = encoder(X), encoder(X.flip(-1))
        dense, found = Dense()(X)["out"], Detector()(X)
    vector = torch.randn(2, z.shape[1], dtype=torch.float64)

    def score(model, target):
        return hilrp.explain(model.eval(), X, target, stages=None, audit="off").score

    torch.testing.assert_close(score(encoder, Cosine(vector)), F.cosine_similarity(z, vector))
    torch.testing.assert_close(score(encoder, Cosine(vector[0])), F.cosine_similarity(z, vector[:1]))
    torch.testing.assert_close(score(encoder, Direction(vector)), (z * vector).sum(1))
    torch.testing.assert_close(score(encoder, Views()), F.cosine_similarity(z, mirrored))
    torch.testing.assert_close(score(Dense(), Region(1)), dense[:, 1].mean((1, 2)))
    torch.testing.assert_close(score(Dense(), Region(1, pixel=(5, 9))), dense[:, 1, 2, 1])
    torch.testing.assert_close(score(Dense(), Region([0, 3], box=(0, 0, 8, 4))), dense[[0, 1], [0, 3], 0, :2].mean(1))
    mask = torch.zeros(2, 8, 8)  # of the output's size
    mask[0, 2, 3] = mask[1, 7, 7] = 1
    torch.testing.assert_close(score(Dense(), Region(2, mask)), dense[[0, 1], 2, [2, 7], [3, 7]])
    means = dense[:, :, 4:, :].mean((2, 3))
    large = torch.zeros(32, 32, dtype=torch.bool)
    large[16:] = True
    torch.testing.assert_close(score(Dense(), Region(mask=large)), means.amax(1))
    torch.testing.assert_close(score(Detector(), Detection(2, 1)), found["logits"][:, 2, 1])
    torch.testing.assert_close(score(Detector(), Detection(2)), found["logits"][:, 2].amax(1))
    each = torch.stack([found["logits"][0, 4, 0], found["logits"][1, 1, 2]])
    torch.testing.assert_close(score(Detector(), Detection([4, 1], [0, 2])), each)
    x, y, width, height = found["pred_boxes"][:, 0].unbind(-1)
    for side, value in {
        "left": x - width / 2,
        "right": x + width / 2,
        "top": y - height / 2,
        "bottom": y + height / 2,
    }.items():
        torch.testing.assert_close(score(Detector(), Detection(0, side=side)), value)


def test_a_region_is_explained_by_what_it_sees():
    found = hilrp.explain(Dense().eval(), X, Region(2, box=(8, 4, 16, 8)), "epsilon")
    seen = torch.zeros(32, 32, dtype=torch.bool)
    seen[4:8, 8:16] = True
    assert float(found.map[:, ~seen].abs().max()) == 0
    torch.testing.assert_close(found.map[:, seen].sum(1), found.score)


def test_norms_of_a_cosine_are_held_fixed(encoder):
    """The paper's identity rule.

    With the norm in the graph the relevance would sum to zero, since the cosine has no scale.
    """
    vector = torch.randn(embedding_of(encoder(X)).shape[1], dtype=torch.float64)
    norm = encoder(X).detach().norm(dim=1)
    cosine = hilrp.explain(encoder, X, Cosine(vector), "epsilon", stages=None)
    direction = hilrp.explain(encoder, X, Direction(vector / vector.norm()), "epsilon", stages=None)
    torch.testing.assert_close(cosine.relevance, direction.relevance / norm[:, None, None, None])


@pytest.mark.parametrize(
    ("model", "target", "message"),
    [
        (
            Dense,
            Region(2, torch.ones(30, 32)),
            "the mask has 32 x 30 pixels, the model's input 32 x 32 and its output 8 x 8",
        ),
        (Dense, Region(2, torch.zeros(32, 32)), "the mask is empty"),
        (Dense, Region(2, torch.ones(1, 1, 32, 32)), r"give \[H,W\]"),
        (Dense, Region(4), "label=4 is out of range: the model has 4 classes"),
        (Dense, Region(1, box=(4, 4, 40, 8)), "isn't inside the input of 32 x 32"),
        (Dense, Region(1, pixel=(3, 32)), "isn't inside the input of 32 x 32"),
        (Detector, Region(1), "for segmentation models"),
        (Detector, Detection(5), "query 5 is out of range: the model has 5, 0 to 4"),
        (Detector, Detection([0, 7]), "query 7 is out of range"),
        (Detector, Detection([0, 1, 2]), "query=.* for 2 samples: give one whole number"),
        (Detector, Detection(True), "give one whole number"),
        (Detector, Detection("3"), "give one whole number"),
        (Detector, Detection(0, label="ring"), r"label='ring' is a name. .* loaded.index\('ring'\)"),
        (Detector, None, "it is no classifier. Ask for one detection"),
        (Dense, 2, "it is no classifier. Ask for a class in a part of the picture"),
        (Dense, Region(2, torch.ones(3, 32, 32)), "3 masks for 2 samples"),
        (Dense, Region(2, -torch.ones(32, 32)), "negative numbers"),
        (Dense, Region(2, mask=Image.new("L", (32, 32))), "the mask is a Image"),
        (Dense, Region(1, box=(8, 4, 4, 8)), "left must be less than right"),
        (Detector, Detection(0, label=3), "label=3 is out of range"),
        (Dense, Detection(0), "for detectors of the kind of DETR"),
        (Dense, Cosine(torch.ones(3)), "doesn't fit the model's embeddings of 4 dimensions"),
        (Dense, Cosine(torch.ones(3, 4)), "3 vectors for 2 samples"),
        (Dense, Direction(torch.tensor([1.0, 2.0, 3.0, float("nan")])), "aren't finite"),
        (Detector, Views(), "is no vector for each sample"),
    ],
)  # fmt: skip
def test_bad_targets(model, target, message):
    with pytest.raises(hilrp.TargetError, match=message):
        hilrp.explain(model().eval(), X, target)


def test_contradictions():
    with pytest.raises(hilrp.TargetError, match="one of mask, box and pixel"):
        Region(1, box=(0, 0, 1, 1), pixel=(0, 0))
    with pytest.raises(hilrp.TargetError, match="a label or a side"):
        Detection(0, label=1, side="left")
    with pytest.raises(hilrp.TargetError, match="choose from left"):
        Detection(0, side="middle")
    with pytest.raises(hilrp.TargetError, match="give the label that the surest one is wanted for"):
        Detection(None)


@pytest.mark.parametrize("rules", ["hilrp", "secant"])
def test_the_surest_query(rules):
    """Of each sample the query with the largest logit of the class.

    Also relative to a reference, where another is the surest.
    """
    with torch.no_grad():
        logits = Detector().eval()(X)["logits"]
    found = hilrp.explain(Detector().eval(), X, Detection(None, [2, 0]), rules)
    expected = torch.stack([logits[0, :, 2].amax(), logits[1, :, 0].amax()])
    torch.testing.assert_close(found.score, expected)
    assert float(found.ledger.residual.max()) < 1e-9


def test_what_is_drawn_around():
    region = Region(1, box=(8, 4, 16, 8)).outline((32, 32), None, 2)
    assert region.shape == (2, 32, 32)
    assert region[1].nonzero().amin(0).tolist() == [4, 8]
    assert region[1].nonzero().amax(0).tolist() == [7, 15]
    output = {"logits": torch.zeros(1, 3, 4), "pred_boxes": torch.tensor([[[0.5, 0.25, 0.25, 0.5]] * 3])}
    box = Detection(1).outline((32, 64), output, 1)
    assert box[0].nonzero().amin(0).tolist() == [0, 24]
    assert box[0].nonzero().amax(0).tolist() == [15, 39]


# Pictures with captions
# --------------------------------------------------------------------------------------------------


def clip(kind):
    torch.manual_seed(2)
    if kind == "open_clip":
        open_clip = pytest.importorskip("open_clip")
        picture = {"image_size": 64, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32}
        words = {"context_length": 6, "vocab_size": 99, "width": 64, "heads": 2, "layers": 2}
        return open_clip.CLIP(32, picture, words).double().eval()
    pytest.importorskip("transformers")
    from hilrp.models.libraries.transformers import recipe

    return recipe(kind).model.double().eval()


IDS = torch.tensor([[5, 9, 70, 3, 98, 1], [8, 2, 60, 61, 62, 98]])


@pytest.mark.parametrize("kind", ["clip", "siglip", "open_clip"])
@pytest.mark.parametrize("rules", ["hilrp", "secant"])
def test_pixels_and_words(kind, rules):
    """Relevance of both sums to the cosine, which is that of the towers."""
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    model = clip(kind)
    pair = ImageText(model, IDS).eval()
    words = pair.words.double()
    reference = (torch.zeros_like(x), torch.zeros_like(words)) if rules == "secant" else None
    found = hilrp.explain(pair, (x, words), similarity, rules, reference, itemised=True, stages=None)
    with torch.no_grad():
        image, text = ImageTower(model)(x), caption_embeddings(model, IDS)
        assert torch.equal(pair(x), pair(x, words))
    torch.testing.assert_close(found.score, F.cosine_similarity(image, text))
    assert [tuple(r.shape) for r in found.relevance] == [(2, 3, 64, 64), (2, 6)]
    assert float(found.relevance[1].abs().max()) > 0
    assert float(found.ledger.residual.max()) < 1e-9
    assert float(found.ledger.leak.max()) < 1e-9
    fixed = hilrp.explain(ImageTower(model).eval(), x, Cosine(text), rules, None, stages=None)
    torch.testing.assert_close(fixed.score, found.score)
    assert float(fixed.ledger.residual.max()) < 1e-10


def test_words_are_those_of_their_embeddings():
    """A text tower that averages its words: each has the relevance of its own embedding, by hand."""

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(4)
            self.words, self.picture = nn.Embedding(99, 8).double(), nn.Conv2d(3, 8, 32, bias=False).double()

        def encode_text(self, ids):
            return self.words(ids).mean(1)

        def encode_image(self, x):
            return self.picture(x).flatten(1)

    model = Bag().eval()
    pair = ImageText(model, IDS)
    found = hilrp.explain(pair, (X, pair.words.double()), similarity, "epsilon", stages=None)
    image, text = model.encode_image(X), model.encode_text(IDS)
    each = (model.words(IDS) / 6 * image[:, None]).sum(-1) / (image.norm(dim=1) * text.norm(dim=1))[:, None]
    torch.testing.assert_close(found.relevance[1], each.detach() / 2)  # the pixels have the other half
    torch.testing.assert_close(found.relevance[0].sum((1, 2, 3)), found.score / 2)


def test_bad_captions(encoder):
    model = clip("open_clip")
    for ids, message in (
        (torch.ones(2, 3), "token numbers"),
        (torch.ones(2, 0, dtype=torch.long), "no token"),
        ({"attention_mask": IDS}, "no input_ids"),
    ):
        with pytest.raises(hilrp.InputError, match=message):
            ImageText(model, ids)
    with pytest.raises(hilrp.InputError, match="no model of two towers"):
        ImageText(encoder, IDS)
    pair = ImageText(model, IDS)
    with pytest.raises(hilrp.InputError, match="one number for each token"):
        hilrp.explain(pair.eval(), (torch.randn(2, 3, 64, 64).double(), pair.words[:, :3].double()), similarity)


class DenseVolume(torch.nn.Module):
    """Three classes of every second voxel."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Conv3d(1, 3, 3, stride=2, padding=1)

    def forward(self, x):
        return torch.relu(self.net(x))


VOLUMES = torch.randn(3, 1, 4, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def test_regions_of_volumes():
    """A mask, a box and a voxel are the means of the logits there, and the map sums to what they are above the mean."""
    model = DenseVolume().double().eval()
    dense = model(VOLUMES).detach()
    mask = torch.zeros(4, 6, 8)
    mask[2:4, 0:2, 4:6] = 1
    for region, wanted in [
        (Region(1), dense[:, 1].mean((1, 2, 3))),
        (Region(2, mask), dense[:, 2, 1, 0, 2]),
        (Region(2, box=(4, 0, 2, 6, 2, 4)), dense[:, 2, 1, 0, 2]),
        (Region(0, pixel=(7, 5, 3)), dense[:, 0, 1, 2, 3]),
        (Region(0, torch.stack([mask, mask.flip(0), mask])), dense[[0, 1, 2], 0, [1, 0, 1], 0, 2]),
    ]:
        found = hilrp.explain(model, VOLUMES, region)
        torch.testing.assert_close(found.score.double(), wanted)
        torch.testing.assert_close(found.map.flatten(1).sum(1), found.ledger.explained, rtol=1e-9, atol=1e-12)
        parts = hilrp.explain(model, VOLUMES, region, batch=2)
        torch.testing.assert_close(parts.map, found.map, rtol=1e-9, atol=1e-12)
    assert found.map.shape == (3, 4, 6, 8)


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (Region(1, torch.ones(6, 8)), r"the mask has the shape \(6, 8\); give \[D,H,W\], or \[B,D,H,W\]"),
        (Region(1, torch.ones(4, 6, 9)), "the mask has 9 x 6 x 4 pixels, the model's input 8 x 6 x 4 and its output 4"),
        (Region(1, box=(0, 0, 4, 4)), r"box \(0, 0, 4, 4\) \(left, top, front, right, bottom, back\) isn't inside"),
        (Region(1, box=(0, 0, 3, 4, 4, 3)), "is empty: left must be less than right, .* and front less than back"),
        (Region(1, pixel=(1, 1)), r"pixel \(1, 1\) \(column, row, slice\) isn't inside the input of 8 x 6 x 4 voxels"),
    ],
)
def test_regions_of_volumes_that_are_refused(region, message):
    with pytest.raises(hilrp.TargetError, match=message):
        hilrp.explain(DenseVolume().double().eval(), VOLUMES, region)


def test_masks_of_queries_and_of_prompts():
    """Of Mask2Former's kind one for each query, of SAM's several for each prompt, of which it thinks one best."""
    logits = torch.tensor([[[[1.0, -1.0], [3.0, -2.0]], [[-5.0, -1.0], [-2.0, -3.0]]]])

    def value(target, output):
        return target.prepare(None, lambda x: output)(output)

    assert value(Mask(0), {"masks_queries_logits": logits}).tolist() == [2.0]
    assert value(Mask(1), {"masks_queries_logits": logits}).tolist() == [-1.0]  # nowhere: where it comes nearest
    several = torch.stack([logits, logits + 1], 2)
    sure = torch.tensor([[[0.1, 0.9], [0.9, 0.1]]])
    assert value(Mask(0), {"pred_masks": several, "iou_scores": sure}).tolist() == [3.0]
    assert value(Mask(0, choice=0), {"pred_masks": several, "iou_scores": sure}).tolist() == [2.0]
    for output, target, said in [
        ({"pred_masks": several}, Mask(0), "give choice="),
        ({"pred_masks": several}, Mask(0, choice=2), "there are 2 masks"),
        ({"logits": logits}, Mask(0), "has no mask for each object"),
        ({"masks": logits}, Mask(2), "out of range"),
        ({"masks": logits}, Mask([0, 1]), "give one whole number"),
        ({"masks": logits}, Keypoint(0), "has no keypoints"),
    ]:
        with pytest.raises(TargetError, match=said):
            value(target, output)
    assert Mask(0).outline((4, 4), {"masks": logits}, 1).sum() == 8


def test_models_that_answer_in_words_are_told_to_be_asked():
    from transformers.modeling_outputs import CausalLMOutput

    class Speaking(nn.Module):
        def forward(self, x):
            return CausalLMOutput(logits=x.flatten(2).expand(-1, -1, 7))

    for target in (None, 3):
        with pytest.raises(TargetError, match=r"hilrp\.explain_answer"):
            hilrp.explain(Speaking().eval(), torch.rand(1, 3, 1, 1), target)


class Finding(nn.Module):
    """Three queries with fixed boxes, whose logits depend on the picture."""

    boxes = torch.tensor([[0.25, 0.25, 0.3, 0.3], [0.75, 0.75, 0.3, 0.3], [0.7, 0.7, 0.2, 0.2]])

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(3 * 64, 6)

    def forward(self, x):
        return {
            "logits": torch.tanh(self.head(x.flatten(1))).unflatten(1, (3, 2)),
            "pred_boxes": self.boxes.to(x).expand(len(x), -1, -1) + 0 * x.mean((1, 2, 3))[:, None, None],
        }


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
def test_an_object_that_was_missed_is_asked_for_at_its_place(rules):
    """The query is the one that training would match with it; the score is the logit of its class."""
    model, x = Finding().eval().double(), torch.rand(2, 3, 8, 8, dtype=torch.float64)
    output = model(x)
    for box, query in (((0.9, 0.9, 3.1, 3.1), 0), ((4.8, 4.8, 7.2, 7.2), 1), ((4.9, 4.9, 6.4, 6.4), 2)):
        for label in (0, 1, [1, 0]):
            found = hilrp.explain(model, x, Missed(label, box), rules)
            labels = torch.tensor([label, label] if isinstance(label, int) else label)
            assert torch.allclose(found.score, output["logits"][torch.arange(2), query, labels])
            assert float(found.ledger.residual.max()) < 1e-10
            batched = hilrp.explain(model, x, Missed(label, box), rules, batch=1)
            assert torch.allclose(batched.relevance, found.relevance)
    if rules == "secant":  # the query stays the same all along a chain
        found = hilrp.explain(model, x, Missed(1, (4.8, 4.8, 7.2, 7.2)), passes=4)
        assert float(found.ledger.residual.max()) < 1e-10
    corners = {
        "logits": output["logits"],
        "corners": torch.tensor([[[0.0, 0, 1, 1], [0.5, 0.5, 1, 1], [0, 0, 0.4, 0.4]]] * 2),
    }
    corners["labels"] = torch.tensor([[0, 1, -1], [0, -1, -1]])  # of models that return what they find
    own = Missed(1, (0, 0, 3, 3)).prepare(x, lambda x: corners)(corners)
    # By hand: the first costs 5 * 1.875 - 2 * 0.14, the second 5 * 1.375 + 2 * 0.61, but for the likelihoods; the third
    # is none, and of the second sample the second isn't either.
    assert own.tolist() == [output["logits"][0, 1, 1].item(), output["logits"][1, 0, 1].item()]
    overlap = Missed(0, (0, 0, 8, 8)).overlaps(corners, (8, 8))
    assert torch.allclose(overlap, torch.tensor([1, 0.25, 0.16]).expand(2, -1).to(overlap))
    for against in (1, [1, 1], "found"):  # of two classes the other
        found = hilrp.explain(model, x, Missed(0, (4.8, 4.8, 7.2, 7.2), against), rules)
        assert torch.allclose(found.score, output["logits"][:, 1, 0] - output["logits"][:, 1, 1])
        assert float(found.ledger.residual.max()) < 1e-10
    outline = Missed(0, (1, 2, 5, 4)).outline((8, 8), output, 2)
    assert outline[1].sum() == 8


def test_where_nothing_was_found_or_boxes_are_no_numbers_none_is_taken_for_the_object():
    """A row that only fills up what other samples have more of isn't what would have found it."""
    x, place = torch.zeros(2, 3, 8, 8), (4, 4, 8, 8)
    logits, corners = torch.tensor([[[2.0], [-3.0]]] * 2), torch.tensor([[[0, 0, 0.2, 0.2], [0.5, 0.5, 1, 1]]] * 2)
    found = {"logits": logits, "corners": corners, "labels": torch.tensor([[0, 0], [-1, -1]])}
    with pytest.raises(TargetError, match=r"finds nothing at all in sample 1.*score_thresh=0"):
        Missed(0, place).prepare(x, lambda x: found)
    corners = corners.clone()
    corners[0, 0], corners[1, 1] = torch.nan, torch.nan
    found = {"logits": logits, "corners": corners}
    assert Missed(0, place).prepare(x, lambda x: found)(found).tolist() == [-3, 2]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (Mask(0, choice=0.5), "choice=0.5: give the number"),
        (Mask(0, choice=True), "choice=True: give the number"),
        (Keypoint(1.5), "joint=1.5"),
        (Keypoint(True), "joint=True"),
    ],
)
def test_masks_and_joints_have_whole_numbers(target, said):
    seen = {"pred_masks": torch.rand(1, 1, 3, 4, 4), "keypoints": torch.rand(1, 1, 3, 4, 4)}
    with pytest.raises(TargetError, match=said):
        target.prepare(torch.zeros(1, 3, 8, 8), lambda x: seen)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (lambda: Missed(0, (0, 0, 9, 9)), "isn't inside the input of 8 x 8"),
        (lambda: Missed(0, (4, 0, 4, 8)), "is empty"),
        (lambda: Missed(0, (0, 0, 8)), "left, top, right, bottom"),
        (lambda: Missed(5, (0, 0, 8, 8)), "out of range"),
        (lambda: Missed("cat", (0, 0, 8, 8)), "is a name"),
        (lambda: Missed(0, (0, 0, 8, 8), "cat"), 'give a class, or "found"'),
        (lambda: Missed(0, (0, 0, 8, 8), 7), "against=7 is out of range"),
        (lambda: Missed(0, (0, 0, float("nan"), 8)), "left, top, right, bottom"),
    ],
)
def test_places_that_make_no_sense(target, said):
    with pytest.raises(TargetError, match=said):
        hilrp.explain(Finding().eval().double(), torch.rand(1, 3, 8, 8, dtype=torch.float64), target())
