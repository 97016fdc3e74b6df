"""From predictions to scores, and from the accuracy matrix to what continual learning asks."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, pi
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional as F

Matrix = Sequence[Sequence[float]]
"""Lower triangle: row t holds a figure for tasks 1..t after learning task t."""

CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Metric:
    """What the answers for a task are judged by: a field of its scores, under the same name in a
    record, and the record's fields of what follows from it."""

    name: str
    title: str
    higher_is_better: bool
    unit: str
    before: str
    untrained: str
    average: str
    learning: str

    @property
    def sign(self) -> int:
        """Times this, higher is better."""
        return 1 if self.higher_is_better else -1

    @property
    def fields(self) -> tuple[str, ...]:
        """Those of a record that no other metric has."""
        return self.name, self.before, self.untrained, self.average, self.learning

    def summary(
        self, matrix: Matrix, before: Sequence[float], untrained: Sequence[float]
    ) -> dict[str, float]:
        """What a record says of a whole run. Forgetting is loss and transfer is gain, whichever way
        is better: of errors, forgetting is their rise from the lowest."""
        good = [[self.sign * value for value in row] for row in matrix]
        befores = [self.sign * value for value in before]
        return {
            self.average: average(matrix),
            self.learning: learning_accuracy(matrix),
            "forgetting": forgetting(good),
            "backward_transfer": backward_transfer(good),
            "forward_transfer": forward_transfer(
                befores, [self.sign * value for value in untrained]
            ),
        }


ACCURACY = Metric(
    "accuracy",
    "accuracy",
    True,
    "%",
    "accuracy_before",
    "accuracy_untrained",
    "average_accuracy",
    "learning_accuracy",
)
ERROR = Metric(
    "root_mean_squared_error",
    "RMSE",
    False,
    "",
    "error_before",
    "error_untrained",
    "average_error",
    "learning_error",
)


@dataclass(frozen=True)
class Scores:
    """How good predicted probabilities are on one task."""

    accuracy: float
    negative_log_likelihood: float
    brier_score: float
    calibration_error: float


def scores(probabilities: Tensor, labels: Tensor) -> Scores:
    return Scores(
        accuracy=(probabilities.argmax(1) == labels).double().mean().item(),
        negative_log_likelihood=negative_log_likelihood(probabilities, labels),
        brier_score=brier_score(probabilities, labels),
        calibration_error=calibration_error(probabilities, labels),
    )


@dataclass(frozen=True)
class RegressionScores:
    """How good predicted numbers are on one task."""

    root_mean_squared_error: float
    negative_log_likelihood: float


def regression_scores(drawn: Tensor, targets: Tensor, std: float) -> RegressionScores:
    """Of outputs under samples, (samples, inputs, outputs), with Gaussian noise of a known standard
    deviation around each: the error of their mean, and -log mean_s N(y; f_s, std^2)."""
    targets = targets.view_as(drawn[0]).to(drawn)
    error = (drawn.mean(0) - targets).square().mean().sqrt().item()
    each = -0.5 * ((drawn - targets) / std).square() - log(std) - 0.5 * log(2 * pi)
    density = each.sum(2).logsumexp(0) - log(len(drawn))
    return RegressionScores(error, -density.mean().item())


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> float:
    """The mean of -log p(label). A probability that rounds to zero counts as the smallest
    positive number of its type, so that one such example does not hide all others."""
    smallest = torch.finfo(probabilities.dtype).tiny
    chosen = probabilities.gather(1, labels[:, None]).clamp_min(smallest)
    return -chosen.log().mean().item()


def brier_score(probabilities: Tensor, labels: Tensor) -> float:
    """The mean over examples of sum_c (p_c - [c = label])^2, between 0 and 2."""
    truth = F.one_hot(labels, probabilities.shape[1])
    return (probabilities - truth).square().sum(1).mean().item()


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = CALIBRATION_BINS) -> float:
    """Expected calibration error: |accuracy - confidence| in bins of equal width over the
    confidence, weighted by how many examples fall into each."""
    confidence, predicted = probabilities.max(1)
    gap = confidence - (predicted == labels).to(confidence.dtype)
    bin_of = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    in_bins = torch.zeros(bins, dtype=gap.dtype).index_add(0, bin_of, gap)
    return in_bins.abs().sum().item() / len(labels)


def entropy(probabilities: Tensor) -> Tensor:
    """-sum_c p_c log p_c over the last dimension, with 0 log 0 = 0."""
    terms: Tensor = torch.special.entr(probabilities)
    return terms.sum(-1)


def average(matrix: Matrix) -> float:
    """The mean over all tasks after the last one: of the accuracy matrix, average accuracy."""
    return fmean(matrix[-1])


def learning_accuracy(accuracy: Matrix) -> float:
    """The mean accuracy on each task right after learning it: the diagonal."""
    return fmean(row[-1] for row in accuracy)


def backward_transfer(accuracy: Matrix) -> float:
    """(1 / (T-1)) sum_{i<T} a_{T,i} - a_{i,i}: what later tasks did to earlier ones
    (Lopez-Paz and Ranzato, 2017). 0 for one task."""
    last = accuracy[-1]
    changes = [last[i] - accuracy[i][i] for i in range(len(last) - 1)]
    return fmean(changes) if changes else 0.0


def forgetting(accuracy: Matrix) -> float:
    """(1 / (T-1)) sum_{i<T} max_{t<T} a_{t,i} - a_{T,i}: the fall from each task's best
    (Chaudhry et al., 2018). 0 for one task."""
    last = accuracy[-1]
    falls = [
        max(accuracy[t][i] for t in range(i, len(last) - 1)) - last[i] for i in range(len(last) - 1)
    ]
    return fmean(falls) if falls else 0.0


def forward_transfer(before: Sequence[float], untrained: Sequence[float]) -> float:
    """(1 / (T-1)) sum_{i>1} a_{i-1,i} - b_i: accuracy on a task just before learning it, over
    that of the untrained network (Lopez-Paz and Ranzato, 2017). 0 for one task."""
    gains = [a - b for a, b in zip(before[1:], untrained[1:], strict=True)]
    return fmean(gains) if gains else 0.0
