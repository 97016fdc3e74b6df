"""Normal numbers that follow from a seed: normal, independent, and the same however they are
made."""

import math
from collections.abc import Iterator

import pytest
import torch
from scipy import stats
from torch import Tensor

from evclplus.core import noise
from evclplus.core.graphs import Argument, Graphs
from evclplus.core.noise import Noise, PredictionNoise, identities, mixed, new_noise, new_seeds


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def noise_of(seed: int = 0) -> Noise:
    return new_noise(torch.Generator().manual_seed(seed))


def test_mixing_gives_the_published_integers() -> None:
    """MurmurHash3 of no bytes is its last step, of the seed: 0, 1 and 2^32 - 1 in its test data."""
    found = mixed(torch.tensor([0, 1, -1], dtype=torch.int32)).tolist()
    assert [number % 2**32 for number in found] == [0, 0x514E28B7, 0x81F16F39]


def by_hand(bits: int) -> int:
    """MurmurHash3's last step in Python's integers."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> shift)) * factor % 2**32
    return bits ^ (bits >> 16)


def test_the_numbers_are_box_and_mullers() -> None:
    count = 40
    source = Noise(torch.tensor([5, -6, 7, 9], dtype=torch.int32))
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


@pytest.mark.parametrize("block", [1, 7, 64])
@pytest.mark.parametrize("shape", [(1,), (13, 10), (129,), (2, 3, 64)])
def test_blocks_give_the_same_numbers(
    block: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, blocks = noise_of(), noise_of()
    expected = [whole.like(torch.empty(shape)) for _ in range(2)]
    monkeypatch.setattr(noise, "BLOCK", block)
    found = [blocks.like(torch.empty(shape)) for _ in range(2)]
    # A processor rounds whole vectors of numbers and single ones differently.
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert blocks.used == whole.used == 2 * ((math.prod(shape) + 1) // 2)
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("count", [10, 100_001])
def test_threads_do_not_change_the_numbers(count: int) -> None:
    torch.set_num_threads(1)
    alone = noise_of().like(torch.empty(count))
    torch.set_num_threads(3)
    torch.testing.assert_close(noise_of().like(torch.empty(count)), alone, rtol=1e-5, atol=1e-6)


def test_the_numbers_are_normal_and_independent() -> None:
    source = noise_of()
    rows = torch.stack([source.like(torch.empty(50_001)) for _ in range(3)])
    mirrored = rows[:1].roll(len(rows[0]) // 2, dims=1)  # the other number of each pair
    rows = torch.cat([rows, mirrored, rows.roll(1, dims=1), noise_of(1).like(rows[:1])])
    for row in rows:
        assert stats.kstest(row[:20_000].numpy(), "norm").pvalue > 1e-4
        assert float(row.pow(4).mean()) == pytest.approx(3, abs=0.15)
    for moment in (rows, rows.square()):
        correlations = torch.corrcoef(moment) - torch.eye(len(rows))
        assert float(correlations.abs().max()) < 5 / rows.shape[1] ** 0.5


def test_many_seeds_give_normal_and_independent_numbers() -> None:
    """A step has a seed, and a weight has its place: the numbers of one place over many steps."""
    seeds = new_seeds(torch.Generator().manual_seed(0), 4000)
    rows = torch.stack([Noise(seed).like(torch.empty(6)) for seed in seeds]).t()
    for row in rows:
        assert stats.kstest(row.numpy(), "norm").pvalue > 1e-4
    for moment in (rows, rows.square()):
        correlations = torch.corrcoef(moment) - torch.eye(6)
        assert float(correlations.abs().max()) < 5 / 4000**0.5


def test_seeds_follow_the_generator_and_are_all_different() -> None:
    first, again = (new_seeds(torch.Generator().manual_seed(0), 1000) for _ in range(2))
    assert torch.equal(first, again)
    assert first.dtype == torch.int32
    assert len(first.unique(dim=0)) == len(first.flatten().unique()) // 4 == 1000
    assert not torch.equal(first, new_seeds(torch.Generator().manual_seed(1), 1000))
    assert not torch.equal(noise_of(0).like(first.float()), noise_of(1).like(first.float()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_and_type_are_the_tensors(dtype: torch.dtype) -> None:
    found = noise_of().like(torch.empty(3, 5, 7, dtype=dtype))
    assert found.shape == (3, 5, 7)
    assert found.dtype == dtype


def test_compiled_numbers_are_the_same() -> None:
    """Whole vectors, odd ends and several threads: integers that wrap around must do so alike."""

    def two(tensor: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
        source = Noise(seed)
        return source.like(tensor), source.like(tensor)

    seed = new_seeds(torch.Generator().manual_seed(3), 1)[0]
    arguments = [Argument(torch.empty(1001), any_size=True), Argument(seed)]
    graph = Graphs().find("noise", two, arguments)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for count in (1, 7, 16, 33, 1001, 70_000):
            tensor = torch.empty(count)
            found = graph([tensor, seed])
            torch.testing.assert_close(found, two(tensor, seed), rtol=1e-5, atol=1e-6)


# For predictions.


def prediction_noise(x: Tensor, seed: int = 0) -> PredictionNoise:
    return PredictionNoise(new_seeds(torch.Generator().manual_seed(seed), 1)[0], identities(x))


def test_a_row_has_its_own_numbers_wherever_it_stands() -> None:
    x = torch.randn(5, 3, 2)
    turned = x.flip(0)[1:]
    found, elsewhere = (prediction_noise(one) for one in (x, turned))
    for shape in ((5, 7), (5, 2, 4), (5, 7)):
        rows, others = found.of_rows(torch.empty(shape)), torch.empty((4, *shape[1:]))
        assert torch.equal(rows.flip(0)[1:], elsewhere.of_rows(others))
        assert len(rows.flatten(1).unique(dim=0)) == 5
    twice = x[[0, 0, 1]]
    first, second, third = prediction_noise(twice).of_rows(torch.empty(3, 9))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_weights_have_the_same_numbers_whatever_the_data() -> None:
    one, other = prediction_noise(torch.randn(5, 3)), prediction_noise(torch.randn(2, 9))
    for _ in range(2):
        numbers = one.like(torch.empty(4, 3))
        assert torch.equal(numbers, other.like(torch.empty(4, 3)))
        assert len(numbers.unique()) == 12


def test_kept_draws_of_weights_are_those_that_would_be_made() -> None:
    seed = new_seeds(torch.Generator().manual_seed(0), 1)[0]
    kept: dict[int, Tensor] = {}
    mean, variance = torch.randn(3, 5), torch.rand(3, 5)
    for x in (torch.randn(5, 3), torch.randn(2, 3)):
        fresh, found = (PredictionNoise(seed, identities(x), room) for room in (None, kept))
        for _ in range(2):
            assert torch.equal(fresh.draw(mean, variance), found.draw(mean, variance))
            # What is found leaves the place where what is made would.
            rows = torch.empty(len(x), 7)
            assert torch.equal(fresh.of_rows(rows), found.of_rows(rows))
    assert len(kept) == 2


def test_the_numbers_of_predictions_are_normal_and_independent() -> None:
    x = torch.randn(300, 4)
    sources = [prediction_noise(x, seed) for seed in range(3)]
    rows = torch.stack([one.of_rows(torch.empty(300, 201)).flatten() for one in sources])
    other_layer = sources[0].of_rows(torch.empty(300, 201)).flatten()
    neighbours = rows[0].view(300, 201).roll(1, dims=0).flatten()
    rows = torch.cat([rows, other_layer[None], neighbours[None], rows[:1].roll(1, dims=1)])
    for row in rows:
        assert stats.kstest(row[:20_000].numpy(), "norm").pvalue > 1e-4
        assert float(row.var()) == pytest.approx(1, abs=0.03)
        assert float(row.pow(4).mean()) == pytest.approx(3, abs=0.15)
    for moment in (rows, rows.square()):
        correlations = torch.corrcoef(moment) - torch.eye(len(rows))
        assert float(correlations.abs().max()) < 5 / rows.shape[1] ** 0.5


def test_an_identity_follows_from_every_number_of_a_row() -> None:
    x = torch.zeros(1, 6)
    changed = x + torch.eye(6)
    found = identities(torch.cat([x, changed, 2 * changed]))
    assert len(found.unique()) == 13
    assert torch.equal(identities(-x), identities(x))
    assert torch.equal(identities(changed.double()), identities(changed))
    assert torch.equal(identities(changed.byte()), identities(changed))
