"""The rivals really train, and one that cannot run says why."""

from collections.abc import Sequence
from importlib import import_module

import pytest
import torch
from torch import Tensor

import evclplus as ec
from evclplus import EWC
from tools.bench import rivals
from tools.bench.rivals import (
    RIVALS,
    Epoch,
    Rival,
    measured,
    pyro_local,
    pyro_sampling,
    tyxe_local,
)

MODULES = {
    "pyro-ppl": "pyro",
    "tyxe": "tyxe",
    "bayesian-torch": "bayesian_torch",
    "avalanche-lib": "avalanche",
    "posteriors": "posteriors",
    "torch-uncertainty": "torch_uncertainty.layers.bayesian",
}


def skip_without(package: str) -> None:
    rivals.declare_torchvision_operators()
    try:
        import_module(MODULES[package])
    except Exception as error:  # a package may be there and not work with this torch
        pytest.skip(f"{package} does not import: {error}")


def two_classes() -> tuple[Tensor, Tensor]:
    """Pictures that are brighter in one class than in the other."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(512) % 2
    x = torch.rand(512, 1, 28, 28, generator=generator)
    return x * (0.5 + 0.5 * y[:, None, None, None]), y


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: f"{rival.package}: {rival.what}")
def test_a_rival_trains(rival: Rival) -> None:
    skip_without(rival.package)
    torch.manual_seed(0)
    epoch = rival.build([16], *two_classes())
    losses = [epoch() for _ in range(12)]
    assert max(losses[-3:]) < min(losses[:3])


def test_three_ways_through_pyro_estimate_one_bound() -> None:
    skip_without("tyxe")
    torch.manual_seed(0)
    first_losses = [
        build([16], *two_classes())() for build in (pyro_sampling, pyro_local, tyxe_local)
    ]
    assert max(first_losses) < 1.02 * min(first_losses)


def test_a_row_has_both_ratios() -> None:
    def build(hidden: Sequence[int], x: Tensor, y: Tensor) -> Epoch:
        return lambda: 0.0

    rival = Rival("evclplus", "nothing at all", build, EWC())
    row = measured(rival, rounds=1, hidden=[4], examples=40)
    assert row.version == ec.__version__
    assert row.not_measured is None
    assert row.rival_ratio is not None
    assert row.our_ratio is not None
    assert row.rival_ratio < row.our_ratio
    assert row.seconds is not None
    assert set(row.seconds) == {"rival", "ours", "plain"}


def test_a_rival_that_cannot_run_is_one_line() -> None:
    def missing(hidden: Sequence[int], x: Tensor, y: Tensor) -> Epoch:
        import no_such_package  # type: ignore[import-not-found]

        return no_such_package.train  # type: ignore[no-any-return]

    def broken(hidden: Sequence[int], x: Tensor, y: Tensor) -> Epoch:
        raise RuntimeError("operator torchvision::nms does not exist\nmore")

    for build, reason in (
        (missing, "no_such_package is not installed"),
        (broken, "does not work here: operator torchvision::nms does not exist"),
    ):
        row = measured(Rival("no-such-package", "", build, EWC()), rounds=1, examples=10)
        assert row.version is None
        assert row.rival_ratio is None
        assert row.not_measured == reason


def test_operators_are_declared_where_torchvision_lacks_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(name: str) -> object:
        raise RuntimeError(f"operator {name}::nms does not exist")

    monkeypatch.setattr(rivals, "import_module", fails)
    monkeypatch.setattr(rivals, "_torchvision", [])
    rivals.declare_torchvision_operators()
    assert len(rivals._torchvision) == 1
    assert hasattr(torch.ops.torchvision, "nms")
    assert hasattr(torch.ops.torchvision, "qnms")
