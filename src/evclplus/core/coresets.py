"""Which examples of a task to keep."""

import torch
from torch import Tensor


def random_subset(x: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """The indices of `size` rows drawn without replacement."""
    return torch.randperm(len(x), generator=generator)[:size]


def k_center(x: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Greedy k-center: each next row is the one farthest from those already chosen.

    Starts at a random row, as every start is within a factor of two of the best covering.
    """
    rows = x.flatten(1).float()
    norms = rows.square().sum(1)
    chosen = [int(torch.randint(len(rows), (1,), generator=generator))]
    distance = torch.full((len(rows),), torch.inf, device=rows.device)
    for _ in range(min(size, len(rows)) - 1):
        centre = chosen[-1]
        # |a - c|^2 by one matrix-vector product, without forming the differences.
        to_centre = norms + norms[centre] - 2 * (rows @ rows[centre])
        distance = torch.minimum(distance, to_centre)
        distance[centre] = -torch.inf  # rounding must not choose a row twice
        chosen.append(int(distance.argmax()))
    return torch.tensor(chosen)
