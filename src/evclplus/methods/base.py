"""What a method is: settings plus pure functions over what is learned and what is kept."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from evclplus.core.batches import Batch
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.hold import Hold
from evclplus.core.network import BayesianNetwork
from evclplus.settings import Settings


@dataclass(frozen=True)
class Terms:
    """The loss of one minibatch, by its parts."""

    nll: Tensor
    function: Tensor | None = None
    kl: Tensor | None = None
    penalty: Tensor | None = None

    def named(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def total(self) -> Tensor:
        return torch.stack(list(self.named().values())).sum()


@dataclass(frozen=True)
class Memory:
    """What survives a task. A method uses the parts it needs.

    prior    the Gaussian the next posterior is held to: the last posterior, and the first
             prior for weights that no task has used yet
    fisher   how much each weight matters to what was learned; None before the first task
    stored   kept examples: a coreset's, or all of them for joint training
    tasks    how many tasks went into it
    """

    prior: MeanField
    fisher: Tensor | None = None
    stored: tuple[Examples, ...] = ()
    tasks: int = 0


class Fit(Protocol):
    """Train q on data by minimising nll + the method's regulariser, or nll alone; the learner
    hands this to a method."""

    def __call__(
        self,
        network: BayesianNetwork,
        q: MeanField,
        method: "Method | None",
        memory: Memory,
        data: Sequence[Examples],
        *,
        purpose: str,
        epochs: int | None = None,
        at_mean: bool = False,
        hold: Hold | None = None,
    ) -> MeanField: ...


@dataclass(frozen=True)
class Lesson:
    """A task as a method sees it.

    data     the examples to train on
    new      marks the weights this task is the first to use
    shared   marks the weights that several tasks use
    earlier  the heads of earlier tasks that this task does not use

    Marks are made when they are asked for, so that they take no room during training.
    """

    network: BayesianNetwork
    data: Sequence[Examples]
    new: Callable[[], Tensor]
    shared: Callable[[], Tensor]
    generator: torch.Generator
    fit: Fit
    earlier: tuple[int, ...] = ()


class Method(Settings, ABC):
    """Hyper-parameters and pure functions. Method files read in one order: the equation, the
    memory it keeps, regulariser, consolidate.

    For each task the learner calls gather, prepare, then minimises the loss, then consolidate;
    before it predicts it calls recall.
    """

    name: ClassVar[str]

    @property
    def title(self) -> str:
        """The name in the registry."""
        return self.name

    def options(self) -> dict[str, Any]:
        """Every setting with its value, enough to build the method again by its title."""
        return self.model_dump(mode="json")

    def in_tensors(self, like: Tensor) -> Self:
        """The same method, its numbers held as tensors. A compiled regulariser takes those as
        they come; a plain number it would count as part of the code and compile again for."""
        found: dict[str, Any] = {}
        for name, value in self:
            if isinstance(value, Method):
                found[name] = value.in_tensors(like)
            elif isinstance(value, float):
                found[name] = like.new_tensor(value)
        return self.model_copy(update=found)

    @property
    def is_point(self) -> bool:
        """Whether weights are point values: no variances to learn and nothing to sample."""
        return True

    @property
    def averages_samples(self) -> bool:
        """Whether a prediction is an average over weights drawn from q."""
        return False

    def initial(self, network: BayesianNetwork) -> MeanField:
        """The weights before the first task."""
        return network.initial(variance=1.0)

    def gather(
        self, memory: Memory, task: Examples, generator: torch.Generator
    ) -> tuple[Sequence[Examples], Memory]:
        """What to train on for this task, and what to store."""
        return [task], memory

    def prepare(self, q: MeanField, memory: Memory, lesson: Lesson) -> tuple[MeanField, Memory]:
        """Where training of a task starts."""
        return q, memory

    def hold(self, memory: Memory, lesson: Lesson) -> Hold | None:
        """What keeps the heads of earlier tasks at their answers while this one is learned."""
        return None

    @abstractmethod
    def regulariser(self, q: MeanField, memory: Memory, examples: Tensor) -> dict[str, Tensor]:
        """What is added to the likelihood, by name: kl, penalty, or nothing."""

    def loss(self, q: MeanField, memory: Memory, batch: Batch) -> Terms:
        """What training minimises: nll + function + kl + penalty. This is the definition; the
        training loop computes the same gradients faster, and tests hold the two together."""
        examples = q.mean.new_tensor(batch.total)
        return Terms(**batch.terms(q), **self.regulariser(q, memory, examples))

    def consolidate(self, q: MeanField, memory: Memory, lesson: Lesson) -> Memory:
        """What to keep of a task."""
        return replace(memory, prior=q, tasks=memory.tasks + 1)

    def recall(
        self, network: BayesianNetwork, q: MeanField, memory: Memory, head: int, fit: Fit
    ) -> tuple[BayesianNetwork, MeanField]:
        """What predicts for a head. Never fed back into learning."""
        return network, q
