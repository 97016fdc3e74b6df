"""The tool of long streams on a short one: what it counts, and that it goes on where it stopped."""

import json
from pathlib import Path

import evclplus as ec
from tests.helpers import blobs, learned_first_task
from tools.long_streams import METHODS, Long, finished, kept_bytes, long_figure, work

SHORT = Long("short", lambda seed: blobs(tasks=3, seed=seed), {"epochs": 1}, (1, 3))


def test_bytes_are_those_of_weights_and_memory_each_counted_once() -> None:
    learner, _ = learned_first_task(ec.FineTune())
    weights = learner.network.layout.total
    assert kept_bytes(learner) == 4 * weights
    learner, _ = learned_first_task(ec.EWC())  # the anchor is the last weights
    assert kept_bytes(learner) == 2 * 4 * weights
    learner, _ = learned_first_task(ec.KroneckerLaplace())
    factors = 5 * 5 + 8 * 8 + 9 * 9 + 2 * 2
    assert kept_bytes(learner) == 2 * 4 * weights + 4 * factors


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    first = work(path, {"permuted": SHORT}, ["ewc"], [0])
    assert [point["tasks"] for point in first[0]["points"]] == [1, 3]
    first[0]["points"][0]["accuracy"] = 0.5  # as no run would find it
    path.write_text(json.dumps(first[0]) + "\n")
    both = work(path, {"permuted": SHORT}, ["ewc", "finetune"], [0])
    assert both[0] == first[0]
    assert [one["method"] for one in both] == ["ewc", "finetune"]
    assert finished(path) == both
    assert long_figure(both).startswith(b"\x89PNG")


def test_methods_are_registered() -> None:
    assert set(METHODS) <= set(ec.METHODS)
