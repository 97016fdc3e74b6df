"""What uncertainty is good for: to see foreign inputs, to abstain, to give sets of classes.

Every function takes plain vectors, so that any score of any model can be judged by it.
"""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from evclplus.core.metrics import CALIBRATION_BINS

ACCEPTED = 0.95
"""The share of a task's own inputs that are accepted where foreign ones are counted: FPR95."""


# Foreign inputs: their scores should be higher.


def auroc(own: Tensor, foreign: Tensor) -> float:
    """P(score of a foreign input > score of an own one) + P(they are equal) / 2: the area under
    the ROC curve (Mann and Whitney, 1947). 0.5 is chance."""
    ordered = own.sort().values
    below = torch.searchsorted(ordered, foreign, right=False)
    not_above = torch.searchsorted(ordered, foreign, right=True)
    return ((below + not_above).double().mean() / (2 * len(own))).item()


def false_accepts(own: Tensor, foreign: Tensor, accepted: float = ACCEPTED) -> float:
    """The share of foreign inputs whose score is not above the threshold that accepts at least
    this share of the own ones: FPR95."""
    threshold = own.sort().values[ceil(accepted * len(own)) - 1]
    return (foreign <= threshold).double().mean().item()


# Answering only when sure.


def selective_risk(confidence: Tensor, correct: Tensor) -> Tensor:
    """The share of errors among the k most confident answers, for k = 1 to n (El-Yaniv and Wiener,
    2010). Of answers that are equally confident each is as likely to be taken as the others, so
    they count with the mean of their errors."""
    values, group = confidence.unique(return_inverse=True)
    sizes = torch.bincount(group, minlength=len(values))
    errors = torch.bincount(group, weights=1 - correct.double(), minlength=len(values)) / sizes
    ordered = errors[group][confidence.argsort(descending=True, stable=True)]
    return ordered.cumsum(0) / torch.arange(1, len(ordered) + 1)


def risk_at(risk: Tensor, coverage: float) -> float:
    """The risk of answering this share of the inputs, the most confident ones."""
    return risk[max(1, ceil(coverage * len(risk))) - 1].item()


@dataclass(frozen=True)
class Reliability:
    """Bins of equal width over the confidence: how many answers fall into each, their mean
    confidence and their accuracy, zero where there are none."""

    counts: Tensor
    confidence: Tensor
    accuracy: Tensor


def reliability(confidence: Tensor, correct: Tensor, bins: int = CALIBRATION_BINS) -> Reliability:
    """A calibration plot: a calibrated model's accuracy equals its confidence in every bin. Bins
    are open below and closed above."""
    bin_of = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    counts = torch.bincount(bin_of, minlength=bins)
    some = counts.clamp_min(1)

    def mean(values: Tensor) -> Tensor:
        return torch.bincount(bin_of, weights=values.double(), minlength=bins) / some

    return Reliability(counts, mean(confidence), mean(correct))


# Sets of classes (Vovk et al., 2005; Sadinle et al., 2019).


def conformal_threshold(probabilities: Tensor, labels: Tensor, coverage: float) -> float:
    """The smallest probability that a class in the set may have.

    With s_i = 1 - p(y_i|x_i) on n calibration examples, 1 minus the ceil((n + 1) coverage)-th
    smallest s: a new example of the same kind has its label in the set with a probability of at
    least `coverage`, whatever the model is. Too few examples for that: 0, and every class is in.
    """
    chosen = probabilities.gather(1, labels[:, None])[:, 0]
    rank = ceil((len(chosen) + 1) * coverage - 1e-9)  # 0.9 * 10 is a hair above 9
    if rank > len(chosen):
        return 0.0
    return chosen.sort(descending=True).values[rank - 1].item()


def conformal_sets(probabilities: Tensor, threshold: float) -> Tensor:
    """Which classes are in each input's set. It may be empty, where no class is probable enough."""
    return probabilities >= threshold


def covered(sets: Tensor, labels: Tensor) -> float:
    """The share of inputs whose label is in their set."""
    return sets.gather(1, labels[:, None]).double().mean().item()
