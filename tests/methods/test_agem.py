"""A-GEM: no step goes against the gradient of stored examples."""

import pytest
import torch

import evclplus as ec
from evclplus.core.batches import steps_of_epoch
from evclplus.core.engine import Problem, State, StepGradient, likelihood_gradient, update
from evclplus.methods.agem import AGEM, not_against, of_each_class
from evclplus.settings import Optimiser
from tests.helpers import begun, blobs, learned_first_task


def test_a_step_that_goes_up_loses_exactly_its_part_along_the_gradient() -> None:
    gradient = torch.tensor([3.0, 4.0])
    up, down = torch.tensor([2.0, 1.0]), torch.tensor([-2.0, 1.0])
    # (2, 1).(3, 4) = 10, and 10 / 25 of the gradient is (1.2, 1.6).
    torch.testing.assert_close(not_against(up, gradient), torch.tensor([0.8, -0.6]))
    assert torch.equal(not_against(down, gradient), down)
    assert torch.equal(not_against(up, torch.zeros(2)), up)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_is_the_nearest_step_that_does_not_go_up(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    step, gradient = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    found = not_against(step, gradient)
    assert found @ gradient <= 1e-12
    others = torch.randn(500, 7, generator=generator, dtype=torch.float64)
    allowed = others[others @ gradient <= 0]
    assert ((allowed - step).norm(dim=1) >= (found - step).norm()).all()


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_no_step_of_training_goes_up_and_some_would_have(optimiser: Optimiser) -> None:
    stream = blobs(tasks=2, scenario="domain")
    x = stream[1].train
    flipped = ec.tasks(
        [
            (stream[0].train.inputs(), stream[0].train.labels),
            (x.inputs(), 1 - x.labels),  # what was learned must be unlearned
        ],
        scenario="domain",
    )
    method = AGEM(reference_batch=200, buffer_size=30)
    learner = ec.Learner(
        ec.networks.mlp(4, [8]),
        method,
        epochs=10,
        batch_size=20,
        optimiser=optimiser,
        compile="off",
    ).learn(flipped[0])
    lesson, start = begun(learner, flipped[1])
    assert [source.apart for source in start.sources] == [False, True]
    sources = tuple(source.ready(torch.device("cpu")) for source in start.sources)
    problem = Problem(
        lesson.network, method, start.memory, torch.tensor(1.0), at_mean=True, optimiser=optimiser
    )
    state = State(start.q, {}, apart=True)
    gradient = StepGradient(problem, state, likelihood_gradient)
    rates = {"sgd": (0.1, 0.1, 0.0), "adam": (0.003, 0.003, 1.0)}
    projected = 0
    for epoch in range(3):
        for batches in steps_of_epoch(sources, 20, torch.Generator().manual_seed(epoch)):
            gradient(batches, torch.zeros(len(batches), 4, dtype=torch.int32))
            before = state.vectors.mean.clone()
            update(problem, state.vectors, torch.tensor(rates[optimiser]), start.q.layout)
            assert state.vectors.reference is not None
            step, reference = state.vectors.mean - before, state.vectors.reference.mean
            cosine = step @ reference / (step.norm() * reference.norm())
            assert cosine <= 1e-4
            projected += int(cosine.abs() <= 1e-4)
    assert projected > 0


def test_without_stored_examples_it_is_plain_training() -> None:
    stream = blobs()
    learners = [
        ec.Learner(ec.networks.mlp(4, [8]), method, epochs=3, optimiser="sgd").learn(stream[0])
        for method in (AGEM(), ec.FineTune())
    ]
    assert torch.equal(learners[0].q.mean, learners[1].q.mean)


def test_it_keeps_old_tasks_better_than_plain_steps() -> None:
    stream = blobs(tasks=3, scenario="domain", count=200)
    found = []
    for method in (AGEM(), ec.FineTune()):
        learner = ec.Learner(ec.networks.mlp(4, [8]), method, epochs=20, optimiser="sgd")
        for task in stream:
            learner.learn(task)
        found.append(learner.score(stream[0].test, "first").negative_log_likelihood)
    assert found[0] < found[1]


def test_so_many_of_each_class_of_each_task() -> None:
    labels = torch.tensor([0, 1, 1, 1, 2, 0, 1])
    index = of_each_class(labels, 2, torch.Generator().manual_seed(0))
    assert labels[index].bincount().tolist() == [2, 2, 1]
    assert len(set(index.tolist())) == len(index)
    learner, stream = learned_first_task(AGEM(per_class=3), learning_rate=0.1)
    learner.learn(stream[1])
    stored = learner.memory.stored
    assert [one.labels.bincount().tolist() for one in stored] == [[3, 3], [3, 3]]
    assert [one.head for one in stored] == [0, 1]
