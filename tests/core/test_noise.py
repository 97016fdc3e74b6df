"""Normal numbers in lanes: the same for any number of threads, normal, and independent."""

from collections.abc import Iterator

import pytest
import torch
from scipy import stats
from torch import Tensor

from evclplus.core.noise import LANE, fill_with_noise, noise_like


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
