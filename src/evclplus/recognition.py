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
from evclplus.core.typicality import Moments, Typical
from evclplus.errors import DataError

Recognise = Literal["entropy", "features"]

HELD_BACK = 5
"""Of so many examples one is kept back, to see how typical examples are that were not counted."""


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
    """What is kept of a task: the statistics of its features, and how typical examples are that
    were not counted."""
    index = torch.arange(len(examples))
    back = index % HELD_BACK == HELD_BACK - 1
    back = back if len(examples) >= 10 * HELD_BACK else torch.ones_like(back)
    counted = Moments(_classes(examples), _width(network, examples))
    _count(counted, network, examples, index[~back] if not back.all() else index)
    held = examples.inputs(index[back])
    density = torch.cat(
        [counted.typical().log_density(part) for part in first_features(network, held)]
    )
    if not back.all():
        _count(counted, network, examples, index[back])
    deviation = density.std(correction=0).clamp_min(1e-6).item()
    return replace(counted.typical(), level=density.mean().item(), deviation=deviation)


def _count(moments: Moments, network: BayesianNetwork, examples: Examples, index: Tensor) -> None:
    whole = examples.labels.dtype == torch.int64
    for rows in index.split(rows_at_once(examples.store)):
        (features,) = first_features(network, examples.inputs(rows))
        labels = examples.labels[rows] if whole else torch.zeros(len(rows), dtype=torch.int64)
        moments.add(features, labels)


def _classes(examples: Examples) -> int:
    """Numbers to be predicted are no classes: all of their inputs are one."""
    return examples.outputs if examples.labels.dtype == torch.int64 else 1


def _width(network: BayesianNetwork, examples: Examples) -> int:
    (features,) = first_features(network, examples.inputs(torch.arange(1)))
    return features.shape[1]
