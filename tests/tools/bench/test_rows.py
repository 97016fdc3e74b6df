"""The benchmark measures what it says; how fast the machine is, is not tested."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tools.bench.cells import both_at_once, in_turn
from tools.bench.memory import memory_in_vectors
from tools.bench.parts import task_parts
from tools.bench.plain import plain_epoch, plain_mlp
from tools.bench.rows import (
    NETWORKS,
    Network,
    Row,
    conversion_rows,
    epoch_rows,
    er_epoch,
    ewc_epoch,
    rows,
    si_epoch,
    whole_run_rows,
)
from tools.bench.timing import alternate
from tools.bench.whole_run import WholeRun


def test_memory_is_fifteen_vectors_and_does_not_grow_with_tasks() -> None:
    second, fourth = memory_in_vectors(2), memory_in_vectors(4)
    assert 5 < second < 15
    assert abs(fourth - second) < 0.2


def test_rivals_take_turns_and_the_least_counts() -> None:
    order: list[str] = []

    def slow() -> None:
        order.append("slow")
        time.sleep(0.02)

    ours, rival = alternate(slow, lambda: order.append("quick"), rounds=3)
    assert order == ["slow", "quick"] * 4
    assert ours >= 0.02 > rival


def test_every_row_is_ready_and_none_is_measured_before_it_is_asked_for() -> None:
    # Two tasks of three networks, whole runs cold and warm, seven by themselves, two of memory,
    # two of feeding, and the cells.
    assert len(rows(rounds=1)) == 2 * len(NETWORKS) + 2 + 7 + 2 + 2 + 1


def test_the_tables_of_the_performance_page_are_the_measured_ones() -> None:
    folder = Path(__file__).parents[3]
    page = (folder / "docs" / "performance.md").read_text()
    measured = json.loads((folder / "results" / "bench" / "rows.json").read_text())["rows"]
    for row in measured:
        assert f"| {row['name']} | {row['ratio']:.2f} |" in page, row["name"]


def test_the_plain_epoch_trains_every_weight() -> None:
    network = plain_mlp([16])
    before = [parameter.clone() for parameter in network.parameters()]
    plain_epoch(network, torch.rand(600, 1, 28, 28))()
    assert all(
        not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True)
    )


def test_an_epoch_row_compares_with_the_plain_epoch() -> None:
    row = ewc_epoch(rounds=1, hidden=[4], examples=40)
    assert row.ours is not None
    assert row.rival is not None
    assert row.ratio == row.ours / row.rival > 0


@pytest.mark.parametrize(("measure", "must"), [(si_epoch, 1.15), (er_epoch, 2.1)])
def test_methods_are_compared_in_turn(measure: Callable[..., Row], must: float) -> None:
    row = measure(rounds=2, hidden=[4], examples=40)
    assert row.ours is not None
    assert row.rival is not None
    assert row.ratio == row.ours / row.rival > 0
    assert row.must == must


def test_the_second_and_the_fifth_task_are_rows_of_one_measurement() -> None:
    second, fifth = (
        measure() for measure in epoch_rows(Network("4", [4], must=1.1, aim=0.9), 1, examples=20)
    )
    assert second.name == "EVCL+ epoch of task 2 / plain epoch, 4"
    assert fifth.name == "EVCL+ epoch of task 5 / plain epoch, 4"
    assert min(second.ratio, fifth.ratio) > 0
    assert (fifth.must, fifth.aim) == (1.1, 0.9)


def test_whole_runs_are_measured_once_for_both_rows() -> None:
    runs: list[WholeRun] = []

    def run() -> WholeRun:
        runs.append(WholeRun(cold=30.0, warm=12.0, plain=10.0, stream="synthetic"))
        return runs[-1]

    warm, cold = (measure() for measure in whole_run_rows(run))
    assert len(runs) == 1
    end = "compiler cache / plain run, five tasks of 10 epochs, synthetic"
    assert warm == Row(f"whole run, warm {end}", 1.2, 1.3, 1.0, 12.0, 10.0)
    assert cold == Row(f"whole run, cold {end}", 3.0, 2.0, 1.3, 30.0, 10.0)


def test_feeding_is_compared_with_ready_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.bench import rows as module
    from tools.bench.conversion import ConversionCost

    cost = ConversionCost(floats=2.0, plain=3.0, gathered=2.5)
    monkeypatch.setattr(module, "conversion_cost", lambda: cost)
    assert [measure().ratio for measure in conversion_rows()] == [1.5, 1.25]


def test_parts_of_a_task_add_up() -> None:
    parts = task_parts(rounds=1, hidden=(4,), examples=40)
    assert min(parts.values()) > 0
    known = ("before the training", "after the training: Fisher", "a later epoch")
    assert sum(parts[name] for name in known) < parts["all of the task"]


@pytest.mark.slow
def test_two_cells_at_once_and_in_turn() -> None:
    assert min(both_at_once(examples=40), in_turn(examples=40)) > 0
