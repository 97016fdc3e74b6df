"""One training step: the likelihood's gradient, then regulariser, optimiser and what a method adds.

This is the definition: autograd of likelihood + regulariser, for any module on any device.
`core/compiled.py` has the fast form of the same two functions and is checked against them.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from evclplus.core.batches import VECTOR, Batch
from evclplus.core.gaussian import Layout, MeanField
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.core.noise import Noise
from evclplus.settings import Optimiser

FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.999, 1e-8
"""Adam's constants, as everywhere."""

SMALL_RATE = 0.03
"""Learning rates up to this take no step in log sigma that a quotient of polynomials could not
exponentiate to a part in a million."""

GRAIN = 2**13
"""Rows of weights are this far apart, or a multiple: a network that gets another head mostly keeps
its strides, and a compiled graph its use."""

Terms = dict[str, Tensor]
"""The parts of a loss, by name."""


@dataclass(frozen=True)
class Step:
    """What an optimiser proposes, or what is really done: changes of the means and of log sigma."""

    mean: Tensor
    log_std: Tensor


@dataclass(frozen=True)
class Gradient:
    """d nll / d mu and d nll / d sigma^2, of the likelihood alone."""

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True)
class Here:
    """Where a step is made.

    q           the weights before it
    examples    N, as a tensor
    gradient    there, of the likelihood alone
    reference   that of sources which are kept apart from the step's own, if there are any
    """

    q: MeanField
    examples: Tensor
    gradient: Gradient
    reference: Gradient | None = None


Running = dict[str, Tensor]
"""Vectors that a method follows through the steps of a task, by name."""


class Objective(Protocol):
    """The pure functions of a step, see `methods/base.py`."""

    def likelihood(
        self, weights: Weights, memory: Any, batch: Batch, network: BayesianNetwork
    ) -> Terms: ...

    def regulariser(self, q: MeanField, memory: Any, examples: Tensor) -> Terms: ...

    def move(self, step: Step, memory: Any, here: Here) -> Step: ...

    def follow(self, running: Running, gradient: Gradient, step: Step) -> Running: ...


@dataclass(frozen=True)
class Problem:
    """What a task's training minimises, and how it steps. `examples` is N, as a tensor."""

    network: BayesianNetwork
    objective: Objective
    memory: Any
    examples: Tensor
    at_mean: bool = False
    clip_norm: float | None = None
    low_precision: bool = False
    small_steps: bool = True
    optimiser: Optimiser = "adam"


@dataclass(frozen=True)
class Vectors:
    """What an update reads and changes. `reference` is there when a source is kept apart."""

    mean: Tensor
    variance: Tensor
    gradient: Gradient
    mean_moments: tuple[Tensor, Tensor]
    variance_moments: tuple[Tensor, Tensor]
    running: Running
    reference: Gradient | None = None


@dataclass(frozen=True)
class Moments:
    """What an optimiser remembers: its running means, a row for the means and one for log sigma,
    and how many steps they have seen."""

    first: Tensor
    second: Tensor
    steps: int = 0

    def grown(self, old: Layout, new: Layout) -> "Moments":
        """The same over more weights, zero for those that came."""

        def carried(rows: Tensor) -> Tensor:
            return old.carry(rows, new, rows.new_zeros(len(rows), new.total))

        return Moments(carried(self.first), carried(self.second), self.steps)


