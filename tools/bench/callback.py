"""Steady epochs, timed from a training callback, with rivals that have their turns between them.

How a callback is made and handed to a learner is known here and nowhere else in the bench.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from math import ceil
from statistics import median
from typing import Any

import torch
from torch import nn

import evclplus as ec
from evclplus.callbacks import Callback
from tools.bench.plain import BATCH
from tools.bench.timing import Work, seconds_of

EPOCHS = 10
"""Of every task, so that `compile="auto"` decides as it does for runs of that length."""

WARM_UP = 2
"""Epochs that are left out: they compile, and they meet cold caches."""

__all__ = [
    "EPOCHS",
    "Callback",
    "epochs_by_turns",
    "epochs_in_turn",
    "is_training",
    "learner_with",
]


def learner_with(
    callback: Callback, network: nn.Module, method: ec.Method, **training: Any
) -> ec.Learner:
    return ec.Learner(network, method, callback=callback, **training)


def is_training(label: str) -> bool:
    """Whether a phase is the training of a task, and not the start that comes before it."""
    return label.endswith("train")


class Turns(Callback):
    """Times the epochs of some tasks, counted from 1, from first step to first step. Between
    two of them, and not in their time, every rival has one turn."""

    def __init__(self, epochs: int, tasks: Collection[int], rivals: Mapping[str, Work]) -> None:
        self.epochs = epochs
        self.tasks = tasks
        self.rivals = rivals
        self.taken: dict[int, dict[str, list[float]]] = {
            task: {name: [] for name in ("ours", *rivals)} for task in tasks
        }
        self._task = 0
        self._steps = 0
        self._epoch = -1
        self._began = 0.0

    def new_learner(self) -> "Turns":
        """Count tasks from 1 again and keep the times."""
        self._task = 0
        return self

    def start(self, label: str, steps: int) -> None:
        self._epoch = -1
        self._steps = steps // self.epochs if is_training(label) else 0
        self._task += bool(self._steps)

    def advance(self, step: int, terms: object) -> None:
        now = time.perf_counter()
        if not self._steps or self._task not in self.tasks:
            return
        epoch = (step - 1) // self._steps
        if epoch == self._epoch:
            return
        if epoch > WARM_UP:
            self.taken[self._task]["ours"].append(now - self._began)
        self._epoch = epoch
        if epoch >= WARM_UP:
            # Whatever mode the training loop is in, rivals train with autograd.
            with torch.inference_mode(False), torch.enable_grad():
                for name, work in self.rivals.items():
                    self.taken[self._task][name].append(seconds_of(work))
        self._began = time.perf_counter()


def epochs_in_turn(
    methods: Sequence[ec.Method],
    network: nn.Module,
    stream: ec.Stream,
    rounds: int,
    **training: Any,
) -> list[float]:
    """Seconds of one steady epoch of a second task for each of the methods: medians over rounds, in
    each of which every method trains a learner."""
    taken: list[list[float]] = [[] for _ in methods]
    for _ in range(rounds):
        for method, seconds in zip(methods, taken, strict=True):
            seconds.append(epochs_by_turns(method, network, stream, {}, **training)[2]["ours"])
    return [median(seconds) for seconds in taken]


def epochs_by_turns(
    method: ec.Method,
    network: nn.Module,
    stream: ec.Stream,
    rivals: Mapping[str, Work],
    *,
    tasks: Collection[int] = (2,),
    rounds: int = 1,
    epochs: int = EPOCHS,
    batch_size: int = BATCH,
    **training: Any,
) -> dict[int, dict[str, float]]:
    """Seconds of one steady epoch of ours and of each rival's turn, for each of the tasks.

    Medians of at least `rounds` turns; a learner gives a few and then a new one begins. A method
    that makes no steps takes no time.
    """
    turns = Turns(epochs, tasks, rivals)
    for work in rivals.values():
        work()
    for _ in range(ceil(rounds / (epochs - WARM_UP - 1))):
        learner = learner_with(
            *(turns.new_learner(), network, method),
            epochs=epochs,
            batch_size=batch_size,
            **training,
        )
        for task in stream.tasks[: max(tasks)]:
            learner.learn(task)
    return {
        task: {name: median(seconds or [0.0]) for name, seconds in taken.items()}
        for task, taken in turns.taken.items()
    }
