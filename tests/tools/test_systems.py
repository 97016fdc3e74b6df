"""The table of all systems: what it counts, what it times, and that it goes on where it stopped."""

from pathlib import Path

import evclplus as ec
from evclplus.experiments.presets import load_preset
from tests.helpers import learned_first_task
from tools.systems import KEEPS, kept, kept_bytes, measure, table

TINY = {"hidden": [4], "examples": 40}


def test_bytes_are_those_of_weights_and_memory_each_counted_once() -> None:
    learner, _ = learned_first_task(ec.FineTune())
    weights = learner.network.layout.total
    assert kept_bytes(learner) == 4 * weights
    learner, _ = learned_first_task(ec.EWC())  # the anchor is the last weights
    assert kept_bytes(learner) == 2 * 4 * weights
    learner, _ = learned_first_task(ec.KroneckerLaplace())
    factors = 5 * 5 + 8 * 8 + 9 * 9 + 2 * 2
    assert kept_bytes(learner) == 2 * 4 * weights + 4 * factors


def test_stored_examples_are_counted_and_heads_come_with_tasks() -> None:
    network = ec.networks.mlp(784, [4], heads=[2] * 3)
    weights = 4 * sum(one.numel() for one in network.parameters())
    assert kept("finetune", [4], 40, tasks=3) == weights
    stored = kept("er", [4], 40, tasks=3) - weights
    assert stored == 3 * 40 * (784 * 4 + 8)  # floats and a label; fewer than it may store


def test_a_method_is_measured_once(tmp_path: Path) -> None:
    path = tmp_path / "costs.jsonl"
    (first,) = measure(path, ["ewc"], 1, **TINY)
    assert first["epoch"] > 0
    assert first["finetune"] > 0
    again = measure(path, ["ewc", "finetune"], 1, **TINY)
    assert again[0] == first
    assert [one["method"] for one in again] == ["ewc", "finetune"]


def test_a_method_that_makes_no_steps_takes_no_time(tmp_path: Path) -> None:
    (found,) = measure(tmp_path / "costs.jsonl", ["generative"], 1, **TINY)
    assert found["epoch"] == 0
    assert found["finetune"] > 0


def test_the_table_says_what_is_missing_and_what_cannot_be() -> None:
    preset = load_preset("systems")
    assert set(KEEPS) == set(preset.methods)
    costs = [{"method": "ewc", "epoch": 3.0, "finetune": 2.0, "bytes": 2_000_000}]
    found = {
        ("split-mnist", "ewc"): [90.0, 91.0, 92.0, 93.0, 94.0],
        ("split-cifar10", "ewc"): [70.0],
        ("permuted-mnist", "ewc"): [80.0, 82.0],
    }
    rows = {line.split(" | ")[0][2:]: line for line in table(preset, costs, found).splitlines()}
    assert "| 2.00 | 1.9 | 1.50 |" in rows["ewc"]
    assert "| 92.0 ± 1.6 |" in rows["ewc"]
    assert "| 70.0 (1) |" in rows["ewc"]
    assert "| 81.0 ± 1.4 (2) |" in rows["ewc"]
    assert rows["hat"].endswith("| - |")  # one head in permuted-mnist
    assert rows["er"].endswith("|  |")
