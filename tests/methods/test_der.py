"""DER++: its three terms by hand, and the methods that it is in its limits."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import evclplus as ec
from evclplus.core.batches import Batch, steps_of_epoch
from evclplus.core.engine import Problem, State, StepGradient, likelihood_gradient
from evclplus.methods.base import Lesson, Start
from tests.helpers import begun, blobs, moved, small_network

DER = ec.DarkExperienceReplay
ER = ec.ExperienceReplay


def second_task(
    method: ec.Method, scenario: str = "task"
) -> tuple[ec.Learner, Lesson, Start, list[Batch]]:
    stream = blobs(3, scenario=scenario)
    learner = ec.Learner(small_network(), method, epochs=5, batch_size=20, learning_rate=1e-2)
    learner.learn(stream[0]).learn(stream[1])
    lesson, start = begun(learner, stream[2])
    batches = next(steps_of_epoch(start.sources, 20, torch.Generator().manual_seed(0)))
    return learner, lesson, start, batches


def gradient(method: ec.Method, lesson: Lesson, start: Start, batches: list[Batch]) -> Tensor:
    """Of a step, by the engine, away from where the task starts."""
    q = moved(start.q).clone()
    state = State(q, {})
    problem = Problem(lesson.network, method, start.memory, torch.tensor(1.0), at_mean=True)
    seeds = torch.zeros(len(batches), 4, dtype=torch.int32)
    StepGradient(problem, state, likelihood_gradient)(batches, seeds)
    return state.vectors.gradient.mean.clone()


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 1.0), (1.5, 0.0), (0.0, 0.7)])
def test_a_step_goes_down_the_equation(scenario: str, alpha: float, beta: float) -> None:
    method = DER(alpha=alpha, beta=beta, buffer_size=30, replay_batch=16)
    _, lesson, start, batches = second_task(method, scenario)
    dark = [batch for batch in batches[1:] if batch.answers is not None]
    labelled = [batch for batch in batches[1:] if batch.answers is None]
    assert sum(len(batch.y) for batch in dark) == (16 if alpha else 0)
    assert sum(len(batch.y) for batch in labelled) == (16 if beta else 0)
    q = moved(start.q)
    network, own = lesson.network, batches[0]
    total = F.cross_entropy(network(q, own.inputs, own.head)[:, : own.outputs], own.y)
    for batch in dark:
        z = network(q, batch.inputs, batch.head)
        assert batch.answers is not None
        for row, stored in zip(z, batch.answers, strict=True):
            width = 6 if scenario == "class" else 2
            squares = sum((row[index] - stored[index]) ** 2 for index in range(width))
            total = total + alpha / 16 * squares / width
    for batch in labelled:
        logits = network(q, batch.inputs, batch.head)[:, : batch.outputs]
        assert batch.outputs == (6 if scenario == "class" else 2)
        total = total + beta / 16 * F.cross_entropy(logits, batch.y, reduction="sum")
    (expected,) = torch.autograd.grad(total, q.mean)
    found = gradient(method, lesson, start, batches)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [None, 5, 60])
def test_without_alpha_a_step_is_that_of_er(size: int | None) -> None:
    """ER's is the mean over both batches: the same direction, (1 + beta) times shorter."""
    er = ER(buffer_size=30, replay_batch=size)
    _, lesson, start, plain = second_task(er)
    beta = (len(plain[0].y) if size is None else size) / len(plain[0].y)
    method = DER(alpha=0.0, beta=beta, buffer_size=30, replay_batch=size)
    _, _, _, batches = second_task(method)  # the same draws
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(plain, batches, strict=True))
    found = gradient(method, lesson, start, batches)
    expected = (1 + beta) * gradient(er, lesson, start, plain)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_without_beta_labels_are_of_no_use() -> None:
    method = ec.method("der", buffer_size=30)
    assert method == DER(beta=0.0, buffer_size=30)
    _, _, start, batches = second_task(method)
    assert [source.weight for source in start.sources] == [1.0, method.alpha]
    assert all(batch.answers is not None for batch in batches[1:])


def test_logits_are_those_of_the_tasks_solution_and_stay() -> None:
    stream = blobs(3, scenario="class")
    learner = ec.Learner(small_network(), DER(buffer_size=40), epochs=5, batch_size=20)
    learner.learn(stream[0])
    (first,) = learner.memory.stored
    expected = learner.network(learner.q, first.inputs(), 0).detach()
    assert torch.equal(first.answers, expected)
    rows = {tuple(x.tolist()): z for x, z in zip(first.inputs(), first.answers, strict=True)}
    learner.learn(stream[1]).learn(stream[2])
    widths = [one.answers.shape[1] for one in learner.memory.stored]
    assert widths == [2, 4, 6]  # the outputs that there were
    old = learner.memory.stored[0]
    assert all(
        torch.equal(rows[tuple(x.tolist())], z)
        for x, z in zip(old.inputs(), old.answers, strict=True)
    )


def test_outputs_that_came_later_are_held_to_the_least_logit() -> None:
    learner, _, start, _ = second_task(DER(buffer_size=40), "class")
    for old, held in zip(learner.memory.stored, start.sources[1].examples, strict=True):
        before, now = old.answers, held.answers
        assert before is not None
        assert now is not None
        assert now.shape[1] == 6
        width = before.shape[1]
        assert torch.equal(now[:, :width], before)
        for row, later in zip(before.tolist(), now[:, width:].tolist(), strict=True):
            assert later == [min(row)] * (6 - width)


def test_without_labels_old_classes_are_not_lost_to_new_ones() -> None:
    stream = ec.benchmark("split-digits", scenario="class", tasks=3)

    def accuracy(name: str) -> float:
        learner = ec.Learner(
            ec.networks.mlp(64, [32]), name, epochs=20, batch_size=32, learning_rate=3e-3
        )
        for task in stream:
            learner.learn(task)
        return learner.evaluate(stream).average_accuracy

    assert accuracy("der") > accuracy("finetune") + 0.3


def test_on_the_first_task_it_is_fine_tuning() -> None:
    found = [
        ec.Learner(small_network(), name, epochs=3, batch_size=20).learn(blobs()[0]).q.mean
        for name in ("der++", "der", "finetune")
    ]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[2])


def test_outputs_without_classes_have_stored_answers_too() -> None:
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    learner = ec.Learner(
        small_network([1]), DER(buffer_size=20), criterion="regression", epochs=2, batch_size=10
    )
    learner.learn(ec.regression_task(x, x[:, :1], name="first"))
    learner.learn(ec.regression_task(x, -x[:, :1], name="second"))
    assert [one.answers.shape[1] for one in learner.memory.stored] == [1, 1]
