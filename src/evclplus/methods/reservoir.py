"""What ER, DER and A-GEM share: a few examples of all that the stream has had."""

from dataclasses import dataclass, replace

import torch

from evclplus.core.examples import Examples


@dataclass(frozen=True)
class Reservoir:
    """The stored examples, task by task, and how many examples the stream has had."""

    stored: tuple[Examples, ...] = ()
    seen: int = 0


def beside(stored: tuple[Examples, ...], task: Examples) -> tuple[Examples, ...]:
    """Stored examples as they are trained on beside a task: in a head that grows, they compete
    with the new classes too."""
    outputs = {task.head: task.outputs}
    for one in stored:
        outputs[one.head] = max(one.outputs, outputs.get(one.head, 0))
    return tuple(replace(one, outputs=outputs[one.head]) for one in stored)


def reservoir(
    memory: Reservoir, task: Examples, size: int, generator: torch.Generator
) -> Reservoir:
    """Vitter's algorithm R: the n-th example of the stream takes a random place of n, and is stored
    if that is one of the first `size`."""
    places = [(old, row) for old, one in enumerate(memory.stored) for row in range(len(one))]
    new = len(memory.stored)
    first = max(0, min(len(task), size - memory.seen))
    places += [(new, row) for row in range(first)]
    counts = memory.seen + 1 + torch.arange(first, len(task))
    drawn = (torch.rand(len(counts), generator=generator, dtype=torch.float64) * counts).long()
    for row, place in zip(range(first, len(task)), drawn.tolist(), strict=True):
        if place < size:
            places[place] = (new, row)
    stored = []
    for index, one in enumerate((*memory.stored, task)):
        rows = [row for owner, row in places if owner == index]
        if rows:
            stored.append(one.take(torch.tensor(rows)).materialised())
    return Reservoir(tuple(stored), memory.seen + len(task))
