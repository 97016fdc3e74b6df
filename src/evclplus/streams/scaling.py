"""How stored values become network input."""

from math import prod
from typing import Literal

import torch

from evclplus.core.examples import View
from evclplus.errors import DataError
from evclplus.streams.arrays import Labelled

Scaling = Literal["unit", "centred", "symmetric", "standard", "raw"]
"""unit: bytes to [0, 1]. centred: to [-1/2, 1/2]. symmetric: to [-1, 1]. standard: mean 0 and
standard deviation 1 over the training split. raw: as stored."""


MOST_AT_ONCE = 2**24
"""Numbers added up together."""


def default_scaling(train: Labelled) -> Scaling:
    """Bytes are pixels, unless they are all 0 or 1; what a user scaled already stays as it is."""
    is_pixels = train.store.dtype == torch.uint8 and int(train.store.max()) > 1
    return "unit" if is_pixels else "raw"


def scaled_view(train: Labelled, scaling: Scaling, max_value: float = 255.0) -> View:
    """The view that does `scaling`."""
    if scaling == "standard":
        mean, deviation = mean_and_deviation(train)
        if deviation == 0.0:
            raise DataError("all inputs are equal, so they cannot be standardised; scaling=raw can")
        return View(1.0 / deviation, -mean / deviation)
    return {
        "unit": View(1.0 / max_value, 0.0),
        "centred": View(1.0 / max_value, -0.5),
        "symmetric": View(2.0 / max_value, -1.0),
        "raw": View(),
    }[scaling]


def mean_and_deviation(split: Labelled) -> tuple[float, float]:
    """Over all values of the split's rows, exact for bytes: sums of integers do not round."""
    total = square = 0.0
    each = prod(split.store.shape[1:])
    for rows in split.rows.split(min(4096, max(1, MOST_AT_ONCE // each))):
        values = split.store[rows]
        if values.dtype == torch.uint8:
            wide = values.to(torch.int64)
            total += int(wide.sum())
            square += int((wide * wide).sum())
        else:
            total += float(values.double().sum())
            square += float(values.double().square().sum())
    count = len(split) * each
    mean = total / count
    return mean, max(square / count - mean * mean, 0.0) ** 0.5
