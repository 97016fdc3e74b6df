"""A preset's whole table: every cell in one pool, the time left, a report per benchmark."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rich.table import Table

from evclplus import compare as comparison
from evclplus.benchmarks import BENCHMARKS
from evclplus.compare import Cell, News, Watcher
from evclplus.config import Experiment, nearest
from evclplus.errors import FileError, SettingsError
from evclplus.files import make_folder, write_atomically
from evclplus.methods import method
from evclplus.presets import Preset
from evclplus.record import RECORD, Record, find_records
from evclplus.report import report
from evclplus.report.across import RULE, Across, terminal

OVERHEAD = 50_000
"""What a training step costs for each example beside the network's products, in products."""


@dataclass(frozen=True)
class Selection:
    """The part of a preset that is to run; its table always shows the whole preset."""

    preset: Preset
    benchmarks: tuple[str, ...]
    methods: tuple[str, ...]

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
        return cls(preset, chosen["benchmark"], chosen["method"])

    def cells(self, out: Path) -> list[Cell]:
        """Benchmark by benchmark, all methods of one seed before the next seed. Missing data is
        named here, all of it in one line."""
        cells: list[Cell] = []
        problems: dict[str, list[str]] = {}
        for benchmark in self.benchmarks:
            experiments = [
                self.preset.experiment(benchmark, name, seed)
                for seed in range(self.preset.seeds)
                for name in self.methods
            ]
            try:
                cells += comparison.cells(experiments, out)
            except FileError as error:
                problems.setdefault(str(error), []).append(benchmark)
        if problems:
            lines = [f"{', '.join(names)}: {problem}" for problem, names in problems.items()]
            raise FileError("; ".join(lines))
        return cells


def reproduce(
    selection: Selection,
    out: Path,
    workers: int,
    bars: Watcher,
    say: Callable[[str], None],
    command: str = "",
    overwrite: bool = False,
) -> list[str]:
    """Run what is not finished and return what went wrong, a line each. A benchmark's report is
    written as soon as its last cell ends."""
    cells = selection.cells(out)
    done, todo = ([], cells) if overwrite else comparison.split_finished(cells)
    make_folder(out)
    follower = _Follower(out, done, todo, workers, bars, say)
    if done:
        left = follower.time_left()
        say(f"{len(done)} of {len(cells)} runs are finished already and kept{left}")
    return comparison.compare(todo, workers, follower, command) if todo else []


def write_reports(preset: Preset, out: Path) -> Table:
    """Write the report of every benchmark that has records below `out` and the tables over all
    benchmarks, and return the last of these for a terminal."""
    records, others = _records(preset, out)
    if not records and not others:
        raise FileError(f"no record.json below {out}; run `evclplus reproduce` first")
    across = Across.of(preset.benchmarks, preset.methods, preset.seeds, records)
    for name in {record.benchmark for record in records}:
        report(out / name)
    note = f"\n{others} records made with other settings are left out.\n" if others else ""
    write_atomically(out / "table.md", across.markdown() + note)
    write_atomically(out / "table.csv", across.csv())
    if preset.reported is None:
        return terminal(across.table(), note)
    source, figures = preset.reported.source, preset.reported.accuracy
    write_atomically(out / "paper.md", across.markdown_beside(source, figures) + note)
    return terminal(across.beside(figures), f"Below our mean: {source}. {RULE}\n{note}")


def _records(preset: Preset, out: Path) -> tuple[list[Record], int]:
    """The records made with the preset's settings, and how many were not."""
    found = [
        record
        for name in preset.benchmarks
        if (out / name).is_dir()
        for record in find_records(out / name)
    ]
    ours = [record for record in found if _is_of(preset, record)]
    return ours, len(found) - len(ours)


def _is_of(preset: Preset, record: Record) -> bool:
    """Whether a record has the settings the preset asks for. What it leaves open is not looked
    at, so that a table outlives a version that adds an option."""
    try:
        asked = preset.experiment(record.benchmark, record.method, record.seed)
    except SettingsError:
        return False
    built = method(asked.method, **asked.options).options()
    return record.config.training == asked.training and all(
        record.config.options.get(name) == built[name] for name in asked.options
    )


