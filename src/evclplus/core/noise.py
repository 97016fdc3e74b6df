"""Standard normal numbers, many at once on several cores.

torch makes them one after another on one core, and a convolution's outputs need millions. So many
of them are made in lanes, each from a seed of its own. How many lanes there are depends on the
amount alone and threads only share them out: any number of threads gives the same numbers.

`CountedNoise` is for compiled graphs. Each of its numbers follows from a seed and a place in the
row, by operations on whole tensors, so that a compiler can fuse them and share them out.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import pi

import torch
from torch import Tensor

LANE = 2**17
"""Numbers for which a lane of their own is worth the way to another thread."""

MOST_LANES = 16
"""And so the most threads that can help."""


class CountedNoise:
    """Standard normal numbers that follow from a seed, see `new_seed`.

    SplitMix64 (Steele, Lea and Flood, 2014): the i-th integer is a fixed mix of seed + i * STRIDE.
    Box and Muller, 1958, make two normal numbers of its two halves.
    """

    def __init__(self, seed: Tensor) -> None:
        self.start, self.stride = seed.unbind()
        self.used = 0

    def like(self, tensor: Tensor) -> Tensor:
        """The next ones, as many as the tensor has, in its shape and type."""
        count = tensor.numel()
        pairs = (count + 1) // 2
        places = torch.arange(self.used + 1, self.used + pairs + 1, device=tensor.device)
        self.used += pairs
        bits = split_mix(self.start + places * self.stride)
        high, low = _shifted(bits, 32).to(tensor.dtype), (bits & (2**32 - 1)).to(tensor.dtype)
        radius = ((high + 0.5) * 2**-32).log().mul(-2).sqrt()
        angle = low * (2 * pi * 2**-32)
        numbers = torch.cat([radius * angle.cos(), radius * angle.sin()])
        return numbers[:count].view(tensor.shape)


def new_seed(generator: torch.Generator) -> Tensor:
    """A random number and SplitMix64's stride. The stride is handed over in memory because as a
    constant it would get into the counters of compiled loops, which must not overflow."""
    start = torch.randint(2**63 - 1, (), generator=generator)
    return torch.stack([start, torch.tensor(STRIDE)])


def _wrapped(number: int) -> int:
    """An unsigned 64-bit integer as the signed one with the same bits."""
    return number - 2**64 if number >= 2**63 else number


STRIDE = _wrapped(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = _wrapped(0xBF58476D1CE4E5B9), _wrapped(0x94D049BB133111EB)
"""SplitMix64's constants."""


def split_mix(state: Tensor) -> Tensor:
    """64 random bits of each 64-bit state; products wrap around."""
    state = (state ^ _shifted(state, 30)) * FIRST_FACTOR
    state = (state ^ _shifted(state, 27)) * SECOND_FACTOR
    return state ^ _shifted(state, 31)


def _shifted(bits: Tensor, places: int) -> Tensor:
    """To the right, filled up with zeros: torch's own shift fills up with the sign."""
    return torch.bitwise_and(bits >> places, 2 ** (64 - places) - 1)


Random = torch.Generator | CountedNoise


def noise_like(tensor: Tensor, generator: Random) -> Tensor:
    """As many as the tensor has, in its shape and type and on its device."""
    if isinstance(generator, CountedNoise):
        return generator.like(tensor)
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
