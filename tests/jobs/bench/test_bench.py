"""The benchmark as a tool: data, the grid, the report, the command."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from typer.testing import CliRunner

import hilrp
from helpers.datasets import imagenet_s, voc
from hilrp.cli import app
from hilrp.jobs.bench import grid as grid_module
from hilrp.jobs.bench import methods
from hilrp.jobs.bench.context import Context, Effort
from hilrp.jobs.bench.data import find, inputs_for
from hilrp.jobs.bench.grid import Cell, Grid
from hilrp.jobs.bench.measures import MEASURES, randomised
from hilrp.jobs.bench.report import as_json, markdown, paired_rows, rows
from hilrp.jobs.bench.suites import Suite, suite
from hilrp.jobs.bench.summary import estimate, tables
from hilrp.pages.bench import bench_page
from hilrp.scenes import Scenes
from hilrp.scenes.folder import write
from hilrp.util.errors import InputError

EFFORT = Effort(
    images=3,
    few=2,
    changed=2,
    runs=4,
    steps=4,
    shapley_images=2,
    permutations=2,
    cells=4,
    paper_images=2,
    paper_permutations=2,
    removal_permutations=2,
)
SMALL = Suite(
    ("zoo/resnet",),
    ("hilrp", "attnlrp", "rollout", "centre-gaussian"),
    ("localisation", "conservation"),
    "scenes",
    EFFORT,
)


def values(cells):
    return {(c.model, c.method, c.measure): (c.figures, c.undefined, c.error) for c in cells}


# Measures -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    loaded = hilrp.load("zoo/tinyvit")
    return Context(
        loaded, inputs_for(loaded, find("scenes", 6)), replace(EFFORT, images=6, few=4), tmp_path_factory.mktemp("c")
    )


def test_every_measure(context):
    method = methods.find("hilrp")
    maps = method(context.loaded.model, context.inputs.x, context.inputs.labels)
    found = {}
    for measure in MEASURES.values():
        found |= measure.function(context, method, maps)
    assert float(found["pointing"].mean()) > 0.8
    assert float(found["moves to the other object"].mean()) > 0.7
    assert float(found["true effect"].mean()) > 0.5
    assert float(found["residual"].max()) < 1e-4
    assert float(found["sanity, cascading: all"].abs().mean()) < 0.3
    assert float(found["forward passes"][0]) == 1
    torch.testing.assert_close(found["trace input"], found["pixels' share"][:4], rtol=1e-4, atol=1e-6)
    assert all(bool(v.isfinite().all()) for v in found.values())


def test_a_map_that_is_the_truth_beats_the_controls(context):
    """The object's own mask: nothing can point better."""
    truth = context.inputs.masks.float()
    method = methods.find("uniform")
    best = MEASURES["localisation"].function(context, method, truth)
    assert best["pointing"].tolist() == [1] * len(truth)
    torch.testing.assert_close(best["average precision"], torch.ones(len(truth)))
    torch.testing.assert_close(best["IoU"], torch.ones(len(truth)))
    effect = MEASURES["effect"].function(context, method, truth)["true effect"]
    chance = MEASURES["effect"].function(context, method, torch.rand_like(truth))["true effect"]
    assert float(effect.mean()) > max(0.8, float(chance.mean()))


@pytest.mark.parametrize("kind", ["grid", "slic", "objects"])
def test_segments(kind, tmp_path):
    loaded = hilrp.load("zoo/resnet")
    effort = replace(EFFORT, segments=kind, cells=5)
    context = Context(loaded, inputs_for(loaded, find("scenes", 3)), effort, tmp_path)
    for i, sample in enumerate(context.inputs.samples):
        segments = context.segments(i)
        assert segments.unique().tolist() == list(range(int(segments.max()) + 1))
        if kind == "objects":
            own = segments[torch.from_numpy(sample.place())]
            assert (own == own[0]).all()
            assert int((segments == own[0]).sum()) == len(own)
            assert int(segments.max()) == len(context.inputs.things[i])  # and one for all the rest
    maps = methods.find("hilrp")(loaded.model, context.inputs.x, context.inputs.labels)
    found = MEASURES["shapley"].function(context, methods.find("hilrp"), maps)["Shapley agreement"]
    assert found.shape == (2,)
    assert found.abs().max() <= 1


