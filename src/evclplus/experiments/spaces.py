"""Where `evclplus tune` begins: points that are tried first, each with the dimensions that a
method's space has. The spaces themselves stand beside the methods."""

from typing import Any

from evclplus.benchmarks.registry import BENCHMARKS
from evclplus.methods import entry
from evclplus.methods.space import Log, OneOf, Space

EPOCHS = "training.epochs"

PAPER: dict[str, Any] = {
    EPOCHS: 20,
    "training.learning_rate": 1e-3,
    "training.schedule": "constant",
    "beta": 1.0,
    "initial_variance": 1e-3,
    "lam": 100.0,
    "fisher_tasks": "last",
    "fisher_temperature": 1.0,
    "lam_function": 0.0,
    "start_epochs": 10,
    "prior_variance": 1.0,
    "k": 5.0,
    "coreset_epochs": 100,
}
"""The paper's settings, with fewer epochs."""

# Where the tasks of a split benchmark hold each other: a stiff penalty, a tempered KL.
SPLIT: dict[str, Any] = {
    **PAPER,
    EPOCHS: 10,
    "beta": 0.003,
    "initial_variance": 1e-4,
    "lam": 1e4,
    "fisher_tasks": "accumulated",
    "lam_function": 0.03,
}

# The same with a larger variance, which needs a larger share of the KL.
NOISY: dict[str, Any] = {
    **SPLIT,
    "beta": 0.03,
    "initial_variance": 1e-3,
    "lam": 1e3,
    "lam_function": 0.01,
    "start_epochs": 1,
}

SPLIT_STARTS: tuple[dict[str, Any], ...] = (
    PAPER,
    SPLIT,
    NOISY,
    # Stopped early, very stiff.
    {
        **SPLIT,
        EPOCHS: 3,
        "beta": 0.01,
        "lam": 1e6,
        "fisher_temperature": 10.0,
        "lam_function": 0.01,
        "start_epochs": 1,
        "coreset_epochs": 20,
    },
    # Longer and softer: where tasks are held easily and learning is the limit.
    {**SPLIT, EPOCHS: 20, "lam": 1e3, "lam_function": 0.01},
    {**NOISY, EPOCHS: 40, "lam_function": 0.3, "start_epochs": 10},
)
"""Tried first when every task has a head of its own, each with the dimensions that a method's
space has."""

# All tasks in one head: predictions do not saturate, so lambda is small; held by all old tasks at
# once, through predictions softened for the Fisher.
ONE_HEAD: dict[str, Any] = {
    **PAPER,
    EPOCHS: 10,
    "beta": 0.3,
    "lam": 22.0,
    "fisher_tasks": "accumulated",
    "fisher_temperature": 3.0,
}

ONE_HEAD_STARTS: tuple[dict[str, Any], ...] = (
    PAPER,
    ONE_HEAD,
    {**ONE_HEAD, EPOCHS: 20, "training.schedule": "cosine", "beta": 0.1},
    # A first prior that lets no variance grow until its noise is in the way, and larger steps,
    # which take every variance to where it belongs.
    {
        **ONE_HEAD,
        "training.learning_rate": 4e-3,
        "training.schedule": "cosine",
        "initial_variance": 5e-3,
        "prior_variance": 0.01,
    },
)
"""Tried first when all tasks share one."""


def space_of(method: str, epochs_limit: int | None) -> Space:
    """A method's space, with no more epochs than the limit."""
    space = dict(entry(method).space)
    epochs = space[EPOCHS]
    if epochs_limit is not None and isinstance(epochs, OneOf):
        allowed = tuple(value for value in epochs.values if value <= epochs_limit)
        space[EPOCHS] = OneOf(allowed or (epochs_limit,))
    return space


def starts_of(space: Space, benchmark: str) -> list[dict[str, Any]]:
    """The starting points of a space on a benchmark, none of them twice."""
    points: list[dict[str, Any]] = []
    head_per_task = BENCHMARKS[benchmark].settings().scenario == "task"
    for start in SPLIT_STARTS if head_per_task else ONE_HEAD_STARTS:
        # What a point does not name is drawn.
        point = {n: _inside(one, start[n]) for n, one in space.items() if n in start}
        if point not in points:
            points.append(point)
    return points


def _inside(dimension: Log | OneOf, value: Any) -> Any:
    """The value, or the last of the choices where a limit has taken it away."""
    if isinstance(dimension, OneOf) and value not in dimension.values:
        return dimension.values[-1]
    return value
