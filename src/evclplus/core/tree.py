"""Walking over the tensors of frozen dataclasses and tuples, whatever they are.

Methods keep memories of their own types. Whoever saves, moves, grows or compiles them walks over
their fields here and knows none of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import Field, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from evclplus.core.gaussian import Layout, MeanField

Value = TypeVar("Value")
Kind = TypeVar("Kind")


def per_weight() -> Any:
    """A field of a memory with one number for each weight, or rows of such; zero for weights that
    come later."""
    return field(metadata={"per_weight": True})


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its path: `prior.mean`, `stored.0.labels`."""
    if isinstance(value, Tensor):
        yield path, value
    for name, part in parts(value):
        yield from tensors(part, f"{path}.{name}" if path else name)


def found(value: Any, kind: type[Kind]) -> Iterator[Kind]:
    """Every part of a type, wherever it is."""
    if isinstance(value, kind):
        yield value
        return
    for _, part in parts(value):
        yield from found(part, kind)


def replaced(value: Value, function: Callable[[Tensor], Tensor]) -> Value:
    """The same with other tensors in the place of its own, in the order of `tensors`."""
    if isinstance(value, Tensor):
        return function(value)  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(replaced(part, function) for part in value)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {name: replaced(part, function) for name, part in value.items()}  # type: ignore[return-value]
    if not _is_walked(value):
        return value
    changed = {name: replaced(part, function) for name, part in parts(value)}
    return replace(value, **changed)  # type: ignore[type-var]


def grown(value: Value, old: Layout, start: MeanField) -> Value:
    """The same over all weights of `start`: Gaussians begin there, other numbers at zero."""
    if isinstance(value, MeanField):
        mean = old.carry(value.mean, start.layout, start.mean)
        variance = old.carry(value.variance, start.layout, start.variance)
        return MeanField(mean, variance, start.layout)  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(grown(part, old, start) for part in value)  # type: ignore[return-value]
    if not _is_walked(value):
        return value
    changed = {}
    for one in fields(value):  # type: ignore[arg-type]
        part = getattr(value, one.name)
        if is_per_weight(one):
            zeros = part.new_zeros((*part.shape[:-1], *start.mean.shape))
            changed[one.name] = old.carry(part, start.layout, zeros)
        else:
            changed[one.name] = grown(part, old, start)
    return replace(value, **changed)  # type: ignore[type-var]


def is_per_weight(one: "Field[Any]") -> bool:
    return bool(one.metadata.get("per_weight"))


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The named parts of a dataclass, a tuple or a dict; nothing for all else."""
    if isinstance(value, tuple):
        yield from ((str(index), part) for index, part in enumerate(value))
    elif isinstance(value, dict):
        yield from value.items()
    elif _is_walked(value):
        yield from ((one.name, getattr(value, one.name)) for one in fields(value))


def _is_walked(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type | Layout)
