"""Coresets (Nguyen, Li, Bui and Turner, ICLR 2018): keep a few examples of each task beside any
method.

    learn     the wrapped method's loss over D_t without C_t      C_t the coreset of task t
    predict   for head h: its loss over the C_t of h, from the weights learned

It keeps every C_t, beside what the wrapped method keeps.

A task's coreset is taken out of its training data. Just before a head is tested, the weights
are fine-tuned on that head's coresets with the wrapped method's own loss; the result predicts
and is thrown away. With `alone`, the method learns from the coresets only: training data are
not used at all and prediction starts from the first weights and the first prior.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor, nn

from evclplus.core.batches import Batch, Source
from evclplus.core.coresets import k_center, random_subset
from evclplus.core.engine import Gradient, Here, Running, Step, Terms
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.errors import DataError
from evclplus.methods.base import Fit, Lesson, Method, Start, Trained
from evclplus.methods.space import OneOf, Space
from evclplus.settings import Optimiser

SELECTIONS: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "random": random_subset,
    "kcenter": k_center,
}

CORESET: Space = {"coreset_epochs": OneOf((20, 100, 200))}
"""What a search may try beside what the wrapped method has."""


@dataclass(frozen=True)
class WithCoreset:
    """What the wrapped method keeps, and the stored examples, task by task."""

    inner: Any
    stored: tuple[Examples, ...] = ()


class Coreset(Method):
    """Any method with a few stored examples of every task, replayed just before testing."""

    name: ClassVar[str] = "coreset"
    memory_type: ClassVar[type] = WithCoreset

    method: SerializeAsAny[Method]
    selection: Literal["random", "kcenter"] = "random"
    coreset_size: int = Field(200, ge=1, description="examples stored")
    coreset_budget: Literal["task", "total"] = Field(
        "task",
        description="coreset_size counts for each task, or for all tasks together; what then has "
        "to make room for a new task is dropped, not trained on",
    )
    coreset_epochs: int | None = Field(
        None, ge=1, description="epochs of fine-tuning before a test; none: as for a task"
    )
    alone: bool = Field(False, description="learn from the coresets only")

    @property
    def is_point(self) -> bool:
        return self.method.is_point

    @property
    def averages_samples(self) -> bool:
        return self.method.averages_samples

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        return self.method.optimisers

    @property
    def learning_rates(self) -> dict[Optimiser, float]:
        return self.method.learning_rates

    @property
    def needs_head_per_task(self) -> bool:
        return self.method.needs_head_per_task

    def has_variance(self, name: str) -> bool:
        return self.method.has_variance(name)

    def network_of(self, module: nn.Module) -> nn.Module:
        return self.method.network_of(module)

    def initial(self, network: BayesianNetwork) -> MeanField:
        return self.method.initial(network)

    def first_memory(self, q: MeanField) -> WithCoreset:
        return WithCoreset(self.method.first_memory(q))

    @property
    def memory_types(self) -> tuple[type, ...]:
        return (WithCoreset, *self.method.memory_types)

    def keeps(self, memory: Any) -> bool:
        return isinstance(memory, WithCoreset) and self.method.keeps(memory.inner)

    def begin(self, lesson: Lesson) -> Start:
        """Move the coreset from the training data to the memory."""
        memory: WithCoreset = lesson.memory
        chosen, stored = self._choose(memory.stored, lesson)
        if self.alone:
            return Start(lesson.q, WithCoreset(memory.inner, stored), lesson.task, ())
        rest = lesson.task.without(chosen)
        start = self.method.begin(replace(lesson, memory=memory.inner, task=rest))
        return replace(start, memory=WithCoreset(start.memory, stored))

    def _choose(
        self, stored: tuple[Examples, ...], lesson: Lesson
    ) -> tuple[Tensor, tuple[Examples, ...]]:
        task, quota = lesson.task, self.coreset_size
        if self.coreset_budget == "total":
            quota = max(1, quota // (len(stored) + 1))
        if quota >= len(task) and not self.alone:
            raise DataError(
                f"a coreset of {quota} leaves nothing to train on in a task of {len(task)} "
                "examples; set coreset_size lower"
            )
        # Inputs may be more than memory has room for, and who draws at random needs none.
        seen = task.labels if self.selection == "random" else task.inputs()
        chosen = SELECTIONS[self.selection](seen, quota, lesson.generator("coreset"))
        # Both selections put the best first, so a smaller quota keeps a prefix.
        older = [kept.take(torch.arange(min(quota, len(kept)))) for kept in stored]
        return chosen, tuple(one.materialised() for one in (*older, task.take(chosen)))

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> WithCoreset:
        memory: WithCoreset = start.memory
        if self.alone:
            return memory
        inner = replace(start, memory=memory.inner)
        lesson = replace(lesson, memory=lesson.memory.inner)
        return replace(memory, inner=self.method.end(lesson, inner, trained))

    def predictor(
        self, network: BayesianNetwork, q: MeanField, memory: WithCoreset, head: int, fit: Fit
    ) -> tuple[BayesianNetwork, MeanField]:
        coresets = tuple(examples for examples in memory.stored if examples.head == head)
        if not coresets:
            return self.method.predictor(network, q, memory.inner, head, fit)
        network = network.copy()  # running statistics are not fed back either
        inner, sources = memory.inner, (Source(coresets),)
        if self.alone:
            start = self.method.begin(self._first_lesson(network, q, coresets, fit))
            q, inner = start.q, start.memory
        q = fit(
            self.method,
            network,
            q,
            inner,
            sources,
            purpose=f"recall {head}",
            epochs=self.coreset_epochs,
        ).q
        return self.method.predictor(network, q, inner, head, fit)

    def _first_lesson(
        self, network: BayesianNetwork, q: MeanField, coresets: tuple[Examples, ...], fit: Fit
    ) -> Lesson:
        """All coresets of a head as if they were a first task."""
        everything = Examples(
            torch.cat([one.inputs() for one in coresets]),
            torch.cat([one.labels for one in coresets]),
            max(one.outputs for one in coresets),
            coresets[0].head,
        )
        return Lesson(
            network=network,
            q=q,
            memory=self.method.first_memory(q.clone()),
            task=everything,
            position=0,
            earlier=(),
            new=partial(torch.ones_like, q.mean, dtype=torch.bool),
            generator=lambda purpose: torch.Generator().manual_seed(0),
            fit=fit,
        )

    def likelihood(
        self, weights: Weights, memory: Any, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        return self.method.likelihood(weights, memory.inner, batch, network)

    def regulariser(self, q: MeanField, memory: Any, examples: Tensor) -> Terms:
        return self.method.regulariser(q, memory.inner, examples)

    def move(self, step: Step, memory: Any, here: Here) -> Step:
        return self.method.move(step, memory.inner, here)

    def trace(self, q: MeanField) -> Running:
        return self.method.trace(q)

    def follow(self, running: Running, gradient: Gradient, step: Step) -> Running:
        return self.method.follow(running, gradient, step)
