"""Works as jobs of a SLURM queue, through submitit.

All nodes see one folder. There each work has a place of its own:

    PLACE/job.json       the job that was queued for it
    PLACE/status.json    how far it is, and where
    PLACE/run/           its checkpoints
    PLACE/answer.json    what came of it, written last

A job that reaches its time limit saves and is queued again. A driver that was killed leaves its
jobs in the queue: the same command again finds them. What submitit pickles for itself is not read
here.
"""

import json
import os
import platform
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from evclplus.errors import FileError, SettingsError
from evclplus.experiments.executors.base import Event, Host, News, Outcome, Work
from evclplus.experiments.executors.worker import Told, data_folder, elsewhere, this_host
from evclplus.files import make_folder, write_atomically
from evclplus.signals import Signals, Stopped

RETRIES = 3
MOST_JOBS = 100
"""In the queue at once, unless asked otherwise."""
MOST_TIMEOUTS = 1000
"""How often a job may reach its time limit. Each time it has come further."""
MINUTES = 60
"""The time limit of a job, unless asked otherwise."""
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_QUESTIONS = 30.0
"""To SLURM, about the states of all jobs at once."""
OVER = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "TIMEOUT", "REVOKED", "FINISHED", "INTERRUPTED", "NO PROCESS AND NO RESULT"),
)
"""States of a job that will not go on by itself: SLURM's, then those of submitit's own executor."""
JOB, STATUS, ANSWER, RUN, SAVE = "job.json", "status.json", "answer.json", "run", "save"


