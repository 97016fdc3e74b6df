"""Predictions for inputs of which nobody says what task they belong to."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.typicality import Moments
from evclplus.errors import FileError, SettingsError, StateError
from evclplus.recognition import first_features, surest, typical_of

TRAINING: dict[str, Any] = {"epochs": 6, "batch_size": 25, "learning_rate": 1e-2}


def clouds(task: int, count: int = 150, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two classes in a corner of their own."""
    generator = torch.Generator().manual_seed(seed + 100 * task)
    y = torch.arange(count) % 2
    x = 0.3 * torch.randn(count, 4, generator=generator)
    x[:, task] += 3.0
    x[:, 3] += 2.0 * y - 1
    return x, 10 * (task + 1) + y


def learned(recognise: str = "features", tasks: int = 3, **options: Any) -> ec.Learner:
    stream = ec.tasks([clouds(task) for task in range(tasks)])
    settings = TRAINING | {"method": "ewc"} | options
    learner = ec.Learner(ec.networks.mlp(4, [8]), recognise=recognise, **settings)  # type: ignore[arg-type]
    for task in stream:
        learner.learn(task)
    return learner


def test_the_surest_head_is_that_with_the_least_entropy_for_its_outputs() -> None:
    entropies = torch.tensor([[0.3, 0.4], [0.3, 0.7], [0.0, 0.0]])
    assert surest(entropies, [2, 2]).tolist() == [0, 0, 0]
    # 0.4 of log 8 is surer than 0.3 of log 2.
    assert surest(entropies, [2, 8]).tolist() == [1, 1, 0]


@pytest.mark.parametrize("recognise", ["entropy", "features"])
def test_a_chosen_head_answers_as_if_it_had_been_asked(recognise: str) -> None:
    learner = learned(recognise, method="evcl+", epochs=3)
    x = torch.cat([clouds(task, seed=7)[0] for task in range(3)])
    found, tasks = learner.predict_proba(x), learner.which_task(x)
    classes = learner.classes()
    assert classes == (10, 11, 20, 21, 30, 31)
    uncertainty = learner.uncertainty(x)
    for task in range(3):
        rows = tasks == task
        own = slice(2 * task, 2 * task + 2)
        torch.testing.assert_close(found[rows][:, own], learner.predict_proba(x, task)[rows])
        torch.testing.assert_close(uncertainty.data[rows], learner.uncertainty(x, task).data[rows])
    torch.testing.assert_close(found.sum(1), torch.ones(len(x)))
    assert (found > 0).sum(1).le(2).all()
    assert torch.equal(learner.predict(x), torch.tensor(classes)[found.argmax(1)])
    if recognise == "entropy":
        shares = torch.stack([learner.uncertainty(x, task).total for task in range(3)], 1)
        assert torch.equal(tasks, shares.argmin(1))


def test_features_tell_tasks_apart_and_evaluation_says_how_often() -> None:
    learner = learned()
    stream = ec.tasks([clouds(task) for task in range(3)])
    told = learner.evaluate(stream)
    untold = learner.evaluate(stream, tell_task=False)
    assert told.recognised == ()
    assert untold.average_recognised > 0.95
    assert untold.average_accuracy == pytest.approx(
        told.average_accuracy, abs=1.0 - untold.average_recognised + 1e-9
    )
    assert "the right head chosen for" in str(untold)
    # By hand: an answer is right if both head and class are.
    examples = stream[1].test
    right = learner.predict(examples.inputs()) == torch.tensor(stream[1].classes)[examples.labels]
    assert untold.scores[1].accuracy == pytest.approx(right.double().mean().item())
    chosen = learner.which_task(examples.inputs()) == 1
    assert untold.recognised[1] == pytest.approx(chosen.double().mean().item())


def test_one_head_needs_no_choice() -> None:
    stream = ec.tasks([(clouds(0)[0], clouds(0)[1] - 10)] * 2, scenario="domain")
    learner = ec.Learner(ec.networks.mlp(4, [8]), "ewc", **TRAINING)
    for task in stream:
        learner.learn(task)
    untold = learner.evaluate(stream, tell_task=False)
    assert untold == learner.evaluate(stream)


def test_statistics_are_of_features_that_later_tasks_do_not_change() -> None:
    learner = learned(tasks=1)
    x = clouds(0)[0]
    before = torch.cat(list(first_features(learner.network, x)))
    kept = learner.typical[0]
    learner.learn(ec.tasks([clouds(task) for task in range(2)])[1])
    assert torch.equal(torch.cat(list(first_features(learner.network, x))), before)
    assert learner.typical[0] is kept
    body = ec.networks.mlp(4, [8]).body
    torch.testing.assert_close(before, body(x).double().detach())


