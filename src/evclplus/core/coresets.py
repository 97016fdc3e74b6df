"""Which examples of a task to keep."""

from collections.abc import Sized

import torch
from torch import Tensor

CANDIDATES = 1024
"""Rows looked at for every centre; few enough to stay in a processor's cache."""


def random_subset(x: Sized, size: int, generator: torch.Generator) -> Tensor:
    """The indices of `size` rows drawn without replacement."""
    return torch.randperm(len(x), generator=generator)[:size]


def k_center(x: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Greedy k-center: each next row is the one farthest from those already chosen.

    Starts at a random row, as every start is within a factor of two of the best covering. A new
    centre can only bring rows nearer. So the farthest rows are candidates, and as long as one of
    them is farther than all other rows were, the others need not be looked at.
    """
    rows = x.flatten(1).float()
    norms = rows.square().sum(1)
    size = min(size, len(rows))
    chosen = [int(torch.randint(len(rows), (1,), generator=generator))]
    distance, measured = torch.full((len(rows),), torch.inf, device=rows.device), 0
    while len(chosen) < size:
        new = chosen[measured:]
        to_new = _squared_distances(rows, norms, rows[new], norms[new])
        distance, measured = torch.minimum(distance, to_new.amin(1)), len(chosen)
        distance[chosen] = -torch.inf  # rounding must not choose a row twice
        farthest, candidates = distance.topk(min(CANDIDATES, len(rows)))
        others = float(farthest[-1]) if len(candidates) < len(rows) else -torch.inf
        near = _farthest_first(
            rows[candidates], norms[candidates], farthest, others, size - len(chosen)
        )
        chosen += candidates[near].tolist()
    return torch.tensor(chosen)


def _farthest_first(
    rows: Tensor, norms: Tensor, distance: Tensor, others: float, size: int
) -> list[int]:
    """At least one and up to `size` of the rows by turns, while they are farther than `others`."""
    chosen = [int(distance.argmax())]
    while len(chosen) < size:
        centre = slice(chosen[-1], chosen[-1] + 1)
        to_centre = _squared_distances(rows, norms, rows[centre], norms[centre])[:, 0]
        distance = torch.minimum(distance, to_centre)
        distance[centre] = -torch.inf
        farthest = int(distance.argmax())
        if distance[farthest] <= others:
            break
        chosen.append(farthest)
    return chosen


def _squared_distances(
    rows: Tensor, norms: Tensor, centres: Tensor, centre_norms: Tensor
) -> Tensor:
    """|a - c|^2 by one product, without forming the differences."""
    return norms[:, None] + centre_norms - 2 * (rows @ centres.T)
