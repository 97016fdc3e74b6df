import pytest
import torch
from torch import nn

from evclplus.core.batches import batches_per_epoch, minibatches
from evclplus.core.examples import Examples
from evclplus.core.network import BayesianNetwork

NETWORK = BayesianNetwork(nn.Linear(1, 2))


def examples(start: int, count: int, head: int, outputs: int = 2) -> Examples:
    values = torch.arange(float(start), float(start + count))[:, None]
    return Examples(values, torch.arange(start, start + count), outputs, head)


def test_an_epoch_shows_each_example_once_with_its_label() -> None:
    data = [examples(0, 25, head=0)]
    seen = []
    for batch in minibatches(NETWORK, data, 8, torch.Generator().manual_seed(0)):
        assert torch.equal(batch.x.squeeze(1).long(), batch.y)
        assert batch.total == 25
        seen += batch.y.tolist()
    assert sorted(seen) == list(range(25))
    assert seen != list(range(25))


@pytest.mark.parametrize(
    ("count", "batch_size", "expected"),
    [
        (257, 250, [128, 129]),
        (33, 32, [16, 17]),  # small batches are split evenly
        (257, 256, [128, 129]),  # large ones in sixteens
        (65, 64, [32, 33]),
        (129, 64, [33, 48, 48]),
        (600, 256, [192, 200, 208]),
        (12_000, 256, [240] * 2 + [256] * 45),
        (5, 256, [5]),
    ],
)
def test_batches_have_nearly_equal_sizes(count: int, batch_size: int, expected: list[int]) -> None:
    data = [examples(0, count, head=0)]
    batches = list(minibatches(NETWORK, data, batch_size, torch.Generator()))
    assert sorted(len(batch.y) for batch in batches) == expected
    assert batches_per_epoch(data, batch_size) == len(expected)
    assert torch.equal(torch.cat([batch.y for batch in batches]).sort().values, data[0].labels)


def test_a_batch_has_one_head_and_may_mix_tasks_that_share_it() -> None:
    data = [examples(0, 10, 0, outputs=2), examples(10, 10, 1), examples(20, 10, 0, outputs=4)]
    batches = list(minibatches(NETWORK, data, 5, torch.Generator().manual_seed(0)))
    assert len(batches) == batches_per_epoch(data, 5) == 6
    assert sorted(y for b in batches for y in b.y.tolist()) == list(range(30))
    for batch in batches:
        assert torch.equal(batch.x.squeeze(1).long(), batch.y)
        inside = {10 <= y < 20 for y in batch.y.tolist()}
        assert inside == {batch.head == 1}
        # A head that has grown since a task was stored is used at its present width.
        assert batch.outputs == (2 if batch.head == 1 else 4)
    mixed = [b for b in batches if b.head == 0]
    assert any(len({y < 10 for y in b.y.tolist()}) == 2 for b in mixed)


def test_same_generator_same_batches() -> None:
    data = [examples(0, 10, 0), examples(10, 10, 1)]
    first, second = (
        [b.y.tolist() for b in minibatches(NETWORK, data, 4, torch.Generator().manual_seed(s))]
        for s in (3, 3)
    )
    assert first == second
