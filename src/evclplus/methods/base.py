"""What a method is: settings, three verbs a task and a few pure functions a step."""

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from evclplus.core.batches import Batch, Source
from evclplus.core.engine import Gradient, Here, Moments, Running, Step, Terms
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.likelihoods import Classification, Likelihood
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.errors import SettingsError
from evclplus.methods.space import TRAINING, Space
from evclplus.settings import LEARNING_RATES, Optimiser, Settings, Training

Role = Literal["ours", "baseline", "lower bound", "upper bound"]


@dataclass(frozen=True)
class Nothing:
    """The memory of a method that keeps nothing but the weights."""


@dataclass(frozen=True)
class Trained:
    """What training has found: the weights, the vectors that a method followed on the way, and
    what the optimiser remembers where that is kept."""

    q: MeanField
    running: Running = field(default_factory=dict)
    moments: Moments | None = None


class Fit(Protocol):
    """Trains q on the sources by minimising a method's loss: any method, any network, and q over
    its weights. `purpose` names the random numbers."""

    def __call__(
        self,
        method: "Method",
        network: BayesianNetwork,
        q: MeanField,
        memory: Any,
        sources: tuple[Source, ...],
        *,
        purpose: str,
        epochs: int | None = None,
        at_mean: bool = False,
    ) -> Trained: ...


@dataclass(frozen=True)
class Lesson:
    """A task as a method sees it.

    network     to be trained; it has the head that the task needs
    q, memory   the weights and what the method has kept so far
    task        the task's examples
    position    how many tasks came before
    earlier     the heads of earlier tasks that this task does not use
    seen        how many outputs of each head earlier tasks have used
    sharers     how many earlier tasks have used the task's own head
    new         marks the weights that this task is the first to use; made when it is asked for, so
                that it takes no room during training
    generator   random numbers for a purpose
    fit         the training loop
    calibrated  where a method notes a strength that it found by itself, for the record
    """

    network: BayesianNetwork
    q: MeanField
    memory: Any
    task: Examples
    position: int
    earlier: tuple[int, ...]
    new: Callable[[], Tensor]
    generator: Callable[[str], torch.Generator]
    fit: Fit
    likelihood: Likelihood = field(default_factory=Classification)
    calibrated: dict[str, float] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    sharers: int = 0


@dataclass(frozen=True)
class Start:
    """What to train, from where and on what.

    `task` are the examples of the task itself that are trained on, some may be kept back;
    `sources` what feeds the steps. Without sources nothing is trained.
    """

    q: MeanField
    memory: Any
    task: Examples
    sources: tuple[Source, ...]


class Method(Settings, ABC):
    """Hyper-parameters and pure functions. Method files read in one order: the equation, the
    memory it keeps, what a step minimises, what begins and ends a task.

    For each task the learner calls `begin`, trains, and calls `end`; before it predicts it calls
    `predictor`. For each step the engine calls likelihood, regulariser, move and follow: pure
    functions of tensors, which are compiled. They must not look at the numbers in tensors, nor at
    those of the method's own floats. Role, colour and marker are for reports, the space is for
    searches.
    """

    name: ClassVar[str]
    role: ClassVar[Role] = "baseline"
    colour: ClassVar[str] = "#6699CC"
    marker: ClassVar[str] = "*"
    space: ClassVar[Space] = TRAINING
    memory_type: ClassVar[type] = Nothing

    # What the weights are.

    @property
    def is_point(self) -> bool:
        """Whether weights are point values: no variances to learn and nothing to sample."""
        return True

    @property
    def averages_samples(self) -> bool:
        """Whether a prediction is an average over weights drawn from q."""
        return False

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        """The optimisers that it works with, the one to be taken by itself first."""
        return ("adam", "sgd")

    @property
    def learning_rates(self) -> dict[Optimiser, float]:
        """The learning rate of each optimiser where none is given."""
        return LEARNING_RATES

    @property
    def needs_head_per_task(self) -> bool:
        """Whether every task must have a head of its own."""
        return False

    def has_variance(self, name: str) -> bool:
        """Whether a parameter is Gaussian, or else a point value."""
        return not self.is_point

    def network_of(self, module: nn.Module) -> nn.Module:
        """What is trained: the user's module, or one that is made of it and leaves it as it is."""
        return module

    def initial(self, network: BayesianNetwork) -> MeanField:
        """The weights before the first task."""
        return network.initial(variance=1.0)

    def first_memory(self, q: MeanField) -> Any:
        """What is kept before the first task."""
        return self.memory_type()

    @property
    def memory_types(self) -> tuple[type, ...]:
        """The types of memory that this method may keep, for who reads it from a file."""
        return (self.memory_type,)

    def keeps(self, memory: Any) -> bool:
        """Whether this is a memory of this method, for who reads it from a file."""
        return isinstance(memory, self.memory_types)

    # Three verbs a task.

    def begin(self, lesson: Lesson) -> Start:
        """What to train, from where, on what."""
        return Start(lesson.q, lesson.memory, lesson.task, (Source((lesson.task,)),))

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Any:
        """What to keep of a task."""
        return start.memory

    def predictor(
        self, network: BayesianNetwork, q: MeanField, memory: Any, head: int, fit: Fit
    ) -> tuple[BayesianNetwork, MeanField]:
        """What answers for a head. Never fed back into learning."""
        return network, q

    # Pure functions of a step.

    def likelihood(
        self, weights: Weights, memory: Any, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        """The terms of the loss that depend on a batch, by name."""
        output = network(weights, batch.inputs, batch.head, training=True)
        return {"nll": batch.nll(output)}

    def regulariser(self, q: MeanField, memory: Any, examples: Tensor) -> Terms:
        """The terms that depend on the weights alone, by name; `examples` is N."""
        return {}

    def move(self, step: Step, memory: Any, here: Here) -> Step:
        """What is really done with the optimiser's step."""
        return step

    def trace(self, q: MeanField) -> Running:
        """The vectors to follow through the steps of a task, as they are before the first."""
        return {}

    def follow(self, running: Running, gradient: Gradient, step: Step) -> Running:
        """The same vectors after a step; the gradient is that of the likelihood alone."""
        return running


def training_for(method: Method, wanted: Training) -> Training:
    """The settings with an optimiser that suits the method, and its learning rate."""
    found = wanted.suited(method.optimisers, method.learning_rates)
    if wanted.optimiser not in (None, found.optimiser):
        raise SettingsError(
            f"{method.name} does not work with optimiser = {wanted.optimiser!r}; leave it out or "
            f"set it to {' or '.join(map(repr, method.optimisers))}"
        )
    if found.optimiser == "adam" and found.momentum:
        raise SettingsError(
            f"momentum = {found.momentum:g} is for optimiser = 'sgd', and {method.name} is trained "
            "with Adam, which has its own; leave it out or set optimiser to 'sgd'"
        )
    return found
