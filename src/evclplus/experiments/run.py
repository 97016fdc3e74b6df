"""The whole program on one screen: settings -> stream -> learner -> evaluation -> record."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from evclplus import networks
from evclplus.benchmarks.registry import BENCHMARKS, benchmark
from evclplus.callbacks import Callback
from evclplus.checks import usable_device
from evclplus.core import metrics
from evclplus.errors import FileError
from evclplus.experiments.config import Experiment
from evclplus.experiments.environment import environment
from evclplus.experiments.record import MATRICES, Record, summary
from evclplus.experiments.store import find_record
from evclplus.experiments.uncertainty import Figures, figures
from evclplus.experiments.unfinished import CHECKPOINTS, Row, clear, leave_note, read_note
from evclplus.learner import Learner, ranks_for
from evclplus.locks import only_writer
from evclplus.methods import method, options_of
from evclplus.methods.base import Method, training_for
from evclplus.progress import Checkpoints, Every
from evclplus.signals import Stopped
from evclplus.streams.task import Stream, Task

MINUTES = 5.0
"""Between two checkpoints inside a task."""

SHARDS = 4
"""Of a batch under torchrun: as many as processes that a machine has for one model, and no more,
because small shards compute slowly."""

LEAST = 60.0
"""Seconds: a run that is shorter leaves no checkpoints, and no more than that is lost of one."""


class Resolved(NamedTuple):
    """An experiment with every default written out, and what is built from it."""

    experiment: Experiment
    stream: Stream
    method: Method


def resolve(experiment: Experiment) -> Resolved:
    chosen = method(experiment.method, **experiment.options)
    usable_device(experiment.training.device)
    stream = benchmark(experiment.benchmark, seed=experiment.seed, **experiment.stream)
    settings = {key: value for key, value in stream.settings.items() if key != "seed"}
    return Resolved(written_out(experiment, chosen, settings), stream, chosen)


def written_out(experiment: Experiment, chosen: Method, stream: dict[str, Any]) -> Experiment:
    """An experiment with the settings of its method, its stream, its network and its training."""
    hidden = experiment.network.hidden
    if hidden is None:
        kind = experiment.network.kind
        hidden = BENCHMARKS[experiment.benchmark].hidden if kind == "mlp" else (32, 64)
    return experiment.model_copy(
        update={
            "options": options_of(chosen),
            "stream": stream,
            "network": experiment.network.model_copy(update={"hidden": hidden}),
            "training": training_for(chosen, experiment.training),
        }
    )


def cut(experiment: Experiment) -> Experiment:
    """The experiment as several processes run it: batches are cut into shards."""
    shards = experiment.training.shards or SHARDS
    training = experiment.training.model_copy(update={"shards": shards})
    return experiment.model_copy(update={"training": training})


def run(
    experiment: Experiment,
    callback: Callback | None = None,
    command: str = "",
    after_task: Callable[["Results"], None] = lambda results: None,
    keep: Path | None = None,
    every: Every = MINUTES,
) -> Record:
    """Run one experiment. The result depends on the experiment and nothing else.

    In the folder `keep` is what is found and learned on the way, `every` so often. After a stop the
    same call goes on from there; when the run is complete, `clear(keep)` is for the caller.
    """
    clock = Clock()
    with clock("data"):
        resolved = resolve(experiment)
    return _run(resolved, clock, callback, command, keep, every, after_task)


def run_into(
    folder: Path,
    experiment: Experiment,
    callback: Callback | None = None,
    command: str = "",
    overwrite: bool = False,
    every: Every = MINUTES,
) -> Record:
    """Run an experiment and leave record.json in `folder`.

    Until it is there the folder holds unfinished.json with what is known so far, and a run of more
    than a minute leaves checkpoints: called again, it goes on. A finished record, and an
    unfinished run with other settings, is not overwritten unless asked. Of several processes the
    first one writes.
    """
    refuse_finished(folder, overwrite)
    clock = Clock()
    with clock("data"):
        resolved = resolve(experiment)  # bad settings are refused before anything is written
    ranks = ranks_for(resolved.experiment.training)
    with only_writer(folder) if ranks.writes else nullcontext():
        refuse_finished(folder, overwrite)  # another one may have been here meanwhile
        if overwrite and ranks.writes:
            clear(folder)
        ranks.gather()  # all of them see the folder as it is now
        check_unfinished(folder, resolved.experiment)
        return _run(resolved, clock, callback, command, folder, every, finish=finish)


def finish(record: Record, folder: Path) -> None:
    """Leave a record in place of what a run needed while it was not complete."""
    record.write(folder)
    clear(folder)


def refuse_finished(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that has a record."""
    if not overwrite and find_record(folder) is not None:
        raise FileError(f"{folder} has a finished record; pass --overwrite or another --out")


