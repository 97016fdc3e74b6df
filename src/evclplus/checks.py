"""Is this data something a network can learn from? One clear line each when it is not."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from evclplus.core.examples import Examples, rows_at_once
from evclplus.errors import DataError, SettingsError


def usable_device(name: str | None) -> torch.device | None:
    """The device of that name, tried out; None stays None."""
    if name is None:
        return None
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SettingsError(
            f"device = {name!r} cannot be used: {reason}; leave it out to compute where the "
            "network's weights are"
        ) from None
    return device


def as_input(x: Any, dtype: torch.dtype) -> Tensor:
    """Network input from an array or tensor."""
    values = torch.as_tensor(np.asarray(x) if not isinstance(x, Tensor) else x)
    if values.dtype == torch.uint8:
        raise DataError(
            "x holds raw bytes, which a stream scales before the network sees them; pass "
            "task.test.inputs() or scale them the same way"
        )
    if values.is_floating_point():
        values = values.to(dtype)
        # A sum is quick, and finite only if all its terms are.
        if not (torch.isfinite(values.sum()) or torch.isfinite(values).all()):
            raise DataError("x has NaN or infinite values; clean or drop those rows")
    if values.ndim < 2 or len(values) == 0:
        raise DataError(f"x has shape {tuple(values.shape)}; expected (inputs, ...), not empty")
    return values


def check_finite(examples: Examples, name: str) -> None:
    if not examples.store.is_floating_point():
        return
    for index in torch.arange(len(examples)).split(rows_at_once(examples.store)):
        bad = ~torch.isfinite(examples.inputs(index)).flatten(1).all(1)
        if bad.any():
            row = int(index[bad.nonzero()[0, 0]])
            raise DataError(
                f"task {name!r} has NaN or infinite inputs, first in example {row}; clean or "
                "drop them"
            )


def check_labels(examples: Examples, what: str) -> None:
    if len(examples) and not 0 <= int(examples.labels.min()) <= int(examples.labels.max()) < (
        examples.outputs
    ):
        outside = examples.labels[(examples.labels < 0) | (examples.labels >= examples.outputs)]
        raise DataError(
            f"the {what} has the label {int(outside[0])}, outside its head, which takes 0 to "
            f"{examples.outputs - 1}"
        )
