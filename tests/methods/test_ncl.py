"""NCL against exact Bayes and a dense inverse."""

import pytest
import torch
from torch import nn

import evclplus as ec
from evclplus.core.engine import Gradient, Here, Step
from evclplus.core.kronecker import Block
from evclplus.methods.ncl import metric_of, natural
from tests.helpers import begun, blobs, learned_first_task
from tests.methods.test_kfac import lines, ridge

NCL = ec.NaturalContinualLearning


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_of_a_linear_gaussian_model_it_ends_at_the_exact_posterior_mean(momentum: float) -> None:
    learner = ec.Learner(
        nn.Linear(3, 2),
        NCL(prior_precision=5.0),
        criterion="regression",
        epochs=1500,
        batch_size=30,
        learning_rate=0.2 * (1 - momentum),
        momentum=momentum,
    )
    for position, (x, y) in enumerate(lines()):
        learner.learn(ec.regression_task(x, y, name=f"task {position}"))
        named = learner.network.layout.named(learner.q.mean)
        found = torch.cat([named["weight"], named["bias"][:, None]], dim=1)
        expected = ridge(lines()[: position + 1], 5.0)
        torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=5e-4)


def test_a_layers_metric_is_the_dense_inverse() -> None:
    generator = torch.Generator().manual_seed(0)
    roots = [torch.randn(size, size, generator=generator).double() for size in (4, 3)]
    block = Block("", roots[0] @ roots[0].T, roots[1] @ roots[1].T)
    change = torch.randn(3, 4, generator=generator).double()
    precision = 0.7 * torch.eye(12) + 2.0 * torch.kron(block.inputs, block.outputs)
    columns = torch.linalg.solve(precision, change.T.flatten())  # vec stacks columns
    found = natural(change, metric_of(block, 0.7, 2.0))
    torch.testing.assert_close(found, 0.7 * columns.view(4, 3).T)


def test_a_step_is_small_where_much_is_known_and_whole_where_nothing_is() -> None:
    learner, stream = learned_first_task(NCL(), learning_rate=0.1)
    lesson, start = begun(learner, stream[1])
    generator = torch.Generator().manual_seed(0)
    step = torch.randn(len(start.q.mean), generator=generator)
    here = Here(start.q, torch.tensor(40.0), Gradient(step, step[:0]))
    moved = learner.method.move(Step(step, step[:0]), start.memory, here).mean
    before, after = (lesson.network.layout.named(one) for one in (step, moved))
    assert torch.equal(before["heads.1.weight"], after["heads.1.weight"])
    assert after["body.1.weight"].norm() < 0.95 * before["body.1.weight"].norm()
    assert moved @ step > 0


def test_the_first_task_is_plain_descent() -> None:
    stream = blobs()
    found = []
    for method in (NCL(prior_precision=1e-9), ec.FineTune()):
        learner = ec.Learner(
            ec.networks.mlp(4, [8], heads=stream.heads), method, epochs=5, optimiser="sgd"
        )
        found.append(learner.learn(stream[0]).q.mean)
    torch.testing.assert_close(*found)


def test_weights_without_blocks_are_moved_by_their_diagonal() -> None:
    body = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU())
    stream = blobs()
    learner = ec.Learner(ec.MultiHead(body), NCL(prior_precision=2.0, lam=3.0), epochs=5)
    learner.learn(stream[0])
    lesson, start = begun(learner, stream[1])
    step = torch.ones(len(start.q.mean))
    here = Here(start.q, torch.tensor(40.0), Gradient(step, step[:0]))
    moved = learner.method.move(Step(step, step[:0]), start.memory, here).mean
    name = "body.1.weight"
    diagonal = lesson.network.layout.named(start.memory.diagonal)[name]
    assert (diagonal > 0).any()
    torch.testing.assert_close(lesson.network.layout.named(moved)[name], 2 / (2 + 3 * diagonal))


def test_the_metric_is_there_while_a_task_is_learned_and_not_kept() -> None:
    learner, stream = learned_first_task(NCL(), learning_rate=0.1)
    assert learner.memory.metrics == ()
    assert len(begun(learner, stream[1])[1].memory.metrics) == 1


def test_adam_is_refused_in_one_line() -> None:
    with pytest.raises(
        ec.EvclplusError, match="ncl does not work with optimiser = 'adam'"
    ) as found:
        ec.Learner(nn.Linear(3, 2), NCL(), optimiser="adam")
    assert "\n" not in str(found.value)
