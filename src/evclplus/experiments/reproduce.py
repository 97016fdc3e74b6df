"""A preset's whole table: every cell in one pool, the time left, a report per benchmark."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from evclplus.errors import FileError, SettingsError
from evclplus.experiments import compare as comparison
from evclplus.experiments.compare import Cell
from evclplus.experiments.estimate import Estimate
from evclplus.experiments.executors.base import Event, Executor, Listener
from evclplus.experiments.executors.loop import work_through
from evclplus.experiments.presets import Preset
from evclplus.experiments.record import Record
from evclplus.experiments.report.across import RULE, Across, terminal
from evclplus.experiments.report.comparison import UNCOMMITTED
from evclplus.experiments.report.folder import report
from evclplus.experiments.run import MINUTES
from evclplus.experiments.store import find_record, find_records
from evclplus.files import write_atomically
from evclplus.locks import only_writer
from evclplus.methods import method, options_of
from evclplus.methods.base import training_for
from evclplus.progress import Every
from evclplus.settings import nearest


@dataclass(frozen=True)
class Selection:
    """The part of a preset that is to run; its table always shows the whole preset.

    `untuned` are benchmarks that nobody asked for by name and that lack settings of a method.
    """

    preset: Preset
    benchmarks: tuple[str, ...]
    methods: tuple[str, ...]
    untuned: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, preset: Preset, benchmarks: Sequence[str] | None, methods: Sequence[str] | None
    ) -> "Selection":
        chosen = {}
        for kind, known, asked in (
            ("benchmark", preset.benchmarks, benchmarks),
            ("method", preset.methods, methods),
        ):
            for name in asked or ():
                if name not in known:
                    hint = nearest(name, known)
                    raise SettingsError(f"the preset has no {kind} {name!r}; {hint}")
            chosen[kind] = tuple(name for name in known if asked is None or name in asked)
        ready = tuple(
            name
            for name in chosen["benchmark"]
            if benchmarks is not None or all(preset.has(name, one) for one in chosen["method"])
        )
        if not ready:  # the first cell will say what is missing
            ready = chosen["benchmark"]
        untuned = tuple(name for name in chosen["benchmark"] if name not in ready)
        return cls(preset, ready, chosen["method"], untuned)

    @property
    def count(self) -> int:
        """How many runs that is."""
        return len(self.benchmarks) * len(self.methods) * self.preset.seeds

    def cells(self, out: Path, overwrite: bool = False, every: Every = MINUTES) -> list[Cell]:
        """Benchmark by benchmark, all methods that fit it of one seed before the next seed. Missing
        data is named here, all of it in one line."""
        cells: list[Cell] = []
        problems: dict[str, list[str]] = {}
        for benchmark in self.benchmarks:
            experiments = [
                self.preset.experiment(benchmark, name, seed)
                for seed in range(self.preset.seeds)
                for name in self.methods
                if self.preset.fits(benchmark, name)
            ]
            try:
                cells += comparison.cells(experiments, out, overwrite, every)
            except FileError as error:
                problems.setdefault(str(error), []).append(benchmark)
        if problems:
            lines = [f"{', '.join(names)}: {problem}" for problem, names in problems.items()]
            raise FileError("; ".join(lines))
        return cells


def reproduce(
    selection: Selection,
    out: Path,
    executor: Executor,
    bars: Listener[Cell],
    say: Callable[[str], None],
    command: str = "",
    overwrite: bool = False,
    every: Every = MINUTES,
) -> list[str]:
    """Run what is not finished and return what went wrong, a line each. A benchmark's report is
    written as soon as its last cell ends."""
    cells = selection.cells(out, overwrite, every)
    if selection.untuned:
        say(f"not tuned yet, so not run: {', '.join(selection.untuned)}")
    with only_writer(out):
        done, todo = comparison.split_finished(cells)
        follower = _Follower(out, done, todo, executor, bars, say)
        if done:
            left = follower.time_left()
            say(f"{len(done)} of {len(cells)} runs are finished already and kept{left}")
        return work_through(todo, executor, follower, command) if todo else []


def write_reports(preset: Preset, out: Path) -> Table:
    """Write the report of every benchmark that has records below `out` and the tables over all
    benchmarks, and return the last of these for a terminal."""
    records, others = records_of(preset, out)
    if not records and not others:
        raise FileError(f"no record.json below {out}; run `evclplus reproduce` first")
    across = Across.of(preset.benchmarks, preset.methods, preset.seeds, records)
    for name in {record.benchmark for record in records}:
        report(out / name)
    note = across.note
    if others:
        note += f"\nLeft out: {others} made with other settings.\n"
    write_atomically(out / "table.md", across.markdown() + note)
    write_atomically(out / "table.csv", across.csv())
    if preset.reported is None:
        return terminal(across.table(), note)
    source, figures = preset.reported.source, preset.reported.accuracy
    write_atomically(out / "paper.md", across.markdown_beside(source, figures) + note)
    return terminal(across.beside(figures), f"Below our mean: {source}. {RULE}\n{note}")


def records_of(preset: Preset, out: Path) -> tuple[list[Record], int]:
    """The records made with the preset's settings, and how many were not."""
    below = find_records(out) if out.is_dir() else []
    found = [record for record in below if record.benchmark in preset.benchmarks]
    ours = [record for record in found if _is_of(preset, record)]
    return ours, len(found) - len(ours)


