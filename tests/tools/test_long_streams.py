"""The tool of long streams on a short one: what it counts, and that it goes on where it stopped."""

import json
from pathlib import Path

import evclplus as ec
from tests.helpers import blobs
from tools.journal import finished
from tools.long_streams import METHODS, Long, long_figure, work

SHORT = Long("short", lambda seed: blobs(tasks=3, seed=seed), {"epochs": 1}, (1, 3))


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    first = work(path, {"permuted": SHORT}, ["ewc"], [0])
    assert [point["tasks"] for point in first[0]["points"]] == [1, 3]
    assert first[0]["commit"]
    first[0]["points"][0]["accuracy"] = 0.5  # as no run would find it
    path.write_text(json.dumps(first[0]) + "\n")
    both = work(path, {"permuted": SHORT}, ["ewc", "finetune"], [0])
    assert both[0] == first[0]
    assert [one["method"] for one in both] == ["ewc", "finetune"]
    assert finished(path) == both
    assert long_figure(both).startswith(b"\x89PNG")


def test_methods_are_registered() -> None:
    assert set(METHODS) <= set(ec.METHODS)
