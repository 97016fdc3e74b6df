"""Standard normal numbers, many at once on several cores.

torch makes them one after another on one core, and a convolution's outputs need millions. So many
of them are made in lanes, each from a seed of its own. How many lanes there are depends on the
amount alone and threads only share them out: any number of threads gives the same numbers.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

LANE = 2**17
"""Numbers for which a lane of their own is worth the way to another thread."""

MOST_LANES = 16
"""And so the most threads that can help."""


def noise_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """As many as the tensor has, in its shape and type and on its device."""
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return fill_with_noise(empty, generator)


def fill_with_noise(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """In place, for a contiguous tensor."""
    lanes = min(MOST_LANES, tensor.numel() // LANE)
    if lanes < 2 or tensor.device.type != "cpu":
        return tensor.normal_(generator=generator)
    seeds = torch.randint(2**32, (lanes,), generator=generator).tolist()
    work = list(zip(tensor.view(-1).tensor_split(lanes), seeds, strict=True))
    threads = min(lanes, torch.get_num_threads())
    others = [_pool().submit(_fill, work[first::threads]) for first in range(1, threads)]
    _fill(work[::threads])
    for other in others:
        other.result()
    return tensor


def _fill(work: list[tuple[Tensor, int]]) -> None:
    for part, seed in work:
        part.normal_(generator=torch.Generator().manual_seed(seed))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_LANES - 1, thread_name_prefix="noise")