class OnSlurm:
    """So many jobs in the queue at once. `cluster` is `slurm`, or `local` for submitit's own
    processes, which do the same on this machine."""

    retries = RETRIES

    def __init__(
        self, cluster: str, jobs: int | None, scratch: Path, parameters: Sequence[str]
    ) -> None:
        self.submitit = _submitit()
        self.cluster, self.jobs, self.scratch = cluster, jobs, scratch.absolute()
        self.logs = self.scratch / "jobs"
        self.parameters = _parsed(parameters)
        self.queue: Any = None
        self.running: dict[int, _Place] = {}
        self.asked = time.monotonic()

    def _open(self) -> Any:
        timeouts = {f"{self.cluster}_max_num_timeout": MOST_TIMEOUTS}
        try:
            queue = self.submitit.AutoExecutor(self.logs, cluster=self.cluster, **timeouts)
        except RuntimeError:
            raise SettingsError(
                "there is no SLURM here (no srun); log in where jobs are submitted"
            ) from None
        chosen = {"name": "evclplus", "timeout_min": MINUTES, "cpus_per_task": 1, **self.parameters}
        try:
            queue.update_parameters(**chosen)
        except (NameError, ValueError, TypeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise SettingsError(f"--slurm is wrong: {reason}") from None
        return queue

    def room(self) -> int:
        return self.jobs or MOST_JOBS

    def start(self, number: int, work: Work, command: str) -> None:
        """Queue a work, unless an earlier driver has."""
        place = _Place(make_folder(self.scratch / work.name))
        if place.answer is None:
            place.job = self._earlier(place)
        if place.answer is None and place.job is None:
            if work.gpus:
                self.queue.update_parameters(gpus_per_node=work.gpus)
            place.job = self.queue.submit(Queued(work, command, place.folder, data_folder()))
            note = {"id": place.job.job_id, "host": platform.node(), "cluster": self.cluster}
            write_atomically(place.folder / JOB, json.dumps(note))
        self.running[number] = place

    def _earlier(self, place: "_Place") -> Any:
        """The job that an earlier driver has queued, if it is not over."""
        note = _read(place.folder / JOB)
        if note is None or note.get("cluster") != self.cluster:
            return None
        job = self.queue._executor.job_class(self.logs, str(note.get("id")))
        return None if _is_over(job) else job

    def news(self) -> Iterator[tuple[int, News]]:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        for number, place in list(self.running.items()):
            # Whether it is over is asked first: an answer is written before a job ends.
            over = place.job is None or self._is_over(place.job)
            for event in place.events():
                yield number, event
            outcome = place.answer
            if outcome is None and over:
                outcome = Outcome(error=_lost(place.job), lost=True)
            if outcome is not None and over:  # until then a job writes into its logs
                del self.running[number]
                self._forget(place, outcome)
                yield number, outcome

    def _is_over(self, job: Any) -> bool:
        if job.paths.result_pickle.exists():
            return True
        due = time.monotonic() - self.asked > SECONDS_BETWEEN_QUESTIONS
        if due:
            self.asked = time.monotonic()
        return _is_over(job, "force" if due else "cache")

    def _forget(self, place: "_Place", outcome: Outcome) -> None:
        """Remove what a work needed until it was done, and the logs of a job that went well."""
        if outcome.lost:
            (place.folder / JOB).unlink(missing_ok=True)
            return
        # An answer may be that of a job which an earlier driver has queued.
        job = str((_read(place.folder / JOB) or {}).get("id", ""))
        shutil.rmtree(place.folder, ignore_errors=True)
        if outcome.error is None and job.isalnum():
            for path in self.logs.glob(f"{job}_*"):
                path.unlink(missing_ok=True)

    def save(self) -> None:
        for place in self.running.values():
            with suppress(OSError):
                (place.folder / SAVE).touch()

    def __enter__(self) -> "OnSlurm":
        self.queue = self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        jobs = [place.job for place in self.running.values() if place.job is not None]
        for job in jobs:
            job.cancel(check=False)  # it is asked to stop: it saves and ends
        while not all(_is_over(job) for job in jobs):
            time.sleep(SECONDS_BETWEEN_LOOKS)
        for place in self.running.values():
            (place.folder / JOB).unlink(missing_ok=True)
        for folder in (self.logs, self.scratch):
            with suppress(OSError):
                folder.rmdir()  # if there is nothing left in it


def _submitit() -> Any:
    try:
        import submitit
    except ModuleNotFoundError as error:
        if error.name != "submitit":
            raise
        raise SettingsError(
            "--on slurm needs submitit: install it with `pip install 'evclplus[slurm]'`"
        ) from None
    return submitit


def _parsed(parameters: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` as submitit has them; what looks like a number is one."""
    parsed: dict[str, Any] = {}
    for text in parameters:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise SettingsError(
                f"--slurm {text!r:.60} is wrong: expected KEY=VALUE, such as timeout_min=120 or "
                "slurm_partition=short"
            )
        try:
            parsed[key] = json.loads(value)
        except ValueError:
            parsed[key] = value
    return parsed


def _is_over(job: Any, mode: str = "force") -> bool:
    """Whether a job will not go on. Mode `cache` is what was known when SLURM was last asked."""
    if isinstance(job, _submitit().LocalJob) and job._process is None:
        # A process of an earlier driver: submitit does not know it any more.
        return not Path("/proc", job.job_id).exists()
    info = job.get_info(mode=mode)
    return str(info.get("jobState") or info.get("State") or "UNKNOWN").startswith(OVER)


def _lost(job: Any) -> str:
    state = "over" if job is None else job.state
    return f"its job {'' if job is None else job.job_id} is {state} without an answer"


def _read(path: Path) -> dict[str, Any] | None:
    """What a JSON file says; nothing where there is none yet."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


class _Place:
    """Where the driver sees what becomes of a work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job: Any = None
        self.last: dict[str, Any] | None = None

    def events(self) -> Iterator[Event | Host]:
        status = _read(self.folder / STATUS)
        if status is None or status == self.last:
            return
        if self.last is None or status["host"] != self.last["host"]:
            yield Host(**status["host"])
        if status["event"] is not None:
            yield Event(**status["event"])
        self.last = status

    @property
    def answer(self) -> Outcome | None:
        content = _read(self.folder / ANSWER)
        if content is None:
            return None
        return Outcome(content["answer"].encode(), content["error"])


@dataclass(frozen=True)
class Queued:
    """A work as a job of the queue."""

    work: Work
    command: str
    place: Path
    data: str | None

    def __call__(self) -> None:
        # Submitit's handler queues the job again from wherever training is. Ours lets training
        # save first, at the end of a step.
        queue_again = signal.getsignal(signal.SIGUSR2)
        signals = Signals()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signals.receive)
        status = _Status(self.place, signals)
        status.write(None)
        try:
            callback = Told(status.write, SECONDS_BETWEEN_LOOKS)
            outcome = elsewhere(self.work, self.place / RUN, self.data, callback, self.command)
        except Stopped as stopped:
            if stopped.number == signal.SIGUSR2 and callable(queue_again):
                queue_again(signal.SIGUSR2, None)
            raise
        content = {"answer": outcome.answer.decode(), "error": outcome.error}
        write_atomically(self.place / ANSWER, json.dumps(content))

    def checkpoint(self) -> Any:
        """What submitit puts into the queue in its place: the same, which goes on."""
        return _submitit().helpers.DelayedSubmission(self)


class _Status:
    """Notes of a work for the driver, in a file."""

    def __init__(self, place: Path, signals: Signals) -> None:
        self.place, self.signals = place, signals
        self.host = asdict(this_host())

    def write(self, event: Event | None) -> None:
        told = None if event is None else asdict(event)
        content = {"host": self.host, "pid": os.getpid(), "event": told}
        with suppress(FileError):  # a full disk must not end a run
            write_atomically(self.place / STATUS, json.dumps(content))
        with suppress(FileNotFoundError):
            (self.place / SAVE).unlink()
            self.signals.save = True
