"""LwF: the distillation term by hand, its curvature, and what it holds in each scenario."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import evclplus as ec
from evclplus.core.batches import Batch, steps_of_epoch
from evclplus.core.engine import Terms
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import MultiHead
from evclplus.errors import SettingsError
from evclplus.methods.base import Lesson, Start
from evclplus.methods.distillation import distillation
from evclplus.methods.lwf import Distilled
from tests.helpers import begun, blobs, moved, small_network

LwF = ec.LearningWithoutForgetting


def third_task(
    scenario: str, method: ec.Method | None = None, network: nn.Module | None = None
) -> tuple[Lesson, Start, Batch]:
    """The third of three tasks as LwF sees it, and a batch of it."""
    stream = blobs(3, scenario=scenario)
    learner = ec.Learner(
        network or small_network(), method or LwF(), epochs=5, batch_size=20, learning_rate=1e-2
    )
    learner.learn(stream[0]).learn(stream[1])
    lesson, start = begun(learner, stream[2])
    ((batch,), *_) = steps_of_epoch(start.sources, 20, torch.Generator().manual_seed(0))
    return lesson, start, batch


def terms(lesson: Lesson, start: Start, batch: Batch, q: MeanField, **options: float) -> Terms:
    return LwF(**options).likelihood(lesson.network.weights(q), start.memory, batch, lesson.network)


def logits(lesson: Lesson, q: MeanField, batch: Batch, head: int) -> Tensor:
    return lesson.network(q, batch.inputs, head)


def by_hand(before: Tensor, now: Tensor, temperature: float) -> float:
    """The mean over x of KL(p_before || p_now), number by number; outputs of now that there were
    not before had no probability."""
    total = 0.0
    for one, other in zip(before.double().numpy(), now.double().numpy(), strict=True):
        p, r = (np.exp(z / temperature) / np.exp(z / temperature).sum() for z in (one, other))
        total += float((p * np.log(p / r[: len(p)])).sum())
    return total / len(before)


def test_the_term_is_the_equation_over_earlier_heads() -> None:
    lesson, start, batch = third_task("task")
    q = moved(start.q, by=0.5)
    # The heads of before on the body of now.
    heads = lesson.network.weights_of_head(start.q, (0, 1))
    mixed = lesson.network.weights(q).at(heads)
    expected = sum(
        by_hand(
            logits(lesson, start.q, batch, head),
            lesson.network(mixed, batch.inputs, head).detach(),
            3.0,
        )
        for head in (0, 1)
    )
    found = terms(lesson, start, batch, q, lam=0.7, temperature=3.0)
    assert expected > 1e-2
    assert found["distillation"].item() == pytest.approx(0.7 * expected, rel=1e-4)
    own = F.cross_entropy(logits(lesson, q, batch, 2), batch.y)
    torch.testing.assert_close(found["nll"], own)


@pytest.mark.parametrize(("scenario", "old", "new"), [("domain", 2, 2), ("class", 4, 6)])
def test_one_head_counts_once_for_every_task_that_it_had(scenario: str, old: int, new: int) -> None:
    lesson, start, batch = third_task(scenario)
    q = moved(start.q)
    before, now = (logits(lesson, one, batch, 0).detach() for one in (start.q, q))
    found = terms(lesson, start, batch, q)
    expected = 2 * by_hand(before[:, :old], now[:, :new], 2.0)
    assert found["distillation"].item() == pytest.approx(expected, rel=1e-4)
    # Its own head moves along; new classes are pushed down where old answers are held.
    (gradient,) = torch.autograd.grad(found["distillation"], q.mean)
    assert lesson.network.layout.named(gradient)["heads.0.weight"][:new].any()
    assert (lesson.network.layout.named(gradient)["heads.0.bias"][old:new] > 0).all()


def test_outputs_that_no_task_has_used_are_not_held() -> None:
    given = ec.networks.mlp(4, [8], heads=[10])
    lesson, start, batch = third_task("class", network=given)
    q = moved(start.q)
    before, now = (logits(lesson, one, batch, 0).detach() for one in (start.q, q))
    found = terms(lesson, start, batch, q)["distillation"]
    assert found.item() == pytest.approx(2 * by_hand(before[:, :4], now[:, :6], 2.0), rel=1e-4)
    (gradient,) = torch.autograd.grad(found, q.mean)
    assert not lesson.network.layout.named(gradient)["heads.0.weight"][6:].any()


@pytest.mark.parametrize("scenario", ["task", "domain"])
def test_it_is_zero_at_the_old_weights_and_its_gradient_too(scenario: str) -> None:
    lesson, start, batch = third_task(scenario)
    q = moved(start.q, by=0.0)
    term = terms(lesson, start, batch, q)["distillation"]
    assert term.item() == pytest.approx(0, abs=1e-6)
    (gradient,) = torch.autograd.grad(term, q.mean)
    assert gradient.abs().max() < 1e-6


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_its_curvature_in_a_logit_is_p_times_one_minus_p_over_t_squared(temperature: float) -> None:
    before = torch.tensor([[[0.3, -1.2, 2.0]]], dtype=torch.float64)

    def term(z: Tensor) -> Tensor:
        return distillation(z.view(1, 1, 3), before, temperature)

    hessian = torch.autograd.functional.hessian(term, before.flatten())
    p = (before.flatten() / temperature).softmax(0)
    torch.testing.assert_close(hessian.diag(), p * (1 - p) / temperature**2)
    torch.testing.assert_close(
        hessian, (p.diag() - torch.outer(p, p)) / temperature**2, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("deep", [False, True])
def test_earlier_heads_stay_where_they_were(deep: bool) -> None:
    def make(features: int, outputs: int) -> nn.Module:
        linear = nn.Linear(features, outputs)
        return nn.Sequential(linear, nn.Tanh(), nn.Linear(outputs, outputs)) if deep else linear

    network = MultiHead(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), new_head=make)
    lesson, start, batch = third_task("task", network=network)
    assert (start.memory.held.linear is None) == deep
    q = moved(start.q)
    (gradient,) = torch.autograd.grad(
        terms(lesson, start, batch, q)["distillation"], q.mean, retain_graph=True
    )
    for name, part in lesson.network.layout.named(gradient).items():
        assert bool(part.any()) == name.startswith("body"), name


def test_heads_of_different_widths_are_each_a_distribution_of_their_own() -> None:
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randn(60, 4, generator=generator), torch.arange(60) % classes)
        for classes in (2, 5, 3)
    ]
    stream = ec.tasks(pairs)
    learner = ec.Learner(small_network(), LwF(), epochs=2, batch_size=20)
    learner.learn(stream[0]).learn(stream[1])
    lesson, start = begun(learner, stream[2])
    ((batch,), *_) = steps_of_epoch(start.sources, 20, torch.Generator().manual_seed(0))
    q = moved(start.q)
    mixed = lesson.network.weights(q).at(lesson.network.weights_of_head(start.q, (0, 1)))
    expected = sum(
        by_hand(
            logits(lesson, start.q, batch, head),
            lesson.network(mixed, batch.inputs, head).detach(),
            2.0,
        )
        for head in (0, 1)
    )
    assert terms(lesson, start, batch, q)["distillation"].item() == pytest.approx(
        expected, rel=1e-4
    )


def test_a_first_task_is_plain_training_and_nothing_is_kept() -> None:
    stream = blobs(2)
    weights = []
    for method in (LwF(), ec.FineTune()):
        learner = ec.Learner(small_network(), method, epochs=3, batch_size=20)
        weights.append(learner.learn(stream[0]).q.mean)
        if isinstance(method, LwF):
            learner.learn(stream[1])
            assert learner.memory == Distilled()
    assert torch.equal(*weights)


def test_old_answers_move_less_than_without_it() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 100, 4, generator=generator)
    first, second = ((one, (one @ torch.randn(4, generator=generator) > 0).long()) for one in x)
    stream = ec.tasks([first, second])

    def drift(lam: float) -> float:
        learner = ec.Learner(
            small_network(), LwF(lam=lam), epochs=40, batch_size=20, learning_rate=1e-2
        )
        inputs = stream[0].test.inputs()
        before = learner.learn(stream[0]).predict_proba(inputs, task=0)
        after = learner.learn(stream[1]).predict_proba(inputs, task=0)
        return (after - before).abs().mean().item()

    assert drift(10.0) < 0.3 * drift(0.0)


def test_it_says_that_it_is_for_classes() -> None:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    learner = ec.Learner(small_network([1]), LwF(), criterion="regression")
    with pytest.raises(SettingsError, match="method lwf is for classes"):
        learner.learn(ec.regression_task(x, x[:, :1], name="line"))


def test_a_term_that_is_not_asked_for_is_not_there() -> None:
    lesson, start, batch = third_task("task")
    assert list(terms(lesson, start, replace(batch, answers=None), start.q)) == ["nll"]
