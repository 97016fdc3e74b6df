"""Methods whose strength a task sets: the importances they keep are those of before, scaled."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import evclplus as ec
from evclplus.core.calibration import rise_of_loss, secant_strength
from evclplus.core.likelihoods import Classification
from evclplus.methods.calibrated import Calibrated
from tests.helpers import blobs, learned_first_task, small_network

KINDS: dict[str, type[Calibrated]] = {
    "evcl+": ec.EVCLPlus,
    "evcl": ec.EVCL,
    "ewc": ec.EWC,
    "si": ec.SynapticIntelligence,
}
FISHER = [name for name in KINDS if name != "si"]


def importance(learner: ec.Learner) -> Tensor:
    memory = learner.memory
    found: Tensor = memory.omega if hasattr(memory, "omega") else memory.fisher
    return found


def pair(name: str, **options: Any) -> tuple[ec.Learner, ec.Learner, ec.Stream]:
    """The same first task, learned with and without calibration."""
    secant, stream = learned_first_task(KINDS[name](calibration="secant", **options))
    none, _ = learned_first_task(KINDS[name](calibration="none", **options))
    return secant, none, stream


def strength(learner: ec.Learner, position: int = 0) -> float:
    return learner.learned[position].calibrated["strength"]


@pytest.mark.parametrize("name", KINDS)
def test_the_importances_of_a_task_are_scaled_by_its_strength(name: str) -> None:
    secant, none, _ = pair(name)
    assert torch.equal(secant.q.mean, none.q.mean)  # a first task is learned as ever
    found = strength(secant)
    assert found > 0
    assert found != pytest.approx(1, rel=0.01)
    torch.testing.assert_close(importance(secant), found * importance(none), rtol=1e-5, atol=0)
    assert "strength" not in none.learned[0].calibrated


@pytest.mark.parametrize("name", KINDS)
def test_undoing_the_task_then_costs_what_it_really_costs(name: str) -> None:
    stream = blobs()
    method = KINDS[name](calibration="secant")
    settings: dict[str, Any] = {"epochs": 15, "batch_size": 20, "learning_rate": 1e-2}
    learner = ec.Learner(small_network(stream.heads), method, **settings)
    before = learner.q.clone()
    learner.learn(stream[0])
    network, after, shared = learner.network, learner.q, learner.network.shared()
    rise = rise_of_loss(network, before, after, shared, stream[0].train, Classification())
    moved = (after.mean - before.mean).square()
    half = 1.0 if name == "si" else 0.5  # SI's penalty has none
    cost = half * (importance(learner) * moved)[shared].sum()
    assert rise > 0.01
    torch.testing.assert_close(cost, rise, rtol=1e-4, atol=0)
    own = 2 * half * (importance(learner) / strength(learner) * moved)[shared].sum()
    assert strength(learner) == pytest.approx(secant_strength(rise, own).item(), rel=1e-4)


@pytest.mark.parametrize("name", FISHER)
def test_the_scale_of_the_fisher_does_not_matter(name: str) -> None:
    mean, _, stream = pair(name, fisher_reduction="mean")
    total, _, _ = pair(name, fisher_reduction="sum")
    ratio = strength(mean) / strength(total)
    assert ratio == pytest.approx(len(stream[0].train), rel=1e-3)
    torch.testing.assert_close(importance(mean), importance(total), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_every_task_has_a_strength_of_its_own_and_keeps_it(name: str, tmp_path: Path) -> None:
    learner, stream = learned_first_task(KINDS[name](calibration="secant"))
    first = importance(learner)
    learner.learn(stream[1])
    assert all("strength" in one.calibrated for one in learner.learned)
    assert strength(learner, 0) != strength(learner, 1)
    if name != "si":  # there are no negative terms, so the sum of tasks can only grow
        assert (importance(learner) >= first).all()
    again = ec.Learner.load(learner.save(tmp_path / "model"))
    assert again.learned == learner.learned


def test_heads_have_no_part_in_the_strength_but_get_it() -> None:
    secant, none, _ = pair("ewc")
    with_, without = (
        one.network.layout.named(importance(one))["heads.0.weight"] for one in (secant, none)
    )
    assert without.any()
    torch.testing.assert_close(with_, strength(secant) * without, rtol=1e-5, atol=0)


def test_a_coreset_notes_the_strength_of_what_it_wraps() -> None:
    method = ec.Coreset(method=ec.EWC(calibration="secant"), coreset_size=5, coreset_epochs=1)
    learner, _ = learned_first_task(method)
    assert strength(learner) > 0


def test_a_regression_is_calibrated_too() -> None:
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    task = ec.regression_task(x, x.sum(1), name="numbers")

    def learned(method: ec.Method) -> ec.Learner:
        network = ec.networks.mlp(4, [6])
        return ec.Learner(network, method, criterion="regression", epochs=20).learn(task)

    secant, none = (learned(ec.EWC(calibration=one)) for one in ("secant", "none"))
    assert strength(secant) > 0
    torch.testing.assert_close(
        importance(secant), strength(secant) * importance(none), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize(("name", "default"), [*((n, "secant") for n in FISHER), ("si", "none")])
def test_what_is_calibrated_unasked(name: str, default: str) -> None:
    assert KINDS[name].default("calibration") == default
    assert KINDS[name].before["calibration"] == "none"


def test_every_strength_that_sets_itself_is_noted() -> None:
    """The KL's weight and the number of epochs too, unless somebody chose them."""
    stream = blobs()
    learner = ec.Learner(small_network(stream.heads), compile="off").learn(stream[0])
    noted = learner.learned[0].calibrated
    weights, examples = len(learner.q.variance), len(stream[0].train)
    assert noted["kl_weight"] == pytest.approx(0.3 / max(weights, examples))
    assert noted["epochs"] == 1000  # one batch an epoch
    chosen = ec.Learner(
        small_network(stream.heads), ec.EVCLPlus(kl_scale="examples"), epochs=2, compile="off"
    ).learn(stream[0])
    assert list(chosen.learned[0].calibrated) == ["strength"]
