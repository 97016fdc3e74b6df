"""RWalk: Fisher, scores and penalty against loops written from the equations."""

import numpy as np
import pytest
import torch
from torch import Tensor

import evclplus as ec
from evclplus.core.engine import Gradient, Running, Step
from evclplus.core.gaussian import MeanField
from evclplus.methods.base import Trained
from evclplus.methods.rwalk import Walked, normalised, score
from tests.helpers import begun, blobs, learned_first_task, small_network

RWalk = ec.RiemannianWalk


def walk(method: RWalk, gradients: Tensor, steps: Tensor) -> Running:
    """What is followed through these gradients and steps."""
    q = MeanField(torch.zeros(gradients.shape[1]), torch.empty(0), None)  # type: ignore[arg-type]
    running = method.trace(q)
    for gradient, step in zip(gradients, steps, strict=True):
        running = method.follow(running, Gradient(gradient, step[:0]), Step(step, step[:0]))
    return running


def test_fisher_and_scores_follow_the_equations() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients, steps = (torch.randn(13, 6, generator=generator) for _ in range(2))
    running = walk(RWalk(fisher_average=0.8, score_steps=4, xi=0.01), gradients, steps)
    for weight in range(6):
        fisher = scores = fall = way = 0.0
        pairs = zip(gradients[:, weight].tolist(), steps[:, weight].tolist(), strict=True)
        for count, (g, d) in enumerate(pairs, start=1):
            fisher = 0.8 * fisher + 0.2 * g * g
            fall -= g * d
            way += d
            if count % 4 == 0:
                unbiased = fisher / (1 - 0.8**count)
                scores += max(0.0, fall / (0.5 * unbiased * way * way + 0.01))
                fall = way = 0.0
        assert running["fisher"][weight].item() == pytest.approx(fisher, rel=1e-4)
        assert running["score"][weight].item() == pytest.approx(scores, rel=1e-4)
        # What has come since the last time waits for the next.
        assert running["fall"][weight].item() == pytest.approx(fall, rel=1e-4)
        assert running["way"][weight].item() == pytest.approx(way, rel=1e-4)
    assert (running["score"] > 0).any()


def test_the_first_fisher_is_not_too_small() -> None:
    """Gradients that are always the same have their square as Fisher from the first step on."""
    gradients, steps = torch.full((3, 2), 0.5), torch.full((3, 2), -0.1)
    for count in (1, 2, 3):
        running = walk(
            RWalk(fisher_average=0.99, score_steps=1, xi=1e-9), gradients[:count], steps[:count]
        )
        each = 0.5 * 0.1 / (0.5 * 0.25 * 0.01)
        torch.testing.assert_close(
            running["score"], torch.full((2,), count * each), rtol=1e-4, atol=0
        )


def test_a_walk_into_a_quadratics_minimum_scores_one() -> None:
    """From d away the loss F d^2 / 2 falls by all of it, whatever F and d are."""
    fisher, way = torch.tensor([0.1, 2.0, 30.0]), torch.tensor([-3.0, 0.5, 1.0])
    fall = 0.5 * fisher * way.square()
    torch.testing.assert_close(score(fall, fisher, way, 0.0), torch.ones(3))
    assert not score(-fall, fisher, way, 0.0).any()  # who makes it worse has no score
    assert score(torch.tensor(1e-6), torch.tensor(0.0), torch.tensor(0.0), 1e-3) < 0.01


def test_both_parts_are_between_zero_and_one() -> None:
    learner, stream = learned_first_task(RWalk())
    _, start = begun(learner, stream[1])
    memory = start.memory
    for part in (memory.fisher, memory.score):
        assert part.max() > 0
        found = normalised(part)
        assert (found.min().item(), found.max().item()) == (0.0, 1.0)
        torch.testing.assert_close(found, (part - part.min()) / (part.max() - part.min()))
    torch.testing.assert_close(memory.omega, normalised(memory.fisher) + normalised(memory.score))
    # A new head has not learned anything yet.
    new = learner.network.layout.named(learner.q.mean).keys()
    assert "heads.1.weight" in new
    for name, part in start.q.layout.named(memory.omega).items():
        if name.startswith("heads.1"):
            assert not part.any()


def test_a_first_task_is_held_to_nothing() -> None:
    assert not normalised(torch.zeros(4)).any()
    assert not normalised(torch.full((4,), 7.0)).any()
    weights = []
    for method in (RWalk(lam=1e6), ec.FineTune()):
        learner = ec.Learner(small_network(), method, epochs=3, batch_size=20)
        weights.append(learner.learn(blobs()[0]).q.mean)
    torch.testing.assert_close(*weights)


def test_scores_are_averaged_over_tasks_and_the_fisher_runs_on() -> None:
    learner, stream = learned_first_task(RWalk(fisher_average=0.9))
    lesson, start = begun(learner, stream[1])
    generator = torch.Generator().manual_seed(0)
    fisher, new = torch.rand(2, len(start.q.mean), generator=generator)
    running = {"fisher": fisher, "score": new, "steps": torch.tensor(3.0)}
    kept = learner.method.end(lesson, start, Trained(start.q, running))
    np.testing.assert_allclose(kept.score, (start.memory.score + new).numpy() / 2, rtol=1e-6)
    np.testing.assert_allclose(
        kept.fisher, 0.9**3 * start.memory.fisher.numpy() + fisher.numpy(), rtol=1e-5
    )
    assert kept.omega is None
    # The same as one average over the steps of both tasks.
    steps = torch.randn(8, 3, generator=generator)
    first, second, both = (walk(RWalk(), part, part) for part in (steps[:5], steps[5:], steps))
    torch.testing.assert_close(0.9**3 * first["fisher"] + second["fisher"], both["fisher"])


def test_the_regulariser_is_the_equation_and_moves_the_gradient() -> None:
    learner, stream = learned_first_task(RWalk(lam=0.3))
    _, start = begun(learner, stream[1])
    mean = (start.q.mean + 0.1).requires_grad_()
    memory: Walked = start.memory
    terms = learner.method.regulariser(
        MeanField(mean, start.q.variance, start.q.layout), memory, torch.tensor(9.0)
    )
    moved = (mean - memory.prior.mean).detach().numpy()
    assert memory.omega is not None
    expected = 0.3 * (memory.omega.numpy() * moved**2).sum()
    np.testing.assert_allclose(terms["penalty"].item(), expected, rtol=1e-5)
    (gradient,) = torch.autograd.grad(terms["penalty"], mean)
    np.testing.assert_allclose(gradient, 0.6 * memory.omega.numpy() * moved, rtol=1e-4, atol=1e-9)


def test_a_large_lambda_holds_the_weights_that_mattered() -> None:
    def drift(lam: float) -> float:
        learner, stream = learned_first_task(RWalk(lam=lam), learning_rate=1e-3)
        before = learner.q.mean
        omega = normalised(learner.memory.fisher) + normalised(learner.memory.score)
        learner.learn(stream[1])
        change = (learner.q.mean - before).abs()
        return change[omega > 0.2].max().item()

    assert drift(1e5) < 0.3 * drift(0.0)
