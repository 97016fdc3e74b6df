"""Sets of classes with a promise, and errors of regression, asked of a learner."""

import pytest
import torch

import evclplus as ec
from evclplus.core.uncertainty import conformal_threshold
from evclplus.errors import DataError, SettingsError, StateError


def noisy(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes that overlap."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    return y[:, None] + 0.8 * torch.randn(count, 4, generator=generator), y + 5


def learned() -> tuple[ec.Learner, ec.Stream]:
    splits = [(noisy(90, seed), noisy(2000, seed + 10), noisy(60, seed + 20)) for seed in (0, 1)]
    stream = ec.tasks(
        [train for train, _, _ in splits],
        test=[test for _, test, _ in splits],
        validation=[validation for _, _, validation in splits],
    )
    learner = ec.Learner(ec.networks.mlp(4, [8]), "ewc", epochs=20, batch_size=30)
    return learner.learn(stream[0]), stream


def test_sets_are_those_above_the_threshold_of_the_validation_data() -> None:
    learner, stream = learned()
    task = stream[0]
    found = learner.conformal(task, coverage=0.8)
    own = learner.predict_proba(task.validation.inputs(), task)
    assert found.threshold == conformal_threshold(own, task.validation.labels, 0.8)
    assert found.examples == 60
    x = task.test.inputs()[:50]
    inside = learner.predict_proba(x, task) >= found.threshold
    assert torch.equal(found.sets(x), inside)
    labels = [tuple(5 + c for c in range(3) if row[c]) for row in inside]
    assert found.labels(x) == labels
    # 60 examples promise 0.8 on average; of one calibration the spread is that of Beta(49, 12).
    assert 0.64 < found.covered() < 0.94


def test_what_was_calibrated_before_another_task_is_refused() -> None:
    learner, stream = learned()
    found = learner.conformal(stream[0])
    learner.learn(stream[1])
    with pytest.raises(StateError, match="calibrated after 1 tasks and 2 are learned"):
        found.sets(stream[0].test.inputs())
    assert learner.conformal(stream[0]).covered() > 0.7


def test_bad_calibration_is_one_clear_line() -> None:
    learner, stream = learned()
    with pytest.raises(SettingsError, match="coverage = 90 is wrong: a number between 0 and 1"):
        learner.conformal(stream[0], coverage=90)
    with pytest.raises(SettingsError, match="on = 'tests' is wrong"):
        learner.conformal(stream[0], on="tests")  # type: ignore[arg-type]
    with pytest.raises(StateError, match="not learned yet"):
        learner.conformal(stream[1])
    x, y = noisy(30, 0)
    bare = ec.task(x, y - 5, name="bare", outputs=3)
    other = ec.Learner(ec.networks.mlp(4, [8]), "ewc", epochs=1).learn(bare)
    with pytest.raises(DataError, match="no examples to be tested on"):
        other.conformal(bare)


def test_regression_is_evaluated_by_its_errors() -> None:
    x, y = noisy(60, 0)
    task = ec.regression_task(
        x, y.float()[:, None], name="one", test=(x[:20], y.float()[:20, None])
    )
    learner = ec.Learner(
        ec.networks.mlp(4, [8]), criterion=ec.Regression(0.5), epochs=5, batch_size=20
    ).learn(task)
    found = learner.evaluate_regression(task)
    error = (learner.predict(x[:20]) - y[:20, None]).square().mean().sqrt().item()
    assert found.scores[0].root_mean_squared_error == pytest.approx(error, rel=1e-5)
    assert found.average_error == found.scores[0].root_mean_squared_error
    assert str(found).startswith("RMSE one ")
    with pytest.raises(StateError, match="criterion='regression'"):
        learned()[0].evaluate_regression(task)
