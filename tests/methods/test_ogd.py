"""OGD: |J move| = 0 for the answers that are stored, and a basis that says what it takes."""

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.engine import Gradient, Here, Step
from evclplus.core.gaussian import MeanField
from evclplus.methods.ogd import answer_gradients, extended, orthogonal
from evclplus.seeding import generator
from tests.helpers import begun, blobs, learned_first_task, small_network

OGD = ec.OrthogonalGradientDescent


def stored(learner: ec.Learner, position: int, task: ec.Task) -> ec.Examples:
    """The examples of a task that the basis was made with."""
    draws = generator(learner.seed, position, "directions")
    return task.train.take(torch.randperm(len(task.train), generator=draws)[:10])


def answers(learner: ec.Learner, mean: Tensor, examples: ec.Examples) -> Tensor:
    """What a network says of the right classes, as a function of its weights."""
    q = MeanField(mean, mean[:0], learner.network.layout)
    outputs = learner.network(q, examples.inputs(), examples.head)
    return outputs.gather(1, examples.labels[:, None])[:, 0]


@pytest.mark.parametrize("scenario", ["task", "domain"])
def test_a_step_of_any_kind_leaves_the_stored_answers_alone(scenario: str) -> None:
    """J of the answers by autograd, at the weights that each task ended with."""
    stream = blobs(tasks=3, scenario=scenario)
    learner = ec.Learner(small_network(stream.heads), OGD(directions=10), epochs=3, batch_size=20)
    rows = []
    for position in range(2):
        learner.learn(stream[position])
        examples = stored(learner, position, stream[position])
        mean = learner.q.mean.clone().requires_grad_()
        for answer in answers(learner, mean, examples):
            rows.append(torch.autograd.grad(answer, mean, retain_graph=True)[0])
    jacobian = torch.stack(rows)
    _, start = begun(learner, stream[2])
    step = torch.randn(len(start.q.mean), generator=torch.Generator().manual_seed(0))
    here = Here(start.q, torch.tensor(40.0), Gradient(step, step[:0]))
    moved = learner.method.move(Step(step, step[:0]), start.memory, here).mean
    assert moved.norm() > 0.1 * step.norm()
    assert (jacobian @ moved).norm() < 1e-4 * (jacobian @ step).norm()


def test_answers_change_in_second_order_only() -> None:
    learner, stream = learned_first_task(OGD(directions=10))
    examples, before = stored(learner, 0, stream[0]), learner.q.mean
    step = torch.randn(len(before), generator=torch.Generator().manual_seed(0))
    step = orthogonal(step, learner.memory.basis)
    first = answers(learner, before, examples)
    changes = [
        (answers(learner, before + size * step, examples) - first).norm() for size in (1e-2, 1e-3)
    ]
    assert changes[1] < changes[0] / 30


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_whole_task_is_orthogonal_to_the_basis(optimiser: str) -> None:
    learner, stream = learned_first_task(OGD(directions=10), optimiser=optimiser)
    before, basis = learner.q.mean.clone(), learner.memory.basis
    learner.learn(stream[1])
    change = learner.q.mean - before
    assert change.norm() > 0.01
    assert (basis @ change).norm() < 1e-4 * change.norm()


def test_gradients_are_those_of_autograd() -> None:
    learner, stream = learned_first_task(OGD())
    examples = stream[0].train.take(torch.arange(5))
    mean = learner.q.mean.clone().requires_grad_()
    expected = [
        torch.autograd.grad(answer, mean, retain_graph=True)[0]
        for answer in answers(learner, mean, examples)
    ]
    found = answer_gradients(learner.network, learner.q, examples)
    torch.testing.assert_close(found, torch.stack(expected))


def test_outputs_that_are_no_classes_have_a_row_each() -> None:
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    module = nn.Linear(3, 2)
    learner = ec.Learner(module, OGD(directions=2), criterion="regression", epochs=2)
    learner.learn(ec.regression_task(x, y, name="first"))
    assert learner.memory.basis.shape == (4, 8)
    before, rows = (
        learner.predict(x),
        torch.randperm(20, generator=generator(0, 0, "directions"))[:2],
    )
    learner.learn(ec.regression_task(x, -y, name="second"))
    torch.testing.assert_close(learner.predict(x)[rows], before[rows])  # a linear model: exactly
    assert (learner.predict(x) - before).abs().max() > 1e-3


def test_a_basis_is_orthonormal_and_has_no_direction_twice() -> None:
    vectors = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
    basis = extended(torch.zeros(0, 20), vectors[:3])
    basis = extended(basis, torch.cat([vectors[:4], 1e3 * vectors[1:2]]))
    assert basis.shape == (4, 20)
    torch.testing.assert_close(basis @ basis.T, torch.eye(4), rtol=0, atol=1e-5)
    left = orthogonal(vectors, basis).norm(dim=1)
    assert (left[:4] < 1e-4).all()
    assert (left[4:] > 1).all()


def test_it_says_what_it_takes_before_it_takes_it(caplog: pytest.LogCaptureFixture) -> None:
    stream = blobs()
    learner = ec.Learner(small_network(stream.heads), OGD(directions=10), epochs=1, batch_size=20)
    total, expected = learner.network.layout.total, []
    with caplog.at_level(logging.INFO, logger="evclplus"):
        for task in stream:
            rows = len(learner.memory.basis) + 10
            expected.append(
                f"ogd: {rows} directions of {total} weights take {rows * total * 4 / 1e6:.1f} MB"
            )
            learner.learn(task)
    assert [record.getMessage() for record in caplog.records] == expected
    assert len(learner.memory.basis) <= rows


def test_it_refuses_in_one_line_and_leaves_the_learner_as_it_was() -> None:
    stream = blobs(tasks=3)

    def learned(method: ec.Method) -> ec.Learner:
        learner = ec.Learner(small_network(stream.heads), method, epochs=1, batch_size=20)
        return learner.learn(stream[0]).learn(stream[1])

    free = learned(OGD(directions=10))
    rows, total = len(free.memory.basis) + 10, free.network.layout.total
    exactly = 4 * rows * total / 1e6
    learned(OGD(directions=10, limit_mb=exactly)).learn(stream[2])
    refusing = learned(OGD(directions=10, limit_mb=0.999 * exactly))
    with pytest.raises(
        ec.EvclplusError, match=f"{rows} directions of {total} .* limit_mb"
    ) as found:
        refusing.learn(stream[2])
    assert "\n" not in str(found.value)
    assert len(refusing.learned) == 2
    assert torch.equal(refusing.memory.basis, free.memory.basis)


def test_a_basis_is_saved_and_grows_with_a_new_head(tmp_path: Path) -> None:
    stream = blobs(tasks=3)
    learner = ec.Learner(small_network(), OGD(directions=10), epochs=2, batch_size=20)
    learner.learn(stream[0]).learn(stream[1])
    again, old = ec.Learner.load(learner.save(tmp_path)), len(learner.memory.basis)
    for one in (learner, again):
        one.learn(stream[2])
    assert torch.equal(learner.memory.basis, again.memory.basis)
    named = learner.network.layout.named(learner.memory.basis)
    assert not named["heads.2.weight"][:old].any()
    assert named["heads.2.weight"][old:].any()
