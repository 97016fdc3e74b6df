"""Which task inputs belong to, where every task has a head and nobody says.

entropy    the head whose prediction is the surest; nothing has to be kept
features   the task whose kept statistics the input's features fit best (core/typicality.py). The
           features are those of the network as it was before the first task, which never change
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log
from typing import Literal

import torch
from torch import Tensor

from evclplus.core.examples import Examples, rows_at_once
from evclplus.core.network import BayesianNetwork
from evclplus.core.typicality import Moments, Typical, summed
from evclplus.errors import DataError

Recognise = Literal["entropy", "features"]

FOLDS = 5
"""Parts of a task's examples, each judged by the statistics of the others."""


def surest(entropies: Tensor, outputs: Sequence[int]) -> Tensor:
    """Of (inputs, heads) the head with the least entropy, as a share of the most that its outputs
    could have."""
    most = torch.tensor([log(max(2, count)) for count in outputs], dtype=entropies.dtype)
    return (entropies / most).argmin(1)


def most_typical(network: BayesianNetwork, tasks: Sequence[Typical], x: Tensor) -> Tensor:
    """The task under which each input's features have the highest density."""
    found = [
        torch.stack([one.log_density(part) for one in tasks], 1).argmax(1)
        for part in first_features(network, x)
    ]
    return torch.cat(found)


@torch.no_grad()
def first_features(network: BayesianNetwork, x: Tensor) -> Iterator[Tensor]:
    """What the body of the network as it was before the first task makes of inputs."""
    first = network.initial(variance=1.0)
    for rows in x.split(rows_at_once(x)):
        features = network(first, rows.to(network.device), ()).double().cpu()
        if features.ndim != 2:
            raise DataError(
                f"the body gives features of the shape {tuple(features.shape[1:])}; recognise = "
                "'features' needs one vector for an input"
            )
        yield features


def typical_of(network: BayesianNetwork, examples: Examples) -> Typical:
    """What is kept of a task: the statistics of its features, and how typical examples are for
    statistics that were made without them."""
    folds = min(FOLDS, len(examples))
    parts = [torch.arange(fold, len(examples), folds) for fold in range(folds)]
    moments = [_moments(network, examples, rows) for rows in parts]
    found = summed(moments).typical()
    density = []
    for fold, rows in enumerate(parts):
        others = [one for index, one in enumerate(moments) if index != fold]
        without = summed(others).typical() if others else found
        features = first_features(network, examples.inputs(rows))
        density += [without.log_density(part) for part in features]
    each = torch.cat(density)
    deviation = each.std(correction=0).clamp_min(1e-6).item()
    return replace(found, level=each.mean().item(), deviation=deviation)


def _moments(network: BayesianNetwork, examples: Examples, index: Tensor) -> Moments:
    """Of some examples. Numbers to be predicted are no classes: all of their inputs are one."""
    classifies = examples.labels.dtype == torch.int64
    labels = examples.labels if classifies else torch.zeros(len(examples), dtype=torch.int64)
    moments = None
    for rows in index.split(rows_at_once(examples.store)):
        (features,) = first_features(network, examples.inputs(rows))
        moments = moments or Moments(examples.outputs if classifies else 1, features.shape[1])
        moments.add(features, labels[rows])
    assert moments is not None
    return moments
