"""Is this data something a network can learn from? One clear line each when it is not."""

from typing import Any

import torch
from torch import Tensor, nn

from evclplus.core.examples import Examples, rows_at_once
from evclplus.errors import ConversionError, DataError, SettingsError
from evclplus.streams.arrays import tensor_of


def usable_device(name: str | None) -> torch.device | None:
    """The device of that name, tried out; None stays None."""
    if name is None:
        return None
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SettingsError(
            f"device = {name!r} cannot be used: {reason}; leave it out to compute where the "
            "network's weights are"
        ) from None
    return device


def as_input(x: Any, dtype: torch.dtype) -> Tensor:
    """Network input from an array or tensor: a copy, in one order in memory, so that nothing
    depends on how the numbers lay and nobody's array is changed."""
    values = tensor_of(x, "x").clone(memory_format=torch.contiguous_format)
    if values.is_complex():
        raise DataError("x holds complex numbers; give real ones")
    if values.dtype == torch.uint8:
        if values.numel() and int(values.max()) > 1:
            raise DataError(
                "x holds raw bytes, which a stream scales before the network sees them; pass "
                "task.test.inputs() or scale them the same way"
            )
        values = values.to(dtype)
    if values.is_floating_point():
        values = values.to(dtype)
        # A sum is quick, and finite only if all its terms are.
        if not (torch.isfinite(values.sum()) or torch.isfinite(values).all()):
            raise DataError("x has NaN or infinite values; clean or drop those rows")
    if values.ndim < 2 or len(values) == 0:
        raise DataError(f"x has shape {tuple(values.shape)}; expected (inputs, ...), not empty")
    return values


def check_module(network: Any) -> None:
    if not isinstance(network, nn.Module):
        raise ConversionError(
            f"the network is {network!r:.60}; expected a torch.nn.Module object, such as "
            "ec.networks.mlp(784, [256, 256])"
        )


def check_scaled(x: Tensor, largest: float) -> None:
    """Bytes that nobody scaled, as other numbers: whole ones far above all that was learned."""
    least, most = (float(edge) for edge in x.aminmax())
    if least >= 0 and 2 * largest < most <= 255 and bool((x == x.round()).all()):
        raise DataError(
            f"x holds whole numbers up to {most:g}, but what was learned are bytes scaled to at "
            f"most {largest:g}; pass task.test.inputs() or scale x the same way"
        )


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