def test_level_and_deviation_are_by_statistics_of_other_examples() -> None:
    learner = learned(tasks=1)
    x, y = clouds(0, count=100)
    examples = ec.task(x, y - 10, name="one", outputs=2).train
    found = typical_of(learner.network, examples)
    features = torch.cat(list(first_features(learner.network, x)))
    density = []
    for fold in range(5):
        back = torch.arange(100) % 5 == fold
        others = Moments(2, 8)
        others.add(features[~back], y[~back] - 10)
        density.append(others.typical().log_density(features[back]))
    assert found.level == pytest.approx(torch.cat(density).mean().item())
    assert found.deviation == pytest.approx(torch.cat(density).std(correction=0).item())
    counted = Moments(2, 8)
    counted.add(features, y - 10)
    torch.testing.assert_close(found.covariance, counted.typical().covariance)


def test_a_known_task_is_known_again_and_a_new_one_is_new() -> None:
    learner = learned(tasks=2)
    for task in range(2):
        assert learner.known_task(clouds(task, seed=5)[0]) == task
    assert learner.known_task(clouds(2, seed=5)[0]) is None
    assert learner.known_task(clouds(2, seed=5)[0], surprise=1e9) is not None


def test_data_without_borders_find_their_head() -> None:
    """What the docs show: a batch of a known task goes to its head, another gets a new one."""
    learner = ec.Learner(ec.networks.mlp(4, [8]), "ewc", recognise="features", **TRAINING)
    heads: list[int] = []
    for day, task in enumerate([0, 0, 1, 0, 1]):
        x, y = clouds(task, seed=day)
        known = learner.known_task(x)
        head = len(set(heads)) if known is None else learner.learned[known].head
        heads.append(head)
        learner.learn(ec.task(x, y % 10, name=f"day {day}", outputs=2, head=head))
    assert heads == [0, 0, 1, 0, 1]


def test_statistics_are_saved(tmp_path: Path) -> None:
    learner = learned()
    x = torch.cat([clouds(task, seed=3)[0] for task in range(3)])
    again = ec.Learner.load(learner.save(tmp_path / "model"))
    assert again.recognise == "features"
    assert torch.equal(again.predict_proba(x), learner.predict_proba(x))
    assert again.known_task(x[:150]) == learner.known_task(x[:150]) == 0


def test_damaged_statistics_are_refused(tmp_path: Path) -> None:
    learner = learned(tasks=1)
    learner.typical[0].covariance.neg_()
    with pytest.raises(FileError, match="statistics of task 1 are damaged"):
        ec.Learner.load(learner.save(tmp_path / "model"))
    learner.typical = ()
    with pytest.raises(FileError, match="not those of the saved tasks"):
        ec.Learner.load(learner.save(tmp_path / "other"))


def test_regression_chooses_by_features_only() -> None:
    def tuesday(task: int) -> ec.Task:
        x, y = clouds(task)
        return ec.regression_task(x, y.float()[:, None], name=f"task {task}", head=task)

    for recognise in ("entropy", "features"):
        learner = ec.Learner(
            ec.networks.mlp(4, [8]),
            "ewc",
            criterion="regression",
            recognise=recognise,
            **TRAINING,
        )
        for task in range(2):
            learner.learn(tuesday(task))
        x = torch.cat([clouds(task, seed=3)[0] for task in range(2)])
        if recognise == "entropy":
            with pytest.raises(StateError, match="say which"):
                learner.predict(x)
        else:
            tasks = learner.which_task(x)
            both = torch.stack([learner.predict(x, task) for task in range(2)])
            expected = both[tasks, torch.arange(len(x))]
            torch.testing.assert_close(learner.predict(x), expected)


@pytest.mark.parametrize("method", ["progressive", "hat", "gvcl-film", "evcl+", "generative"])
def test_methods_that_make_another_network_of_it(method: str) -> None:
    learner = learned(method=method, epochs=1)
    x = torch.cat([clouds(task, seed=3)[0] for task in range(3)])
    assert (learner.which_task(x) == torch.arange(3).repeat_interleave(150)).double().mean() > 0.9


def test_what_cannot_be_is_one_clear_line() -> None:
    with pytest.raises(SettingsError, match="recognise = 'luck' is wrong: one of"):
        ec.Learner(ec.networks.mlp(4, [8]), recognise="luck")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="needs a network with heads"):
        ec.Learner(nn.Linear(4, 2), recognise="features")
    learner = learned("entropy", tasks=1)
    with pytest.raises(StateError, match="statistics of its inputs have to be kept"):
        learner.known_task(torch.zeros(1, 4))