def test_shapley_agreement_as_in_the_paper(tmp_path):
    """Superpixels, 50 images, 64 permutations, whatever else is spent; the same as asking for them by hand."""
    assert (Effort.paper_images, Effort.paper_permutations) == (50, 64)
    loaded = hilrp.load("zoo/resnet")
    inputs = inputs_for(loaded, find("scenes", 3))
    plain = replace(EFFORT, segments="grid", shapley_images=1, permutations=4, paper_images=2, paper_permutations=6)
    by_hand = replace(plain, segments="slic", shapley_images=2, permutations=6)
    method = methods.find("saliency")
    maps = method(loaded.model, inputs.x, inputs.labels)
    found = MEASURES["shapley-paper"].function(Context(loaded, inputs, plain, tmp_path / "a"), method, maps)
    expected = MEASURES["shapley"].function(Context(loaded, inputs, by_hand, tmp_path / "b"), method, maps)
    assert torch.equal(found["Shapley agreement (as in the paper)"], expected["Shapley agreement"])
    assert len(expected["Shapley agreement"]) == 2


def test_the_row_of_hilrp_has_the_papers_setting_for_efficientvit(tmp_path):
    """gamma_conv 0.05 on that family, in the maps and in the books; with options of its own it is what it says."""
    names = ("hilrp", "rules:hilrp-conv", "rules:hilrp")
    small = replace(SMALL, models=("zoo/efficientvit", "zoo/resnet"), methods=names, effort=replace(EFFORT, images=2))
    grid = Grid(small, tmp_path)
    run = list(grid.run())
    cells = values(run)
    for model, same, other in (
        ("zoo/efficientvit", "rules:hilrp-conv", "rules:hilrp"),
        ("zoo/resnet", "rules:hilrp", "rules:hilrp-conv"),
    ):
        assert np.array_equal(grid.maps(model, "hilrp"), grid.maps(model, same))
        assert not np.allclose(grid.maps(model, "hilrp"), grid.maps(model, other))
        assert cells[model, "hilrp", "conservation"] == cells[model, same, "conservation"]
    facts = json.loads((tmp_path / "manifest.json").read_text())["models"]
    assert facts["zoo/efficientvit"]["options of hilrp"] == {"gamma_conv": 0.05}
    assert facts["zoo/resnet"]["options of hilrp"] == {}
    # The report and the page say so, of runs that have the row.
    whole = json.loads((tmp_path / "manifest.json").read_text())
    for text in (markdown(run, "a run", whole), bench_page(grid, run, whole, "a run")):
        assert "The row of HiLRP has gamma_conv=0.05 on efficientvit, as in the paper" in " ".join(text.split())
    assert "gamma_conv" not in markdown([], "a run", whole | {"methods": ["rules:hilrp"]})


def test_randomised_parts():
    model = hilrp.load("zoo/deit").model

    def changed(part):
        other = dict(randomised(model, part).named_parameters())
        return {name for name, p in model.named_parameters() if not torch.equal(p, other[name])}

    assert changed("head") == {"head.weight", "head.bias", "head_dist.weight", "head_dist.bias"}
    assert changed("head") < changed("half") < changed("all")
    assert "pos_embed" in changed("all")
    assert len({name.rpartition(".")[0] for name in changed("one")}) == 1
    name = "blocks.3.mlp.fc1.weight"
    after = dict(randomised(model, "all").named_parameters())[name].flatten().sort().values
    assert torch.equal(after, model.get_parameter(name).flatten().sort().values)


def test_randomised_model_with_kept_attention_biases():
    """TinyViT keeps tensors made of its biases, with their graph.

    They can't be copied, and aren't the shuffled model's.
    """
    model = hilrp.load("zoo/tinyvit").model
    x = torch.randn(1, 3, 128, 128)
    model(x)
    other = randomised(model, "all")
    fresh = hilrp.load("zoo/tinyvit").model
    fresh.load_state_dict(other.state_dict())
    assert torch.equal(other(x), fresh(x))
    assert not torch.allclose(other(x), model(x))


