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

from evclplus.core.batches import Batch
from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.core.noise import Noise

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


Running = dict[str, Tensor]
"""Vectors that a method follows through the steps of a task, by name."""


class Objective(Protocol):
    """The pure functions of a step, see `methods/base.py`."""

    def likelihood(
        self, weights: Weights, memory: Any, batch: Batch, network: BayesianNetwork
    ) -> Terms: ...

    def regulariser(self, q: MeanField, memory: Any, examples: Tensor) -> Terms: ...

    def move(self, step: Step, memory: Any) -> Step: ...

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


@dataclass(frozen=True)
class Vectors:
    """What an update reads and changes."""

    mean: Tensor
    variance: Tensor
    gradient: Gradient
    mean_moments: tuple[Tensor, Tensor]
    variance_moments: tuple[Tensor, Tensor]
    running: Running


class State:
    """All that one training run moves: weights, gradient, Adam's moments, a method's running
    vectors. Means and variances are the rows of `weights`, so that one batched product serves
    both."""

    def __init__(self, q: MeanField, running: Running) -> None:
        self.layout = q.layout
        self.weights = self._rows(q)
        self.weights[0].copy_(q.mean.detach())
        self.gradient, first, second = self._rows(q), self._rows(q), self._rows(q)
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
        )
        self.vectors.variance.copy_(q.variance.detach())

    @staticmethod
    def _rows(q: MeanField) -> Tensor:
        total, rows = len(q.mean), 1 + (len(q.variance) > 0)
        apart = total if total < GRAIN else -(-total // GRAIN) * GRAIN
        return q.mean.new_zeros(rows, apart)[:, :total]

    def posterior(self) -> MeanField:
        """What was learned, in the same memory: nobody may train with this object any more."""
        return MeanField(self.vectors.mean, self.vectors.variance, self.layout)

    def named(self, names: Sequence[str], at_mean: bool) -> tuple[list[Tensor], list[Tensor]]:
        """These weights and the places of their gradients: (2, *shape) for Gaussian ones, unless
        only the means learn."""
        gaussian = () if at_mean else self.layout.names[: self.layout.gaussian_names]
        pairs, gradients = self.layout.named(self.weights), self.layout.named(self.gradient)
        return (
            [pairs[name] if name in gaussian else pairs[name][0] for name in names],
            [gradients[name] if name in gaussian else gradients[name][0] for name in names],
        )


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
    gaussian = set() if problem.at_mean else set(layout.names[: layout.gaussian_names])
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
        self.named: dict[int, tuple[list[str], list[Tensor], list[Tensor]]] = {}
        self.last: int | None = None

    def __call__(self, batches: Sequence[Batch], seeds: Tensor) -> Terms:
        """The terms of the first batch. There is a seed for each."""
        head = batches[0].head if len(batches) == 1 else None
        # A batch writes the gradients of its own head's weights; those of others must not stay.
        overwrite = head is not None and head == self.last
        if not overwrite:
            self.state.gradient.zero_()
        self.last = head
        every = []
        for batch, seed in zip(batches, seeds, strict=True):
            terms, gradients = self._of(batch, seed)
            every.append(terms)
            for target, gradient in zip(self.named[batch.head][2], gradients, strict=True):
                if overwrite:
                    target.copy_(gradient)
                else:
                    target.add_(gradient)
        return every[0]

    def _of(self, batch: Batch, seed: Tensor) -> tuple[Terms, Sequence[Tensor]]:
        if batch.head not in self.named:
            names = self.problem.network.names_for(batch.head)
            self.named[batch.head] = (names, *self.state.named(names, self.problem.at_mean))
        names, tensors, _ = self.named[batch.head]
        return self.function(self.problem, batch, names, tensors, seed)


def update(problem: Problem, vectors: Vectors, rates: Tensor, layout: Any) -> None:
    """Add the regulariser's gradient to the likelihood's and make Adam's step in the means and in
    log sigma, which is any number where sigma^2 must stay positive: a step of d there multiplies
    sigma^2 by exp(2 d). The regulariser's value is never computed.

    `rates` are the learning rates of the means and of log sigma, and what makes Adam's second
    moment unbiased: a row of `step_rate`, as a tensor so that a compiled update serves every step.
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
    step = Step(
        -rates[0] * adam(gradients[0], *vectors.mean_moments, rates[2]),
        -rates[1] * adam(gradients[1], *vectors.variance_moments, rates[2])
        if learns_variance
        else mean[:0],
    )
    # After the optimiser, so that Adam cannot turn a step back that was held or projected.
    step = objective.move(step, problem.memory)
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


def _small_exponential(x: Tensor) -> Tensor:
    """exp(x) by Pade's quotient of two polynomials, for steps up to 6.4 times `SMALL_RATE`, the
    largest that Adam makes. It is positive for every x and off by a part of x^5 / 720. A processor
    has no exp, and torch's took half the time of the update."""
    even, odd = 12 + x * x, 6 * x
    return (even + odd) / (even - odd)


def step_rate(learning_rate: float, std_rate: float, step: int) -> tuple[float, float, float]:
    """A row of `rates` for a step, counted from 1."""
    rate = learning_rate / (1 - FIRST_DECAY**step)
    return rate, std_rate * rate, (1 - SECOND_DECAY**step) ** -0.5
