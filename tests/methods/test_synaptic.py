"""SI against what its paper says of the path integral."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.batches import Batch, Source, steps_of_epoch
from evclplus.core.engine import Problem, State, StepGradient, likelihood_gradient, update
from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork
from evclplus.methods.base import Lesson, Start, Trained
from evclplus.methods.importance import Importance
from tests.helpers import (
    begun,
    blobs,
    first_batch,
    learned_first_task,
    small_network,
)

SI = ec.SynapticIntelligence


def nll(network: BayesianNetwork, q: MeanField, batch: Batch) -> Tensor:
    return batch.nll(network(q, batch.inputs, batch.head))


def trained_by(learner: ec.Learner, lesson: Lesson, start: Start) -> Trained:
    return lesson.fit(
        learner.method, lesson.network, start.q, start.memory, start.sources, purpose="train"
    )


def whole(task: ec.Task) -> Batch:
    (batch,) = next(steps_of_epoch((Source((task.train,)),), 1000, torch.Generator()))
    return batch


@pytest.mark.parametrize("position", [0, 1])
def test_the_path_integral_adds_up_to_the_fall_of_the_loss(position: int) -> None:
    stream = blobs()
    settings = {"epochs": 200, "batch_size": 1000, "learning_rate": 1e-4}
    learner = ec.Learner(small_network(stream.heads), SI(c=0.1), **settings)  # type: ignore[arg-type]
    for task in stream.tasks[:position]:
        learner.learn(task)
    lesson, start = begun(learner, stream[position])
    trained = trained_by(learner, lesson, start)
    batch = whole(stream[position])
    fall = nll(lesson.network, start.q, batch) - nll(lesson.network, trained.q, batch)
    assert fall > 0.02
    torch.testing.assert_close(trained.running["path"].sum(), fall, rtol=0.02, atol=0)


def test_on_a_separable_quadratic_omega_is_half_the_curvature() -> None:
    scales = torch.tensor([0.5, 1.0, 2.0, 3.0])
    x = torch.tensor(hadamard(16)[:, 1:5], dtype=torch.float32) * scales
    y = x @ torch.tensor([1.0, -1.0, 0.7, -0.8])
    module = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(module.weight)
    learner = ec.Learner(
        module,
        SI(xi=1e-6),
        criterion="regression",
        epochs=3000,
        batch_size=16,
        learning_rate=2e-3,
    )
    learner.learn(ec.regression_task(x, y, name="quadratic"))
    curvature = x.square().mean(0)
    torch.testing.assert_close(learner.memory.omega, curvature / 2, rtol=0.02, atol=0)


def test_omega_is_the_equation_and_never_negative() -> None:
    learner, stream = learned_first_task(SI(xi=0.1))
    lesson, start = begun(learner, stream[1])
    q = start.q.clone()
    q.mean.add_(0.2)
    path = torch.linspace(-1, 1, len(q.mean))
    after = learner.method.end(lesson, start, Trained(q, {"path": path}))
    expected = np.maximum(0, learner.memory.omega.numpy() + path.numpy() / (0.2**2 + 0.1))
    np.testing.assert_allclose(after.omega, expected, rtol=1e-4, atol=1e-6)
    assert (after.omega == 0).any()
    assert torch.equal(after.prior.mean, q.mean)


def test_the_regulariser_is_the_equation_and_moves_the_gradient() -> None:
    network = BayesianNetwork(nn.Linear(3, 2), lambda name: True)
    q = network.initial(1.0)
    generator = torch.Generator().manual_seed(0)
    anchor, omega = (torch.rand(len(q.mean), generator=generator) for _ in range(2))
    mean = q.mean.clone().requires_grad_()
    memory = Importance(MeanField(anchor, q.variance, q.layout), omega)
    terms = SI(c=0.3).regulariser(MeanField(mean, q.variance, q.layout), memory, torch.tensor(9.0))
    by_hand = 0.0
    for weight, centre, importance in zip(q.mean, anchor, omega, strict=True):
        by_hand += 0.3 * float(importance) * (float(weight) - float(centre)) ** 2
    assert list(terms) == ["penalty"]
    np.testing.assert_allclose(terms["penalty"].item(), by_hand, rtol=1e-5)
    (gradient,) = torch.autograd.grad(terms["penalty"], mean)
    torch.testing.assert_close(gradient, 0.6 * omega * (q.mean - anchor))


def test_a_large_c_holds_the_weights_that_mattered() -> None:
    def drift(c: float) -> tuple[float, float]:
        learner, stream = learned_first_task(SI(c=c), learning_rate=1e-3)
        before, omega = learner.q.mean, learner.memory.omega
        learner.learn(stream[1])
        change = (learner.q.mean - before).abs()
        new_head = learner.network.layout.named(change)["heads.1.weight"].max().item()
        return change[omega > omega.max() / 10].max().item(), new_head

    free, _ = drift(0.0)
    held, new_head = drift(1e6)
    assert held < 0.3 * free
    assert new_head > 0.005


def test_the_path_follows_the_gradient_of_the_likelihood_alone() -> None:
    learner, stream = learned_first_task(SI(c=1e3))
    lesson, start = begun(learner, stream[1])
    prior = replace(start.memory.prior, mean=start.memory.prior.mean + 0.5)
    memory = Importance(prior, torch.ones_like(start.q.mean))
    problem = Problem(lesson.network, learner.method, memory, torch.tensor(40.0), at_mean=True)
    state = State(start.q, learner.method.trace(start.q))
    batch = first_batch(stream[1])
    mean = start.q.mean.clone().requires_grad_()
    weights = MeanField(mean, start.q.variance, start.q.layout)
    (gradient,) = torch.autograd.grad(nll(lesson.network, weights, batch), mean)
    StepGradient(problem, state, likelihood_gradient)([batch], torch.zeros(1, 4, dtype=torch.int32))
    update(problem, state.vectors, torch.tensor([0.01, 0.01, 1.0]), state.layout)
    step = state.vectors.mean - start.q.mean
    # The penalty decides where every weight goes, but has no part in the path.
    assert (step > 0).all()
    torch.testing.assert_close(
        state.vectors.running["path"], -gradient * step, rtol=1e-3, atol=1e-7
    )


def test_importance_adds_up_over_tasks() -> None:
    learner, stream = learned_first_task(SI(c=0.0))
    first = learner.memory.omega
    lesson, start = begun(learner, stream[1])
    trained = trained_by(learner, lesson, start)
    alone = learner.method.end(
        lesson,
        Start(start.q, Importance(start.memory.prior, 0 * first), start.task, start.sources),
        trained,
    )
    both = learner.method.end(lesson, start, trained)
    grows = trained.running["path"] >= 0
    torch.testing.assert_close(both.omega[grows], (first + alone.omega)[grows])
