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

    The i-th pair comes from two integers of 32 bits, each mixed from i and half of the seed. Box
    and Muller, 1958, make two normal numbers of them.
    """

    def __init__(self, seed: Tensor) -> None:
        self.seed = seed.unbind()
        self.used = 0

    def like(self, tensor: Tensor) -> Tensor:
        """The next ones, as many as the tensor has, in its shape and type."""
        count = tensor.numel()
        pairs = (count + 1) // 2
        start, self.used = self.used, self.used + pairs
        places = torch.arange(start, self.used, dtype=torch.int32, device=tensor.device)
        first, second, third, fourth = self.seed
        # An odd factor is one to one: no integer comes twice. One round of mixing each, because
        # torch's compiler takes several times longer for every further one.
        radius_bits = mixed((places ^ first) * (second | 1)) & (2**31 - 1)
        angle_bits = mixed((places ^ third) * (fourth | 1))
        radius = ((radius_bits.to(tensor.dtype) + 0.5) * 2**-31).log().mul(-2).sqrt()
        angle = angle_bits.to(tensor.dtype) * (pi * 2**-31)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count].view(tensor.shape)


def new_seed(generator: torch.Generator) -> Tensor:
    """Four random integers, for one `CountedNoise`."""
    return torch.randint(-(2**31), 2**31, (4,), dtype=torch.int32, generator=generator)


def mixed(bits: Tensor) -> Tensor:
    """MurmurHash3's last step (Appleby, 2011): each of the 32 bits turns about half of them. It is
    one to one, and products wrap around. Integers of 64 bits are slow on many processors."""
    bits = (bits ^ _shifted(bits, 16)) * _wrapped(0x85EBCA6B)
    bits = (bits ^ _shifted(bits, 13)) * _wrapped(0xC2B2AE35)
    return bits ^ _shifted(bits, 16)


def _wrapped(number: int) -> int:
    """An unsigned 32-bit integer as the signed one with the same bits."""
    return number - 2**32 if number >= 2**31 else number


def _shifted(bits: Tensor, places: int) -> Tensor:
    """To the right, filled up with zeros: torch's own shift fills up with the sign."""
    return torch.bitwise_and(bits >> places, 2 ** (32 - places) - 1)


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
