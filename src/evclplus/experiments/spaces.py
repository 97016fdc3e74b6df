"""What `evclplus tune` searches: a space for every method, and where each search begins.

A dimension is a line: the name of one of the method's options, or `training.` and the name of a
training setting.
"""

from dataclasses import dataclass
from typing import Any

from evclplus.benchmarks.registry import BENCHMARKS


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

EPOCHS = "training.epochs"

TRAINING: Space = {
    EPOCHS: OneOf((3, 10, 20, 40)),
    "training.learning_rate": Log(3e-5, 1e-2),
    "training.schedule": OneOf(("constant", "cosine")),
}
VARIATIONAL: Space = {
    "beta": Log(1e-4, 1.0),
    "initial_variance": Log(1e-7, 1e-2),
    "start_epochs": OneOf((1, 10)),
    "prior_variance": Log(1e-3, 1.0),
}
# A sum over examples instead of their mean would only rescale lambda, so it is not searched.
ELASTIC: Space = {
    "lam": Log(1.0, 1e9),
    "fisher_tasks": OneOf(("last", "accumulated")),
    "fisher_temperature": Log(1.0, 100.0),
}
ASYMMETRIC: Space = {
    "k": Log(0.1, 1000.0),
}
# Not in the papers of EVCL and EWC, so their searches go without it.
ADDED: Space = {
    "lam_function": OneOf((0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
}
CORESET: Space = {
    "coreset_epochs": OneOf((20, 100, 200)),
}

VCL = TRAINING | VARIATIONAL
EVCL = VCL | ELASTIC
EVCL_PLUS = EVCL | ASYMMETRIC | ADDED

SPACES: dict[str, Space] = {
    "evcl+": EVCL_PLUS,
    "evcl": EVCL,
    "vcl": VCL,
    "vcl-random": VCL | CORESET,
    "vcl-kcenter": VCL | CORESET,
    "ewc": TRAINING | ELASTIC,
    "coreset-random": VCL | CORESET,
    "coreset-kcenter": VCL | CORESET,
    "finetune": TRAINING,
    "joint": TRAINING,
    "evcl+-random": EVCL_PLUS | CORESET,
    "evcl+-kcenter": EVCL_PLUS | CORESET,
}

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
HELD: dict[str, Any] = {
    **PAPER,
    EPOCHS: 10,
    "beta": 0.3,
    "lam": 22.0,
    "fisher_tasks": "accumulated",
    "fisher_temperature": 3.0,
}

ONE_HEAD_STARTS: tuple[dict[str, Any], ...] = (
    PAPER,
    HELD,
    {**HELD, EPOCHS: 20, "training.schedule": "cosine", "beta": 0.1},
    # A first prior that lets no variance grow until its noise is in the way, and larger steps,
    # which take every variance to where it belongs.
    {
        **HELD,
        "training.learning_rate": 4e-3,
        "training.schedule": "cosine",
        "initial_variance": 5e-3,
        "prior_variance": 0.01,
    },
)
"""Tried first when all tasks share one."""


def space_of(method: str, epochs_limit: int | None) -> Space:
    """A method's space, with no more epochs than the limit."""
    space = dict(SPACES[method])
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
        point = {name: _inside(dimension, start[name]) for name, dimension in space.items()}
        if point not in points:
            points.append(point)
    return points


def _inside(dimension: Log | OneOf, value: Any) -> Any:
    """The value, or the last of the choices where a limit has taken it away."""
    if isinstance(dimension, OneOf) and value not in dimension.values:
        return dimension.values[-1]
    return value
