"""A grid through submitit, whose own executor makes the jobs here: saved and queued again at the
time limit, left in the queue by a driver that is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from evclplus.experiments.record import Record
from tests.experiments.test_cli import QUICK, evclplus

pytest.importorskip("submitit", reason="submitit is not installed")

LONG = (
    *("compare", "--methods", "finetune", "--seeds", "1", "--epochs", "300", "--out", "out"),
    *("--set=stream.tasks=2", "--set=stream.examples_per_task=60", "--checkpoint-every=0.005"),
    *("--set=training.batch_size=20", "--set=training.compile=off"),
)
HERE = ("--on", "slurm://local")


def begun(folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "evclplus", *words],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


def until(is_so: Callable[[], object], driver: "subprocess.Popen[bytes]", folder: Path) -> None:
    while not is_so():
        assert driver.poll() is None, (folder / "log").read_text()
        time.sleep(0.02)


def worker(folder: Path) -> int:
    """The process of the job that has saved something; 0: there is none yet."""
    for status in (folder / "out" / ".slurm").glob("*/status.json"):
        if any(status.parent.rglob("progress.safetensors")):
            return int(json.loads(status.read_text())["pid"])
    return 0


def record_of(folder: Path) -> Record:
    (path,) = (folder / "out").rglob("record.json")
    return Record.read(path)


@pytest.mark.slow
def test_a_job_at_its_time_limit_saves_and_is_queued_again(tmp_path: Path) -> None:
    driver = begun(tmp_path, *LONG, *HERE)
    until(lambda: worker(tmp_path), driver, tmp_path)
    first = worker(tmp_path)
    os.kill(first, signal.SIGUSR2)  # what SLURM sends before the time is over
    until(lambda: worker(tmp_path) not in (0, first), driver, tmp_path)

    # The driver is killed; the job goes on, and the same command finds it.
    driver.kill()
    driver.wait()
    jobs = list((tmp_path / "out" / ".slurm").glob("jobs/*_log.out"))
    again = evclplus(*LONG, *HERE, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(jobs) == 1
    assert record_of(tmp_path).environment["resumed"] == 1
    assert not (tmp_path / "out" / ".slurm").exists()

    (tmp_path / "alone").mkdir()
    alone = evclplus(*LONG, "--jobs", "1", folder=tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    tables = [folder / "out" / "table.csv" for folder in (tmp_path, tmp_path / "alone")]
    assert tables[0].read_bytes() == tables[1].read_bytes()


@pytest.mark.slow
def test_a_request_to_stop_saves_and_ends_the_jobs(tmp_path: Path) -> None:
    # However fast the machine is, it is not finished when the request comes.
    endless = ["100000" if word == "300" else word for word in LONG]
    driver = begun(tmp_path, *endless, *HERE)
    until(lambda: worker(tmp_path), driver, tmp_path)
    pid = worker(tmp_path)
    driver.terminate()
    assert driver.wait() == 143, (tmp_path / "log").read_text()
    assert "stopped by SIGTERM: 0 of 1 runs are finished" in (tmp_path / "log").read_text()
    assert not Path("/proc", str(pid)).exists()
    assert not list(tmp_path.rglob("job.json"))
    assert list(tmp_path.rglob("progress.safetensors"))


@pytest.mark.slow
def test_a_job_that_fails_is_one_line(tmp_path: Path) -> None:
    wild = ("--set=training.learning_rate=1e30", "--set=training.compile=off")
    words = ("compare", "--methods", "finetune", "--seeds", "1", "--out", "out", *QUICK, *wild)
    done = evclplus(*words, *HERE, folder=tmp_path)
    assert done.returncode == 2
    assert "split-digits finetune seed 0 failed: on " in done.stdout
    assert "not finite" in done.stdout.replace("\n", " ")
    assert "1 of 1 runs failed" in done.stderr


def test_a_wrong_parameter_is_one_line(tmp_path: Path) -> None:
    done = evclplus("compare", *QUICK, *HERE, "--slurm", "memory=4", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("evclplus: --slurm is wrong: ")
    assert done.stderr.count("\n") == 1
