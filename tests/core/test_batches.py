from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from evclplus.core.batches import (
    Batch,
    Source,
    batches_of_each_kind,
    batches_per_epoch,
    steps_of_epoch,
)
from evclplus.core.compiled import _kind
from evclplus.core.examples import Examples, View
from evclplus.core.likelihoods import Classification, Regression


def examples(start: int, count: int, head: int, outputs: int = 2) -> Examples:
    """Inputs that say their own label, and answers that are ten times as much."""
    values = torch.arange(float(start), float(start + count))[:, None]
    labels = torch.arange(start, start + count)
    return Examples(values, labels, outputs, head, answers=10 * values)


def single(data: Sequence[Examples], batch_size: int, seed: int = 0) -> list[Batch]:
    """The batches of an epoch with one source: one a step."""
    generator = torch.Generator().manual_seed(seed)
    steps = list(steps_of_epoch([Source(tuple(data))], batch_size, generator))
    assert all(len(step) == 1 and step[0].share == 1 for step in steps)
    return [step[0] for step in steps]


def assert_belong_together(batch: Batch) -> None:
    assert torch.equal(batch.inputs.squeeze(1).long(), batch.y)
    assert batch.answers is not None
    assert torch.equal(batch.answers.squeeze(1).long(), 10 * batch.y)


def test_an_epoch_shows_each_example_once_with_its_label_and_answers() -> None:
    seen = []
    for batch in single([examples(0, 25, head=0)], 8):
        assert_belong_together(batch)
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
    data = examples(0, count, head=0)
    batches = single([data], batch_size)
    assert sorted(len(batch.y) for batch in batches) == expected
    assert batches_per_epoch(Source((data,)), batch_size) == len(expected)
    assert torch.equal(torch.cat([batch.y for batch in batches]).sort().values, data.labels)


def test_a_batch_has_one_head_and_may_mix_tasks_that_share_it() -> None:
    data = [examples(0, 10, 0, outputs=2), examples(10, 10, 1), examples(20, 10, 0, outputs=4)]
    batches = single(data, 5)
    assert len(batches) == batches_per_epoch(Source(tuple(data)), 5) == 6
    assert sorted(y for b in batches for y in b.y.tolist()) == list(range(30))
    for batch in batches:
        assert_belong_together(batch)
        inside = {10 <= y < 20 for y in batch.y.tolist()}
        assert inside == {batch.head == 1}
        # A head that has grown since a task was stored is used at its present width.
        assert batch.outputs == (2 if batch.head == 1 else 4)
    mixed = [b for b in batches if b.head == 0]
    assert any(len({y < 10 for y in b.y.tolist()}) == 2 for b in mixed)


def test_tasks_that_share_a_batch_have_answers_only_if_all_of_them_do() -> None:
    data = [examples(0, 10, 0), replace(examples(10, 10, 0), answers=None)]
    assert all(batch.answers is None for batch in single(data, 5))


def test_same_generator_same_batches() -> None:
    data = [examples(0, 10, 0), examples(10, 10, 1)]
    first, second, other = ([b.y.tolist() for b in single(data, 4, seed)] for seed in (3, 3, 4))
    assert first == second != other


def test_a_further_source_feeds_every_step_with_its_share() -> None:
    """Two stored tasks of heads 0 and 1 beside a task of head 2."""
    first = Source((examples(0, 30, 2),))
    stored = Source((examples(100, 10, 0), examples(200, 30, 1)), per_step=8)
    drawn, shares = [], []
    for epoch in range(50):
        steps = list(steps_of_epoch([first, stored], 10, torch.Generator().manual_seed(epoch)))
        assert len(steps) == batches_per_epoch(first, 10) == 3
        assert sorted(y for step in steps for y in step[0].y.tolist()) == list(range(30))
        for own, *others in steps:
            assert own.head == 2
            assert len(own.y) == 10
            assert sum(len(batch.y) for batch in others) == 8
            assert len({batch.head for batch in others}) == len(others)
            for batch in (own, *others):
                assert_belong_together(batch)
                # Together the step is a mean over all its examples.
                assert batch.share == pytest.approx(len(batch.y) / 18)
            for batch in others:
                assert {y < 200 for y in batch.y.tolist()} == {batch.head == 0}
                drawn += batch.y.tolist()
            shares.append(sum(batch.share for batch in (own, *others)))
    assert shares == pytest.approx([1.0] * 150)
    # Every stored example is drawn, each as often as any other.
    counts = torch.tensor(drawn).unique(return_counts=True)[1]
    assert len(counts) == 40
    assert counts.min() > 10
    assert counts.max() < 60


