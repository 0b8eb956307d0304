"""TensorBoard: pictures, sentences and figures by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hilrp.attribution.explanation import Explanation
from hilrp.export.records import checked_receiver, checked_step, records


def to_tensorboard(
    writer: Any,
    explanation: Explanation,
    step: int | None = None,
    tag: str = "hilrp",
    loaded: Any = None,
    samples: Sequence[int] | None = None,
) -> None:
    """Writes an explanation for TensorBoard: of sample 0 the image ``hilrp/0/overlay``, scalars, and a text.

    Args:
        writer: A ``SummaryWriter`` of torch or tensorboardX, or what has its ``add_image``, ``add_scalar`` and
            ``add_text``.
        explanation: What `hilrp.explain` returned.
        step: The step of the training that it belongs to.
        tag: What all names begin with.
        loaded: What `hilrp.load` returned: its colours and names of classes; or the names of the classes.
        samples: Which samples; by default all.

    Example:
        >>> import tempfile, torch, hilrp
        >>> from torch.utils.tensorboard import SummaryWriter
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
        >>> with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        ...     to_tensorboard(writer, hilrp.explain(model, torch.randn(1, 3, 2, 2)), step=7)
    """
    remedy = "a SummaryWriter, as of torch.utils.tensorboard; of a Lightning logger, its logger.experiment"
    checked_receiver("writer", writer, ("add_image", "add_scalar", "add_text"), remedy)
    step = checked_step(step)
    for each in records(explanation, tag, loaded, samples):
        if each.overlay is not None:
            writer.add_image(f"{each.name}/overlay", each.overlay, step, dataformats="HWC")
        for name, value in each.named.items():
            writer.add_scalar(name, value, step)
        writer.add_text(f"{each.name}/sentence", each.caption, step)