def _run(
    resolved: Resolved,
    clock: "Clock",
    callback: Callback | None,
    command: str,
    keep: Path | None,
    every: Every,
    after_task: Callable[["Results"], None] = lambda results: None,
    finish: Callable[[Record, Path], None] = lambda record, keep: None,
) -> Record:
    experiment, stream = resolved.experiment, resolved.stream
    learner = build_learner(resolved, callback)
    results = Results(experiment.evaluate_on, BENCHMARKS[experiment.benchmark].metric)
    place = Checkpoints(Path() if keep is None else keep / CHECKPOINTS, every, LEAST, alone=False)
    place.ranks = learner.ranks
    if keep is not None:
        results = _go_on(keep, place, experiment, learner, stream, clock)
        so_far = len(learner.learned), len(results.rows), len(results.before)
        learner.ranks.agree("what was learned so far", *so_far)
    if not results.untrained:
        with clock("evaluate"):
            results.untrained = [results.value(learner, task) for task in stream]
    for done in range(len(results.rows)):
        after_task(results.first(done + 1))
    try:
        for index in range(len(results.rows), len(stream)):
            task = stream[index]
            if index == len(learner.learned):
                with clock("evaluate"):
                    results.before.append(results.value(learner, task))
                noted = keep is not None and place.write(
                    partial(leave_note, keep, experiment, results, clock.seconds, learner.forms)
                )
                with clock("learn"):
                    learner.learn(task, None if keep is None else place)
                if noted and place.pending is None and not place.failing:
                    place.forget(before=index)
            with clock("evaluate"):
                results.rows.append([results.score(learner, seen) for seen in stream.seen(task)])
            after_task(results)
        known = None
        if learner.classifies:
            with clock("uncertainty"):
                known = figures(learner, stream, results.side)
        record = _record(experiment, stream, results, clock, command, learner, known)
        if keep is not None and learner.ranks.writes:
            finish(record, keep)
        return record
    except (Stopped, FileError):
        place.flush()  # the last learner may not have been saved yet
        raise


def _go_on(
    keep: Path,
    place: Checkpoints,
    experiment: Experiment,
    learner: Learner,
    stream: Stream,
    clock: "Clock",
) -> "Results":
    """What a stopped run of the same experiment has found; the learner becomes its learner."""
    results = Results(experiment.evaluate_on, BENCHMARKS[experiment.benchmark].metric)
    note = read_note(keep)
    if note is None or note.config.fingerprint() != experiment.fingerprint():
        return results
    results.untrained, results.resumed = note.untrained, note.resumed
    # A learner is of use if all is known that was to be found before its last task.
    known = min(len(note.rows) + 1, len(note.before))
    learner.resume(place, [stream[index] for index in range(known)])
    learned = len(learner.learned)
    results.before, results.rows = note.before[:learned], list(note.rows[:learned])
    if learned or place.task(0).exists():
        results.resumed += 1
        clock.seconds |= note.seconds
        learner.forms |= set(note.steps)
    return results