def _is_of(preset: Preset, record: Record) -> bool:
    """Whether a record has the settings the preset asks for."""
    try:
        asked = preset.experiment(record.benchmark, record.method, record.seed)
    except SettingsError:
        return False
    found, chosen = record.full_config, method(asked.method, **asked.options)
    training = training_for(chosen, asked.training)
    return found.training == training and found.options == options_of(chosen)


class _Follower:
    """A listener that says a line for each finished cell, with the time left, and reports on a
    benchmark when its last cell ends."""

    def __init__(
        self,
        out: Path,
        done: Sequence[Cell],
        todo: Sequence[Cell],
        executor: Executor,
        bars: Listener[Cell],
        say: Callable[[str], None],
    ) -> None:
        self.out, self.executor, self.bars, self.say = out, executor, bars, say
        self.total = len(done) + len(todo)
        self.waiting = {cell.folder: cell for cell in todo}
        self.since: dict[Path, float] = {}
        self.estimate = Estimate()
        for cell in done:
            self._learn(cell)

    def started(self, cell: Cell) -> None:
        self.since[cell.folder] = time.monotonic()
        self.bars.started(cell)

    def moved(self, cell: Cell, event: Event) -> None:
        self.bars.moved(cell, event)

    def told(self, line: str) -> None:
        self.say(line)

    def ended(self, cell: Cell, error: str | None) -> None:
        del self.waiting[cell.folder], self.since[cell.folder]
        self.bars.ended(cell, error)
        if error is None:
            record = self._learn(cell)
            self.say(
                f"[{self.total - len(self.waiting)}/{self.total}] {cell.title}: "
                f"{100 * record.average:.1f} % in {record.seconds['total']:.0f} s"
                f"{f', {UNCOMMITTED}' if record.is_dirty else ''}{self.time_left()}"
            )
        benchmark = cell.experiment.benchmark
        left = {one.experiment.benchmark for one in self.waiting.values()}
        if benchmark not in left and find_records(self.out / benchmark):
            written = report(self.out / benchmark)
            self.say(f"{benchmark} is complete: {written.page}")

    def _learn(self, cell: Cell) -> Record:
        record = find_record(cell.folder)
        assert record is not None, f"{cell.title} has ended without a record"
        self.estimate.learn(record.config, record.seconds["total"])
        return record

    def time_left(self) -> str:
        if not self.waiting:
            return ""
        now = time.monotonic()
        left = (
            (cell.experiment, now - self.since.get(folder, now))
            for folder, cell in self.waiting.items()
        )
        return f"; about {self.estimate.left(left, self.executor.room())} left"