class Room:
    """Room for the gradient of a step, and for that of sources which are kept `apart`. It is one
    block of memory with some numbers `more` at its end, so that all of it is added up at once."""

    def __init__(self, q: MeanField, apart: bool = False, more: int = 0) -> None:
        total, rows, width = len(q.mean), 1 + (len(q.variance) > 0), _width(len(q.mean))
        size = -(-rows * width // VECTOR) * VECTOR
        self.flat = q.mean.new_zeros((1 + apart) * size + more)

        def block(number: int) -> Tensor:
            found = self.flat[number * size : number * size + rows * width]
            return found.view(rows, width)[:, :total]

        self.gradient = block(0)
        self.reference = block(1) if apart else None
        self.more = self.flat[len(self.flat) - more :]
        self.last: int | None = None
        """The head whose weights alone have a gradient here that is not zero, if there is one."""

    def clear(self) -> None:
        self.flat.zero_()
        self.last = None

    def add(self, other: "Room") -> None:
        self.flat.add_(other.flat)
        self.last = None


def _width(total: int) -> int:
    """How far apart rows of so many weights are."""
    return total if total < GRAIN else -(-total // GRAIN) * GRAIN


class State:
    """All that one training run moves: weights, gradient, the optimiser's moments, a method's
    running vectors. Means and variances are the rows of `weights`, so that one batched product
    serves both. `room` is where gradients go, by default without any that is kept apart."""

    def __init__(
        self,
        q: MeanField,
        running: Running,
        moments: Moments | None = None,
        apart: bool = False,
        room: Room | None = None,
    ) -> None:
        self.layout = q.layout
        self.weights = self._rows(q)
        self.weights[0].copy_(q.mean.detach())
        self.room = room or Room(q, apart)
        self.gradient, self.reference = self.room.gradient, self.room.reference
        first, second = self._rows(q), self._rows(q)
        if moments is not None:
            first.copy_(moments.first)
            second.copy_(moments.second)
        self.moments = first, second
        gaussian = len(q.variance)

        def row(rows: Tensor) -> Tensor:
            return rows[1, :gaussian] if gaussian else rows[0, :0]

        self.vectors = Vectors(
            self.weights[0],
            row(self.weights),
            Gradient(self.gradient[0], row(self.gradient)),
            (first[0], second[0]),
            (row(first), row(second)),
            running,
            None if self.reference is None else Gradient(self.reference[0], row(self.reference)),
        )
        self.vectors.variance.copy_(q.variance.detach())

    @staticmethod
    def _rows(q: MeanField) -> Tensor:
        total, rows = len(q.mean), 1 + (len(q.variance) > 0)
        return q.mean.new_zeros(rows, _width(total))[:, :total]

    def posterior(self) -> MeanField:
        """What was learned, in the same memory: nobody may train with this object any more."""
        return MeanField(self.vectors.mean, self.vectors.variance, self.layout)

    def named(self, rows: Tensor, names: Sequence[str], at_mean: bool) -> list[Tensor]:
        """These weights' parts of `weights` or of a gradient: (2, *shape) for Gaussian ones, unless
        only the means learn."""
        gaussian = () if at_mean else self.layout.gaussian
        pairs = self.layout.named(rows, names)
        return [pairs[name] if name in gaussian else pairs[name][0] for name in names]


def loss(
    objective: Objective,
    q: MeanField,
    memory: Any,
    batch: Batch,
    network: BayesianNetwork,
    examples: Tensor,
    noise: Noise | None,
) -> Terms:
    """What training minimises is the sum of these: the likelihood's terms and the regulariser's."""
    weights = network.weights(q, noise)
    return {
        **objective.likelihood(weights, memory, batch, network),
        **objective.regulariser(q, memory, examples),
    }


def likelihood_gradient(
    problem: Problem, batch: Batch, names: Sequence[str], tensors: Sequence[Tensor], seed: Tensor
) -> tuple[Terms, tuple[Tensor, ...]]:
    """The likelihood's terms for a batch, and the gradient of their sum in each of these weights.
    A weight that comes as a pair of means and variances is drawn with the noise of the seed."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    layout = problem.network.layout
    gaussian = frozenset[str]() if problem.at_mean else layout.gaussian
    pairs = {name: leaf for name, leaf in zip(names, leaves, strict=True) if name in gaussian}
    weights = Weights(
        {
            name: leaf[0] if name in pairs else leaf
            for name, leaf in zip(names, leaves, strict=True)
        },
        {name: leaf[1] for name, leaf in pairs.items()},
        None if problem.at_mean else Noise(seed),
        pairs,
    )
    low = torch.autocast(batch.x.device.type, torch.bfloat16) if problem.low_precision else None
    with torch.enable_grad(), low or nullcontext():
        terms = problem.objective.likelihood(weights, problem.memory, batch, problem.network)
        total = batch.share * torch.stack(list(terms.values())).sum()
    found = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return {name: term.detach() for name, term in terms.items()}, found


LikelihoodFunction = Callable[
    [Problem, Batch, Sequence[str], Sequence[Tensor], Tensor], tuple[Terms, Sequence[Tensor]]
]
UpdateFunction = Callable[[Problem, Vectors, Tensor, Any], None]


class StepGradient:
    """Leaves the gradient of a step's batches in the state; `function` is `likelihood_gradient` or
    its compiled form."""

    def __init__(self, problem: Problem, state: State, function: LikelihoodFunction) -> None:
        self.problem, self.state, self.function = problem, state, function
        self.named: dict[int, tuple[list[str], list[Tensor]]] = {}
        self.places: dict[tuple[Room, int, bool], list[Tensor]] = {}

    def __call__(self, batches: Sequence[Batch], seeds: Tensor) -> Terms:
        """The terms of the first batch. There is a seed for each. Batches that are kept apart leave
        their gradient in the state's reference."""
        return self.into(self.state.room, batches, seeds)

    def into(self, room: Room, batches: Sequence[Batch], seeds: Tensor) -> Terms:
        """The same with the gradient left elsewhere."""
        head = batches[0].head if len(batches) == 1 else None
        # A batch writes the gradients of its own head's weights; those of others must not stay.
        if head is None or head != room.last:
            room.clear()
        room.last = head
        every = []
        for batch, seed in zip(batches, seeds, strict=True):
            terms, gradients = self._of(batch, seed)
            every.append(terms)
            for target, gradient in zip(self._places(room, batch), gradients, strict=True):
                if head is None:
                    target.add_(gradient)
                else:
                    target.copy_(gradient)
        return every[0]

    def _of(self, batch: Batch, seed: Tensor) -> tuple[Terms, Sequence[Tensor]]:
        return self.function(self.problem, batch, *self.weights(batch.head), seed)

    def weights(self, head: int) -> tuple[list[str], list[Tensor]]:
        """What a batch of this head reads, by names."""
        if head not in self.named:
            names = self.problem.network.names_for(head)
            tensors = self.state.named(self.state.weights, names, self.problem.at_mean)
            self.named[head] = names, tensors
        return self.named[head]

    def _places(self, room: Room, batch: Batch) -> list[Tensor]:
        """Where the gradients of a batch go."""
        key = room, batch.head, batch.apart
        if key not in self.places:
            rows = room.reference if batch.apart else room.gradient
            assert rows is not None, "a batch is kept apart, and the state has no room for it"
            names = self.named[batch.head][0]
            self.places[key] = self.state.named(rows, names, self.problem.at_mean)
        return self.places[key]


def update(problem: Problem, vectors: Vectors, rates: Tensor, layout: Any) -> None:
    """Add the regulariser's gradient to the likelihood's and make the optimiser's step in the means
    and in log sigma, which is any number where sigma^2 must stay positive: a step of d there
    multiplies sigma^2 by exp(2 d). The regulariser's value is never computed.

    `rates` are the learning rates of the means and of log sigma, and what makes Adam's second
    moment unbiased, or SGD's momentum: a row of `step_rate`, as a tensor so that a compiled update
    serves every step.
    """
    objective, mean, variance = problem.objective, vectors.mean, vectors.variance
    learns_variance = not problem.at_mean and variance.shape[0] > 0
    gradients = [vectors.gradient.mean]
    if learns_variance:
        gradients.append(vectors.gradient.variance)
    q = MeanField(mean.detach().requires_grad_(), variance.detach().requires_grad_(), layout)
    with torch.enable_grad():
        terms = objective.regulariser(q, problem.memory, problem.examples)
        total = torch.stack(list(terms.values())).sum() if terms else None
    if total is not None:
        more = torch.autograd.grad(
            total, (q.mean, q.variance), allow_unused=True, materialize_grads=True
        )
        gradients = [a + b for a, b in zip(gradients, more, strict=False)]
    if learns_variance:
        gradients[1] = gradients[1] * 2 * variance  # d sigma^2 / d log sigma = 2 sigma^2
    if problem.clip_norm is not None:
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        factor = (problem.clip_norm / (norm + 1e-6)).clamp_max(1.0)
        gradients = [gradient * factor for gradient in gradients]
    down = OPTIMISERS[problem.optimiser]
    step = Step(
        -rates[0] * down(gradients[0], *vectors.mean_moments, rates[2]),
        -rates[1] * down(gradients[1], *vectors.variance_moments, rates[2])
        if learns_variance
        else mean[:0],
    )
    # After the optimiser, so that Adam cannot turn a step back that was held or projected.
    now = MeanField(mean, variance, layout)
    here = Here(now, problem.examples, vectors.gradient, vectors.reference)
    step = objective.move(step, problem.memory, here)
    for name, value in objective.follow(vectors.running, vectors.gradient, step).items():
        vectors.running[name].copy_(value)
    mean.add_(step.mean)
    if learns_variance:
        exponential = _small_exponential if problem.small_steps else torch.exp
        variance.mul_(exponential(2 * step.log_std))


def adam(gradient: Tensor, first: Tensor, second: Tensor, correction: Tensor) -> Tensor:
    """How far to go down, in learning rates. Kingma and Ba, 2015, algorithm 1, in the order of
    their section 2: the first moment's correction is part of the rate."""
    first.mul_(FIRST_DECAY).add_(gradient * (1 - FIRST_DECAY))
    second.mul_(SECOND_DECAY).add_(gradient.square() * (1 - SECOND_DECAY))
    return first / (correction * second.sqrt() + EPSILON)


def sgd(gradient: Tensor, first: Tensor, second: Tensor, momentum: Tensor) -> Tensor:
    """How far to go down, in learning rates: a running sum of gradients, each worth `momentum` of
    its worth a step before. Without momentum, the gradient."""
    first.mul_(momentum).add_(gradient)
    return first


OPTIMISERS: dict[Optimiser, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "adam": adam,
    "sgd": sgd,
}


def _small_exponential(x: Tensor) -> Tensor:
    """exp(x) by Pade's quotient of two polynomials, for steps up to 6.4 times `SMALL_RATE`, the
    largest that Adam makes. It is positive for every x and off by a part of x^5 / 720. A processor
    has no exp, and torch's took half the time of the update."""
    even, odd = 12 + x * x, 6 * x
    return (even + odd) / (even - odd)


def step_rate(
    learning_rate: float, std_rate: float, step: int, momentum: float | None = None
) -> tuple[float, float, float]:
    """A row of `rates` for a step, counted from 1; with a momentum, for SGD."""
    if momentum is not None:
        return learning_rate, std_rate * learning_rate, momentum
    rate = learning_rate / (1 - FIRST_DECAY**step)
    return rate, std_rate * rate, (1 - SECOND_DECAY**step) ** -0.5
