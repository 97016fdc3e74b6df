"""Choosing settings: a search per method, on validation data and seeds that are not reported.

Every search is an Optuna study in a journal, a plain file of JSON lines, so it can be stopped
and gone on with at any time. The driver alone asks the study and tells it; each trial is the job
of a worker, here or elsewhere. Every method gets the same number of trials, and trials that fall
behind the median of the others are stopped early.
"""

import json
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import optuna
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import BaseTrial, FrozenTrial, TrialState
from pydantic import BaseModel

from evclplus.benchmarks.registry import BENCHMARKS, find_benchmark
from evclplus.callbacks import Callback
from evclplus.core.metrics import ACCURACY
from evclplus.errors import FileError, SettingsError, TrainingError
from evclplus.experiments.compare import cells, gpus_of, place_name
from evclplus.experiments.config import Experiment
from evclplus.experiments.environment import environment
from evclplus.experiments.estimate import Estimate
from evclplus.experiments.executors.base import Event, Executor, Listener, Outcome
from evclplus.experiments.executors.loop import work_through
from evclplus.experiments.presets import Chosen
from evclplus.experiments.presets.best import PACKED_SEARCHES, Best, read_packed, write_packed
from evclplus.experiments.run import MINUTES, Results, run
from evclplus.experiments.spaces import space_of, start_of
from evclplus.files import make_folder, write_atomically
from evclplus.locks import BusyError, only_writer
from evclplus.methods.space import Log, Space
from evclplus.progress import Every

FIRST_SEED = 100
"""The first seed of a trial. A preset's seeds are below it."""

COUNTED = (TrialState.COMPLETE, TrialState.PRUNED)
OLDEST_LOCK = 10
"""Seconds after which a journal's lock must be one that a killed process has left."""

UNPRUNED_TRIALS = 3
UNPRUNED_TASKS = 2
DIGITS = 3
"""Significant digits of a number that is tried: settings are for people to read."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(frozen=True)
class Search:
    """The search for one method's settings on one benchmark."""

    benchmark: str
    method: str
    out: Path
    epochs_limit: int | None = None
    runs: int = 2
    """How many seeds a trial is run with."""
    every: Every = MINUTES

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(range(FIRST_SEED, FIRST_SEED + self.runs))

    @property
    def title(self) -> str:
        return f"{self.benchmark} {self.method}"

    @property
    def journal(self) -> Path:
        return self.out / self.benchmark / f"{self.method}.journal"

    @property
    def best(self) -> Path:
        return self.journal.with_suffix(".json")

    @property
    def space(self) -> Space:
        return space_of(self.method, self.epochs_limit)

    def experiment(self, chosen: Chosen, seed: int) -> Experiment:
        """A trial's run with one seed. It never sees test data."""
        return Experiment(
            method=self.method,
            benchmark=self.benchmark,
            seed=seed,
            options=chosen.options,
            # A worker compiles once for many short trials.
            training={**chosen.training, "compile": "on"},
            evaluate_on="validation",
        )

    @property
    def home(self) -> Path:
        """Where its trials are kept while they are not complete."""
        return self.journal.parent

    def work(self, chosen: Chosen, medians: Mapping[int, float]) -> "TrialWork":
        experiments = tuple(self.experiment(chosen, seed) for seed in self.seeds)
        return TrialWork(self.title, self.home, experiments, medians, self.every)

    def study(self) -> optuna.Study:
        """The study in the journal, which is begun where there is none."""
        # Optuna's usual lock is a link to the journal's path. When that is relative, a lock that a
        # killed process has left is never recognised as old, and everyone waits for ever.
        lock = JournalFileOpenLock(str(self.journal), grace_period=OLDEST_LOCK)
        try:
            study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(self.journal), lock)),
                study_name=self.title,
                load_if_exists=True,
                direction="maximize",
            )
            for trial in study.trials:
                _check_trial(trial)
            return study
        except OSError:
            raise
        except Exception:  # optuna's reader trusts what it reads, and has no error of its own
            raise FileError(f"{self.journal} is damaged; move it away and search again") from None

    def prepare(self) -> optuna.Study:
        """The study, ready to go on: what was running when it was stopped is tried again."""
        packed = {(one.benchmark, one.method) for one in read_packed(self.out)}
        if not self.journal.exists() and (self.benchmark, self.method) in packed:
            raise FileError(
                f"{self.out / PACKED_SEARCHES} has the search for {self.method} on "
                f"{self.benchmark}, which cannot go on; choose another --out"
            )
        make_folder(self.journal.parent)
        _drop_partial_line(self.journal)
        study = self.study()
        setting = {
            "seeds": list(self.seeds),
            "space": {name: asdict(dimension) for name, dimension in self.space.items()},
        }
        setting = json.loads(json.dumps(setting))  # as the journal gives it back
        if study.user_attrs.get("setting", setting) != setting:
            raise FileError(
                f"{self.journal} is a search in another space or with other seeds; give the same "
                "--epochs-limit and --seeds or another --out"
            )
        study.set_user_attr("setting", setting)
        study.enqueue_trial(start_of(self.method, self.space), skip_if_exists=True)
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial({**trial.system_attrs.get("fixed_params", {}), **trial.params})
        return study

    def write_best(self, command: str) -> None:
        """Write what is best so far, unless there is nothing or nothing new."""
        study = self.study()
        trials = len(_counted(study))
        complete = study.get_trials(states=(TrialState.COMPLETE,))
        if not complete or (self.best.exists() and Best.read(self.best).trials == trials):
            return
        best = max(complete, key=lambda trial: trial.value or 0.0)
        Best(
            benchmark=self.benchmark,
            method=self.method,
            validation_accuracy=best.value,
            settings=chosen_of(best.params),
            trials=trials,
            pruned=trials - len(complete),
            seeds=self.seeds,
            command=command,
            environment=environment(),
        ).write(self.best)

    def summary(self) -> str:
        """What was found, in one line."""
        if not self.best.exists():
            return f"{self.title}: no trial is complete"
        found = Best.read(self.best)
        return (
            f"{self.title}: {100 * found.validation_accuracy:.2f} % on validation data, best of "
            f"{found.trials} trials ({found.pruned} stopped early): {self.best}"
        )