def test_measures_leave_the_model_alone(context):
    method = methods.find("saliency")
    maps = method(context.loaded.model, context.inputs.x, context.inputs.labels)
    MEASURES["cost"].function(context, method, maps)
    assert all(p.grad is None for p in context.loaded.model.parameters())
    assert not any(m._forward_pre_hooks for m in context.loaded.model.modules())


# Grid -----------------------------------------------------------------------------------------------------------


def test_a_run_resumes_and_new_methods_cost_only_their_cells(tmp_path, monkeypatch):
    first = values(Grid(SMALL, tmp_path).run())
    assert first["zoo/resnet", "rollout", "localisation"][1] == "it has no attention over tokens"
    assert first["zoo/resnet", "centre-gaussian", "conservation"][0] == {}
    assert len(first["zoo/resnet", "hilrp", "localisation"][0]["pointing"]) == 3
    ran = []
    real = methods.Method.__call__
    monkeypatch.setattr(methods.Method, "__call__", lambda self, *a: ran.append(self.name) or real(self, *a))
    assert values(Grid(SMALL, tmp_path).run()) == first
    assert ran == []
    more = replace(SMALL, methods=(*SMALL.methods, "saliency"))
    again = values(Grid(more, tmp_path).run())
    assert set(ran) == {"saliency"}
    assert {k: v for k, v in again.items() if k[1] != "saliency"} == first
    # A cell that was lost is made again from the stored maps.
    ran.clear()
    (tmp_path / "cells/zoo_resnet/hilrp/localisation.json").unlink()
    assert values(Grid(SMALL, tmp_path).run()) == first
    assert ran == []
    facts = json.loads((tmp_path / "manifest.json").read_text())
    assert len(facts["models"]["zoo/resnet"]["sha256"]) == 64
    assert facts["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]


def test_files_that_are_damaged_are_made_again(tmp_path):
    one = replace(SMALL, methods=("hilrp",))
    first = values(Grid(one, tmp_path).run())
    results = [path for path in tmp_path.glob("cells/**/*.*") if path.name != "weights.json"]
    assert {path.suffix for path in results} == {".json", ".npz"}
    for path in results:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert values(Grid(one, tmp_path).run()) == first


def test_other_settings_are_refused(tmp_path):
    list(Grid(replace(SMALL, methods=("uniform",)), tmp_path).run())
    with pytest.raises(InputError, match=r"other settings .*\(effort: images: 3 there, 4 now\)"):
        Grid(replace(SMALL, effort=replace(EFFORT, images=4)), tmp_path)


def test_other_weights_under_the_same_name_are_refused(tmp_path, monkeypatch):
    one = replace(SMALL, methods=("uniform",))
    list(Grid(one, tmp_path).run())
    monkeypatch.setattr(grid_module, "fingerprint", lambda model: "another")
    (cell, *_) = Grid(one, tmp_path).run()
    assert "other weights" in cell.error


def test_scenes_for_a_model_of_another_size(tmp_path):
    """Masks of all objects are scaled as the pictures are."""
    loaded = hilrp.load("zoo/resnet")
    large = replace(
        loaded,
        preprocess=replace(
            loaded.preprocess,
            function=lambda p: loaded.preprocess.function(p).repeat_interleave(2, 1).repeat_interleave(2, 2),
        ),
    )
    context = Context(large, inputs_for(large, find("scenes", 4)), replace(EFFORT, segments="objects"), tmp_path)
    method = methods.find("saliency")
    maps = method(large.model, context.inputs.x, context.inputs.labels)
    assert maps.shape[1:] == (256, 256)
    for name in ("localisation", "classes", "effect", "shapley"):
        assert MEASURES[name].function(context, method, maps)


def test_a_transformers_model(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        num_labels=12,
    )
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "vit")
    write(Scenes(seed=2, count=2), tmp_path / "data")
    some = Suite(
        (f"transformers/{tmp_path}/vit",),
        ("saliency", "integrated-gradients:steps=4", "hilrp", "rollout"),
        ("localisation", "cost"),
        str(tmp_path / "data"),
        EFFORT,
    )
    for cell in Grid(some, tmp_path / "out").run():
        assert cell.error is None, cell
        assert cell.figures


