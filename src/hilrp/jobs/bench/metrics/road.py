"""ROAD: pixels are taken away by noisy linear imputation (Rong, Leemann et al., 2022).

A mask of removed pixels is itself a picture, from which a model may read the class. So each removed pixel becomes the
weighted mean of its neighbours, all of them at once (a sparse linear system), and a little noise: what was there leaves
no outline. The systems are solved on the host in float64, so that every device gets the same pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hilrp.jobs.bench.batches import Read, one_class, scores_of_changed
from hilrp.jobs.bench.metrics.faithfulness import places

#: Row, column and weight of the neighbours whose mean a removed pixel becomes.
_NEIGHBOURS = (
    *((row, column, 1 / 6) for row, column in ((0, 1), (0, -1), (1, 0), (-1, 0))),
    *((row, column, 1 / 12) for row, column in ((1, 1), (1, -1), (-1, 1), (-1, -1))),
)
#: The standard deviation of the noise, in units of the model's input: what the paper's own code adds.
NOISE = 0.01


def road(
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    maps: Tensor,
    percentages: Sequence[int],
    read: Read = one_class,
    noise: float = NOISE,
) -> dict[str, Tensor]:
    """What becomes of the class when pixels are imputed, the most relevant first (MoRF) or the least (LeRF).

    ``ROAD`` is half the difference of the class's probability, LeRF less MoRF, in the mean over the percentages: as in
    pytorch-grad-cam. ``ROAD accuracy`` is at how many of the percentages the model still says the class: as in the
    paper, and in Quantus.

    Args:
        model: The model.
        x: Images.
        target: Their classes.
        maps: Their maps.
        percentages: How many of the pixels are taken away.
        read: The probability of a class, and whether the model says it.
        noise: The standard deviation of the noise.
    """
    count, steps = maps[0].numel(), len(percentages)
    place = torch.stack([places(maps, most_first) for most_first in (True, False)], 1)
    removed = torch.tensor([count * percentage // 100 for percentage in percentages], device=x.device)
    added = noise * _noise(x)

    def imputed(image: Tensor, picture: Tensor) -> Tensor:
        missing = place[image, picture // steps] < removed[picture % steps, None, None]
        return torch.where(missing[:, None], linear_imputation(x[image], missing) + added[image], x[image])

    found = scores_of_changed(model, x, target, 2 * steps, imputed, read).unflatten(1, (2, steps)).mean(2)
    (morf, morf_said), (lerf, lerf_said) = (each.unbind(1) for each in found.unbind(1))
    return {"ROAD": (lerf - morf) / 2, "ROAD accuracy, MoRF": morf_said, "ROAD accuracy, LeRF": lerf_said}


def _noise(x: Tensor) -> Tensor:
    """Noise for each image, by its number, the same on every device."""
    drawn = [torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(i)) for i in range(len(x))]
    return torch.stack(drawn).to(x)


def linear_imputation(pictures: Tensor, missing: Tensor) -> Tensor:
    """Pictures ``[n,C,H,W]`` whose missing pixels ``[n,H,W]`` are the weighted means of their neighbours.

    Example:
        >>> picture = torch.tensor([[[[1.0, 1.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 1.0]]]])
        >>> float(linear_imputation(picture, picture[:, 0] > 5).max())
        1.0
    """
    before, holes = pictures.detach().cpu().double().numpy(), missing.cpu().numpy()
    # The solver lets go of Python's lock.
    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        filled = list(pool.map(_filled, before, holes))
    return torch.from_numpy(np.stack(filled)).to(pictures)


def _filled(picture: NDArray[np.float64], missing: NDArray[np.bool_]) -> NDArray[np.float64]:
    """One picture ``[C,H,W]``: for each missing pixel p, the sum over its neighbours q of w (v_q - v_p) is zero."""
    from scipy.sparse import coo_matrix  # type: ignore[import-untyped]
    from scipy.sparse.linalg import splu  # type: ignore[import-untyped]

    if not missing.any():
        return picture
    count = int(missing.sum())
    number = np.full(np.add(missing.shape, 2), -1)
    number[1:-1, 1:-1][missing] = np.arange(count)
    inside = np.pad(np.ones_like(missing), 1)
    values = np.pad(picture, ((0, 0), (1, 1), (1, 1)))
    rows, columns = (axis + 1 for axis in np.nonzero(missing))
    own, known = np.zeros(count), np.zeros((count, len(picture)))
    entries: list[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]] = []
    for down, right, weight in _NEIGHBOURS:
        row, column = rows + down, columns + right
        own += weight * inside[row, column]
        neighbour = number[row, column]
        is_unknown = neighbour >= 0
        is_known = inside[row, column] & ~is_unknown
        known[is_known] += weight * values[:, row[is_known], column[is_known]].T
        equation = np.nonzero(is_unknown)[0]
        entries.append((equation, neighbour[is_unknown], np.full(len(equation), -weight)))
    entries.append((np.arange(count), np.arange(count), own))
    equations, unknowns, weights = (np.concatenate(each) for each in zip(*entries, strict=True))
    system = coo_matrix((weights, (equations, unknowns)), shape=(count, count)).tocsc()
    # The system is symmetric and positive definite: an order for such systems, and no pivots.
    solved = splu(system, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    filled = picture.copy()
    filled[:, missing] = solved.solve(known).T
    return filled
