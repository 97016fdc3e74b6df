"""A method's options of its Fisher reach the Fisher."""

from typing import Any

import pytest
import torch
from torch import Tensor

import evclplus as ec
from evclplus.core.fisher import diagonal_fisher
from evclplus.core.likelihoods import Regression
from evclplus.methods.calibrated import Calibrated
from evclplus.seeding import generator

METHODS: dict[str, type[Calibrated]] = {"evcl+": ec.EVCLPlus, "evcl": ec.EVCL, "ewc": ec.EWC}


def task(count: int = 60) -> ec.Task:
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 3
    x = torch.randn(count, 4, generator=draws) + torch.eye(3, 4)[y]
    return ec.tasks([(x, y)], scenario="domain")[0]


def learned(name: str, **options: Any) -> tuple[ec.Learner, Tensor]:
    """A learner after one task, and the Fisher that it kept."""
    method = METHODS[name](calibration="none", **options)
    learner = ec.Learner(
        ec.networks.mlp(4, [6]), method, epochs=3, batch_size=20, learning_rate=1e-2, compile="off"
    )
    learner.learn(task())
    fisher: Tensor = learner.memory.fisher
    return learner, fisher


def expected(learner: ec.Learner, **options: Any) -> Tensor:
    """The same, asked for by hand."""
    draws = generator(learner.seed, 0, "fisher")
    return diagonal_fisher(learner.network, learner.q, task().train, draws, **options)


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "temperature": ({"fisher_temperature": 5.0}, {"temperature": 5.0}),
    "examples": ({"fisher_examples": 7}, {"maximum": 7}),
    "labels": ({"fisher_labels": "true"}, {"labels": "true"}),
    "predicted": ({"fisher_labels": "predicted"}, {"labels": "predicted"}),
    "sampled": ({"fisher_labels": "sampled"}, {"labels": "sampled"}),
    "reduction": ({"fisher_reduction": "sum"}, {"reduction": "sum"}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", METHODS)
def test_an_option_is_handed_on(name: str, change: str) -> None:
    options, asked = CHANGES[change]
    learner, fisher = learned(name, **options)
    torch.testing.assert_close(fisher, expected(learner, **asked), rtol=1e-6, atol=0)
    # It makes a difference here, so that losing it would be seen.
    assert (fisher - expected(learner)).norm() > 0.01 * fisher.norm()


def test_without_options_it_is_the_exact_mean() -> None:
    learner, fisher = learned("ewc")
    torch.testing.assert_close(fisher, expected(learner), rtol=1e-6, atol=0)


def test_the_likelihood_is_handed_on() -> None:
    own = ec.regression_task(*numbers(), name="numbers")
    learner = ec.Learner(
        ec.networks.mlp(4, [6]),
        ec.EWC(calibration="none"),
        criterion=Regression(0.3),
        epochs=2,
        compile="off",
    )
    learner.learn(own)
    found: Tensor = learner.memory.fisher
    draws = generator(learner.seed, 0, "fisher")
    wanted = diagonal_fisher(
        learner.network, learner.q, own.train, draws, likelihood=Regression(0.3)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)


def numbers() -> tuple[Tensor, Tensor]:
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1)