def test_an_error_stays_in_its_cell_and_is_tried_again(tmp_path, monkeypatch):
    def broken(context, method, maps):
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setitem(grid_module.MEASURES, "localisation", replace(MEASURES["localisation"], function=broken))
        cells = values(Grid(SMALL, tmp_path).run())
    assert cells["zoo/resnet", "hilrp", "localisation"][2] == "RuntimeError: out of luck"
    assert cells["zoo/resnet", "hilrp", "conservation"][2] is None
    again = values(Grid(SMALL, tmp_path).run())
    assert again["zoo/resnet", "hilrp", "localisation"][2] is None


def test_a_model_that_can_not_be_loaded_does_not_keep_the_others(tmp_path):
    cells = values(Grid(replace(SMALL, models=("zoo/nothing", "zoo/resnet")), tmp_path).run())
    assert "no model of that name" in cells["zoo/nothing", "hilrp", "localisation"][2]
    assert cells["zoo/resnet", "hilrp", "localisation"][0]


def test_suites():
    quick = suite("quick")
    assert len(quick.models) == 4
    assert {name.partition(":")[0] for name in quick.methods} == set(methods.METHODS)
    assert "secant:passes=8" in quick.methods
    zoo = suite("zoo")
    assert len(zoo.models) == 12
    assert zoo.effort.images == 100
    assert {"secant", "secant:passes=8", "secant:passes=32"} < set(zoo.methods)
    for name in (*quick.methods, *zoo.methods):
        methods.find(name)
    with pytest.raises(InputError, match="choose from"):
        suite("large")


def test_the_suite_of_photographs_needs_a_folder_of_them():
    photos = suite("photos", "somewhere")
    assert photos.models == tuple(f"{name}-photo" for name in suite("zoo").models)
    assert photos.methods == suite("zoo").methods
    assert not {"classes", "effect"} & set(photos.measures)  # those know the objects of scenes
    with pytest.raises(InputError, match=r"ten ImageNet classes.* Give --data"):
        suite("photos")


def test_the_suite_of_the_paper():
    """Ten architectures with published weights in timm; the paper's counts and its Shapley values."""
    paper, voc = suite("paper", "a"), suite("paper-voc", "b")
    assert paper.models == voc.models
    families = ("resnet50", "convnext_base", "vit_base", "deit_base", "swin_base", "pvt_v2", "mobilevitv2")
    families += ("efficientvit_b1", "efficientvit_b2", "maxvit_small")
    assert [name.removeprefix("timm/").startswith(f) for name, f in zip(paper.models, families, strict=True)] == [
        True
    ] * 10
    for name in paper.models:
        tag = name.removeprefix("timm/")
        assert tag in timm.list_pretrained(tag)
    assert (paper.data, paper.effort.images, voc.data, voc.effort.images) == ("a", 100, "b", 1000)
    assert (paper.effort.paper_images, paper.effort.paper_permutations) == (50, 64)
    assert {"shapley", "shapley-paper", "removals", "localisation", "conservation"} < set(paper.measures)
    assert voc.measures == ("localisation",)
    for name, what in (("paper", "ImageNet-S"), ("paper-voc", "VOC 2007")):
        with pytest.raises(InputError, match=rf"{name} is for .*{what}.* Give --data"):
            suite(name)


