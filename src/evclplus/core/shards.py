"""The gradient of a step from shards of its batches, which several processes may share out.

A shard is a smaller batch with noise of its own. The number of shards does not depend on that of
processes, and their gradients are always added up in the same order, so neither do the bits.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from evclplus.core.batches import Batch
from evclplus.core.engine import Room, StepGradient, Terms
from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork

REQUESTS = 4
"""Numbers that processes tell each other with every step, beside the gradient."""

BEFORE_BUFFERS = 1 + REQUESTS


class Requests(Protocol):
    """What one process asks, all do: to stop, to save."""

    def said(self) -> Sequence[float]:
        """Zero or one for each request of this process."""

    def heard(self, counts: Sequence[float]) -> None:
        """How many processes have each request."""


def room_for_shards(q: MeanField, network: BayesianNetwork, apart: bool) -> Room:
    """Behind the gradient: how many shards there were, requests, and by how much running
    statistics have changed."""
    buffers = sum(buffer.numel() for buffer in network.buffers.values())
    return Room(q, apart, BEFORE_BUFFERS + buffers)


class ShardedGradient:
    """Leaves the gradient of a step in the state, as `StepGradient`, which it asks for each shard.

    The shards of a process are added up two by two, ((0 + 1) + (2 + 3)), and `reduce` goes on in
    the same way with those of others. Running statistics begin every step at the same values in
    every shard and become their mean. `draws`: modules that draw numbers of their own draw them
    from the shard's seed.
    """

    def __init__(
        self,
        one: StepGradient,
        rooms: Sequence[Room],
        reduce: Callable[[Tensor], None],
        requests: Requests,
        draws: bool,
    ) -> None:
        self.one, self.rooms, self.reduce = one, rooms, reduce
        self.requests, self.draws = requests, draws
        self.buffers = list(one.problem.network.buffers.values())

    def __call__(self, shards: Sequence[Sequence[Batch]], seeds: Tensor) -> Terms:
        """The terms of the first batch, their mean over the shards of this process; there is a row
        of seeds for each."""
        before = [buffer.clone() for buffer in self.buffers]
        found: list[Terms] = []

        def add_up(first: int, count: int, level: int) -> None:
            """Leave the sum of some shards in the room of this level."""
            if count == 1:
                found.extend(self._shard(shards[first], seeds[first], self.rooms[level], before))
                return
            add_up(first, count // 2, level)
            add_up(first + count // 2, count // 2, level + 1)
            self.rooms[level].add(self.rooms[level + 1])

        add_up(0, len(shards), 0)
        room = self.rooms[0]
        room.more[1:BEFORE_BUFFERS] = room.more.new_tensor(self.requests.said())
        self.reduce(room.flat)
        self.requests.heard(room.more[1:BEFORE_BUFFERS].tolist())
        self._mean_of_buffers(room.more, before)
        room.last = None
        return _mean(found)

    def _shard(
        self, batches: Sequence[Batch], seeds: Tensor, room: Room, before: Sequence[Tensor]
    ) -> list[Terms]:
        room.clear()
        if not batches:
            return []
        if self.draws:
            torch.manual_seed(int(seeds[0, 0]) * 2**32 + int(seeds[0, 1]))
        for buffer, value in zip(self.buffers, before, strict=True):
            buffer.copy_(value)
        terms = self.one.into(room, batches, seeds[: len(batches)])
        room.more[0] = 1
        for buffer, value, place in zip(self.buffers, before, self._places(room.more), strict=True):
            place.copy_((buffer - value).flatten())
        return [terms]

    def _mean_of_buffers(self, more: Tensor, before: Sequence[Tensor]) -> None:
        for buffer, value, place in zip(self.buffers, before, self._places(more), strict=True):
            change = (place / more[0]).view(buffer.shape)
            whole = not buffer.is_floating_point()
            buffer.copy_(value + (change.round() if whole else change).to(value.dtype))

    def _places(self, more: Tensor) -> Sequence[Tensor]:
        """Where the changes of each buffer are."""
        sizes = [buffer.numel() for buffer in self.buffers]
        return tuple(more[BEFORE_BUFFERS:].split(sizes))


def _mean(found: Sequence[Terms]) -> Terms:
    names = found[0] if found else ()
    return {name: torch.stack([one[name] for one in found]).mean() for name in names}


def rooms_for(room: Room, shards: int, make: Callable[[], Room]) -> list[Room]:
    """A room for each level of a sum of so many shards, two by two."""
    return [room, *(make() for _ in range(shards.bit_length() - 1))]
