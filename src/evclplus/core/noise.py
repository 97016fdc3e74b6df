"""Standard normal numbers that follow from a seed and a place in the row.

Every number is made by operations on whole tensors, so that a compiler can fuse them, any number of
threads or devices gives the same ones, and a compiled step draws what an uncompiled one draws.
"""

from functools import cache
from math import pi

import torch
from torch import Tensor

from evclplus.core.inductor import is_traced

BLOCK = 2**17
"""Pairs made at once where nothing is compiled, so that they stay in a processor's cache."""


class Noise:
    """Standard normal numbers from a seed, see `new_seed`; each call takes the next ones.

    The i-th pair comes from two integers of 32 bits, each mixed from i and half of the seed. Box
    and Muller, 1958, make two normal numbers of them.
    """

    def __init__(self, seed: Tensor) -> None:
        self.seed = seed
        self.used = 0

    def like(self, tensor: Tensor) -> Tensor:
        """As many as the tensor has, in its shape and type and on its device."""
        count = tensor.numel()
        pairs = (count + 1) // 2
        start, self.used = self.used, self.used + pairs
        places = torch.arange(start, self.used, dtype=torch.int32, device=tensor.device)
        seed = self.seed.to(tensor.device).unbind()
        if is_traced(tensor) or pairs <= BLOCK:  # a trace needs no blocks, it would unroll them
            both = torch.cat(_pairs(places, seed, tensor.dtype))
        else:
            both = tensor.new_empty(2 * pairs)
            blocks = (places, both[:pairs], both[pairs:])
            for some, first, second in zip(*(one.split(BLOCK) for one in blocks), strict=True):
                for target, found in zip(
                    (first, second), _pairs(some, seed, tensor.dtype), strict=True
                ):
                    target.copy_(found)
        return both[:count].view(tensor.shape)

    def draw(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Numbers with these means and variances."""
        return mean + variance.sqrt() * self.like(mean)


def _pairs(places: Tensor, seed: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    first, second, third, fourth = seed
    # An odd factor is one to one: no integer comes twice. One round of mixing each, because
    # torch's compiler takes several times longer for every further one.
    radius_bits = mixed((places ^ first) * (second | 1)) & (2**31 - 1)
    angle_bits = mixed((places ^ third) * (fourth | 1))
    radius = ((radius_bits.to(dtype) + 0.5) * 2**-31).log().mul(-2).sqrt()
    angle = angle_bits.to(dtype) * (pi * 2**-31)
    return radius * angle.cos(), radius * angle.sin()


class PredictionNoise(Noise):
    """Normal numbers for predictions: those of a row of data follow from what is in it, so that an
    answer does not depend on the other rows it is asked with.

    Nothing is compiled here, so a number is looked up: 16 bits choose one of as many equally likely
    values, which takes a fifth of the time of Box and Muller's formula.

    Drawn weights do not depend on the data. With `kept` they are drawn once and found there, by the
    place of their noise, when other rows are asked with the same seed.
    """

    def __init__(
        self, seed: Tensor, identities: Tensor, kept: dict[int, Tensor] | None = None
    ) -> None:
        super().__init__(seed)
        self.identities = identities
        self.kept = kept

    def like(self, tensor: Tensor) -> Tensor:
        return self._numbers(torch.zeros_like(self.identities[:1]), tensor)

    def draw(self, mean: Tensor, variance: Tensor) -> Tensor:
        start = self.used
        if self.kept is not None and start in self.kept:
            self.used += (mean.numel() + 1) // 2
            return self.kept[start]
        found = super().draw(mean, variance)
        if self.kept is not None:
            self.kept[start] = found
        return found

    def of_rows(self, tensor: Tensor) -> Tensor:
        """For a tensor that has, first to last, as many numbers for each row of the data."""
        return self._numbers(self.identities, tensor)

    def _numbers(self, identities: Tensor, tensor: Tensor) -> Tensor:
        each = tensor.numel() // len(identities)
        start, self.used = self.used, self.used + (each + 1) // 2
        places = torch.arange(start, self.used, dtype=torch.int32, device=tensor.device)
        first, second, third, fourth = self.seed.to(tensor.device).unbind()
        columns = mixed((places ^ first) * (second | 1)) ^ third
        rows = mixed(identities.to(tensor.device) ^ fourth)
        # Both are mixed well already, so what they make together takes half a round more.
        bits = (rows[:, None] ^ columns).mul_(_wrapped(0x85EBCA6B))
        bits.bitwise_xor_(_shifted(bits, 15)).mul_(_wrapped(0xC2B2AE35))
        chosen = bits.view(torch.uint16)[:, :each].to(torch.int32).flatten()
        table = _equally_likely(tensor.dtype, tensor.device)
        return table.index_select(0, chosen).view(tensor.shape)


@cache
def _equally_likely(dtype: torch.dtype, device: torch.device) -> Tensor:
    """65,536 values of a standard normal number, in the middle of as many equal shares; their
    variance is one."""
    middles = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
    values: Tensor = torch.special.ndtri(middles)
    return (values / values.square().mean().sqrt()).to(device, dtype)


def identities(x: Tensor) -> Tensor:
    """An integer for each row of some data that follows from all of its numbers."""
    rows = x.flatten(1) if x.dim() > 1 else x[:, None]
    # Zero is added because minus zero is the same number in other bits.
    bits = (rows.float() + 0.0).contiguous().view(torch.int32)
    places = torch.arange(bits.shape[1], dtype=torch.int32, device=x.device)
    factors = mixed(places + 1) | 1
    # Mixed first, because simple numbers such as 2.0 differ in few bits, and those the highest.
    return mixed((mixed(bits) * factors).sum(1, dtype=torch.int32))


def new_seeds(generator: torch.Generator, count: int) -> Tensor:
    """A row of four random integers for each of `count` `Noise`s."""
    return torch.randint(-(2**31), 2**31, (count, 4), dtype=torch.int32, generator=generator)


def new_noise(generator: torch.Generator) -> Noise:
    return Noise(new_seeds(generator, 1)[0])


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
    return (bits >> places).bitwise_and_(2 ** (32 - places) - 1)
