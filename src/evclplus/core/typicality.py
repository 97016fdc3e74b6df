"""What a task's inputs look like, as a few statistics: a Gaussian for each class around its mean
features, all of a task with one covariance.

    log p(f | task) = log mean_c N(f; m_c, S)

S is the covariance within classes, shrunk towards a multiple of the identity. The features have to
come from weights that stay as they are: those of a body that goes on learning move away from what
was kept of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

SHRINKAGE = 0.1
"""Of the covariance, for few examples; chosen on validation data, see docs/uncertainty.md."""


@dataclass(frozen=True)
class Typical:
    """The mean features of each class, (classes, features), and the covariance around them."""

    means: Tensor
    covariance: Tensor
    level: float = 0.0
    """The mean of log p(f | task) over the task's examples, by statistics made without them."""
    deviation: float = 1.0
    """Its standard deviation over them."""

    def surprise(self, features: Tensor) -> float:
        """How far the mean of log p(f | task) over a batch lies below that of the task's own
        examples, in their standard deviations."""
        return (self.level - self.log_density(features).mean().item()) / self.deviation

    def log_density(self, features: Tensor) -> Tensor:
        """log p(f | task) of each row, but for a constant that all tasks share."""
        root = torch.linalg.cholesky(self.covariance)
        inside = torch.linalg.solve_triangular(root, features.to(root).T, upper=False).T
        means = torch.linalg.solve_triangular(root, self.means.T, upper=False).T
        distance = torch.cdist(inside, means, compute_mode="donot_use_mm_for_euclid_dist")
        density = -0.5 * distance.square() - root.diagonal().log().sum()
        found: Tensor = density.logsumexp(1) - log(len(means))
        return found


class Moments:
    """Adds up what is needed of features that come in parts."""

    def __init__(self, classes: int, features: int) -> None:
        self.counts = torch.zeros(classes, dtype=torch.float64)
        self.sums = torch.zeros(classes, features, dtype=torch.float64)
        self.products = torch.zeros(features, features, dtype=torch.float64)

    def add(self, features: Tensor, classes: Tensor) -> None:
        features = features.double().cpu()
        self.counts.index_add_(0, classes, torch.ones(len(classes), dtype=torch.float64))
        self.sums.index_add_(0, classes, features)
        self.products += features.T @ features

    def typical(self, shrinkage: float = SHRINKAGE) -> Typical:
        """Of the classes that came. S = (1 - a) W + a mean(diag W) I, W the covariance within."""
        came = self.counts > 0
        counts, sums = self.counts[came], self.sums[came]
        means = sums / counts[:, None]
        within = (self.products - means.T @ sums) / counts.sum()
        level = within.diagonal().mean().clamp_min(1e-12)
        identity = torch.eye(len(within), dtype=torch.float64)
        return Typical(means, (1 - shrinkage) * within + shrinkage * level * identity)


def summed(parts: Sequence[Moments]) -> Moments:
    """As if all parts had been added to one."""
    total = Moments(*parts[0].sums.shape)
    for part in parts:
        total.counts += part.counts
        total.sums += part.sums
        total.products += part.products
    return total
