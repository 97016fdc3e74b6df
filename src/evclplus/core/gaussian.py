"""One Gaussian type: prior, posterior and anchor are all a `MeanField`."""

from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where each named parameter lives in the flat vectors.

    The first `gaussian_names` names have a mean and a variance; the rest are point values and
    have a mean only. A vector of means covers all names, a vector of variances the first ones.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    gaussian_names: int

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def total(self) -> int:
        """The length of a vector of means."""
        return sum(self.sizes)

    @cached_property
    def gaussian_total(self) -> int:
        """The length of a vector of variances."""
        return sum(self.sizes[: self.gaussian_names])

    @cached_property
    def gaussian(self) -> frozenset[str]:
        """The names that have a variance."""
        return frozenset(self.names[: self.gaussian_names])

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The named parts of a flat vector, as views of it, or of each row of a matrix."""
        count = len(self.names) if vector.shape[-1] == self.total else self.gaussian_names
        # One split, not a slice per name: the backward of a split is a single concatenation.
        parts = vector.split(self.sizes[:count], dim=-1)
        shaped = zip(self.names, parts, self.shapes, strict=False)
        return {name: part.view((*vector.shape[:-1], *shape)) for name, part, shape in shaped}

    def carry(self, vector: Tensor, into: "Layout", rest: Tensor) -> Tensor:
        """`rest`, a vector over another layout, with the values of `vector` for every weight that
        both have. A parameter may have become longer there: its first rows are the old ones."""
        result = rest.clone()
        parts, after = self.named(vector), into.named(result)
        # Mostly a head more has come, and all that was before it is where it was.
        pairs = zip(parts.items(), after.items(), strict=False)
        same = list(takewhile(lambda pair: _is_same(*pair), pairs))
        length = sum(self.sizes[: len(same)])
        result[..., :length] = vector[..., :length]
        for name, value in islice(parts.items(), len(same), None):
            after[name][tuple(slice(size) for size in value.shape)] = value
        return result


def _is_same(one: tuple[str, Tensor], other: tuple[str, Tensor]) -> bool:
    return one[0] == other[0] and one[1].shape == other[1].shape


@dataclass(frozen=True)
class MeanField:
    """A fully factorised Gaussian over weights: N(mean_i, variance_i) for each of them."""

    mean: Tensor
    variance: Tensor
    layout: Layout

    @property
    def gaussian_mean(self) -> Tensor:
        """The means of the weights that have a variance."""
        return self.gaussian(self.mean)

    def gaussian(self, vector: Tensor) -> Tensor:
        """The part of a vector over all weights that belongs to those with a variance."""
        return vector[: self.variance.shape[0]]  # not len(): a trace would take it for a constant

    def clone(self) -> "MeanField":
        """An independent copy, cut off from any gradient."""
        return MeanField(self.mean.detach().clone(), self.variance.detach().clone(), self.layout)

    def replaced(self, where: Tensor, mean: float, variance: float | Tensor) -> "MeanField":
        """The same Gaussian with N(mean, variance) for the weights marked in `where`; there may be
        a variance for each Gaussian weight."""
        gaussian = self.gaussian(where)
        return MeanField(
            self.mean.masked_fill(where, mean),
            torch.where(gaussian, variance, self.variance),
            self.layout,
        )


def kl(q: MeanField, p: MeanField) -> Tensor:
    """KL(q || p) in closed form, summed over all Gaussian weights, with r = s_q^2 / s_p^2:

    KL = 1/2 sum_i r + (m_q - m_p)^2 / s_p^2 - 1 - log r

    The gradient in s_q^2, half of 1 / s_p^2 - 1 / s_q^2, is exactly zero where q is p, and has to
    be: Adam makes a full step of any rounding error. Two logarithms and not that of r, whose
    gradient would take two divisions more.
    """
    ratio = q.variance / p.variance
    log_ratio = q.variance.log() - p.variance.log()
    distance = (q.gaussian_mean - p.gaussian_mean).square() / p.variance
    return 0.5 * (ratio + distance - 1 - log_ratio).sum()
