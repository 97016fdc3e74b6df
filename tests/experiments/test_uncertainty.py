"""The figures of a record that say how sure a learner's answers are, and how rightly."""

from typing import Any

import pytest
import torch

import evclplus as ec
from evclplus.core import uncertainty as measures
from evclplus.core.metrics import entropy
from evclplus.experiments.uncertainty import figures, shuffled
from tests.helpers import blobs, small_network


def learned(stream: ec.Stream, method: str = "ewc", **settings: Any) -> ec.Learner:
    learner = ec.Learner(small_network(), method, epochs=10, batch_size=20, **settings)
    for task in stream:
        learner.learn(task)
    return learner


def test_figures_are_those_of_the_heads_asked_one_by_one() -> None:
    stream = blobs(tasks=3)
    learner = learned(stream)
    found = figures(learner, stream, "test")
    tests = [task.test for task in stream]
    p = [[learner.predict_proba(one.inputs(), head) for head in range(3)] for one in tests]
    own = [p[task][task] for task in range(3)]
    right = torch.cat([own[t].argmax(1) == tests[t].labels for t in range(3)])
    risk = measures.selective_risk(torch.cat([one.max(1).values for one in own]), right)
    assert found.inputs == sum(map(len, tests))
    assert found.area_under_risk == pytest.approx(risk.mean().item())
    assert found.risk[-1] == pytest.approx(1 - right.double().mean().item())
    assert sum(found.bin_counts) == found.inputs
    # The head with the least entropy answers; an answer of another head may be right by chance.
    chosen = [torch.stack([entropy(one) for one in row], 1).argmin(1) for row in p]
    share = sum((chosen[t] == t).double().mean().item() for t in range(3)) / 3
    assert found.heads_right == pytest.approx(share)
    untold = learner.evaluate(stream, tell_task=False)
    assert found.heads_right == pytest.approx(untold.average_recognised)
    assert found.accuracy_untold == pytest.approx(untold.average_accuracy)
    foreign = [
        measures.auroc(entropy(p[h][h]), torch.cat([entropy(p[t][h]) for t in range(3) if t != h]))
        for h in range(3)
    ]
    assert found.foreign_auroc == pytest.approx(sum(foreign) / 3)
    covered = [learner.conformal(task, 0.9).covered() for task in stream]
    assert found.conformal_coverage == pytest.approx(sum(covered) / 3)
    assert found.conformal_size is not None
    assert 0.5 <= found.conformal_size <= 2


def test_one_head_has_no_foreign_tasks_and_validation_data_calibrate_once() -> None:
    stream = blobs(scenario="domain")
    found = figures(learned(stream), stream, "validation")
    assert found.foreign_auroc is None
    assert found.heads_right is None
    assert found.conformal_coverage is None
    assert 0 <= found.noise_auroc <= 1


def test_noise_keeps_every_place_s_values() -> None:
    x = torch.arange(24.0).view(4, 2, 3)
    noise = shuffled(x, seed=0)
    assert noise.shape == x.shape
    assert not torch.equal(noise, x)
    assert torch.equal(noise.sort(0).values, x)
    assert torch.equal(noise, shuffled(x, seed=0))
    assert shuffled(x.long(), seed=0).dtype == torch.int64
