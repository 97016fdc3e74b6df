"""What a search may try: a space stands beside the method it belongs to."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Log:
    """A number between two others, every order of magnitude equally likely."""

    low: float
    high: float


@dataclass(frozen=True)
class OneOf:
    """One of a few values, written in ascending order where they have one."""

    values: tuple[Any, ...]


Space = dict[str, Log | OneOf]
"""By the name of one of the method's options, or `training.` and the name of a training setting."""

TRAINING: Space = {
    "training.epochs": OneOf((3, 10, 20, 40)),
    "training.learning_rate": Log(3e-5, 1e-2),
    "training.schedule": OneOf(("constant", "cosine")),
}

PLAIN_STEPS: Space = TRAINING | {"training.learning_rate": Log(1e-3, 1.0)}
"""The same for a method that is trained with plain steps down the gradient."""