def test_a_source_is_made_ready_once_and_shared_stores_stay_shared() -> None:
    store = torch.arange(40, dtype=torch.uint8).view(10, 4)
    order = torch.tensor([3, 2, 1, 0])
    rows = torch.tensor([7, 1, 4])
    one = Examples(store, torch.arange(3), 2, rows=rows, view=View(0.5, 1.0, permutation=order))
    (ready,) = Source((one,), per_step=3).ready(torch.device("cpu")).examples
    assert ready.rows is None
    assert torch.equal(ready.store, store[rows][:, order])
    assert torch.equal(ready.inputs(), one.inputs())
    both = Source((one, one), per_step=3).ready(torch.device("cpu"))
    assert both.per_step == 3
    assert all(kept.store is store for kept in both.examples)


def test_stored_bytes_are_converted_by_who_reads_the_batch() -> None:
    store = torch.arange(40, dtype=torch.uint8).view(10, 4)
    data = Examples(store, torch.arange(10), 2, view=View(1 / 255, -0.5))
    (batch,) = single([data], 10)
    assert batch.x.dtype == torch.uint8
    torch.testing.assert_close(batch.inputs, batch.x.float() / 255 - 0.5)
    # Examples of several tasks may be stored differently, and are converted when they are mixed.
    other = replace(data, view=View(2.0))
    (mixed,) = single([data, other], 20)
    assert mixed.x.dtype == torch.float32
    assert mixed.view == View()
    expected = torch.cat([data.inputs(), other.inputs()])
    torch.testing.assert_close(mixed.inputs.sum(0), expected.sum(0))


def test_a_batch_scores_the_outputs_in_use_by_its_likelihood() -> None:
    output = torch.randn(10, 4)
    (batch,) = single([examples(0, 2, head=0)], 10)
    batch = replace(batch, y=torch.tensor([0, 1]))
    expected = torch.nn.functional.cross_entropy(output[:2, :2], batch.y)
    assert torch.equal(batch.nll(output[:2]), expected)
    generator, data = torch.Generator(), Source((examples(0, 2, 0, outputs=1),))
    (other,) = next(steps_of_epoch([data], 10, generator, Regression(2.0)))
    assert other.likelihood == Regression(2.0)
    assert batch.likelihood == Classification()
    torch.testing.assert_close(
        other.nll(output[:2]), Regression(2.0)(output[:2, :1], other.y.float())
    )


def test_a_source_with_a_weight_enters_by_its_own_mean() -> None:
    def some(count: int, head: int = 0) -> Examples:
        return Examples(torch.zeros(count, 2), torch.zeros(count).long(), outputs=2, head=head)

    pooled = (Source((some(12),)), Source((some(9),), per_step=4))
    weighted = (
        Source((some(5, 0), some(5, 1)), per_step=6, weight=0.3),
        Source((some(7, 2),), per_step=3, weight=2.0),
    )
    for batches in steps_of_epoch((*pooled, *weighted), 6, torch.Generator().manual_seed(0)):
        shares: dict[float, float] = {}
        own = batches[:2]
        assert [batch.share for batch in own] == [0.6, 0.4]
        for batch in batches[2:]:
            shares[batch.head == 2] = shares.get(batch.head == 2, 0) + batch.share
        assert shares[False] == pytest.approx(0.3)
        assert shares[True] == pytest.approx(2.0)


def test_a_whole_source_is_in_every_step_with_all_its_examples_in_their_order() -> None:
    first, stored = Source((examples(0, 30, 2),)), examples(100, 7, 0)
    whole = Source((stored,), weight=0.5, whole=True)
    for own, other in steps_of_epoch((first, whole), 10, torch.Generator().manual_seed(0)):
        assert len(own.y) == 10
        assert other.y.tolist() == list(range(100, 107))
        assert other.share == 0.5


def test_there_is_a_batch_of_each_kind_that_steps_have() -> None:
    """A graph is found for each before the first step."""
    plain = replace(examples(30, 12, head=2), answers=None)
    sources = (
        Source((examples(0, 10, 0, outputs=2), examples(10, 10, 1), examples(20, 10, 0, 4))),
        Source((examples(0, 3, 3), replace(examples(5, 3, 4), view=View(scale=2.0)))),
        Source((plain,), per_step=5, apart=True),
    )
    generator = torch.Generator().manual_seed(0)
    steps = [step for _ in range(5) for step in steps_of_epoch(sources, 4, generator)]
    expected = {(batch.head, _kind(batch)) for step in steps for batch in step}
    every = list(batches_of_each_kind(sources, 4, Classification()))
    assert {(batch.head, _kind(batch)) for batch in every} == expected
    assert len(every) == len(expected) == 5
    assert all(len(batch.x) <= 4 for batch in every)
