"""What a network's outputs say of a label: the mean negative log-likelihood, and its Fisher.

The Fisher needs each example's gradient at the outputs, for labels that the model itself expects:
`directions` gives them, each with a weight per example.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log, pi
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from evclplus.errors import SettingsError

Labels = Literal["exact", "sampled", "predicted", "true"]
"""exact: the expectation over the model's own labels, all of them weighted by their probability; of
more than MOST_EXACT classes the mean over DRAWS labels drawn from the model, which has the same
expectation. sampled: one label drawn from the model for each example. predicted: the label that the
model finds most probable. true: the data's label (the empirical Fisher)."""

MOST_EXACT = 256
"""Classes that an exact Fisher goes through one by one, a backward pass each."""

DRAWS = 32
"""Labels drawn for each example where there are more."""

Criterion = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of a batch, from (outputs, y)."""

Directions = Iterator[tuple[Tensor, Tensor]]


class Likelihood(Protocol):
    """The mean over a batch of -log p(y | output)."""

    def __call__(self, output: Tensor, y: Tensor, /) -> Tensor: ...

    def directions(
        self, output: Tensor, y: Tensor, labels: Labels, generator: torch.Generator
    ) -> Directions: ...


@dataclass(frozen=True)
class Classification:
    """y is a class, the outputs are logits."""

    def __call__(self, output: Tensor, y: Tensor, /) -> Tensor:
        return F.cross_entropy(output, y)

    def directions(
        self, output: Tensor, y: Tensor, labels: Labels, generator: torch.Generator
    ) -> Directions:
        """The gradient of log p(c|x) is that of the logits along e_c - p. With two classes the
        exact expectation is p_0 p_1 times the square of one gradient, along (-1, 1)."""
        probabilities = output.softmax(1)
        if labels == "exact" and output.shape[1] == 2:
            yield torch.tensor([-1.0, 1.0]).to(output).expand_as(output), probabilities.prod(1)
            return
        each = labels == "exact" and output.shape[1] <= MOST_EXACT
        if each:
            choices = [torch.full_like(y, label) for label in range(output.shape[1])]
        elif labels in ("exact", "sampled"):
            count = DRAWS if labels == "exact" else 1
            drawn = torch.multinomial(probabilities.cpu(), count, True, generator=generator)
            choices = list(drawn.to(y).unbind(1))
        elif labels == "predicted":
            choices = [probabilities.argmax(1)]
        else:
            choices = [y]
        share = torch.full_like(probabilities[:, 0], 1 / len(choices))
        for choice in choices:
            label = choice[:, None]
            direction = (-probabilities).scatter_add(
                1, label, torch.ones_like(probabilities[:, :1])
            )
            yield direction, probabilities.gather(1, label)[:, 0] if each else share


@dataclass(frozen=True)
class Regression:
    """y is Gaussian around the outputs, with a known standard deviation."""

    std: float = 1.0

    def __call__(self, output: Tensor, y: Tensor, /) -> Tensor:
        error = (output - y.view_as(output)) / self.std
        each = 0.5 * error.square() + log(self.std) + 0.5 * log(2 * pi)
        return each.sum(1).mean()

    def directions(
        self, output: Tensor, y: Tensor, labels: Labels, generator: torch.Generator
    ) -> Directions:
        """E[(y - f)^2] is the variance, so the exact Fisher is the sum over outputs of their
        squared gradients over it."""
        ones = torch.ones(len(output), dtype=output.dtype, device=output.device)
        if labels == "exact":
            for index in range(output.shape[1]):
                one_hot = F.one_hot(torch.tensor(index), output.shape[1]).to(output)
                yield (one_hot / self.std).expand_as(output), ones
        elif labels == "sampled":
            noise = torch.randn(output.shape, generator=generator, dtype=output.dtype)
            yield noise.to(output.device) / self.std, ones
        elif labels == "predicted":
            raise SettingsError(
                "fisher_labels = 'predicted' is for classes: at a Gaussian's mean its gradient is "
                "zero; take exact, sampled or true"
            )
        else:
            yield (y.view_as(output) - output) / self.std**2, ones


@dataclass(frozen=True)
class SquaredNorm:
    """|f(x)|^2, whatever the labels: what MAS takes the gradient of."""

    def __call__(self, output: Tensor, y: Tensor, /) -> Tensor:
        return output.square().sum(1).mean()

    def directions(
        self, output: Tensor, y: Tensor, labels: Labels, generator: torch.Generator
    ) -> Directions:
        yield 2 * output, torch.ones(len(output), dtype=output.dtype, device=output.device)


@dataclass(frozen=True)
class OwnCriterion:
    """A user's own mean loss over a batch, from (outputs, y). Nothing is known of its labels, so
    the Fisher is the empirical one."""

    criterion: Criterion

    def __call__(self, output: Tensor, y: Tensor, /) -> Tensor:
        return self.criterion(output, y)

    def directions(
        self, output: Tensor, y: Tensor, labels: Labels, generator: torch.Generator
    ) -> Directions:
        with torch.enable_grad():
            leaf = output.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.criterion(leaf, y), leaf)
        ones = torch.ones(len(output), dtype=output.dtype, device=output.device)
        yield len(output) * gradient, ones  # of each example's own loss, not of their mean


def likelihood_of(criterion: Any) -> Likelihood:
    """From what a user calls it."""
    if isinstance(criterion, str) and criterion == "classification":
        return Classification()
    if isinstance(criterion, str) and criterion == "regression":
        return Regression()
    if isinstance(criterion, Classification | Regression | OwnCriterion):
        return criterion
    if callable(criterion):
        return OwnCriterion(criterion)
    raise SettingsError(
        f"criterion = {criterion!r:.60} is wrong: expected 'classification', 'regression' or a "
        "function of (outputs, y)"
    )
