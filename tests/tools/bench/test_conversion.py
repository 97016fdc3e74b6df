from tools.bench.conversion import conversion_cost


def test_every_way_of_feeding_is_measured() -> None:
    cost = conversion_cost(rounds=1, examples=512, steps=2)
    assert min(cost.floats, cost.plain, cost.gathered) > 0
