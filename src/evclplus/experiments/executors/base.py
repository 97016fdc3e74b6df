"""What a job is, what does it, and what is told of it.

A job belongs to the process that was called, the driver. What is to be done is its `Work`, which
goes to a worker, on this machine or another. A worker's answer is bytes; the driver alone puts them
where they belong.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from evclplus.callbacks import Callback

SECONDS_BETWEEN_EVENTS = 0.2


class Work(Protocol):
    """What a worker does, wherever it is. What it has done so far is kept in a folder, and it goes
    on from there."""

    @property
    def name(self) -> str:
        """The name of its folder where several works share a place: the same work, the same
        name."""

    @property
    def home(self) -> Path:
        """Its folder on this machine."""

    @property
    def gpus(self) -> int: ...

    def __call__(self, keep: Path | None, callback: Callback, command: str) -> bytes: ...


@dataclass(frozen=True)
class Event:
    """How far a job is."""

    step: int
    steps: int
    text: str


@dataclass(frozen=True)
class Host:
    """Where a job has begun, when that is not here, and what its result depends on there."""

    name: str
    environment: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Outcome:
    """What came of a job: an answer; what was wrong with what was asked; or nothing, because the
    worker is lost."""

    answer: bytes = b""
    error: str | None = None
    lost: bool = False


class Job(Protocol):
    """Something to be done, as the driver sees it. No two have the same title."""

    @property
    def title(self) -> str: ...

    def work(self) -> Work:
        """Called once, when its turn comes."""

    def receive(self, outcome: Outcome, /) -> None:
        """Put the outcome where it belongs."""


AnyJob = TypeVar("AnyJob", bound=Job)
Heard = TypeVar("Heard", bound=Job, contravariant=True)


class Listener(Protocol[Heard]):
    """Is told what becomes of every job, in the driver."""

    def started(self, job: Heard, /) -> None: ...
    def moved(self, job: Heard, event: Event, /) -> None: ...
    def told(self, line: str, /) -> None: ...
    def ended(self, job: Heard, error: str | None, /) -> None: ...


News = Event | Host | Outcome


class Executor(Protocol):
    """Who does works, each known by a number. Leaving it without an error ends all workers; with
    one, they save what they are at and end, and asked again, they are killed."""

    retries: int
    """How often a work is begun again when its worker is lost."""

    def room(self) -> int:
        """How many works there may be at once."""

    def start(self, number: int, work: Work, command: str) -> None: ...

    def news(self) -> Iterator[tuple[int, News]]:
        """What has happened since; waits a moment for something to happen."""

    def save(self) -> None:
        """All workers are to save and go on."""

    def __enter__(self) -> "Executor": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
