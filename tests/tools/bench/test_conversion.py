import pytest

from tools.bench.conversion import ConversionCost, conversion_cost


def test_slowdowns_are_against_ready_floats() -> None:
    cost = ConversionCost(floats=2.0, plain=3.0, gathered=2.5)
    assert cost.plain_slowdown == pytest.approx(0.5)
    assert cost.gathered_slowdown == pytest.approx(0.25)


def test_every_way_of_feeding_is_measured() -> None:
    cost = conversion_cost(rounds=1)
    assert min(cost.floats, cost.plain, cost.gathered) > 0
