"""Both sides of a whole run do the same work."""

from pathlib import Path

import pytest

from evclplus.errors import StateError
from evclplus.methods import method
from tools.bench import whole_run as module
from tools.bench.our_run import our_run
from tools.bench.ours import RECOMMENDED
from tools.bench.plain_run import plain_run
from tools.bench.stream import SYNTHETIC, five_tasks
from tools.bench.whole_run import our_command, whole_run


def test_synthetic_tasks_have_the_size_of_split_mnist() -> None:
    stream = five_tasks(SYNTHETIC)
    assert stream.heads == (2,) * 5
    assert {len(task.train) for task in stream.tasks} == {10_800}
    assert {len(task.test) for task in stream.tasks} == {2_000}
    assert stream[0].train.inputs().shape[1:] == (1, 28, 28)


def test_both_runs_evaluate_every_seen_task_after_each() -> None:
    for accuracies in (plain_run(SYNTHETIC, 1, 60), our_run(1, 60)):
        assert [len(row) for row in accuracies] == [1, 2, 3, 4, 5]
        assert all(0 <= accuracy <= 1 for row in accuracies for accuracy in row)


def test_the_command_line_has_the_recommended_settings(tmp_path: Path) -> None:
    words = our_command("split-mnist", 10, 12_000, tmp_path)
    assert words[:3] == ["-m", "evclplus", "run"]
    assert words[words.index("--method") + 1] == "evcl+"
    assert "--set" not in words
    assert method("evcl+") == RECOMMENDED
    assert words[words.index("--epochs") + 1] == "10"


def test_without_real_data_both_sides_learn_synthetic_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[str, Path]] = []

    def process(words: list[str], caches: Path) -> float:
        calls.append((words[1], caches))
        return float(len(calls))

    monkeypatch.setattr(module, "_process", process)
    monkeypatch.delenv("EVCLPLUS_DATA", raising=False)
    found = whole_run()
    plain, ours = "tools.bench.plain_run", "tools.bench.our_run"
    assert [name for name, _ in calls] == [plain, ours, plain, ours, plain, ours]
    assert len({cache for _, cache in calls}) == 1
    assert (found.cold, found.warm, found.plain, found.stream) == (2.0, 4.0, 3.0, "synthetic")
    calls.clear()
    monkeypatch.setenv("EVCLPLUS_DATA", "anywhere")
    assert whole_run().stream == "split-mnist"
    assert [name for name, _ in calls] == [plain, "evclplus"] * 3


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"a whole run failed.*: no data"):
        module._process(["-c", "raise SystemExit('no data')"], tmp_path)


@pytest.mark.slow
def test_whole_runs_as_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVCLPLUS_DATA", raising=False)
    found = whole_run(epochs=1, examples=60, turns=1)
    assert min(found.cold, found.warm, found.plain) > 0