def pack_searches(out: Path) -> int:
    """Move every search below `out`, its best settings and all its trials, into searches.jsonl;
    returns how many. A packed search cannot go on."""
    searches = [
        Search(journal.parent.name, journal.stem, out) for journal in out.glob("*/*.journal")
    ]
    for search in searches:
        if not search.best.exists():
            raise FileError(f"{search.journal} has no result yet; search on or remove it")
    packed = {(one.benchmark, one.method): one for one in read_packed(out)}
    for search in searches:
        tried = tuple(
            {
                "number": trial.number,
                "state": trial.state.name,
                "value": trial.value,
                "after_task": list(trial.intermediate_values.values()),
                "params": trial.params,
            }
            for trial in search.study().trials
            if trial.state.is_finished()
        )
        best = Best.read(search.best).model_copy(update={"tried": tried})
        packed[search.benchmark, search.method] = best
    write_packed(out, packed.values())
    for search in searches:
        search.journal.unlink()
        search.best.unlink()
        if not any(search.journal.parent.iterdir()):
            search.journal.parent.rmdir()
    return len(searches)


def _check_trial(trial: FrozenTrial) -> None:
    """What is read from a trial later has to be of its kind, also in a journal from elsewhere."""
    _job(trial)
    chosen_of({**trial.system_attrs.get("fixed_params", {}), **trial.params})
    values: list[Any] = [*trial.intermediate_values.values()]
    if trial.state == TrialState.COMPLETE:
        values.append(trial.value)
    if any(not isinstance(value, float) for value in values):
        raise TypeError("a score is no number")
    if trial.state.is_finished():
        assert trial.duration is not None
        trial.duration.total_seconds()


def _drop_partial_line(journal: Path) -> None:
    """A stop in the middle of writing may leave a piece of a line; the rest is whole."""
    content = journal.read_bytes() if journal.exists() else b""
    if not content.endswith(b"\n") and content:
        write_atomically(journal, content[: content.rfind(b"\n") + 1])


