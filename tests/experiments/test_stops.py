"""Runs that are stopped and called again: they go on, and end as if nothing had happened."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from evclplus.callbacks import Callback, LazyTerms
from evclplus.errors import FileError
from evclplus.experiments import tune as tuning
from evclplus.experiments.compare import cells, split_finished
from evclplus.experiments.config import Experiment
from evclplus.experiments.display import ComparisonBars
from evclplus.experiments.executors.local import Processes
from evclplus.experiments.record import Record
from evclplus.experiments.run import run, run_into
from evclplus.experiments.spaces import start_of
from evclplus.experiments.tune import Search, chosen_of, score
from evclplus.locks import only_writer
from evclplus.settings import Training
from tests.experiments.test_cli import QUICK, evclplus
from tests.test_progress import After, StopError

FIGURES = (
    *("accuracy", "negative_log_likelihood", "brier_score", "calibration_error"),
    *("accuracy_before", "accuracy_untrained", "calibrated", "config", "tasks", "notes"),
)


def small(method: str = "evcl+", **options: object) -> Experiment:
    return Experiment(
        method=method,
        benchmark="split-digits",
        stream={"tasks": 3, "examples_per_task": 60},
        options=options,
        training=Training(epochs=3, batch_size=20, compile="off"),
    )


def figures(record: Record) -> list[object]:
    return [getattr(record, name) for name in FIGURES]


@pytest.mark.parametrize(
    "experiment",
    [
        small("evcl+", start="mle", start_epochs=2),
        small("vcl-random", coreset_size=8, coreset_epochs=3),
        small("er"),
    ],
    ids=lambda one: one.method,
)
def test_a_run_goes_on_wherever_it_was_stopped(experiment: Experiment, tmp_path: Path) -> None:
    undisturbed = run(experiment)
    stops = 0
    for steps in (2, 9, 4, 7, 5, 5, 5, 5, 5, 10**9):
        try:
            record = run_into(tmp_path, experiment, After(steps), every="epoch")
            break
        except StopError:
            stops += 1
            assert not (tmp_path / "record.json").exists()
            kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("task-*"))
            assert len(kept) <= 2  # the last learner, and the task under way
    assert figures(record) == figures(undisturbed)
    assert stops >= 2
    assert 0 < record.environment["resumed"] <= stops
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


class Slow(Callback):
    """Counts steps, and says when the run has learned for a while."""

    steps = 0

    def advance(self, step: int, terms: LazyTerms) -> None:
        self.steps += 1


def test_what_is_learned_is_not_learned_again(tmp_path: Path) -> None:
    whole, rest = Slow(), Slow()
    run(small(), whole)
    with pytest.raises(StopError):  # in the third task
        run_into(tmp_path, small(), After(whole.steps - 2), every="epoch")
    run_into(tmp_path, small(), rest, every="epoch")
    assert 2 <= rest.steps <= whole.steps // 3


def test_a_short_run_leaves_no_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(StopError):
        run_into(tmp_path, small(), After(12))
    assert [path.name for path in tmp_path.iterdir()] == ["unfinished.json"]


def test_a_stopped_run_with_other_settings_is_not_thrown_away(tmp_path: Path) -> None:
    other = small(lam=2.0)
    (cell,) = cells([other], tmp_path)
    with pytest.raises(StopError):
        run_into(cell.folder, small(), After(12), every="epoch")
    with pytest.raises(FileError, match=r"a stopped run with other settings \(options.lam is 0.3"):
        run_into(cell.folder, other)
    with pytest.raises(FileError, match="a stopped run with other settings"):
        split_finished([cell])
    record = run_into(cell.folder, other, overwrite=True)
    assert record.config.options["lam"] == 2.0
    assert record.environment["resumed"] == 0


def test_a_second_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    said = []

    def another() -> None:
        with pytest.raises(FileError) as refused:
            run_into(tmp_path, small().model_copy(update={"seed": 1}), overwrite=True)
        said.append(str(refused.value))

    record = run_into(tmp_path, small(), After(3, another))
    assert f"is being written by process {os.getpid()} on " in said[0]
    assert record.seed == 0
    assert Record.read(tmp_path / "record.json") == record


def test_a_second_search_of_a_journal_is_refused(tmp_path: Path) -> None:
    search = Search("split-digits", "finetune", tmp_path, 1)
    with (
        only_writer(search.journal.parent, ".finetune.lock"),
        ComparisonBars(Console(), None) as bars,
        pytest.raises(FileError, match="is being written by process"),
    ):
        tuning.tune([search], 1, Processes(1), bars, print)
    assert not search.journal.exists()


def test_a_trial_that_is_tried_again_goes_on(tmp_path: Path) -> None:
    search = Search("split-digits", "finetune", tmp_path, 1, runs=2, every="epoch")
    work = search.work(chosen_of(start_of(search.method, search.space)), {})
    whole, rest = Slow(), Slow()
    expected = score(work, None, whole)
    with pytest.raises(StopError):
        score(work, tmp_path, After(3 * whole.steps // 4))
    assert len(list(tmp_path.iterdir())) == 2
    assert score(work, tmp_path, rest) == expected
    assert rest.steps <= whole.steps // 2
    work.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


def begun(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """A command that has trained for a while."""
    process = subprocess.Popen(
        [sys.executable, "-m", "evclplus", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that runs the tests in the background has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not list(folder.rglob("progress.safetensors")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


LONG = (*QUICK, "--epochs=2", "--set=training.compile=off", "--checkpoint-every=epoch")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_so(number: signal.Signals, tmp_path: Path) -> None:
    words = ("run", "--method", "vcl", *LONG, "--set=vcl.start=mle", "--set=vcl.start_epochs=20000")
    process = begun(tmp_path, *words)
    os.killpg(process.pid, number)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 128 + number
    word = "interrupted" if number == signal.SIGINT else "stopped by SIGTERM"
    assert f"evclplus: {word}: what was learned is saved; call again to go on" in stderr
    assert "Traceback" not in stderr
    folder = tmp_path / "runs" / "split-digits" / "vcl" / "seed-0"
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoints", "unfinished.json"]


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_it_compiles_says_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its compiler's semaphores were complained about, and a compiler went on."""
    monkeypatch.setenv("EVCLPLUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    long = (*LONG[:-2], "--set=training.compile=on", "--epochs=2000", LONG[-1])
    words = ("compare", "--methods", "vcl", "--seeds", "1", "--out", "out", "--jobs", "1", *long)
    process = begun(tmp_path, *words)
    process.terminate()
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 143
    assert "stopped by SIGTERM" in stderr
    assert "semaphore" not in stderr
    assert not list(tmp_path.glob("evclplus-*"))


@pytest.mark.slow
def test_workers_save_when_their_parent_is_asked_to_stop(tmp_path: Path) -> None:
    words = (
        *("compare", "--methods", "vcl", "--seeds", "1", "--out", "out", "--jobs", "1", *LONG),
        *("--set=vcl.start=mle", "--set=vcl.start_epochs=120"),
    )
    process = begun(tmp_path, *words)
    process.terminate()
    _, stderr = process.communicate(timeout=600)  # at its end when the last worker is gone
    assert process.returncode == 143
    assert "stopped by SIGTERM: 0 of 1 runs are finished; call again to go on" in stderr
    again = evclplus(*words, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    (path,) = tmp_path.rglob("record.json")
    record = Record.read(path)
    assert record.environment["resumed"] == 1
    assert figures(record) == figures(run(record.config))
    assert not list(tmp_path.rglob("checkpoints"))
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.slow
def test_a_search_on_a_full_disk_ends_with_a_line_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    words = (
        *("tune", "--benchmark", "split-digits", "--methods", "finetune", "--trials", "1"),
        *("--seeds", "1", "--epochs-limit", "2", "--jobs", "1", "--out", "out"),
    )
    full = subprocess.run(
        [sys.executable, "-m", "evclplus", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        # No file may have more than a few bytes.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY)),
    )
    assert full.returncode == 2
    assert "Traceback" not in full.stderr
    line = full.stderr.splitlines()[-1]
    assert line.startswith("evclplus: cannot write")
    again = evclplus(*words, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "out" / "split-digits" / "finetune.json").exists()
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.slow
def test_a_full_output_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "evclplus", "list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "evclplus: cannot write to standard output: No space left on device\n"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
