"""Shards of a batch: their gradients add up to the batch's, in one order, whoever computes them."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.batches import Batch, Source, shards_of_epoch, steps_of_epoch
from evclplus.core.engine import Problem, Room, State, StepGradient, likelihood_gradient
from evclplus.core.network import BayesianNetwork
from evclplus.core.noise import new_seeds
from evclplus.core.shards import ShardedGradient, room_for_shards, rooms_for
from evclplus.errors import SettingsError
from evclplus.methods.variational import Posterior
from evclplus.ranks import ALONE, Ranks
from evclplus.settings import Training
from tests.helpers import Convolutional, blobs, small_network

SHARDS = 4


class Silent:
    """Nobody asks for anything."""

    def said(self) -> Sequence[float]:
        return [0.0] * 4

    def heard(self, counts: Sequence[float]) -> None:
        assert list(counts) == [0.0] * 4


def network_of(module: nn.Module | None = None) -> BayesianNetwork:
    return BayesianNetwork(module or small_network((2, 2)))


def drawn(
    size: int, own: range = range(SHARDS), tasks: int = 1
) -> tuple[list[list[Batch]], Tensor, int]:
    """The first step's shards, a seed for each of their batches, and how many examples it has."""
    stream = blobs(tasks)
    sources = tuple(Source((task.train,)) for task in stream)
    generator = torch.Generator().manual_seed(0)
    shards = next(shards_of_epoch(sources, size, generator, shards=SHARDS, own=own))
    whole = next(steps_of_epoch(sources, size, torch.Generator().manual_seed(0)))
    seeds = new_seeds(torch.Generator().manual_seed(1), SHARDS * tasks).view(SHARDS, tasks, 4)
    return shards, seeds[own.start : own.stop], sum(len(batch.x) for batch in whole)


def sharded(
    network: BayesianNetwork, shards: list[list[Batch]], seeds: Tensor, at_mean: bool = False
) -> State:
    """A state with the gradient of these shards."""
    q = network.initial(variance=1e-2)
    problem = Problem(network, ec.VCL(), Posterior(q), torch.tensor(60.0), at_mean=at_mean)
    state = State(q, {}, room=room_for_shards(q, network, False))
    rooms = rooms_for(state.room, len(shards), lambda: room_for_shards(q, network, False))
    one = StepGradient(problem, state, likelihood_gradient)
    ShardedGradient(one, rooms, ALONE.add_up, Silent(), draws=True)(shards, seeds)
    return state


@pytest.mark.parametrize("size", [20, 3])
def test_at_the_means_shards_have_the_gradient_of_the_whole_batch(size: int) -> None:
    network = network_of()
    shards, seeds, count = drawn(size, tasks=2)
    assert sum(len(batch.x) for shard in shards for batch in shard) == count
    found = sharded(network, shards, seeds, at_mean=True).gradient
    batches = next(
        steps_of_epoch(
            tuple(Source((task.train,)) for task in blobs(2)),
            size,
            torch.Generator().manual_seed(0),
        )
    )
    q = network.initial(variance=1e-2)
    state = State(q, {})
    problem = Problem(network, ec.VCL(), Posterior(q), torch.tensor(60.0), at_mean=True)
    StepGradient(problem, state, likelihood_gradient)(batches, seeds[0, : len(batches)])
    assert state.gradient.abs().sum() > 0
    torch.testing.assert_close(found, state.gradient, rtol=1e-5, atol=1e-7)


def test_each_shard_has_noise_of_its_own_and_all_are_added_up_two_by_two() -> None:
    network = network_of()
    shards, seeds, _ = drawn(20)
    q = network.initial(variance=1e-2)
    problem = Problem(network, ec.VCL(), Posterior(q), torch.tensor(60.0))
    parts = []
    for batches, seed in zip(shards, seeds, strict=True):
        state = State(q, {})
        StepGradient(problem, state, likelihood_gradient)(batches, seed)
        parts.append(state.gradient.clone())
    expected = (parts[0] + parts[1]) + (parts[2] + parts[3])
    assert torch.equal(sharded(network, shards, seeds).gradient, expected)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("size", [20, 2])
def test_who_computes_which_shard_makes_no_difference(count: int, size: int) -> None:
    everything = sharded(network_of(), *drawn(size)[:2]).gradient
    rooms = []
    for rank in range(count):
        shards, seeds, _ = drawn(size, Ranks(rank, count).own(SHARDS))
        rooms.append(sharded(network_of(), shards, seeds).gradient)
    while len(rooms) > 1:
        rooms = [one + other for one, other in zip(rooms[::2], rooms[1::2], strict=True)]
    assert torch.equal(rooms[0], everything)


def test_running_statistics_become_the_mean_over_shards() -> None:
    torch.manual_seed(3)
    module = Convolutional()
    network = network_of(module)
    shards, seeds, _ = drawn(20)
    sharded(network, shards, seeds)
    expected = torch.zeros(3)
    for batches, seed in zip(shards, seeds, strict=True):
        alone = network_of(module)
        sharded(alone, [batches], seed[None])
        expected += alone.buffers["norm.running_mean"] / SHARDS
    torch.testing.assert_close(network.buffers["norm.running_mean"], expected)
    assert int(network.buffers["norm.num_batches_tracked"]) == 1


def test_a_room_is_one_block_of_memory() -> None:
    q = network_of().initial(variance=1.0)
    room = Room(q, apart=True, more=3)
    assert room.reference is not None
    room.gradient.fill_(1)
    room.reference.fill_(2)
    room.more.fill_(3)
    assert room.flat.sum() == q.mean.numel() * 2 * (1 + 2) + 9
    room.clear()
    assert not room.gradient.any()


def test_the_number_of_shards_is_a_setting_that_is_checked() -> None:
    with pytest.raises(SettingsError, match="1, 2, 4"):
        Training(shards=3)
    with pytest.raises(SettingsError, match="3 processes cannot share 4 shards"):
        Ranks(0, 3).own(4)
    with pytest.raises(SettingsError, match="8 processes cannot share 4 shards"):
        Ranks(0, 8).own(4)
    assert [Ranks(rank, 2).own(8) for rank in range(2)] == [range(4), range(4, 8)]
