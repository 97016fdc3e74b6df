"""What a grid is doing, in a file beside its records: for `evclplus watch`, and for whoever looks.

The process that was called writes it, once a second at most. It is gone when a grid has ended and
nothing has failed: the records then say it all.
"""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evclplus.errors import FileError
from evclplus.files import is_dead, this_process, write_atomically

PROGRESS = "progress.json"
SECONDS_BETWEEN_WRITES = 1.0


class Running(BaseModel):
    """A run under way: `step` of `steps` in its present phase."""

    model_config = ConfigDict(extra="ignore")

    since: float
    step: int = 0
    steps: int = 1
    text: str = ""


class Ended(BaseModel):
    """A run that has ended since the command was called."""

    model_config = ConfigDict(extra="ignore")

    seconds: float
    error: str | None = None


class Progress(BaseModel):
    """The content of progress.json. Times are seconds since 1970."""

    model_config = ConfigDict(extra="ignore")

    command: str
    process: str
    since: float
    updated: float
    total: int | None = None
    workers: int = 1
    running: dict[str, Running] = Field(default_factory=dict)
    ended: dict[str, Ended] = Field(default_factory=dict)
    state: str = "running"

    @property
    def condition(self) -> str:
        """running, stopped, finished, or lost: its process has ended without a word."""
        lost = self.state == "running" and is_dead(self.process)
        return "lost" if lost else self.state

    def seconds_left(self, finished: int) -> float | None:
        """Until all are finished, as those that have ended lead one to expect; a guess."""
        done = [one.seconds for one in self.ended.values() if one.error is None]
        failed = len(self.ended) - len(done)
        if self.total is None or not done:
            return None
        each = sum(done) / len(done)
        spent = sum(min(each, self.updated - one.since) for one in self.running.values())
        left = max(0, self.total - finished - failed) * each - spent
        return max(0.0, left / max(1, self.workers))


class Live:
    """Writes the file. Whatever goes wrong with it is no concern of the runs."""

    def __init__(self, folder: Path, command: str, total: int | None, workers: int) -> None:
        now = time.time()
        self.path = folder / PROGRESS
        self.progress = Progress(
            command=command,
            process=this_process(),
            since=now,
            updated=now,
            total=total,
            workers=workers,
        )
        self.written = 0.0

    def started(self, title: str) -> None:
        self.progress.running[title] = Running(since=time.time())
        self._write()

    def moved(self, title: str, step: int, steps: int, text: str) -> None:
        one = self.progress.running[title]
        one.step, one.steps, one.text = step, steps, text
        if time.monotonic() - self.written >= SECONDS_BETWEEN_WRITES:
            self._write()

    def ended(self, title: str, error: str | None) -> None:
        since = self.progress.running.pop(title).since
        self.progress.ended[title] = Ended(seconds=time.time() - since, error=error)
        self._write()

    def close(self, stopped: bool) -> None:
        """Nothing is left behind where nothing is left to say. What never began has no file: it
        may have been refused because somebody else is at work here."""
        if not self.written:
            return
        failed = any(one.error is not None for one in self.progress.ended.values())
        if not stopped and not failed:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            return
        self.progress.state = "stopped" if stopped else "finished"
        self._write()

    def _write(self) -> None:
        self.written = time.monotonic()
        self.progress.updated = time.time()
        with suppress(FileError):
            write_atomically(self.path, self.progress.model_dump_json() + "\n")


def read_progress(folder: Path) -> Progress | None:
    """What a grid says of itself; nothing where none does, or not so that it can be read."""
    try:
        content: dict[str, Any] = json.loads((folder / PROGRESS).read_bytes())
        return Progress.model_validate(content)
    except (OSError, ValueError, RecursionError, ValidationError):
        return None
