"""The whole program on one screen: settings -> stream -> learner -> evaluation -> record."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
from evclplus.experiments.record import UNFINISHED, Record
from evclplus.experiments.store import find_record
from evclplus.files import make_folder, write_atomically
from evclplus.learner import Learner
from evclplus.methods import method, options_of
from evclplus.methods.base import Method, training_for
from evclplus.streams.task import Stream, Task


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


def run(
    experiment: Experiment,
    callback: Callback | None = None,
    command: str = "",
    after_task: Callable[["Results"], None] = lambda results: None,
) -> Record:
    """Run one experiment. The result depends on the experiment and nothing else."""
    clock = Clock()
    with clock("data"):
        resolved = resolve(experiment)
    return _run(resolved, clock, callback, command, after_task)


def run_into(
    folder: Path,
    experiment: Experiment,
    callback: Callback | None = None,
    command: str = "",
    overwrite: bool = False,
) -> Record:
    """Run an experiment and leave record.json in `folder`.

    Until it is there the folder holds unfinished.json with what is known so far. A finished
    record is not overwritten unless asked.
    """
    if not overwrite and find_record(folder) is not None:
        raise FileError(f"{folder} has a finished record; pass --overwrite or another --out")
    clock = Clock()
    with clock("data"):
        resolved = resolve(experiment)  # bad settings are refused before anything is written
    make_folder(folder)

    def leave_note(results: Results) -> None:
        accuracy = results.matrix("accuracy")
        note = {"config": experiment.model_dump(mode="json"), "accuracy": accuracy}
        write_atomically(folder / UNFINISHED, json.dumps(note, indent=1) + "\n")

    leave_note(Results(experiment.evaluate_on))
    record = _run(resolved, clock, callback, command, leave_note)
    record.write(folder)
    (folder / UNFINISHED).unlink(missing_ok=True)
    return record


def _run(
    resolved: Resolved,
    clock: "Clock",
    callback: Callback | None,
    command: str,
    after_task: Callable[["Results"], None],
) -> Record:
    stream = resolved.stream
    learner = build_learner(resolved, callback)
    results = Results(resolved.experiment.evaluate_on)
    with clock("evaluate"):
        results.untrained = [results.score(learner, task).accuracy for task in stream]
    for task in stream:
        with clock("evaluate"):
            results.before.append(results.score(learner, task).accuracy)
        with clock("learn"):
            learner.learn(task)
        with clock("evaluate"):
            results.rows.append([results.score(learner, seen) for seen in stream.seen(task)])
        after_task(results)
    return _record(resolved.experiment, stream, results, clock, command, learner)


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
        callback=callback,
        **dict(experiment.training),
    )


def finished(folder: Path, experiment: Experiment) -> bool:
    """Whether `folder` holds the record of this experiment, which must be resolved; the record
    of another one is an error."""
    record = find_record(folder)
    if record is None:
        return False
    found = record.full_config
    if found.fingerprint() != experiment.fingerprint():
        raise FileError(
            f"{folder} has a record made with other settings ({_difference(found, experiment)}); "
            "choose another --out or pass --overwrite"
        )
    return True


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
    untrained: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    rows: list[list[metrics.Scores]] = field(default_factory=list)

    def score(self, learner: Learner, task: Task) -> metrics.Scores:
        return learner.score(getattr(task, self.side), task.name)

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
) -> Record:
    accuracy = results.matrix("accuracy")
    nll = results.matrix("negative_log_likelihood")
    brier = results.matrix("brier_score")
    calibration = results.matrix("calibration_error")
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
        accuracy=accuracy,
        negative_log_likelihood=nll,
        brier_score=brier,
        calibration_error=calibration,
        accuracy_before=results.before,
        accuracy_untrained=results.untrained,
        average_accuracy=metrics.average(accuracy),
        forgetting=metrics.forgetting(accuracy),
        backward_transfer=metrics.backward_transfer(accuracy),
        forward_transfer=metrics.forward_transfer(results.before, results.untrained),
        learning_accuracy=metrics.learning_accuracy(accuracy),
        average_negative_log_likelihood=metrics.average(nll),
        average_brier_score=metrics.average(brier),
        average_calibration_error=metrics.average(calibration),
        calibrated=[task.calibrated for task in learner.learned],
        environment=environment(command=command, steps=sorted(learner.forms)),
        seconds={**clock.seconds, "total": sum(clock.seconds.values())},
    )
