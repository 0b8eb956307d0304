"""The command line, used as a person would."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import hilrp
import hilrp.jobs.explain_files
import hilrp.zoo.architectures
from helpers.commands import invoke, words
from helpers.figures import small_figure, small_places
from hilrp.attribution.sentences import number
from hilrp.attribution.shown import Shown
from hilrp.attribution.verdicts import Verdict
from hilrp.models import picture_files
from hilrp.pages.words import meaning
from hilrp.scenes import CLASSES, Scenes
from hilrp.util.atomic_files import write_whole


@pytest.fixture
def checkpoint(tmp_path):
    """Weights of a small model with seven classes of its own."""
    model = timm.create_model("test_convnext", num_classes=7)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


@pytest.fixture
def folder(tmp_path):
    """Three scenes."""
    (tmp_path / "pictures" / "more").mkdir(parents=True)
    for i, scene in enumerate(Scenes(seed=1)[:3]):
        Image.fromarray(scene.image).save(tmp_path / "pictures" / ("more/" * (i == 2)) / f"{i}.png")
    return tmp_path / "pictures"


@pytest.fixture
def picture(folder):
    return folder / "0.png"


@pytest.fixture
def undrawn(monkeypatch):
    """What is told of these runs is not in their figures, which stay empty; they take most of the time."""
    monkeypatch.setattr(Shown, "encoded", small_figure)
    monkeypatch.setattr(Shown, "drawn", small_places)


def files(path):
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())


def test_a_folder(folder, tmp_path):
    out = tmp_path / "out"
    result = invoke("explain", folder, "--model", "zoo/resnet", "-o", out)
    assert result.exit_code == 0, result.output
    assert "3 of 3 explained." in result.output
    for name in ("image", "target", "score", "on the", "reference", "difference", "residual", "verdict"):
        assert name in result.output.partition("explained")[0]
    assert "\u2026" not in result.output
    for stem in ("0", "1", "more/2"):
        (sentence,) = json.loads((out / f"{stem}.json").read_text())["sentence"]
        assert f"{stem}: {sentence}" in words(result)
    stems, kinds = ["0", "1", "more/2"], ("json", "npz", "png", "details.png")
    assert files(out) == sorted(["index.html", *(f"{stem}.{kind}" for stem in stems for kind in kinds)])
    scene = Scenes(seed=1)[2]
    facts = json.loads((out / "more/2.json").read_text())
    assert facts["names"][0] in [t.name for t in scene.things]
    assert facts["names"][0] in (out / "index.html").read_text()
    assert facts["residual"][0] < 1e-4
    assert facts["verdict"][0] in ("valid", "absorbed", "inflated")
    assert facts["strongest"][0]["logit"] == pytest.approx(facts["score"][0], abs=1e-5)
    arrays = np.load(out / "more/2.npz")
    assert arrays["map"].shape == (1, 128, 128)
    assert arrays["map"].sum() == pytest.approx(facts["pixels"][0], rel=1e-4)
    assert {name for name in arrays if name.startswith("stage/")}


def test_the_page_needs_nothing_else(folder, tmp_path):
    (folder / "broken & torn.png").write_bytes(b"no")
    out = tmp_path / "out"
    result = invoke("explain", folder, "missing-*.png", "--model", "zoo/resnet", "-o", out)
    assert result.exit_code == 1
    page = (out / "index.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)[a-z]+:', page)
    assert "<script" not in page
    assert page.count('src="data:image/') == 6  # three pictures, and their details
    assert "3 of 5 explained" in page
    assert "broken &amp; torn.png" in page
    assert "missing-*.png" in page
    assert "; rules: secant; " in page
    for word in json.loads((out / "0.json").read_text())["verdict"]:
        assert meaning(Verdict(word), relative=True) in page


@pytest.mark.usefixtures("undrawn")
def test_bad_files_do_not_keep_the_others(folder, tmp_path):
    (folder / "broken.jpg").write_bytes(b"not an image")
    result = invoke("explain", folder, "--model", "zoo/resnet", "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "broken.jpg: not a readable image" in words(result)
    assert "3 of 4 explained." in result.output
    assert "broken.json" not in files(tmp_path / "out")


@pytest.mark.usefixtures("undrawn")
def test_an_image_that_can_not_be_explained_does_not_keep_its_batch(folder, tmp_path, monkeypatch):
    real = hilrp.Explainer.explain

    def picky(self, x, target=None, **options):
        if bool((x[:, :, 0, 0] == torch.tensor(marked)).all(1).any()):
            raise hilrp.ModelError("this one not")
        return real(self, x, target, **options)

    marked = hilrp.load("zoo/resnet").preprocess(Image.open(folder / "1.png"))[:, 0, 0].tolist()
    monkeypatch.setattr(hilrp.Explainer, "explain", picky)
    result = invoke("explain", folder, "--model", "zoo/resnet", "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "2 of 3 explained." in result.output
    assert "1.png: this one not" in words(result)
    assert [f for f in files(tmp_path / "out") if f.endswith("json")] == ["0.json", "more/2.json"]


@pytest.mark.parametrize("target", ["prediction", "top3", "view"])
@pytest.mark.usefixtures("undrawn")
def test_memory_that_does_not_suffice(target, folder, tmp_path, monkeypatch):
    real, sizes = hilrp.Explainer._at_once, []

    def short(self, question, *more, **options):
        sizes.append(question.batch)
        if question.batch > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(self, question, *more, **options)

    monkeypatch.setattr(hilrp.Explainer, "_at_once", short)
    result = invoke("explain", folder, "--model", "zoo/resnet", "--target", target, "-o", tmp_path / "out")
    assert result.exit_code == 0
    assert "3 of 3 explained." in result.output
    assert max(sizes) > 2


@pytest.mark.usefixtures("undrawn")
def test_a_run_goes_on_where_it_stopped(folder, tmp_path, monkeypatch):
    out, explained = tmp_path / "out", []
    real = hilrp.Explainer.explain
    monkeypatch.setattr(
        hilrp.Explainer, "explain", lambda self, x, t=None, **_: explained.append(len(x)) or real(self, x, t)
    )
    options = ["--model", "zoo/resnet", "-o", out]
    assert invoke("explain", folder / "0.png", *options).exit_code == 0
    before = (out / "0.json").stat().st_mtime_ns
    result = invoke("explain", folder, *options)
    assert sum(explained) == 3
    assert "3 of 3 explained (1 of them by an earlier run)" in words(result)
    assert (out / "0.json").stat().st_mtime_ns == before
    assert (out / "index.html").read_text().count('src="data:image/') == 6  # three pictures, and their details
    # Another picture under the same name, another target, or the wish of the user: done again.
    Image.fromarray(Scenes(seed=1)[9].image).save(folder / "0.png")
    invoke("explain", folder, *options)
    assert sum(explained) == 4
    invoke("explain", folder, *options, "--target", "red star")
    assert sum(explained) == 7
    invoke("explain", folder, *options, "--target", "red star", "--fresh")
    assert sum(explained) == 10
    # A file that was lost half-way through.
    (out / "1.json").write_text("{")
    invoke("explain", folder, *options, "--target", "red star")
    assert sum(explained) == 11


@pytest.mark.usefixtures("undrawn")
def test_results_are_not_written_over_the_images(folder):
    before = (folder / "0.png").read_bytes()
    result = invoke("explain", folder, "--model", "zoo/resnet", "-o", folder)
    assert result.exit_code == 2
    assert "would be written over it" in words(result)
    assert (folder / "0.png").read_bytes() == before
    assert files(folder) == ["0.png", "1.png", "more/2.png"]
    for _ in range(2):
        inside = invoke("explain", folder, "--model", "zoo/resnet", "-o", folder / "out")
        assert "3 of 3 explained" in inside.output


@pytest.mark.usefixtures("undrawn")
def test_other_weights_under_the_same_name_are_explained_again(folder, tmp_path, monkeypatch):
    (tmp_path / "mine_to_change.py").write_text(
        "import torch\n"
        "def make():\n"
        "    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))\n"
        "    return net, lambda image: torch.full((3, 2, 2), image.getpixel((0, 0))[0] / 255)\n"
    )
    monkeypatch.chdir(tmp_path)
    scores = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        result = invoke("explain", folder / "0.png", "--model", "mine_to_change:make", "-o", "out", "--json")
        scores.append(json.loads(result.stdout)[0]["score"])
    assert scores[0] == scores[1] != scores[2]


@pytest.mark.usefixtures("undrawn")
def test_a_folder_of_results_that_was_tidied(folder, tmp_path):
    out = tmp_path / "out"
    options = [folder, "--model", "zoo/resnet", "-o", out]
    invoke("explain", *options)
    (out / "0.png").unlink()
    (out / "1.json").write_text("[]")
    result = invoke("explain", *options)
    assert result.exit_code == 0, result.output
    assert "1 of them by an earlier run" in words(result)
    assert (out / "0.png").exists()


@pytest.mark.usefixtures("undrawn")
def test_preprocessing_that_fails_on_one_image(folder, tmp_path, monkeypatch):
    (tmp_path / "mine_to_fail.py").write_text(
        "import torch\n"
        "def turn(image):\n"
        "    if image.width < 100: raise ValueError('too small')\n"
        "    return torch.ones(3, 2, 2)\n"
        "def make(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)), turn\n"
    )
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (20, 20)).save(folder / "small.png")
    result = invoke("explain", folder, "--model", "mine_to_fail:make", "-o", "out")
    assert result.exit_code == 1
    assert "small.png: ValueError: too small" in words(result)
    assert "3 of 4 explained" in result.output


@pytest.mark.usefixtures("undrawn")
def test_odd_names(tmp_path):
    name = "photo #1 50% [old].png"
    Image.fromarray(Scenes(seed=1)[0].image).save(tmp_path / name)
    out = tmp_path / "res[old]"
    result = invoke("explain", tmp_path / name, "--model", "zoo/resnet", "-o", out)
    assert result.exit_code == 0, result.output
    assert f"Look at {out / 'index.html'}" in result.output.replace("\n", "")
    assert 'href="./photo%20%231%2050%25%20%5Bold%5D.png"' in (out / "index.html").read_text()
    assert "none of the libraries" in words(invoke("explain", tmp_path / name, "--model", "[/x]", "-o", out))


@pytest.mark.usefixtures("undrawn")
def test_stopping_keeps_what_was_done(folder, tmp_path, monkeypatch):
    real, calls = hilrp.jobs.explain_files.Gallery._explain, []

    def impatient(self, items):
        calls.append(items)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return real(self, items)

    options = [folder, "--model", "zoo/resnet", "-o", tmp_path / "out", "--batch", 2]
    monkeypatch.setattr(hilrp.jobs.explain_files.Gallery, "_explain", impatient)
    result = invoke("explain", *options)
    assert result.exit_code == 130
    assert "2 of 3 explained." in result.output
    assert "the same command goes on" in words(result)
    assert (tmp_path / "out/index.html").read_text().count('src="data:image/') == 4
    monkeypatch.undo()
    assert "3 of 3 explained (2 of them by an earlier run)" in words(invoke("explain", *options))


def test_a_model_without_a_classifier(picture, tmp_path, monkeypatch):
    (tmp_path / "mine_without_head.py").write_text(
        "import timm, torch\nfrom hilrp.models.libraries.timm import preprocessing\n"
        "def make():\n    m = timm.create_model('test_vit', num_classes=0); return m, preprocessing(m)\n"
    )
    monkeypatch.chdir(tmp_path)
    result = invoke("explain", picture, "--model", "mine_without_head:make", "-o", "out")
    assert result.exit_code == 2
    assert "has no classifier" in words(result)
    result = invoke("explain", picture, "--model", "mine_without_head:make", "-o", "out", "--target", "3")
    assert result.exit_code == 0, result.output
    (facts,) = (json.loads(file.read_text()) for file in (tmp_path / "out").glob("*.json"))
    assert facts["names"] == ["feature 3"]


@pytest.mark.usefixtures("undrawn")
def test_notes_on_what_the_model_saw(tmp_path):
    Image.fromarray(Scenes(seed=1)[0].image).resize((60, 40)).save(tmp_path / "small.png")
    result = invoke("explain", tmp_path / "small.png", "--model", "zoo/resnet", "-o", tmp_path / "out", "--json")
    facts = json.loads(result.stdout)[0]
    assert (facts["size"], facts["seen"]) == ([60, 40], [128, 128])
    assert any("enlarged" in note for note in facts["image_notes"])
    assert "zoo/resnet knows the objects of scenes and nothing else" in facts["image_notes"]
    assert "of which the model saw 128 x 128" in (tmp_path / "out/index.html").read_text()
    result = invoke("explain", tmp_path / "small.png", "--model", "zoo/resnet-photo", "-o", tmp_path / "two", "--json")
    notes = json.loads(result.stdout)[0]["image_notes"]
    assert "zoo/resnet-photo knows ten classes of photographs and nothing else" in notes


def test_results_of_an_image_appear_whole(picture, tmp_path, monkeypatch):
    """The facts come last: without them the image is done again."""

    def full(path, write):
        if path.suffix == ".png":
            raise OSError("no space left")
        write_whole(path, write)

    monkeypatch.setattr("hilrp.jobs.explain_files.write_whole", full)
    result = invoke("explain", picture, "--model", "zoo/resnet", "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "no space left" in result.output
    assert files(tmp_path / "out") == ["0.npz", "index.html"]


def test_targets(picture, tmp_path, request):
    def facts(*options):
        result = invoke("explain", picture, "--model", "zoo/resnet", "-o", tmp_path / "out", "--json", *options)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)[0]

    top = facts("--target", "top3")
    others = facts("--target", "top3", "--against", top["names"][0])
    assert others["names"] == [s["name"] for s in top["strongest"][1:4]]
    assert facts("--stages")["names"] == top["names"][:1]
    request.getfixturevalue("undrawn")
    assert len(top["score"]) == 3
    assert top["score"] == sorted(top["score"], reverse=True)
    assert [s["name"] for s in top["strongest"][:3]] == top["names"]
    by_name, by_index = facts("--target", "Blue Ring"), facts("--target", "5")
    assert by_name["names"] == by_index["names"] == ["blue ring"]
    assert by_name["score"] == by_index["score"]
    against = facts("--target", "blue ring", "--against", "red ring")
    assert against["against_names"] == ["red ring"]
    red = facts("--target", "red ring")["score"][0]
    assert against["score"][0] == pytest.approx(by_name["score"][0] - red, abs=1e-4)


def test_relative_to_a_reference(folder, tmp_path, request):
    picture, other = folder / "0.png", folder / "1.png"

    def facts(*options):
        out = tmp_path / "out"
        result = invoke("explain", picture, "--model", "zoo/resnet", "--rules", "secant", "-o", out, "--json", *options)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)[0]

    for reference in ("mean", "grey", "neutral", other):
        found = facts("--reference", reference)
        assert found["pixels"][0] + found["entries"]["reference"][0] == pytest.approx(found["score"][0], rel=1e-4)
        assert found["verdict"] == ["valid"]
        request.getfixturevalue("undrawn")  # from the second on
    page = (tmp_path / "out" / "index.html").read_text()
    assert "reference: 1.png (" in page
    assert f"({number(found['entries']['reference'][0])} on 1.png)" in page
    assert facts()["entries"]["reference"] == facts("--reference", "mean")["entries"]["reference"]
    assert "reference: the picture&#x27;s mean colour;" in (tmp_path / "out" / "index.html").read_text()
    more = facts("--passes", "4")
    assert more["passes"] == more["settings"]["passes"] == 4
    assert more["pixels"][0] == pytest.approx(facts()["pixels"][0], rel=1e-4)


def test_the_table_says_how_much_higher_the_score_is(picture, tmp_path, undrawn):
    arguments = ("explain", picture, "--model", "zoo/segmenter", "-o", tmp_path / "out", "--target")
    result = invoke(*arguments, "region:8,8,64,64:0", "--passes", 8)
    assert result.exit_code == 0, result.output
    (facts,) = (json.loads(file.read_text()) for file in (tmp_path / "out").glob("*.json"))
    assert facts["difference"][0] == pytest.approx(facts["score"][0] - facts["reference_score"][0])
    share, error = (facts["marked"][name][0] for name in ("share", "stderr"))
    said = words(result)
    for figure in ("score", "reference_score", "difference"):
        assert f"{facts[figure][0]:.3f}" in said
    part, spread = re.search(r"(\S+) % ± (\S+) %", said).groups()
    last_digit = 10.0 ** -len(part.partition(".")[2])
    assert [float(part), float(spread)] == pytest.approx([100 * share, 100 * error], abs=0.51 * last_digit)
    assert float(spread) > 0
    assert "The reference is the picture's mean colour." in said
    plain = words(invoke(*arguments, "region:8,8,64,64:0", "--rules", "hilrp"))
    assert "pixels'" in plain
    assert "reference" not in plain


def test_a_checkpoint_with_names(picture, checkpoint, tmp_path):
    (tmp_path / "names.txt").write_text("\n".join("ant bee cow dog eel fox gnu".split()))
    options = ["--model", "test_convnext", "--checkpoint", checkpoint, "-o", tmp_path / "out"]
    unnamed = invoke("explain", picture, *options)
    assert unnamed.exit_code == 0, unnamed.output
    assert re.search(r"class [0-6]", unnamed.output)
    result = invoke("explain", picture, *options, "--classes", tmp_path / "names.txt", "--target", "fox")
    assert result.exit_code == 0, result.output
    assert "fox" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "test_convnxt"], "Did you mean test_convnext"),
        (["--model", "test_convnext", "--checkpoint", "missing.safetensors"], "no such file"),
        (["--model", "test_resnet", "--checkpoint", "CHECKPOINT"], "does not fit"),
        (["--model", "zoo/resnet", "--rules", "magic"], "not a preset"),
        (["--model", "zoo/resnet", "--rules", "hilrp", "--passes", "4"], "--passes 4: --rules hilrp has no reference"),
        (["--model", "zoo/resnet", "--rules", "secant", "--passes", "3"], "come in pairs"),
        (["--model", "zoo/resnet", "--reference", "magic"], "neither an image file nor one of neutral"),
        (["--model", "zoo/resnet", "--rules", "zplus", "--reference", "mean"], "no form relative to a reference"),
        (["--model", "zoo/resnet", "--target", "red sta"], "Did you mean 'red star'"),
        (["--model", "zoo/resnet", "--target", "12"], "0 to 11"),
        (["--model", "zoo/resnet", "--target", "top99"], "top1 to top10"),
        (["--model", "zoo/resnet", "--target", "top²"], "no such class"),
        (["--model", "zoo/resnet", "--target", "²"], "no such class"),
        (["--model", "vit"], "Did you mean zoo/vit"),
        (["--model", "zoo/resnet", "--target", "red star", "--against", "red star"], "contrasted with itself"),
        (["--model", "test_convnext", "--checkpoint", "CHECKPOINT", "--target", "cat"], "no names for its classes"),
        (["--model", "zoo/resnet", "--device", "abacus"], "--device abacus"),
        (["--model", "zoo/resnt"], "Did you mean zoo/resnet?"),
        (["--model", "zoo/resnet", "--target", "ring"], "'red ring', 'yellow ring', 'blue ring'"),
        (["--model", "zoo/resnet", "--classes", "missing.txt"], "missing.txt: not a text file"),
        (["--model", "zoo/resnet", "--classes", "CHECKPOINT"], "not a text file"),
    ],
)
def test_errors(checkpoint, picture, tmp_path, options, message):
    options = [str(checkpoint) if o == "CHECKPOINT" else o for o in options]
    result = invoke("explain", picture, *options, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert message in words(result)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_nothing_to_explain(tmp_path):
    result = invoke("explain", tmp_path / "none.png", "--model", "zoo/resnet", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "no such file or folder" in words(result)


def test_bad_output(picture):
    result = invoke("explain", picture, "--model", "zoo/resnet", "-o", picture)
    assert result.exit_code == 2
    assert f"--output {picture}: no folder can be made" in words(result)


@pytest.mark.usefixtures("undrawn")
def test_images_of_the_same_name_do_not_overwrite_each_other(picture, tmp_path):
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "0.png"
    other.write_bytes(picture.read_bytes())
    result = invoke("explain", picture, other, "--model", "zoo/resnet", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in (tmp_path / "out").glob("*.json")) == ["0-1.json", "0-2.json"]


def test_a_class_that_looks_like_mathematics_does_not_end_the_run(folder, tmp_path):
    """Nor does it keep any figure from being drawn."""
    names = tmp_path / "names.txt"
    names.write_text("\n".join([r"$\badmacro{x}$"] * len(CLASSES)))
    result = invoke("explain", folder, "--model", "zoo/resnet", "--classes", names, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "3 of 3 explained." in result.output


@pytest.mark.usefixtures("undrawn")
def test_larger_pictures_are_refused_unless_they_are_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(picture_files, "_allowed", picture_files.allowed())  # as it was, afterwards
    Image.new("RGB", (1200, 1000)).save(tmp_path / "large.png")
    command = ("explain", tmp_path / "large.png", "--model", "zoo/resnet", "-o", tmp_path / "out", "--max-megapixels")
    result = invoke(*command, 1)
    assert result.exit_code == 1
    assert "large.png: it is too large (1200 x 1000, 1 megapixels to decode" in words(result)
    assert words(result).count("large.png") == 1
    assert invoke(*command, 2).exit_code == 0