def _counted(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that use up the budget: a killed or failed one does not."""
    return study.get_trials(states=COUNTED)


@dataclass(frozen=True)
class TrialWork:
    """A trial as a worker sees it: runs that differ in their seed. Its answer is an `Answer`.

    `medians` says what half of the complete trials had reached after each step: one that has less
    falls behind. It is known when the trial begins, so a worker elsewhere has nobody to ask.
    """

    title: str
    home: Path
    experiments: tuple[Experiment, ...]
    medians: Mapping[int, float]
    every: Every

    @property
    def name(self) -> str:
        parts = [platform.node(), str(self.home.absolute())]
        return place_name(self.title, parts + [one.fingerprint() for one in self.experiments])

    @property
    def gpus(self) -> int:
        return gpus_of(self.experiments[0])

    def __call__(self, keep: Path | None, callback: Callback, command: str) -> bytes:
        return score(self, keep, callback).model_dump_json().encode()

    def clear(self, keep: Path) -> None:
        for one in self.experiments:
            shutil.rmtree(kept(keep, one), ignore_errors=True)


def kept(keep: Path, experiment: Experiment) -> Path:
    """Where a trial's run is kept while it is not complete. It has the name of its settings: when
    it is tried again, it goes on."""
    return keep / f"{experiment.method}-{experiment.fingerprint()}"


class Answer(BaseModel):
    """What came of a trial: what it reported after each task, and its score, or None when it fell
    behind."""

    reported: list[float] = []
    score: float | None = None


class _BehindError(Exception):
    """A trial is not worth going on."""


def score(work: TrialWork, keep: Path | None, callback: Callback | None = None) -> Answer:
    """Average accuracy on validation data, mean over the seeds; 0 when training diverges.

    What is reported on the way is the score with every accuracy that is not known yet counted as
    zero. It grows with each task, as the median rule needs, and ends as the score.
    """
    runs = len(work.experiments)
    answer, finished = Answer(), 0.0
    for experiment in work.experiments:
        tasks = BENCHMARKS[experiment.benchmark].tasks

        def report(results: Results, before: float = finished, tasks: int = tasks) -> None:
            assert results.side == "validation", "tuning must not look at test data"
            seen = results.matrix("accuracy")[-1]
            answer.reported.append((before + sum(seen) / tasks) / runs)
            if falls_behind(answer.reported, work.medians):
                raise _BehindError

        try:
            with _kept_alone(None if keep is None else kept(keep, experiment)) as folder:
                record = run(experiment, callback, after_task=report, keep=folder, every=work.every)
        except TrainingError:
            return Answer(reported=answer.reported, score=0.0)
        except _BehindError:
            return answer
        finished += record.average
    return Answer(reported=answer.reported, score=finished / runs)


def falls_behind(reported: Sequence[float], medians: Mapping[int, float]) -> bool:
    """Whether the best so far is less than what half of the others had at the same step."""
    step = len(reported) - 1
    return max(reported) < medians.get(step, 0.0)


def medians_of(trials: Sequence[FrozenTrial]) -> dict[int, float]:
    """For each step what half of the complete trials had reported; nothing for the first steps, or
    when there are too few trials to compare with. The rule of Optuna's median pruner."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if len(complete) < UNPRUNED_TRIALS:
        return {}
    steps = {step for trial in complete for step in trial.intermediate_values}
    return {
        step: median(
            trial.intermediate_values[step]
            for trial in complete
            if step in trial.intermediate_values
        )
        for step in steps
        if step >= UNPRUNED_TASKS
    }


@contextmanager
def _kept_alone(folder: Path | None) -> Iterator[Path | None]:
    """A folder that this process alone writes; none if a trial with the same settings has it."""
    with ExitStack() as stack:
        try:
            if folder is not None:
                stack.enter_context(only_writer(folder))
        except BusyError:
            folder = None
        yield folder


@dataclass(frozen=True)
class TrialJob:
    """One trial of a search. `number` counts the jobs of a search."""

    search: Search
    study: optuna.Study
    number: int
    asked: list[optuna.Trial] = field(default_factory=list)
    """The trial, once it has begun."""

    @property
    def title(self) -> str:
        return f"{self.search.title} trial {self.number}"

    def work(self) -> TrialWork:
        """Ask the study what to try."""
        # Another seed for each trial: a search that goes on draws the same as one that never
        # stopped.
        self.study.sampler = TPESampler(seed=self.number)
        trial = self.study.ask()
        self.asked.append(trial)
        trial.set_user_attr("job", self.number)
        chosen = suggest(trial, self.search.space)
        return self.search.work(chosen, medians_of(self.study.trials))

    def receive(self, outcome: Outcome) -> None:
        """Tell the study. A trial whose worker is lost stays open: the next call tries it again."""
        (trial,) = self.asked
        if outcome.lost:
            return
        if outcome.error is not None:
            self.study.tell(trial, state=TrialState.FAIL)
            return
        answer = Answer.model_validate_json(outcome.answer)
        for step, value in enumerate(answer.reported):
            trial.report(value, step)
        if answer.score is None:
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, answer.score)
        self.search.work(chosen_of(trial.params), {}).clear(self.search.home)

    def outcome(self) -> FrozenTrial:
        return self.study.trials[self.asked[0].number]


def suggest(trial: BaseTrial, space: Space) -> Chosen:
    """Draw a value for every dimension."""
    for name, dimension in space.items():
        if isinstance(dimension, Log):
            trial.suggest_float(name, dimension.low, dimension.high, log=True)
        else:
            trial.suggest_categorical(name, dimension.values)
    return chosen_of(trial.params)


