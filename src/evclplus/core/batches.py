"""Minibatches drawn straight from tensors: one gather per batch, no work per example."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil

import torch
from torch import Tensor
from torch.nn import functional as F

from evclplus.core.examples import Examples, View
from evclplus.core.gaussian import MeanField
from evclplus.core.hold import Hold
from evclplus.core.network import BayesianNetwork
from evclplus.core.noise import Random

VECTOR = 16
"""Numbers that a processor computes with at once."""

Criterion = Callable[[Tensor, Tensor], Tensor]
Part = tuple[Examples, Tensor]
"""Some of the examples, by their positions."""


@dataclass(frozen=True)
class Batch:
    """Examples and labels for one head, from training data of `total` examples, and the network
    and random generator that turn weights into a likelihood.

    `x` is as stored, bytes for pictures; a compiled graph makes `inputs` of it on its way.
    """

    network: BayesianNetwork
    generator: Random
    x: Tensor
    y: Tensor
    head: int
    outputs: int
    total: int
    criterion: Criterion = F.cross_entropy
    """The mean negative log-likelihood, from (network output, labels)."""
    hold: Hold | None = None
    """Keeps earlier heads at their answers, see core/hold.py."""
    view: View = field(default_factory=View)
    """How `x` becomes what the network reads; nothing is left to reorder."""

    @cached_property
    def inputs(self) -> Tensor:
        return self.view.convert(self.x)

    @property
    def heads(self) -> int | tuple[int, ...]:
        """The heads that a pass asks: the batch's own, then those that are held."""
        return self.head if self.hold is None else (self.head, *self.hold.heads)

    def terms(self, q: MeanField, at_mean: bool = False) -> dict[str, Tensor]:
        """nll, the mean of -log p(y|x, theta) with theta drawn from q (one sample per example) or
        at q's mean, and what `hold` adds."""
        means = self.network.layout.named(q.mean)
        variances = {} if at_mean else self.network.layout.named(q.variance)
        if self.hold is not None:
            means |= self.hold.weights
            variances = {n: v for n, v in variances.items() if n not in self.hold.weights}
        generator = None if at_mean else self.generator
        output = self.network.call(
            means, variances, self.inputs, self.heads, generator, training=True
        )
        return self.terms_of(output)

    def terms_of(self, output: Tensor) -> dict[str, Tensor]:
        """The same, from the network's outputs for `heads`."""
        terms = {"nll": self.criterion(output[:, : self.outputs], self.y)}
        if self.hold is not None:
            terms["function"] = self.hold.term(self.inputs, output)
        return terms


def batches_per_epoch(data: Sequence[Examples], batch_size: int) -> int:
    return sum(ceil(sum(map(len, group)) / batch_size) for group in _by_head(data))


def minibatches(
    network: BayesianNetwork,
    data: Sequence[Examples],
    batch_size: int,
    generator: torch.Generator,
    criterion: Criterion = F.cross_entropy,
    hold: Hold | None = None,
) -> Iterator[Batch]:
    """One epoch in random order. A batch holds examples of one head, possibly of many tasks.

    Batches have nearly equal sizes, so that no tiny last one disturbs batch statistics.
    Those of large batches are whole vectors of a processor, all but one of an epoch: a product
    over 255 examples takes up to a fifth longer than one over 256.
    """
    total = sum(map(len, data))
    plan: list[tuple[int, int, list[Part]]] = []
    for group in _by_head(data):
        count, outputs = sum(map(len, group)), max(examples.outputs for examples in group)
        order = torch.randperm(count, generator=generator)
        for index in order.split(_sizes(count, batch_size)):
            plan.append((group[0].head, outputs, _parts(group, index)))
    noise = _on_device(generator, network.device)
    for position in torch.randperm(len(plan), generator=generator).tolist():
        head, outputs, parts = plan[position]
        x, y, view = _gather(parts)
        yield Batch(network, noise, x, y, head, outputs, total, criterion, hold, view)


def _sizes(count: int, batch_size: int) -> list[int]:
    unit = VECTOR if batch_size % VECTOR == 0 and batch_size >= 4 * VECTOR else 1
    units, batches = ceil(count / unit), ceil(count / batch_size)
    each, more = divmod(units, batches)
    sizes = [unit * (each + (batch < more)) for batch in range(batches)]
    sizes[0] -= unit * units - count
    return sizes


def _on_device(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """The generator itself, or one on another device that follows from it."""
    if generator.device.type == device.type:
        return generator
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)


def _by_head(data: Sequence[Examples]) -> list[list[Examples]]:
    groups: dict[int, list[Examples]] = {}
    for examples in data:
        if len(examples):
            groups.setdefault(examples.head, []).append(examples)
    return list(groups.values())


def _parts(group: list[Examples], index: Tensor) -> list[Part]:
    """The examples at `index`, counting through all members of the group. Which they are is found
    out before any step, where nobody waits for a device."""
    if len(group) == 1:
        return [(group[0], index.to(group[0].store.device))]
    parts, start = [], 0
    for examples in group:
        inside = index[(index >= start) & (index < start + len(examples))] - start
        parts.append((examples, inside.to(examples.store.device)))
        start += len(examples)
    return parts


def _gather(parts: list[Part]) -> tuple[Tensor, Tensor, View]:
    """x, y and how x is to be converted; examples of several tasks are converted already."""
    if len(parts) == 1:
        ((examples, index),) = parts
        x, y = examples.stored(index), examples.labels.index_select(0, index)
        return x, y, examples.view.conversion
    inputs = [examples.inputs(index) for examples, index in parts]
    return torch.cat(inputs), torch.cat([e.labels[index] for e, index in parts]), View()
