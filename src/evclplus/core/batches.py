"""Minibatches drawn straight from tensors: one gather per batch, no work per example."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil

import torch
from torch import Tensor

from evclplus.core.examples import Examples, View
from evclplus.core.likelihoods import Classification, Likelihood

VECTOR = 16
"""Numbers that a processor computes with at once."""

MOST_GATHERED = 2**30
"""Bytes of a task that is copied so that its batches are read faster."""

Part = tuple[Examples, Tensor]
"""Some of the examples, by their positions."""


@dataclass(frozen=True)
class Batch:
    """Examples and labels for one head.

    `x` is as stored, bytes for pictures; a compiled graph makes `inputs` of it on its way. `share`
    is the part of its step that it is: a step may have batches of several heads and sources.
    The gradient of one that is kept `apart` is not added to the others'.
    """

    x: Tensor
    y: Tensor
    head: int
    outputs: int
    view: View = field(default_factory=View)
    answers: Tensor | None = None
    share: float = 1.0
    likelihood: Likelihood = field(default_factory=Classification)
    """What the outputs say of the labels."""
    apart: bool = False
    done: float = 1.0
    """The part of its epoch's steps that is behind, from 0 to 1. It is not known while a step is
    compiled, so that a method which asks for it is not."""

    @cached_property
    def inputs(self) -> Tensor:
        """What the network reads."""
        return self.view.convert(self.x)

    def nll(self, output: Tensor) -> Tensor:
        """The mean negative log-likelihood of the labels, from the outputs of the batch's head."""
        return self.likelihood(output[:, : self.outputs], self.y)


@dataclass(frozen=True)
class Source:
    """Examples that feed training. The first source of a run is gone through once an epoch; of a
    further one, each step draws `per_step` examples at random, with replacement; none: as many as
    it has of the first. One that is `whole` is in every step with all its examples, in their order.
    The gradient of a further one that is kept `apart` is no part of the step's own: `move` sees it
    as `here.reference`, the mean over all that is kept apart. A step's loss is the mean over the
    examples of all its sources together, but for those that say what the mean over their own is
    multiplied by: their `weight`."""

    examples: tuple[Examples, ...]
    per_step: int | None = None
    apart: bool = False
    weight: float | None = None
    whole: bool = False

    def __len__(self) -> int:
        return sum(map(len, self.examples))

    def ready(self, device: torch.device) -> "Source":
        """The same where it is read from again and again. Several tasks keep to the shared store:
        every one of them would be a copy. So does one that is large, perhaps on disk."""
        examples = self.examples
        if len(examples) == 1 and examples[0].nbytes <= MOST_GATHERED:
            examples = (examples[0].gathered(),)
        return replace(self, examples=tuple(one.on(device) for one in examples))


def batches_per_epoch(source: Source, batch_size: int) -> int:
    return sum(ceil(sum(map(len, group)) / batch_size) for group in _by_head(source.examples))


def steps_of_epoch(
    sources: Sequence[Source],
    batch_size: int,
    generator: torch.Generator,
    likelihood: Likelihood | None = None,
    done: int = 0,
) -> Iterator[list[Batch]]:
    """The batches of every step of one epoch, in random order, after those `done`."""
    for (batches,) in shards_of_epoch(sources, batch_size, generator, likelihood, done):
        yield batches


def shards_of_epoch(
    sources: Sequence[Source],
    batch_size: int,
    generator: torch.Generator,
    likelihood: Likelihood | None = None,
    done: int = 0,
    shards: int = 1,
    own: range = range(1),
) -> Iterator[list[list[Batch]]]:
    """The same with every batch cut into so many shards of nearly equal sizes: a list of batches
    for each of one's `own`. Nothing is read of the others. Of a small batch some shards have none.

    A batch holds examples of one head, possibly of many tasks. Batches have nearly equal sizes, so
    that no tiny last one disturbs batch statistics. Those of large batches are whole vectors of a
    processor, all but one of an epoch: a product over 255 examples takes up to a fifth longer than
    one over 256.
    """
    likelihood = likelihood or Classification()
    first, *others = sources
    groups = _by_head(first.examples)
    cuts: list[tuple[int, list[Examples], Tensor]] = []
    for number, group in enumerate(groups):
        order = torch.randperm(sum(map(len, group)), generator=generator)
        cuts += [(number, group, index) for index in order.split(_sizes(len(order), batch_size))]
    for step, position in enumerate(torch.randperm(len(cuts), generator=generator).tolist()):
        _, group, index = cuts[position]
        found = [(first, group, index)]
        for source in others:
            chosen = _chosen(source, len(index), generator)
            found += [(source, *one) for one in _head_by_head(source, chosen)]
        if step < done:  # its numbers are drawn: those of the next steps come after them
            continue
        totals: Counter[object] = Counter()
        for source, _, index in found:
            totals[_together(source)] += len(index)
        behind = step / max(1, len(cuts) - 1)
        parts = [index.tensor_split(shards) for _, _, index in found]
        yield [
            [
                _batch(
                    *(group, part[shard], _share(source, len(part[shard]), totals)),
                    *(likelihood, source.apart, behind),
                )
                for (source, group, _), part in zip(found, parts, strict=True)
                if len(part[shard])
            ]
            for shard in own
        ]