def build_learner(resolved: Resolved, callback: Callback | None = None) -> Learner:
    experiment, stream, chosen = resolved
    network = networks.build(
        networks.Architecture(
            kind=experiment.network.kind,
            input_shape=stream.input_shape,
            hidden=experiment.network.hidden or (),
            film=experiment.network.film,
        ),
        seed=experiment.seed,
    )
    return Learner(
        network,
        chosen,
        seed=experiment.seed,
        samples=experiment.samples,
        criterion=stream.likelihood,
        callback=callback,
        **dict(experiment.training),
    )


def finished(folder: Path, experiment: Experiment) -> bool:
    """Whether `folder` holds the record of this experiment, which must be resolved; the record
    of another one is an error."""
    record = find_record(folder)
    if record is None:
        return False
    _refuse_other(record.full_config, experiment, f"{folder} has a record made")
    return True


def check_unfinished(folder: Path, experiment: Experiment) -> None:
    """Refuse to throw away what a stopped run with other settings has learned."""
    note = read_note(folder)
    if note is not None and (folder / CHECKPOINTS).exists():
        _refuse_other(note.config, experiment, f"{folder} has a stopped run")


def _refuse_other(found: Experiment, wanted: Experiment, what: str) -> None:
    if found.fingerprint() != wanted.fingerprint():
        raise FileError(
            f"{what} with other settings ({_difference(found, wanted)}); choose another --out or "
            "pass --overwrite"
        )


def _difference(found: Experiment, wanted: Experiment) -> str:
    """The first setting in which two experiments differ."""

    def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        parts: dict[str, Any] = {}
        for key, value in values.items():
            inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else None
            parts |= {f"{prefix}{key}": value} if inner is None else inner
        return parts

    old, new = flat(found.model_dump(mode="json")), flat(wanted.model_dump(mode="json"))
    key = next(key for key in sorted(old | new) if old.get(key) != new.get(key))
    return f"{key} is {old.get(key)}, not {new.get(key)}"


@dataclass
class Results:
    """Scores as they come in."""

    side: str
    metric: metrics.Metric
    untrained: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    resumed: int = 0
    """How often the run was stopped and gone on with."""

    def first(self, count: int) -> "Results":
        """As it was after so many tasks."""
        return replace(self, before=self.before[:count], rows=self.rows[:count])

    def score(self, learner: Learner, task: Task) -> metrics.Scores | metrics.RegressionScores:
        ask = learner.score if learner.classifies else learner.regression_score
        return ask(getattr(task, self.side), task.name)

    def value(self, learner: Learner, task: Task) -> float:
        """By the metric."""
        found: float = getattr(self.score(learner, task), self.metric.name)
        return found

    def matrix(self, name: str) -> list[list[float]]:
        return [[getattr(score, name) for score in row] for row in self.rows]


class Clock:
    """Adds up wall-clock seconds by phase: `with clock("learn"): ...`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._phase = ""
        self._start = 0.0

    def __call__(self, phase: str) -> "Clock":
        self._phase = phase
        return self

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        passed = time.perf_counter() - self._start
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + passed


def _record(
    experiment: Experiment,
    stream: Stream,
    results: Results,
    clock: Clock,
    command: str,
    learner: Learner,
    known: Figures | None,
) -> Record:
    metric = results.metric
    matrices = {name: results.matrix(name) for name in MATRICES[metric]}
    notes = list(stream.notes)
    if experiment.evaluate_on == "validation":
        notes.append("scores are on validation data, not on the test set")
    return Record(
        method=experiment.method,
        benchmark=experiment.benchmark,
        seed=experiment.seed,
        config=experiment,
        tasks=[task.name for task in stream],
        notes=notes,
        **matrices,
        **{metric.before: results.before, metric.untrained: results.untrained},
        **summary(metric, matrices, results.before, results.untrained),
        calibrated=[task.calibrated for task in learner.learned],
        uncertainty=known,
        environment=environment(
            command=command,
            steps=sorted(learner.forms),
            resumed=results.resumed,
            ranks=learner.ranks.count,
        ),
        seconds={**clock.seconds, "total": sum(clock.seconds.values())},
    )