def chosen_of(values: dict[str, Any]) -> Chosen:
    """The settings that a trial's values stand for."""
    rounded = {
        name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        for name, value in values.items()
    }
    prefix = "training."
    return Chosen(
        training={
            name.removeprefix(prefix): value
            for name, value in rounded.items()
            if name.startswith(prefix)
        },
        options={name: value for name, value in rounded.items() if not name.startswith(prefix)},
    )


def tune(
    searches: Sequence[Search],
    trials: int,
    executor: Executor,
    bars: Listener[TrialJob],
    say: Callable[[str], None],
    command: str = "",
) -> list[str]:
    """Bring every search to the same number of trials and return what went wrong, a line each."""
    for one in searches:
        if find_benchmark(one.benchmark).metric is not ACCURACY:
            raise SettingsError(
                f"{one.benchmark} has no classes, and a search looks for the best accuracy; choose "
                'settings by hand, with evaluate_on = "validation" in a plan (evclplus init)'
            )
    # Missing data and wrong names show here, before anything is written.
    settled = cells([one.experiment(Chosen(), FIRST_SEED) for one in searches], Path())
    plain = {one.title: cell.experiment for one, cell in zip(searches, settled, strict=True)}
    with ExitStack() as stack:
        for one in searches:  # two at once would take each other's trials for dead ones
            stack.enter_context(only_writer(one.journal.parent, f".{one.method}.lock"))
        return _tune(searches, trials, executor, _Follower(plain, executor, bars, say, command))


def _tune(
    searches: Sequence[Search], trials: int, executor: Executor, follower: "_Follower"
) -> list[str]:
    say, command = follower.say, follower.command
    jobs: list[tuple[int, TrialJob]] = []
    for search in searches:
        study = search.prepare()
        for trial in _counted(study):
            follower.learn(search, trial)
        counted, first = len(_counted(study)), 1 + max(map(_job, study.trials))
        if counted:
            say(f"{search.title}: {counted} of {trials} trials are finished already and kept")
        jobs += [
            (counted + index, TrialJob(search, study, first + index))
            for index in range(trials - counted)
        ]
    # Trial by trial through all methods: a search that is stopped leaves them equally far.
    todo = [job for _, job in sorted(jobs, key=lambda pair: pair[0])]
    follower.waiting = list(todo)
    failed = work_through(todo, executor, follower, command) if todo else []
    for search in searches:
        search.write_best(command)
    return failed


def _job(trial: FrozenTrial) -> int:
    return int(trial.user_attrs.get("job", 0))


class _Follower:
    """A listener that says a line for each trial, with the time left, and keeps the best settings
    on disk. `plain` is a run of each search with default settings, to compare their costs."""

    def __init__(
        self,
        plain: Mapping[str, Experiment],
        executor: Executor,
        bars: Listener[TrialJob],
        say: Callable[[str], None],
        command: str,
    ) -> None:
        self.plain, self.executor, self.command = plain, executor, command
        self.bars, self.say = bars, say
        self.estimate = Estimate()
        self.waiting: list[TrialJob] = []
        self.ended_jobs = 0

    def started(self, job: TrialJob) -> None:
        self.bars.started(job)

    def moved(self, job: TrialJob, event: Event) -> None:
        self.bars.moved(job, event)

    def told(self, line: str) -> None:
        self.say(line)

    def ended(self, job: TrialJob, error: str | None) -> None:
        self.waiting.remove(job)
        self.ended_jobs += 1
        self.bars.ended(job, error)
        if error is not None:
            return
        trial = job.outcome()
        seconds = self.learn(job.search, trial)
        total = self.ended_jobs + len(self.waiting)
        self.say(
            f"[{self.ended_jobs}/{total}] {job.title}: {_result(trial)} in {seconds:.0f} s"
            f"{self._time_left()}"
        )
        job.search.write_best(self.command)

    def learn(self, search: Search, trial: FrozenTrial) -> float:
        seconds = trial.duration.total_seconds() if trial.duration else 0.0
        self.estimate.learn(self.plain[search.title], seconds)
        return seconds

    def _time_left(self) -> str:
        if not self.waiting:
            return ""
        left = [(self.plain[job.search.title], 0.0) for job in self.waiting]
        return f"; about {self.estimate.left(left, self.executor.room())} left"


def _result(trial: FrozenTrial) -> str:
    if trial.state == TrialState.PRUNED:
        return f"stopped after {len(trial.intermediate_values)} tasks"
    return f"{100 * (trial.value or 0.0):.1f} %"
