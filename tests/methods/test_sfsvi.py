"""S-FSVI: the KL of answers against torch.distributions, and what is held in each scenario."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

import evclplus as ec
from evclplus.core.batches import Batch, steps_of_epoch
from evclplus.core.engine import Terms
from evclplus.core.gaussian import MeanField
from evclplus.core.linearised import linearised
from evclplus.core.network import Weights
from evclplus.errors import DataError
from evclplus.methods.base import Lesson, Start
from evclplus.methods.sfsvi import function_kl
from tests.helpers import begun, blobs, moved, small_network

FSVI = ec.FunctionSpaceVI


def third_task(method: FSVI, scenario: str = "task") -> tuple[Lesson, Start, list[Batch]]:
    stream = blobs(3, scenario=scenario)
    learner = ec.Learner(small_network(), method, epochs=5, batch_size=20, learning_rate=1e-2)
    learner.learn(stream[0]).learn(stream[1])
    lesson, start = begun(learner, stream[2])
    return lesson, start, next(steps_of_epoch(start.sources, 20, torch.Generator().manual_seed(0)))


def drawn(lesson: Lesson, q: MeanField) -> Weights:
    layout = lesson.network.layout
    return Weights(layout.named(q.mean), layout.named(q.variance))


def terms(lesson: Lesson, q: MeanField, batch: Batch) -> Terms:
    return FSVI().likelihood(drawn(lesson, q), lesson.memory, batch, lesson.network)


def moments(lesson: Lesson, q: MeanField, batch: Batch) -> tuple[Tensor, Tensor]:
    return linearised(lesson.network, drawn(lesson, q), batch.inputs, batch.head, batch.outputs)


def test_the_kl_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(2, 5, 3, generator=generator)
    variances = torch.rand(2, 5, 3, generator=generator) + 0.1
    pairs = [Normal(mean, v.sqrt()) for mean, v in zip(means, variances, strict=True)]
    found = function_kl(means[0], variances[0], means[1], variances[1])
    torch.testing.assert_close(found, kl_divergence(*pairs).sum(1).mean())


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
@pytest.mark.parametrize("stored", [0, 10])
def test_it_is_zero_at_the_last_posterior_and_the_equation_away_from_it(
    scenario: str, stored: int
) -> None:
    if scenario != "task" and stored == 0:
        return
    lesson, start, batches = third_task(FSVI(stored_points=stored), scenario)
    held = [one for one in batches if one.answers is not None and one.head in lesson.seen]
    assert {one.head for one in held} == ({0, 1} if scenario == "task" else {0})
    for batch in held:
        assert batch.outputs == (4 if scenario == "class" else 2)
        assert terms(lesson, start.q, batch)["function"].item() == pytest.approx(0, abs=1e-5)
        q = moved(start.q)
        old, new = (moments(lesson, one, batch) for one in (start.q, q))
        expected = kl_divergence(Normal(new[0], new[1].sqrt()), Normal(old[0], old[1].sqrt())).sum(
            1
        )
        found = terms(lesson, q, batch)["function"]
        torch.testing.assert_close(found, expected.mean(), rtol=1e-4, atol=1e-5)
        assert found > 0.01
        for gradient in torch.autograd.grad(found, (q.mean, q.variance)):
            assert gradient.any()


def test_a_new_head_is_held_to_the_first_prior() -> None:
    lesson, start, batches = third_task(FSVI(function_variance=4.0))
    (own,) = [one for one in batches if one.answers is not None and one.head == 2]
    mean, variance = moments(lesson, start.q, own)
    expected = kl_divergence(Normal(mean, variance.sqrt()), Normal(0.0, 2.0)).sum(1).mean()
    torch.testing.assert_close(terms(lesson, start.q, own)["function"], expected)


def test_every_head_counts_once_and_has_as_many_points() -> None:
    for size in (0, 10):
        _, start, batches = third_task(FSVI(stored_points=size, context_size=12))
        assert [source.weight for source in start.sources] == [1.0] * 4
        assert [len(one.y) for one in batches[1:]] == [4, 4, 4]
        assert [one.share for one in batches] == [1.0] * 4


def test_without_stored_points_the_new_inputs_are_the_context() -> None:
    lesson, start, batches = third_task(FSVI(stored_points=0))
    assert lesson.memory.stored == ()
    own = {tuple(row.tolist()) for row in lesson.task.inputs()}
    for batch in batches:
        assert {tuple(row.tolist()) for row in batch.inputs} <= own
    assert len(start.sources) == 4


def test_without_stored_points_a_head_that_goes_on_is_refused() -> None:
    for scenario in ("domain", "class"):
        with pytest.raises(DataError, match="goes on with head 0: give each task a head") as error:
            third_task(FSVI(stored_points=0), scenario)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("stored", [0, 10])
def test_answers_on_the_points_stay(stored: int) -> None:
    method = FSVI(stored_points=stored)
    lesson, start, batches = third_task(method)
    held = [one for one in batches if one.answers is not None and one.head in lesson.seen]

    def change(sources: int) -> float:
        """What the answers have moved after training with some of the sources."""
        some = start.sources[:sources]
        q = lesson.fit(method, lesson.network, start.q, start.memory, some, purpose="train").q
        return sum(terms(lesson, q, one)["function"].item() for one in held)

    assert change(len(start.sources)) < 0.2 * change(1)
