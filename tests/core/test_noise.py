"""Normal numbers, in lanes and counted: the same for any number of threads, normal, and
independent."""

import math
from collections.abc import Iterator

import pytest
import torch
from scipy import stats
from torch import Tensor

from evclplus.core.noise import (
    LANE,
    STRIDE,
    CountedNoise,
    fill_with_noise,
    new_seed,
    noise_like,
    split_mix,
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


def test_split_mix_gives_the_published_integers() -> None:
    """The first outputs for the seed 1234567, as the author's reference code prints them."""
    states = 1234567 + torch.arange(1, 6) * STRIDE
    assert [number % 2**64 for number in split_mix(states).tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_counted_numbers_are_box_and_mullers() -> None:
    seed = torch.tensor([1234567, STRIDE])
    high, low = divmod(6457827717110365317, 2**32)
    radius, angle = (-2 * math.log((high + 0.5) / 2**32)) ** 0.5, 2 * math.pi * low / 2**32
    found = CountedNoise(seed).like(torch.empty(2, dtype=torch.float64)).tolist()
    assert found == pytest.approx([radius * math.cos(angle), radius * math.sin(angle)], rel=1e-12)


def test_counted_numbers_are_normal_and_independent() -> None:
    source = counted()
    rows = torch.stack([source.like(torch.empty(50_001)) for _ in range(3)])
    rows = torch.cat([rows, rows.roll(1, dims=1), counted(1).like(rows[0]).unsqueeze(0)])
    for row in rows:
        assert stats.kstest(row[:20_000].numpy(), "norm").pvalue > 1e-4
        assert float(row.pow(4).mean()) == pytest.approx(3, abs=0.15)
    for moment in (rows, rows.square()):
        correlations = torch.corrcoef(moment) - torch.eye(len(rows))
        assert float(correlations.abs().max()) < 5 / rows.shape[1] ** 0.5


@pytest.mark.parametrize("count", [1, 7, 16, 33, 1001, 70_000])
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_counted_numbers_are_the_same(count: int, threads: int) -> None:
    """Whole vectors, odd ends and several threads: integers that wrap around must do so alike."""

    def two(seed: Tensor, tensor: Tensor) -> tuple[Tensor, Tensor]:
        source = CountedNoise(seed)
        return source.like(tensor), source.like(tensor)

    torch.set_num_threads(threads)
    seed, tensor = new_seed(torch.Generator().manual_seed(3)), torch.empty(count)
    found = torch.compile(two, fullgraph=True)(seed, tensor)
    torch.testing.assert_close(found, two(seed, tensor), rtol=1e-5, atol=1e-6)
