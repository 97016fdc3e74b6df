"""Normal numbers, in lanes and counted: the same for any number of threads, normal, and
independent."""

import math
from collections.abc import Iterator

import pytest
import torch
from scipy import stats
from torch import Tensor

from evclplus.core.graphs import compiled, written_down
from evclplus.core.noise import (
    LANE,
    CountedNoise,
    fill_with_noise,
    mixed,
    new_seed,
    noise_like,
)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def noise(count: int, seed: int = 0) -> Tensor:
    return noise_like(torch.empty(count), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [10, LANE, 2 * LANE, 5 * LANE + 3, 40 * LANE])
def test_threads_do_not_change_the_numbers(count: int) -> None:
    torch.set_num_threads(1)
    alone = noise(count)
    torch.set_num_threads(3)
    assert torch.equal(noise(count), alone)
    assert not torch.equal(noise(count, seed=1), alone)


def test_few_numbers_are_the_generators_own() -> None:
    expected = torch.randn(2 * LANE - 1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(noise(2 * LANE - 1), expected)


def test_a_generator_goes_on() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (noise_like(torch.empty(4 * LANE), generator) for _ in range(2))
    assert abs(float((first * second).mean())) < 5 / len(first) ** 0.5


def test_numbers_are_normal_and_lanes_independent() -> None:
    lanes = noise(4 * LANE).view(4, LANE)
    for lane in lanes:
        assert stats.kstest(lane[:20_000].numpy(), "norm").pvalue > 1e-4
    correlations = torch.corrcoef(lanes) - torch.eye(4)
    assert float(correlations.abs().max()) < 5 / LANE**0.5


def test_filling_is_in_place_and_keeps_the_type() -> None:
    room = torch.zeros(3, LANE, dtype=torch.float64)
    assert fill_with_noise(room, torch.Generator().manual_seed(0)) is room
    assert float(room.std()) == pytest.approx(1, abs=0.01)


def counted(seed: int = 0) -> CountedNoise:
    return CountedNoise(new_seed(torch.Generator().manual_seed(seed)))


def test_mixing_gives_the_published_integers() -> None:
    """MurmurHash3 of no bytes is its last step, of the seed: 0, 1 and 2^32 - 1 in its test data."""
    found = mixed(torch.tensor([0, 1, -1], dtype=torch.int32)).tolist()
    assert [number % 2**32 for number in found] == [0, 0x514E28B7, 0x81F16F39]


def by_hand(bits: int) -> int:
    """MurmurHash3's last step in Python's integers."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> shift)) * factor % 2**32
    return bits ^ (bits >> 16)


def test_counted_numbers_are_box_and_mullers() -> None:
    count = 40
    source = CountedNoise(torch.tensor([5, -6, 7, 9], dtype=torch.int32))
    source.like(torch.empty(3))  # two pairs
    found = source.like(torch.empty(2 * count, dtype=torch.float64))
    expected = []
    for place in range(2, 2 + count):
        radius_bits = by_hand((place ^ 5) * -5 % 2**32) % 2**31  # -5 is -6 made odd
        angle_bits = by_hand((place ^ 7) * 9 % 2**32)
        radius = (-2 * math.log((radius_bits + 0.5) / 2**31)) ** 0.5
        angle = math.pi * angle_bits / 2**31  # from 0 to 2 pi, or a turn less
        expected.append((radius * math.cos(angle), radius * math.sin(angle)))
    columns = torch.tensor(expected, dtype=torch.float64).t().flatten()
    torch.testing.assert_close(found, columns, rtol=0, atol=1e-12)


def test_counted_numbers_are_normal_and_independent() -> None:
    source = counted()
    rows = torch.stack([source.like(torch.empty(50_001)) for _ in range(3)])
    mirrored = rows[:1].roll(len(rows[0]) // 2, dims=1)  # the other number of each pair
    rows = torch.cat([rows, mirrored, rows.roll(1, dims=1), counted(1).like(rows[:1])])
    for row in rows:
        assert stats.kstest(row[:20_000].numpy(), "norm").pvalue > 1e-4
        assert float(row.pow(4).mean()) == pytest.approx(3, abs=0.15)
    for moment in (rows, rows.square()):
        correlations = torch.corrcoef(moment) - torch.eye(len(rows))
        assert float(correlations.abs().max()) < 5 / rows.shape[1] ** 0.5


def test_compiled_counted_numbers_are_the_same() -> None:
    """Whole vectors, odd ends and several threads: integers that wrap around must do so alike."""

    def two(tensor: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
        source = CountedNoise(seed)
        return source.like(tensor), source.like(tensor)

    seed = new_seed(torch.Generator().manual_seed(3))
    graph = compiled(written_down(two, [torch.empty(1001), seed], any_length=1))
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for count in (1, 7, 16, 33, 1001, 70_000):
            tensor = torch.empty(count)
            torch.testing.assert_close(graph(tensor, seed), two(tensor, seed), rtol=1e-5, atol=1e-6)
