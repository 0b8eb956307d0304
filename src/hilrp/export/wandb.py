"""Weights & Biases: pictures with captions, and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hilrp.attribution.explanation import Explanation
from hilrp.export.records import EXTRA, checked_receiver, checked_step, records
from hilrp.util.peers import imported


def to_wandb(
    run: Any,
    explanation: Explanation,
    step: int | None = None,
    tag: str = "hilrp",
    loaded: Any = None,
    samples: Sequence[int] | None = None,
) -> None:
    """Logs an explanation to a run: of sample 0 the image ``hilrp/0/overlay``, figures, and the verdict.

    The sentence is the image's caption. Whether and where a run is uploaded, the run says: ``mode="offline"`` keeps it
    on this machine.

    Args:
        run: What ``wandb.init()`` returned, or ``wandb`` itself.
        explanation: What `hilrp.explain` returned.
        step: The run's own step, as ``run.log`` takes it: it must not fall behind.
        tag: What all names begin with.
        loaded: What `hilrp.load` returned: its colours and names of classes; or the names of the classes.
        samples: Which samples; by default all.

    Example:
        >>> import torch, hilrp
        >>> import wandb
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
        >>> with wandb.init(mode="disabled") as run:
        ...     to_wandb(run, hilrp.explain(model, torch.randn(1, 3, 2, 2)))
    """
    checked_receiver("run", run, ("log",), "what wandb.init() returned; of a Lightning logger, its logger.experiment")
    step = checked_step(step)
    run.log(values(explanation, tag, loaded, samples), step=step)


def values(
    explanation: Explanation, tag: str = "hilrp", loaded: Any = None, samples: Sequence[int] | None = None
) -> dict[str, Any]:
    """What `to_wandb` logs, by name: to be logged together with other values of a step.

    Example:
        >>> import torch, hilrp
        >>> import wandb
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
        >>> found = values(hilrp.explain(model, torch.randn(1, 3, 2, 2)))
        >>> found["hilrp/0/verdict"], isinstance(found["hilrp/0/overlay"], wandb.Image)
        ('valid', True)
    """
    image = imported("wandb", EXTRA).Image
    found: dict[str, Any] = {}
    for each in records(explanation, tag, loaded, samples):
        picture = each.picture
        if picture is None:
            found[f"{each.name}/sentence"] = each.caption
        else:
            found[f"{each.name}/overlay"] = image(picture, caption=each.caption)
        found |= each.named | {f"{each.name}/verdict": each.verdict}
    return found
