"""What MLflow's own client finds in a run that explanations were logged to."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from PIL import Image

import hilrp
from helpers.models import small_classifier
from helpers.optional import keep_to_oneself
from hilrp.export import to_mlflow
from hilrp.util.errors import InputError

# Read when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
mlflow = pytest.importorskip("mlflow")


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A client of a store in a folder."""
    keep_to_oneself(monkeypatch, tmp_path)
    yield mlflow.MlflowClient()
    assert mlflow.active_run() is None


def test_pictures_metrics_and_facts_are_read_back(client, tmp_path):
    found = hilrp.explain(small_classifier(), torch.randn(2, 3, 8, 8), [1, 4])
    with mlflow.start_run() as run:
        to_mlflow(found, step=3)
        to_mlflow(found, step=8, samples=[1])
    identity, facts = run.info.run_id, found.facts()
    files = [each.path for each in client.list_artifacts(identity, "images") if each.path.endswith(".png")]
    assert len(files) == 3
    for i in (0, 1):
        (file,) = [each for each in files if f"hilrp-{i}-overlay" in each and "step+3+" in each.replace("%", "+")]
        drawn = Image.open(client.download_artifacts(identity, file, str(tmp_path)))
        assert np.array_equal(np.asarray(drawn), found.overlay(i, array=True))
        for name in ("score", "reference_score", "difference", "pixel_share", "residual"):
            values = client.get_metric_history(identity, f"hilrp/{i}/{name}")
            assert [each.step for each in values] == ([3] if i == 0 else [3, 8])
            assert values[0].value == pytest.approx(facts[name][i], abs=1e-12)
    kept = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/hilrp/step-8.json")
    assert kept == facts | {"sentences": {"1": found.sentence(1)}}


def test_a_run_is_named_by_itself_or_its_id(client):
    found = hilrp.explain(small_classifier(), torch.randn(1, 3, 8, 8))
    run = client.create_run(client.create_experiment("other"))
    to_mlflow(found, 1, run=run, client=client)
    to_mlflow(found, 2, run=run.info.run_id)
    assert [each.step for each in client.get_metric_history(run.info.run_id, "hilrp/0/score")] == [1, 2]


def test_without_an_active_run_none_is_begun(client):
    with pytest.raises(InputError, match=r"^run: none is active. Begin one, with mlflow.start_run\(\)"):
        to_mlflow(hilrp.explain(small_classifier(), torch.randn(1, 3, 8, 8)))
