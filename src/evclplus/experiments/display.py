"""What the command line draws: bars while it works."""

import time
from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from evclplus.callbacks import Callback, LazyTerms
from evclplus.experiments.executors.base import Event, Job
from evclplus.experiments.live import Live

SECONDS_BETWEEN_DRAWINGS = 0.1


def bars(console: Console) -> Bars:
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[terms]}", style="dim", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


class TrainingBar(Callback, AbstractContextManager["TrainingBar"]):
    """One bar for the phase under way, with the named terms of the loss."""

    def __init__(self, console: Console) -> None:
        self.bars = bars(console)
        self.bar: TaskID | None = None
        self.last = 0.0

    def __enter__(self) -> "TrainingBar":
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def start(self, label: str, steps: int) -> None:
        self.finish()
        self.bar = self.bars.add_task(label, total=steps, terms="")

    def advance(self, step: int, terms: LazyTerms) -> None:
        now = time.monotonic()
        if self.bar is None or now - self.last < SECONDS_BETWEEN_DRAWINGS:
            return
        self.last = now
        shown = "  ".join(f"{name} {value.item():.4g}" for name, value in terms().items())
        self.bars.update(self.bar, completed=step, terms=shown)

    def finish(self) -> None:
        if self.bar is not None:
            self.bars.remove_task(self.bar)
            self.bar = None


class ComparisonBars(AbstractContextManager["ComparisonBars"]):
    """A bar for each job that is running and, given how many there are, one for all of them. The
    same is written into a file for who watches from elsewhere."""

    def __init__(self, console: Console, count: int | None, live: Live | None = None) -> None:
        self.console = console
        self.live = live
        self.bars = bars(console)
        self.overall = self.bars.add_task(
            "all runs", total=count, terms="", visible=count is not None
        )
        self.running: dict[int, TaskID] = {}  # two jobs may have one title

    def __enter__(self) -> "ComparisonBars":
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()
        if self.live is not None:
            self.live.close(stopped=error[0] is not None)

    def started(self, job: Job) -> None:
        self.running[id(job)] = self.bars.add_task(job.title, total=1, terms="starting")
        if self.live is not None:
            self.live.started(job.title)

    def moved(self, job: Job, event: Event) -> None:
        bar = self.running[id(job)]
        self.bars.update(bar, completed=event.step, total=event.steps, terms=event.text)
        if self.live is not None:
            self.live.moved(job.title, event.step, event.steps, event.text)

    def told(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def ended(self, job: Job, error: str | None) -> None:
        self.bars.remove_task(self.running.pop(id(job)))
        self.bars.advance(self.overall)
        if self.live is not None:
            self.live.ended(job.title, error)
        if error is not None:
            self.console.print(f"{job.title} failed: {error}", style="red", markup=False)