@pytest.mark.parametrize("name", ["paper", "paper-voc"])
def test_the_suite_of_the_paper_runs_on_folders_in_the_layout_of_its_data(name, tmp_path, monkeypatch):
    """ImageNet-S and VOC, one of its architectures, small and with random weights."""
    (imagenet_s if name == "paper" else voc)(tmp_path)
    small = timm.create_model("efficientvit_b0", num_classes=1000).eval()
    plain = hilrp.load("zoo/efficientvit")
    loaded = replace(plain, name="timm/efficientvit_b1.r224_in1k", model=small, classes=list(map(str, range(1000))))
    monkeypatch.setattr(grid_module, "load", lambda *_, **__: loaded)
    whole = suite(name, str(tmp_path))
    effort = replace(EFFORT, images=whole.effort.images, few=1)
    few = replace(
        whole, models=("timm/efficientvit_b1.r224_in1k",), methods=("hilrp", "centre-gaussian"), effort=effort
    )
    measures = {"localisation", "conservation", "shapley", "shapley-paper"} & set(few.measures)
    cells = list(Grid(replace(few, measures=tuple(measures)), tmp_path / "out").run())
    assert not [cell.error for cell in cells if cell.error]
    pointing = next(cell for cell in cells if cell.method == "hilrp" and "pointing" in cell.figures)
    assert len(pointing.figures["pointing"]) == 2
    facts = json.loads((tmp_path / "out" / "manifest.json").read_text())["models"]["timm/efficientvit_b1.r224_in1k"]
    assert facts["options of hilrp"] == {"gamma_conv": 0.05}


# Report ---------------------------------------------------------------------------------------------------------


def test_bootstrap_intervals_are_scipys():
    from scipy import stats

    sample = np.random.default_rng(1).normal(size=40)
    ours = estimate(sample.tolist())
    theirs = stats.bootstrap((sample,), np.mean, method="percentile", n_resamples=2000, rng=2).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.03)
    assert ours.high == pytest.approx(theirs.high, abs=0.03)
    assert estimate([]) is None
    assert estimate([None, float("nan"), 2.0]).mean == 2.0


def test_last_column_counts_each_model_once():
    cells = [
        Cell("zoo/a", "saliency", "localisation", {"pointing": [1.0, 1.0, 1.0]}),
        Cell("zoo/b", "saliency", "localisation", {"pointing": [0.0]}),
        Cell("zoo/a", "grad-cam", "localisation", {"pointing": [1.0]}),
        Cell("zoo/b", "grad-cam", "localisation", {}, undefined="no grid"),
    ]
    found = {row.name: row.overall for row in rows(tables(cells)["pointing"], 1)}
    assert (found["saliency"].value.mean, found["saliency"].value.spread) == (0.5, 0.5)
    assert found["grad-cam"].value is None
    text = markdown(cells, "title", {})
    assert "| Saliency | 1.00 [1.00, 1.00] | 0.00 | 0.50 ± 0.50 |" in text
    assert "| Grad-CAM | 1.00 | – | – |" in text


def test_tables_mark_best_and_worst_of_the_methods_that_look_at_the_model():
    def cell(method, value, undefined=None):
        return Cell("zoo/a", method, "localisation", {} if undefined else {"pointing": [value]}, undefined)

    cells = [
        cell("saliency", 0.2),
        cell("hilrp", 0.9),
        cell("grad-cam", 0.5),
        cell("uniform", 1.0),
        cell("rollout", 0, "no"),
    ]
    table = tables(cells)["pointing"]
    marks = {row.name: row.cells[0].mark for row in rows(table, 1)}
    assert marks == {"saliency": "worst", "hilrp": "best", "grad-cam": "", "uniform": "", "rollout": ""}
    tied = tables([cell("saliency", 0.9), cell("hilrp", 0.9), cell("grad-cam", 0.5)])["pointing"]
    assert [row.cells[0].mark for row in rows(tied, 1)] == ["best", "best", "worst"]
    alike = tables([cell("saliency", 0.9), cell("hilrp", 0.9)])["pointing"]
    assert [row.cells[0].mark for row in rows(alike, 1)] == ["", ""]
    assert {row.name: row.cells[0].mark for row in rows(table, -1)}["saliency"] == "best"
    text = markdown(cells, "T", {"effort": {"images": 1}})
    assert "| HiLRP | **0.90** |" in text
    assert "| Saliency | *0.20* |" in text
    assert json.loads(as_json(cells, {}))["missing"][0]["undefined"] == "no"


