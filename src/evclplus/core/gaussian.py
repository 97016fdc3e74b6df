"""One Gaussian type: prior, posterior and anchor are all a `MeanField`."""

from dataclasses import dataclass
from functools import cached_property
from math import log, prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where each named parameter lives in the flat vectors.

    The first `gaussian_names` names have a mean and a log-std; the rest are point values and
    have a mean only. A vector of means covers all names, a vector of log-stds the first ones.
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
        """The length of a vector of log-stds."""
        return sum(self.sizes[: self.gaussian_names])

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The named parts of a flat vector, as views of it, or of each row of a matrix."""
        count = len(self.names) if vector.shape[-1] == self.total else self.gaussian_names
        # One split, not a slice per name: the backward of a split is a single concatenation.
        parts = vector.split(self.sizes[:count], dim=-1)
        shaped = zip(self.names, parts, self.shapes, strict=False)
        return {name: part.view(*vector.shape[:-1], *shape) for name, part, shape in shaped}


@dataclass(frozen=True)
class MeanField:
    """A fully factorised Gaussian over weights: N(mean_i, exp(log_std_i)^2) for each of them."""

    mean: Tensor
    log_std: Tensor
    layout: Layout

    @property
    def gaussian_mean(self) -> Tensor:
        """The means of the weights that have a variance."""
        return self.mean[: self.layout.gaussian_total]

    @property
    def variance(self) -> Tensor:
        return (2 * self.log_std).exp()

    def clone(self) -> "MeanField":
        """An independent copy, cut off from any gradient."""
        return MeanField(self.mean.detach().clone(), self.log_std.detach().clone(), self.layout)

    def replaced(self, where: Tensor, mean: float, variance: float) -> "MeanField":
        """The same Gaussian with N(mean, variance) for the weights marked in `where`."""
        gaussian = where[: self.layout.gaussian_total]
        return MeanField(
            self.mean.masked_fill(where, mean),
            self.log_std.masked_fill(gaussian, 0.5 * log(variance)),
            self.layout,
        )


def kl(q: MeanField, p: MeanField) -> Tensor:
    """KL(q || p) in closed form, summed over all Gaussian weights.

    KL = sum_i log(s_p / s_q) + (s_q^2 + (m_q - m_p)^2) / (2 s_p^2) - 1/2
    """
    log_ratio = q.log_std - p.log_std
    distance = (q.gaussian_mean - p.gaussian_mean).square() / p.variance
    # Not q.variance / p.variance: the gradient where q is p must be exactly zero, because Adam
    # makes a full step of any rounding error.
    return 0.5 * (torch.exp(2 * log_ratio) + distance - 1 - 2 * log_ratio).sum()
