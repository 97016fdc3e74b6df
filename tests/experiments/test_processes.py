"""Processes on jobs of their own: what fails, what is killed, what is told."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from evclplus.callbacks import Callback
from evclplus.errors import FileError, TrainingError
from evclplus.experiments.executors.base import Event, Outcome
from evclplus.experiments.executors.local import DIED, Processes
from evclplus.experiments.executors.loop import work_through


@dataclass(frozen=True)
class Act:
    """A job that does what its title says and notes it in a folder."""

    title: str
    home: Path
    gpus = 0

    @property
    def name(self) -> str:
        return self.title.replace(" ", "-")

    def work(self) -> "Act":
        if self.title == "cannot begin":
            raise FileError("there is no room for it")
        return self

    def receive(self, outcome: Outcome) -> None:
        if self.title == "has no place to go":
            raise FileError("the disk is full")
        (self.home / f"{self.name}.answer").write_bytes(outcome.answer)

    def __call__(self, keep: Path | None, callback: Callback, command: str) -> bytes:
        if self.title == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.title == "is killed while another program works for it":
            program = subprocess.Popen(["sleep", "600"])
            (self.home / "program").write_text(str(program.pid))
            os.kill(os.getpid(), signal.SIGKILL)
        if self.title == "is refused":
            raise TrainingError("the loss is not finite")
        if self.title == "has a bug":
            raise ZeroDivisionError("by zero")
        if self.title.startswith("waits"):
            (self.home / str(os.getpid())).touch()
            while True:
                time.sleep(0.01)
        callback.start("training", 3)
        callback.advance(2, dict)
        settings = (
            torch.get_num_threads(),
            os.environ.get("TORCHINDUCTOR_COMPILE_THREADS"),
            command,
        )
        return repr(settings).encode()


@dataclass
class Heard:
    started_titles: list[str] = field(default_factory=list)
    events: dict[str, list[Event]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    errors: dict[str, str | None] = field(default_factory=dict)

    def started(self, job: Act) -> None:
        self.started_titles.append(job.title)

    def moved(self, job: Act, event: Event) -> None:
        self.events.setdefault(job.title, []).append(event)

    def told(self, line: str) -> None:
        self.lines.append(line)

    def ended(self, job: Act, error: str | None) -> None:
        self.errors[job.title] = error


def test_a_job_that_fails_or_is_killed_stops_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    titles = ["is killed", "one", "is refused", "has a bug", "cannot begin", "two"]
    titles += ["has no place to go"]
    heard = Heard()
    failed = work_through(
        [Act(title, tmp_path) for title in titles], Processes(2), heard, "a command"
    )
    assert heard.started_titles == titles
    assert set(heard.errors) == set(titles)
    assert heard.errors["is killed"] == DIED
    assert heard.errors["cannot begin"] == "there is no room for it"
    assert heard.errors["has no place to go"] == "the disk is full"
    assert heard.errors["is refused"] == "the loss is not finite"
    assert (heard.errors["has a bug"] or "").startswith("ZeroDivisionError: by zero")
    assert "Traceback" in capfd.readouterr().err
    assert heard.errors["one"] is heard.errors["two"] is None
    assert sorted(failed) == sorted(
        f"{title}: {error}" for title, error in heard.errors.items() if error
    )
    done = ("one", "two", "has no place to go")
    assert heard.events == {title: [Event(2, 3, "training")] for title in done}
    assert (tmp_path / "two.answer").read_text() == repr((1, "1", "a command"))


class Slow(Heard):
    """Kills the worker when it has done the first job and not begun the second."""

    def started(self, job: Act) -> None:
        if len(self.started_titles) == 1:
            (worker,) = multiprocessing.active_children()
            worker.kill()
            worker.join()
        super().started(job)


@pytest.mark.slow
def test_a_worker_that_dies_between_two_jobs_is_replaced(tmp_path: Path) -> None:
    heard = Slow()
    work_through([Act(title, tmp_path) for title in ("one", "two", "three")], Processes(1), heard)
    # Whether the executor has seen it when the next job comes is a matter of moments.
    assert heard.errors["two"] in (None, DIED)
    assert heard.errors["one"] is heard.errors["three"] is None


def test_what_a_killed_worker_has_started_ends_with_it(tmp_path: Path) -> None:
    heard = Heard()
    work_through(
        [Act("is killed while another program works for it", tmp_path)], Processes(1), heard
    )
    assert list(heard.errors.values()) == [DIED]
    status = Path("/proc", (tmp_path / "program").read_text(), "stat")
    while status.exists() and status.read_text().split()[2] != "Z":
        time.sleep(0.02)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(stop: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from evclplus.experiments.executors.local import Processes\n"
        "from evclplus.experiments.executors.loop import work_through\n"
        "from tests.experiments.test_processes import Act, Heard\n"
        "jobs = [Act(f'waits {number}', Path(sys.argv[1])) for number in range(3)]\n"
        "if __name__ == '__main__': work_through(jobs, Processes(2), Heard())\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    notes = tmp_path / "notes"
    notes.mkdir()
    parent = subprocess.Popen(
        [sys.executable, str(script), str(notes)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        # A shell that runs the tests in the background has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while len(list(notes.iterdir())) < 2:
        assert parent.poll() is None
        time.sleep(0.02)
    if stop == signal.SIGINT:
        os.killpg(parent.pid, stop)  # what Ctrl-C sends: to the whole group
    else:
        parent.kill()
    # The workers write to the same pipe: it is at its end when the last of them is gone.
    _, stderr = parent.communicate(timeout=600)
    assert stderr.count("Traceback") == (1 if stop == signal.SIGINT else 0)
