"""MLflow: pictures and metrics by step, and all figures as a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hilrp.attribution.explanation import Explanation
from hilrp.export.records import EXTRA, checked_receiver, checked_step, chosen_samples, records
from hilrp.util.errors import InputError
from hilrp.util.peers import imported


def to_mlflow(
    explanation: Explanation,
    step: int | None = None,
    tag: str = "hilrp",
    loaded: Any = None,
    samples: Sequence[int] | None = None,
    run: Any = None,
    client: Any = None,
) -> None:
    """Logs an explanation to a run: of sample 0 the image ``hilrp-0-overlay`` and metrics, and ``hilrp/step-0.json``.

    That file has `Explanation.facts` of all samples, and the sentences of those that are sent. The image's name has no
    slashes, since some versions of MLflow can't download it with them.

    Args:
        explanation: What `hilrp.explain` returned.
        step: The step of the training that it belongs to; by default 0, as in MLflow.
        tag: What all names begin with.
        loaded: What `hilrp.load` returned: its colours and names of classes; or the names of the classes.
        samples: Which samples; by default all.
        run: The run, or its id; by default the one that is active.
        client: The ``MlflowClient`` to log with; by default one of the tracking store that is set.

    Example:
        >>> import tempfile, torch, hilrp
        >>> import mlflow
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
        >>> explanation = hilrp.explain(model, torch.randn(1, 3, 2, 2))
        >>> with mlflow.start_run() as run:
        ...     to_mlflow(explanation, step=7)
        >>> mlflow.MlflowClient().get_metric_history(run.info.run_id, "hilrp/0/score")[0].step
        7
    """
    client = imported("mlflow", EXTRA).MlflowClient() if client is None else client
    checked_receiver("client", client, ("log_image", "log_metric", "log_dict"), "an mlflow.MlflowClient")
    run_id, at = _run_id(run), checked_step(step) or 0
    sent = records(explanation, tag, loaded, samples)
    for each in sent:
        picture = each.picture
        if picture is not None:
            client.log_image(run_id, picture, key=f"{each.name}/overlay".replace("/", "-"), step=at)
        for name, value in each.named.items():
            client.log_metric(run_id, name, value, step=at)
    said = dict(zip(map(str, chosen_samples(explanation, samples)), (each.sentence for each in sent), strict=True))
    client.log_dict(run_id, explanation.facts() | {"sentences": said}, f"{tag.rstrip('/')}/step-{at}.json")


def _run_id(run: Any) -> str:
    """The id of a run; of the active one if none is given."""
    if run is None:
        run = imported("mlflow", EXTRA).active_run()
        if run is None:
            raise InputError("run: none is active. Begin one, with mlflow.start_run(): ..., or give run= its id.")
    found = run if isinstance(run, str) else getattr(getattr(run, "info", None), "run_id", None)
    if not isinstance(found, str):
        raise InputError(f"run is a {type(run).__name__}: give a run of mlflow, or its id.")
    return found
