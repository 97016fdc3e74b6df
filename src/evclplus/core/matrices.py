"""A layer's weight with its bias as the last column: one matrix W, and W (x, 1) is what it gives.

Its weights are found in flat vectors by where they begin, not by name: the places of a body stay
the same when heads come, and a compiled step serves all of them.
"""

from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from evclplus.core.gaussian import Layout


def names_of(layout: Layout, path: str) -> list[str]:
    """The weight and the bias of the layer at a path, those of them that are learned."""
    prefix = f"{path}." if path else ""
    return [prefix + name for name in ("weight", "bias") if prefix + name in layout.names]


def places_of(layout: Layout, path: str) -> tuple[int, ...]:
    """Where each of them begins in flat vectors."""
    begins = dict(zip(layout.names, (0, *accumulate(layout.sizes)), strict=False))
    return tuple(begins[name] for name in names_of(layout, path))


def matrix_at(vector: Tensor, places: tuple[int, ...], rows: int, columns: int) -> Tensor:
    """A layer's part of a flat vector; the last column is the bias if there are two places."""
    widths = (columns - 1, 1) if len(places) == 2 else (columns,)
    parts = zip(places, widths, strict=True)
    return torch.cat(
        [vector[place : place + rows * width].view(rows, width) for place, width in parts], dim=1
    )


def put_at(vector: Tensor, places: tuple[int, ...], matrix: Tensor) -> Tensor:
    """The flat vector with a layer's part replaced."""
    columns = matrix.shape[1]
    widths = [columns - 1, 1] if len(places) == 2 else [columns]
    for place, part in zip(places, matrix.split(widths, dim=1), strict=True):
        vector = torch.slice_scatter(vector, part.reshape(-1), 0, place, place + part.numel())
    return vector


def with_ones(a: Tensor, layout: Layout, path: str) -> Tensor:
    """Inputs with a 1 for the bias, if there is one to learn."""
    return F.pad(a, (0, 1), value=1.0) if len(names_of(layout, path)) == 2 else a
