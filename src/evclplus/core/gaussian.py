"""One Gaussian type: prior, posterior and anchor are all a `MeanField`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pieces:
    """How a vector is split for some names: the sizes of all pieces, and which of them they are."""

    names: list[str]
    shapes: list[tuple[int, ...]]
    sizes: list[int]
    wanted: list[int]


Place = tuple[int, tuple[int, ...]]
"""Where a parameter begins, and its shape."""


@dataclass(frozen=True)
class Layout:
    """Where each named parameter lives in the flat vectors.

    The first `gaussian_names` names have a mean and a variance; the rest are point values and
    have a mean only. A vector of means covers all names, a vector of variances the first ones.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    gaussian_names: int

    def with_more(
        self, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], gaussian: bool
    ) -> "Layout":
        """The same with more weights at its end. There may be thousands of names already, and
        what is known of them is taken over."""
        assert self.has_room_at_its_end(gaussian)
        count = len(names) if gaussian else 0
        longer = Layout(self.names + names, self.shapes + shapes, self.gaussian_names + count)
        sizes = tuple(prod(shape) for shape in shapes)
        begins = accumulate(sizes, initial=self.total)
        places = {**self.places, **_places(names, begins, shapes)}
        vars(longer).update(sizes=self.sizes + sizes, places=places)
        return longer

    def has_room_at_its_end(self, gaussian: bool) -> bool:
        """Whether that is where more of a kind belong: point values come after all others."""
        return not gaussian or self.gaussian_names == len(self.names)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(shape) for shape in self.shapes)

    @cached_property
    def places(self) -> "dict[str, Place]":
        """Where each parameter begins in a vector of means, and its shape."""
        return _places(self.names, accumulate(self.sizes, initial=0), self.shapes)

    @cached_property
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

    @cached_property
    def _pieces(self) -> dict[tuple[tuple[str, ...], int], "Pieces"]:
        """How a vector of a length is cut for the names that were asked for."""
        return {}

    def named(self, vector: Tensor, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """The named parts of a flat vector, as views of it, or of each row of a matrix; all of
        them, or those that are asked for and there, in the order of the layout."""
        # One split, not a slice per name: the backward of a split is a single concatenation.
        if names is None:
            count = len(self.names) if vector.shape[-1] == self.total else self.gaussian_names
            parts: Sequence[Tensor] = vector.split(self.sizes[:count], dim=-1)
            found = zip(self.names, parts, self.shapes, strict=False)
        else:
            pieces = self._cut(tuple(names), vector.shape[-1] == self.total)
            parts = vector.split(pieces.sizes, dim=-1)
            wanted = [parts[index] for index in pieces.wanted]
            found = zip(pieces.names, wanted, pieces.shapes, strict=True)
        rows = vector.shape[:-1]
        return {name: part.view((*rows, *shape)) for name, part, shape in found}

    def _cut(self, names: tuple[str, ...], whole: bool) -> "Pieces":
        """The names' own parts of a vector, and between them what nobody asked for."""
        end = self.total if whole else self.gaussian_total
        if (names, end) not in self._pieces:
            asked = names if whole else self.gaussian.intersection(names)
            order = self.ordered(asked)
            shapes = [self.places[name][1] for name in order]
            sizes, wanted, done = [], [], 0
            for name, shape in zip(order, shapes, strict=True):
                begin = self.places[name][0]
                sizes += [begin - done, prod(shape)]
                wanted.append(len(sizes) - 1)
                done = begin + sizes[-1]
            sizes.append(end - done)
            self._pieces[names, end] = Pieces(order, shapes, sizes, wanted)
        return self._pieces[names, end]

    def ordered(self, names: Iterable[str]) -> list[str]:
        """Names as they follow each other in a vector."""
        return sorted(names, key=self.places.__getitem__)

    def carry(self, vector: Tensor, into: "Layout", rest: Tensor) -> Tensor:
        """`rest`, a vector over another layout, with the values of `vector` for every weight that
        both have. A parameter may have become longer there: its first rows are the old ones."""
        result = rest.clone()
        whole = vector.shape[-1] == self.total
        count = len(self.names) if whole else self.gaussian_names
        # Mostly a head more has come, and all that was before it is where it was.
        same = self._same_as(into, count)
        length = sum(self.sizes[:same])
        result[..., :length] = vector[..., :length]
        moved = self.names[same:count]
        after = into.named(result, moved) if moved else {}
        for name, value in (self.named(vector, moved) if moved else {}).items():
            after[name][tuple(slice(size) for size in value.shape)] = value
        return result

    def _same_as(self, other: "Layout", count: int) -> int:
        """How many of the first names, up to `count`, are the same with the same shapes there."""
        if (self.names[:count], self.shapes[:count]) == (other.names[:count], other.shapes[:count]):
            return count
        pairs = zip(self.names, other.names, self.shapes, other.shapes, strict=False)
        differ = (one != two or shape != other_shape for one, two, shape, other_shape in pairs)
        return next((index for index, found in enumerate(differ) if found), count)


def _places(
    names: Sequence[str], begins: Iterable[int], shapes: Sequence[tuple[int, ...]]
) -> dict[str, Place]:
    return dict(zip(names, zip(begins, shapes, strict=False), strict=True))


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
