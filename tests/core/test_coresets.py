import pytest
import torch

from evclplus.core import coresets
from evclplus.core.coresets import k_center, random_subset


def brute_force(x: torch.Tensor, size: int, first: int) -> list[int]:
    """Greedy k-center with all distances recomputed each time."""
    chosen = [first]
    while len(chosen) < size:
        distances = torch.cdist(x, x[chosen]).min(1).values
        distances[chosen] = -1
        chosen.append(int(distances.argmax()))
    return chosen


@pytest.mark.parametrize("candidates", [1, 2, 7, 79, 80, 1000])
def test_k_center_equals_brute_force(candidates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coresets, "CANDIDATES", candidates)
    x = torch.randn(80, 3, 2, generator=torch.Generator().manual_seed(0))
    for size in (1, 2, 20, 80, 90):
        chosen = k_center(x, size, torch.Generator().manual_seed(1)).tolist()
        assert chosen == brute_force(x.flatten(1), min(size, 80), chosen[0])


@pytest.mark.parametrize("candidates", [3, 1024])
def test_k_center_never_repeats_even_among_copies(
    candidates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coresets, "CANDIDATES", candidates)
    x = torch.ones(10, 4)
    assert sorted(k_center(x, 10, torch.Generator()).tolist()) == list(range(10))


def test_k_center_covers_better_than_chance() -> None:
    """Ten far groups, ten centres: one from each."""
    groups = torch.arange(10.0).repeat_interleave(30)[:, None] * 100
    x = groups + torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    chosen = k_center(x, 10, torch.Generator().manual_seed(0))
    assert sorted((chosen // 30).tolist()) == list(range(10))


def test_random_subset_is_distinct_and_follows_its_generator() -> None:
    x = torch.zeros(50, 1)
    first = random_subset(x, 20, torch.Generator().manual_seed(0))
    assert len(set(first.tolist())) == 20
    assert torch.equal(first, random_subset(x, 20, torch.Generator().manual_seed(0)))
    assert not torch.equal(first, random_subset(x, 20, torch.Generator().manual_seed(1)))