def test_a_page_of_a_grid_with_holes(tmp_path):
    """Some measures only, options of several keys, a method that failed."""
    from hilrp.jobs.bench.manifest import manifest
    from hilrp.pages.bench import bench_page

    names = ("hilrp", "attnlrp", "hilrp:gamma=0.1", "hilrp:gamma=1.0", "hilrp:gamma=0.1,attention=uniform")
    for measures in (("conservation",), ("localisation",), ("faithfulness",), ("localisation", "conservation")):
        some = replace(SMALL, methods=names, measures=measures)
        grid = Grid(some, tmp_path / "-".join(measures))
        cells = list(grid.run())
        cells[0] = replace(cells[0], figures={}, error="RuntimeError: out of luck")
        page = bench_page(grid, cells, manifest(grid), "T")
        assert "out of luck" in page


def test_rule_sets_have_a_section_of_their_own():
    def cell(method, value):
        return Cell("zoo/a", method, "localisation", {"pointing": [value]})

    text = markdown([cell("saliency", 0.2), cell("hilrp", 0.5), cell("hilrp:gamma=0.1", 0.9)], "T", {"effort": {}})
    main, rules = text.split("## Rules and gamma")
    assert "| HiLRP | **0.50** |" in main
    assert "gamma=0.1" not in main
    assert "| HiLRP (gamma=0.1) | **0.90** |" in rules
    assert "Saliency" not in rules


def test_the_command(tmp_path):
    options = [
        "bench",
        "--model",
        "zoo/resnet",
        "--method",
        "hilrp",
        "--method",
        "rollout",
        "--method",
        "uniform",
        "--images",
        "2",
    ]
    out = tmp_path / "out"
    result = CliRunner().invoke(app, [*options, "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "HiLRP" in result.output
    page = (out / "index.html").read_text()
    assert "Pointing Game" in page
    assert 'title="it has no attention over tokens">–' in page
    assert "Attention Rollout | – |" in (out / "report.md").read_text()
    assert "## Pointing Game" in (out / "report.md").read_text()
    facts = json.loads((out / "report.json").read_text(), parse_constant=lambda c: pytest.fail(c))
    assert facts["figures"][0]["estimate"]["count"] == 2
    shutil.rmtree(out)
    for more, words in (
        (["--measure", "magic"], "choose from"),
        (["--method", "magic"], "not a method"),
        (["--suite", "x"], "choose from"),
    ):
        result = CliRunner().invoke(app, [*options, *more, "-o", str(out)])
        assert result.exit_code == 2
        assert words in " ".join(result.output.split())


def test_differences_are_of_the_same_images():
    """Both have the same spread; only image by image it is seen that one is always a little better."""
    values = [0.1, 0.9, None, 0.5, 0.3]
    above = [None if v is None else v + 0.02 for v in values]
    cells = [
        Cell("zoo/resnet", "hilrp", "localisation", {"energy excess": values, "pointing": values}, None),
        Cell("zoo/resnet", "secant", "localisation", {"energy excess": above, "pointing": values}, None),
        Cell("zoo/resnet", "secant", "flipping", {"flip": values, "morf": values}, None),
        Cell("zoo/resnet", "hilrp", "flipping", {"flip": above, "morf": above}, None),
        Cell("zoo/swin", "secant", "localisation", {"energy excess": above}, None),
    ]
    models, found = paired_rows(cells)
    shown = {row.name: row.cells[0] for row in found}
    assert models == ["zoo/resnet"]
    assert {name: cell.mark for name, cell in shown.items()} == {
        "pointing": "",
        "energy excess": "best",
        "flip": "worst",
        "morf": "best",  # smaller is better
    }
    assert shown["energy excess"].value.mean == pytest.approx(0.02)
    assert shown["energy excess"].value.count == 4
    assert "| energy excess | **0.02 [0.02, 0.02]** |" in markdown(cells, "T", {"effort": {}})
    assert paired_rows(cells[:1]) == ([], [])
    one = [replace(cell, figures={k: v[:1] for k, v in cell.figures.items()}) for cell in cells]
    assert {cell.mark for row in paired_rows(one)[1] for cell in row.cells} == {""}  # one image says nothing