def batches_of_each_kind(
    sources: Sequence[Source], batch_size: int, likelihood: Likelihood
) -> Iterator[Batch]:
    """One for every head of every source, of its first examples: steps have no other kinds."""
    for source in sources:
        for group in _by_head(source.examples):
            index = torch.arange(min(batch_size, sum(map(len, group))))
            yield _batch(group, index, 1.0, likelihood, source.apart, 0.0)


def _together(source: Source) -> object:
    """Sources of which one mean is made have the same of these."""
    return source.apart if source.weight is None else id(source)


def _share(source: Source, count: int, totals: Counter[object]) -> float:
    weight = 1.0 if source.weight is None else source.weight
    return weight * count / totals[_together(source)]


def _chosen(source: Source, count: int, generator: torch.Generator) -> Tensor:
    """Which examples of a further source a step has, in ascending order."""
    if source.whole:
        return torch.arange(len(source))
    drawn = torch.randint(len(source), (source.per_step or count,), generator=generator)
    return drawn.sort().values


def _head_by_head(source: Source, chosen: Tensor) -> list[tuple[list[Examples], Tensor]]:
    found, start = [], 0
    for group in _by_head(source.examples):
        end = start + sum(map(len, group))
        inside = chosen[(chosen >= start) & (chosen < end)] - start
        if len(inside):
            found.append((group, inside))
        start = end
    return found


def _sizes(count: int, batch_size: int) -> list[int]:
    unit = VECTOR if batch_size % VECTOR == 0 and batch_size >= 4 * VECTOR else 1
    units, batches = ceil(count / unit), ceil(count / batch_size)
    each, more = divmod(units, batches)
    sizes = [unit * (each + (batch < more)) for batch in range(batches)]
    sizes[0] -= unit * units - count
    return sizes


def _by_head(data: Sequence[Examples]) -> list[list[Examples]]:
    groups: dict[int, list[Examples]] = {}
    for examples in data:
        if len(examples):
            groups.setdefault(examples.head, []).append(examples)
    return list(groups.values())


def _batch(
    group: list[Examples],
    index: Tensor,
    share: float,
    likelihood: Likelihood,
    apart: bool,
    done: float,
) -> Batch:
    outputs = max(examples.outputs for examples in group)
    x, y, answers, view = _gather(_parts(group, index))
    return Batch(x, y, group[0].head, outputs, view, answers, share, likelihood, apart, done)


def _parts(group: list[Examples], index: Tensor) -> list[Part]:
    """The examples at `index`, counting through all members of the group."""
    if len(group) == 1:
        return [(group[0], index.to(group[0].store.device))]
    parts, start = [], 0
    for examples in group:
        inside = index[(index >= start) & (index < start + len(examples))] - start
        parts.append((examples, inside.to(examples.store.device)))
        start += len(examples)
    return parts


def _gather(parts: list[Part]) -> tuple[Tensor, Tensor, Tensor | None, View]:
    """x, y, answers and how x is to be converted; examples of several tasks are converted
    already."""
    if len(parts) == 1:
        ((examples, index),) = parts
        answers = None if examples.answers is None else examples.answers.index_select(0, index)
        x, y = examples.stored(index), examples.labels.index_select(0, index)
        return x, y, answers, examples.view.conversion
    inputs = [examples.inputs(index) for examples, index in parts]
    labels = [examples.labels[index] for examples, index in parts]
    rows = [examples.answers[index] for examples, index in parts if examples.answers is not None]
    answers = torch.cat(rows) if len(rows) == len(parts) else None
    return torch.cat(inputs), torch.cat(labels), answers, View()
