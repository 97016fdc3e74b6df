"""Coresets (Nguyen et al., 2018): keep a few examples of each task beside any method.

A task's coreset is taken out of its training data. Just before a head is tested, the weights
are fine-tuned on that head's coresets with the wrapped method's own loss; the result predicts
and is thrown away. With `alone`, the method learns from the coresets only: training data are
not used at all and prediction starts from the first weights and the first prior.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor

from evclplus.core.coresets import k_center, random_subset
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.hold import Hold
from evclplus.core.network import BayesianNetwork
from evclplus.errors import DataError
from evclplus.methods.base import Fit, Lesson, Memory, Method

SELECTIONS: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "random": random_subset,
    "kcenter": k_center,
}


class Coreset(Method):
    """Any method with a few stored examples of every task, replayed just before testing."""

    name: ClassVar[str] = "coreset"

    method: SerializeAsAny[Method]
    selection: Literal["random", "kcenter"] = "random"
    coreset_size: int = Field(200, ge=1, description="examples stored")
    coreset_budget: Literal["task", "total"] = Field(
        "task", description="coreset_size counts for each task, or for all tasks together"
    )
    coreset_epochs: int | None = Field(
        None, ge=1, description="epochs of fine-tuning before a test; none: as for a task"
    )
    alone: bool = Field(False, description="learn from the coresets only")

    @property
    def title(self) -> str:
        return f"{'coreset' if self.alone else self.method.title}-{self.selection}"

    def options(self) -> dict[str, Any]:
        own = self.model_dump(mode="json", exclude={"method", "selection", "alone"})
        return {**self.method.options(), **own}

    @property
    def is_point(self) -> bool:
        return self.method.is_point

    @property
    def averages_samples(self) -> bool:
        return self.method.averages_samples

    def initial(self, network: BayesianNetwork) -> MeanField:
        return self.method.initial(network)

    def gather(
        self, memory: Memory, task: Examples, generator: torch.Generator
    ) -> tuple[Sequence[Examples], Memory]:
        """Move the coreset from the training data to the memory."""
        quota = self.coreset_size
        if self.coreset_budget == "total":
            quota = max(1, quota // (len(memory.stored) + 1))
        if quota >= len(task) and not self.alone:
            raise DataError(
                f"a coreset of {quota} leaves nothing to train on in a task of {len(task)} "
                "examples; set coreset_size lower"
            )
        chosen = SELECTIONS[self.selection](task.inputs(), quota, generator)
        # Both selections put the best first, so a smaller quota keeps a prefix.
        older = [kept.take(torch.arange(min(quota, len(kept)))) for kept in memory.stored]
        stored = tuple(examples.materialised() for examples in (*older, task.take(chosen)))
        memory = replace(memory, stored=stored)
        if self.alone:
            return [], memory
        return self.method.gather(memory, task.without(chosen), generator)

    def prepare(self, q: MeanField, memory: Memory, lesson: Lesson) -> tuple[MeanField, Memory]:
        return self.method.prepare(q, memory, lesson)

    def hold(self, memory: Memory, lesson: Lesson) -> Hold | None:
        return self.method.hold(memory, lesson)

    def regulariser(self, q: MeanField, memory: Memory, examples: Tensor) -> dict[str, Tensor]:
        return self.method.regulariser(q, memory, examples)

    def consolidate(self, q: MeanField, memory: Memory, lesson: Lesson) -> Memory:
        return self.method.consolidate(q, memory, lesson)

    def recall(
        self, network: BayesianNetwork, q: MeanField, memory: Memory, head: int, fit: Fit
    ) -> tuple[BayesianNetwork, MeanField]:
        coresets = [examples for examples in memory.stored if examples.head == head]
        if not coresets:
            return network, q
        network = network.copy()  # running statistics are not fed back either
        if self.alone:
            everything = partial(torch.ones_like, q.mean, dtype=torch.bool)
            lesson = Lesson(network, coresets, everything, everything, torch.Generator(), fit)
            q, memory = self.method.prepare(q, Memory(prior=q.clone()), lesson)

        q = fit(
            network,
            q,
            self.method,
            memory,
            coresets,
            purpose=f"recall {head}",
            epochs=self.coreset_epochs,
        )
        return network, q