class Estimate:
    """How long cells will take, from those that are finished.

    The cost of a cell is its number of products, roughly. What a product takes is known best from
    cells of the same benchmark and method, then from the same method, then from any.
    """

    def __init__(self) -> None:
        self.cost: dict[tuple[str, ...], float] = {}
        self.seconds: dict[tuple[str, ...], float] = {}

    def learn(self, experiment: Experiment, seconds: float) -> None:
        for key in _groups(experiment):
            self.cost[key] = self.cost.get(key, 0.0) + cost(experiment)
            self.seconds[key] = self.seconds.get(key, 0.0) + seconds

    def of(self, experiment: Experiment) -> float:
        """Seconds. Something must have been learned."""
        key = next(key for key in _groups(experiment) if key in self.cost)
        return cost(experiment) * self.seconds[key] / self.cost[key]

    def left(self, cells: Iterable[Cell], spent: Mapping[Path, float], workers: int) -> float:
        """Seconds until all `cells` are finished; `spent` are the seconds of the running ones."""
        each = [max(0.0, self.of(cell.experiment) - spent.get(cell.folder, 0.0)) for cell in cells]
        return max(sum(each) / workers, max(each, default=0.0))


def _groups(experiment: Experiment) -> list[tuple[str, ...]]:
    return [(experiment.benchmark, experiment.method), (experiment.method,), ()]


def cost(experiment: Experiment) -> float:
    """Roughly how many products a cell takes."""
    entry = BENCHMARKS[experiment.benchmark]
    options, tasks = experiment.options, entry.tasks
    every_task_has_all = entry.settings().scenario == "domain"
    examples = entry.examples[0] / (1 if every_task_has_all else tasks)
    passes = float(tasks)
    if experiment.method == "joint":  # all tasks so far, again with each new one
        passes = tasks * (tasks + 1) / 2
    elif options.get("start") == "mle":
        passes += 1
    trained = 0.0 if experiment.method.startswith("coreset-") else passes * examples
    # Before each test the coresets of all tasks seen are trained on.
    trained += float(options.get("coreset_size", 0)) * tasks * (tasks + 1) / 2
    hidden = experiment.network.hidden or ()
    widths = [math.prod(entry.shape), *hidden, entry.classes_per_task]
    products = sum(below * above for below, above in pairwise(widths))
    gaussian = 2 if "initial_variance" in options else 1
    return experiment.training.epochs * trained * (gaussian * products + OVERHEAD)


def duration(seconds: float) -> str:
    """As people say it: 40 s, 12 min, 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class _Follower:
    """A watcher that says a line for each finished cell, with the time left, and reports on a
    benchmark when its last cell ends."""

    def __init__(
        self,
        out: Path,
        done: Sequence[Cell],
        todo: Sequence[Cell],
        workers: int,
        bars: Watcher,
        say: Callable[[str], None],
    ) -> None:
        self.out, self.workers, self.bars, self.say = out, workers, bars, say
        self.total = len(done) + len(todo)
        self.waiting = {cell.folder: cell for cell in todo}
        self.since: dict[Path, float] = {}
        self.estimate = Estimate()
        for cell in done:
            self._learn(cell)

    def started(self, cell: Cell) -> None:
        self.since[cell.folder] = time.monotonic()
        self.bars.started(cell)

    def moved(self, cell: Cell, news: News) -> None:
        self.bars.moved(cell, news)

    def ended(self, cell: Cell, error: str | None) -> None:
        del self.waiting[cell.folder], self.since[cell.folder]
        self.bars.ended(cell, error)
        if error is None:
            record = self._learn(cell)
            self.say(
                f"[{self.total - len(self.waiting)}/{self.total}] {cell.title}: "
                f"{100 * record.average_accuracy:.1f} % in {record.seconds['total']:.0f} s"
                f"{self.time_left()}"
            )
        benchmark = cell.experiment.benchmark
        if benchmark not in {one.experiment.benchmark for one in self.waiting.values()} and any(
            (self.out / benchmark).rglob(RECORD)
        ):
            written = report(self.out / benchmark)
            self.say(f"{benchmark} is complete: {written.page}")

    def _learn(self, cell: Cell) -> Record:
        record = Record.read(cell.folder / RECORD)
        self.estimate.learn(record.config, record.seconds["total"])
        return record

    def time_left(self) -> str:
        if not self.waiting:
            return ""
        now = time.monotonic()
        spent = {folder: now - since for folder, since in self.since.items()}
        seconds = self.estimate.left(self.waiting.values(), spent, self.workers)
        return f"; about {duration(seconds)} left"
