"""A generative classifier (van de Ven, Li and Tolias, CVPR workshops 2021): a density for each
class, and Bayes' rule.

    p(y|x) ~ p(x|y) p(y),    p(x|y) = sum_t (n_t / n) N(x; m_t, C_t)

    C = U (L - s I) U^T + s I      probabilistic principal components (Tipping and Bishop, 1999):
                                   the first variances L along axes U, one variance s for the rest

The paper learns classes one after another this way, with a variational autoencoder for each. What
is learned of one class touches no other, so nothing is forgotten and nothing is stored of the data;
with new classes no answer has to be unlearned. Here a density is a Gaussian in closed form instead:
no training, an exact likelihood, the same result in any order. A class that comes again in another
task t is a mixture of what it was in each. The learner's network is not used, and every head
answers from the classes of its own tasks.

It keeps for each class and task a mean, the axes and their variances: (rank + 1) (inputs + 1)
numbers and a bit more. p(y) is taken as equal for all classes that have been seen. Inputs have
many values that say the same, so the probabilities are surer than they are right.
"""

from dataclasses import dataclass
from math import log, pi
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork
from evclplus.errors import StateError
from evclplus.methods.base import Fit, Lesson, Method, Start, Trained
from evclplus.methods.needs import needs_classes
from evclplus.methods.space import Log, OneOf, Space

SMALLEST_VARIANCE = 1e-6
"""Of inputs that are all the same."""

NEVER_SEEN = -1e9
"""The log-density of a class without examples: its probability is zero."""


@dataclass(frozen=True)
class Density:
    """A class of a head in one task: a Gaussian with few axes of its own."""

    head: int
    label: int
    count: int
    mean: Tensor
    axes: Tensor
    variances: Tensor
    rest: Tensor
    """The one variance along all other axes."""


@dataclass(frozen=True)
class Densities:
    """All that was learned."""

    known: tuple[Density, ...] = ()


class GenerativeClassifier(Method):
    """A Gaussian for each class and Bayes' rule: nothing is trained, stored or forgotten."""

    name: ClassVar[str] = "generative"
    colour: ClassVar[str] = "#99AA33"
    marker: ClassVar[str] = "o"
    memory_type: ClassVar[type] = Densities
    space: ClassVar[Space] = {
        "rank": OneOf((5, 10, 20, 40, 80)),
        "shrinkage": Log(1e-4, 0.3),
    }

    rank: int = Field(20, ge=0, description="axes of each class")
    shrinkage: float = Field(
        0.01, ge=0, le=1, description="share of the mean variance in all directions"
    )

    def begin(self, lesson: Lesson) -> Start:
        needs_classes(self.name, lesson)
        return Start(lesson.q, lesson.memory, lesson.task, ())

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Densities:
        task, new = start.task, []
        for label in task.labels.unique().tolist():
            (index,) = (task.labels == label).nonzero(as_tuple=True)
            parts = fitted(task.inputs(index).flatten(1).double(), self.rank, self.shrinkage)
            single = (part.to(lesson.q.mean) for part in parts)
            new.append(Density(task.head, label, len(index), *single))
        return Densities((*start.memory.known, *new))

    def predictor(
        self, network: BayesianNetwork, q: MeanField, memory: Densities, head: int, fit: Fit
    ) -> tuple[BayesianNetwork, MeanField]:
        known = [one for one in memory.known if one.head == head]
        if not known:
            raise StateError(f"no class of head {head} is known yet")
        densities = BayesianNetwork(ByBayesRule(known), lambda name: True)
        return densities, densities.initial(1.0)


def fitted(x: Tensor, rank: int, shrinkage: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, axes, their variances and that of the rest: the likeliest for rows of numbers, from the
    covariance (1 - a) C + a mean variance."""
    mean, (count, size) = x.mean(0), x.shape
    rows = (x - mean) / count**0.5
    average = rows.square().sum() / size
    rank = min(rank, size - 1, max(0, count - 1))
    # The axes from the smaller of two products: both have the same variances.
    if count < size:
        variances, vectors = torch.linalg.eigh(rows @ rows.T)
        top = (rows.T @ vectors)[:, -rank or len(variances) :]
        axes = nn.functional.normalize(top, dim=0).T
    else:
        variances, vectors = torch.linalg.eigh(rows.T @ rows)
        axes = vectors[:, -rank or size :].T
    first = variances[-rank or len(variances) :].clamp_min(0)
    rest = (size * average - first.sum()).clamp_min(0) / max(1, size - rank)
    least = shrinkage * average + SMALLEST_VARIANCE
    return mean, axes, (1 - shrinkage) * first + least, (1 - shrinkage) * rest + least


def log_density(x: Tensor, mean: Tensor, axes: Tensor, variances: Tensor, rest: Tensor) -> Tensor:
    """log N(x; m, C) of rows, without forming C."""
    away = x - mean
    along = away @ axes.T
    outside = (away.square().sum(1) - along.square().sum(1)).clamp_min(0)
    distance = (along.square() / variances).sum(1) + outside / rest
    others = x.shape[1] - len(variances)
    return -0.5 * (
        distance + variances.log().sum() + others * rest.log() + x.shape[1] * log(2 * pi)
    )


class ByBayesRule(nn.Module):
    """log p(x|y) for each class y of a head."""

    def __init__(self, known: list[Density]) -> None:
        super().__init__()
        self.outputs = 1 + max(one.label for one in known)
        self.labels = [one.label for one in known]
        totals = {
            label: sum(one.count for one in known if one.label == label) for label in self.labels
        }
        self.log_shares = [log(one.count / totals[one.label]) for one in known]
        self.parts = nn.ParameterList(
            nn.Parameter(part)
            for one in known
            for part in (one.mean, one.axes, one.variances, one.rest)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        each: list[list[Tensor]] = [[] for _ in range(self.outputs)]
        parts = list(self.parts)
        for number, (label, share) in enumerate(zip(self.labels, self.log_shares, strict=True)):
            found = log_density(rows.to(parts[0].dtype), *parts[4 * number : 4 * number + 4])
            each[label].append(share + found)
        nothing = rows.new_full((len(rows),), NEVER_SEEN)
        return torch.stack([torch.stack(one or [nothing]).logsumexp(0) for one in each], 1)
