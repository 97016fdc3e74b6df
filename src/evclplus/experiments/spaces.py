"""Where `evclplus tune` begins: with every method as it comes. All other trials are drawn from the
method's space, which stands beside it."""

from typing import Any

from evclplus.methods import entry, method, options_of
from evclplus.methods.base import training_for
from evclplus.methods.space import Log, OneOf, Space
from evclplus.settings import Training

EPOCHS = "training.epochs"

STANDS_FOR: dict[str, Any] = {EPOCHS: 10, "prior_variance": 0.01}
"""Defaults that depend on the data, by a value that is near to what they mostly come to."""


def space_of(name: str, epochs_limit: int | None) -> Space:
    """A method's space, with no more epochs than the limit."""
    space = dict(entry(name).space)
    epochs = space[EPOCHS]
    if epochs_limit is not None and isinstance(epochs, OneOf):
        allowed = tuple(value for value in epochs.values if value <= epochs_limit)
        space[EPOCHS] = OneOf(allowed or (epochs_limit,))
    return space


def start_of(name: str, space: Space) -> dict[str, Any]:
    """The method's own defaults, as a point of its space. What it leaves out is drawn."""
    chosen = method(name)
    options, training = options_of(chosen), training_for(chosen, Training()).model_dump()
    point = {}
    for key, dimension in space.items():
        section, _, setting = key.rpartition(".")
        value = training[setting] if section else options[key]
        value = STANDS_FOR.get(key) if value is None else value
        if value is not None:
            point[key] = _inside(dimension, value)
    return point


def _inside(dimension: Log | OneOf, value: Any) -> Any:
    """The value, or the nearest that the dimension has; the last where it has no order."""
    if isinstance(dimension, Log):
        return min(max(value, dimension.low), dimension.high)
    return value if value in dimension.values else dimension.values[-1]
