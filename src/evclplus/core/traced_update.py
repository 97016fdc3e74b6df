"""The update of `core/step.py` as one compiled graph."""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from evclplus.core.graphs import Operations, compiled, written_down
from evclplus.core.step import Update

Written = tuple[Operations, list[bool]]
"""What is compiled, and which of an update's tensors it reads or changes."""

_written: dict[object, Written] = {}
"""By everything but numbers in tensors: writing down takes a tenth of a second."""

_graphs: dict[object, Operations] = {}
"""By the operations and the shapes they are for: tasks share one, and so do settings that differ in
their numbers only."""


class TracedUpdate:
    """An update that runs without Python; compiled at the first step if nobody has before."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.operations: Operations | None = None

    def __call__(self, rates: Tensor) -> None:
        if self.operations is None:
            key = _description((rates, self.update))
            if key not in _written:
                _written[key] = _write_down(self.update, rates)
            self.operations, used = _written[key]
            every = zip(_tensors(self.update), used, strict=True)
            self.arguments = [tensor for tensor, is_used in every if is_used]
        self.operations(rates, *self.arguments)


def _write_down(update: Update, rates: Tensor) -> Written:
    every = _tensors(update)

    def moved(rates: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        others = iter(tensors)
        _with_tensors(update, lambda _: next(others))(rates)
        return ()

    traced = written_down(moved, [rates, *every])
    placeholders = traced.graph.find_nodes(op="placeholder")[1:]
    used = [bool(node.users) for node in placeholders]
    for node in placeholders:
        if not node.users:
            traced.graph.erase_node(node)
    traced.recompile()
    tensors = [rates, *(tensor for tensor, is_used in zip(every, used, strict=True) if is_used)]
    key = (traced.code, _description(tuple(tensors)))
    if key not in _graphs:
        _graphs[key] = compiled(traced)
    return _graphs[key], used


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def noted(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _with_tensors(value, noted)
    return found


def _with_tensors(value: Any, replace: Callable[[Tensor], Tensor]) -> Any:
    """A copy with other tensors in the place of its own, and of those of its parts."""
    if isinstance(value, Tensor):
        return replace(value)
    if isinstance(value, tuple):
        return tuple(_with_tensors(part, replace) for part in value)
    if not hasattr(value, "__dict__"):
        return value
    same = copy.copy(value)
    vars(same).update({name: _with_tensors(part, replace) for name, part in vars(value).items()})
    return same


def _description(value: Any) -> object:
    """All that operations with it depend on, but for the numbers in its tensors."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, tuple):
        return tuple(map(_description, value))
    if not hasattr(value, "__dict__"):
        return repr(value)
    return type(value), *((name, _description(part)) for name, part in vars(value).items())
