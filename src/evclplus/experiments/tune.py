"""Choosing settings: a search per method, on validation data and seeds that are not reported.

Every search is an Optuna study in a journal, a plain file of JSON lines, so it can be stopped
and gone on with at any time. Each trial is a job of a worker process; every method gets the same
number of trials, and trials that fall behind the median of the others are stopped early.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import BaseTrial, FrozenTrial, TrialState

from evclplus.benchmarks.registry import BENCHMARKS
from evclplus.callbacks import Callback
from evclplus.errors import FileError, TrainingError
from evclplus.experiments.compare import cells
from evclplus.experiments.config import Experiment
from evclplus.experiments.environment import environment
from evclplus.experiments.estimate import Estimate
from evclplus.experiments.pool import Event, Listener, work_through
from evclplus.experiments.presets import Chosen
from evclplus.experiments.presets.best import PACKED_SEARCHES, Best, read_packed, write_packed
from evclplus.experiments.run import MINUTES, Results, run
from evclplus.experiments.spaces import space_of, start_of
from evclplus.files import make_folder, write_atomically
from evclplus.locks import only_writer
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

    def kept(self, experiment: Experiment) -> Path:
        """Where a trial's run is kept while it is not complete. It has the name of its settings:
        when it is tried again, it goes on."""
        name = f"{self.method}-{experiment.fingerprint()}"
        return self.journal.parent / name

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

    def study(self, sampler_seed: int = 0) -> optuna.Study:
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
                sampler=TPESampler(seed=sampler_seed),
                pruner=MedianPruner(UNPRUNED_TRIALS, UNPRUNED_TASKS),
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
class TrialJob:
    """One trial of a search, run by a worker process. `number` counts the jobs of a search."""

    search: Search
    number: int

    @property
    def title(self) -> str:
        return f"{self.search.title} trial {self.number}"

    def run(self, callback: Callback, command: str) -> None:
        # Another seed for each trial: a worker begins its sampler anew every time.
        study = self.search.study(sampler_seed=self.number)

        def objective(trial: optuna.Trial) -> float:
            trial.set_user_attr("job", self.number)
            return score(self.search, trial, callback)

        study.optimize(objective, n_trials=1)

    def outcome(self, study: optuna.Study) -> FrozenTrial:
        return next(
            trial for trial in reversed(study.trials) if trial.user_attrs.get("job") == self.number
        )


def score(search: Search, trial: BaseTrial, callback: Callback | None = None) -> float:
    """Average accuracy on validation data, mean over the seeds; 0 when training diverges.

    What is reported on the way is the score with every accuracy that is not known yet counted as
    zero. It grows with each task, as the pruner needs, and ends as the score.
    """
    chosen = suggest(trial, search.space)
    experiments = [search.experiment(chosen, seed) for seed in search.seeds]
    found = _score(search, trial, experiments, callback)
    for one in experiments:
        shutil.rmtree(search.kept(one), ignore_errors=True)
    if found is None:
        raise optuna.TrialPruned
    return found


def _score(
    search: Search,
    trial: BaseTrial,
    experiments: Sequence[Experiment],
    callback: Callback | None,
) -> float | None:
    """None when the trial falls behind and is not worth going on."""
    tasks = BENCHMARKS[search.benchmark].tasks
    finished = 0.0
    for index, experiment in enumerate(experiments):

        def report(results: Results, index: int = index, before: float = finished) -> None:
            assert results.side == "validation", "tuning must not look at test data"
            seen = results.matrix("accuracy")[-1]
            trial.report(
                (before + sum(seen) / tasks) / search.runs, step=index * tasks + len(seen) - 1
            )
            if trial.should_prune():
                raise optuna.TrialPruned

        try:
            with _kept_alone(search.kept(experiment)) as keep:
                record = run(experiment, callback, after_task=report, keep=keep, every=search.every)
        except TrainingError:
            return 0.0
        except optuna.TrialPruned:
            return None
        finished += record.average_accuracy
    return finished / search.runs


@contextmanager
def _kept_alone(folder: Path) -> Iterator[Path | None]:
    """A folder that this process alone writes; none if a trial with the same settings has it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(only_writer(folder))
        except FileError:
            yield None
            return
        yield folder


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
    workers: int,
    bars: Listener[TrialJob],
    say: Callable[[str], None],
    command: str = "",
) -> list[str]:
    """Bring every search to the same number of trials and return what went wrong, a line each."""
    # Missing data and wrong names show here, before anything is written.
    settled = cells([one.experiment(Chosen(), FIRST_SEED) for one in searches], Path())
    plain = {one.title: cell.experiment for one, cell in zip(searches, settled, strict=True)}
    with ExitStack() as stack:
        for one in searches:  # two at once would take each other's trials for dead ones
            stack.enter_context(only_writer(one.journal.parent, f".{one.method}.lock"))
        return _tune(searches, trials, workers, _Follower(plain, workers, bars, say, command))


def _tune(
    searches: Sequence[Search], trials: int, workers: int, follower: "_Follower"
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
            (counted + index, TrialJob(search, first + index)) for index in range(trials - counted)
        ]
    # Trial by trial through all methods: a search that is stopped leaves them equally far.
    todo = [job for _, job in sorted(jobs, key=lambda pair: pair[0])]
    follower.waiting = list(todo)
    failed = work_through(todo, workers, follower, command) if todo else []
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
        workers: int,
        bars: Listener[TrialJob],
        say: Callable[[str], None],
        command: str,
    ) -> None:
        self.plain, self.workers, self.command = plain, workers, command
        self.bars, self.say = bars, say
        self.estimate = Estimate()
        self.waiting: list[TrialJob] = []
        self.ended_jobs = 0

    def started(self, job: TrialJob) -> None:
        self.bars.started(job)

    def moved(self, job: TrialJob, event: Event) -> None:
        self.bars.moved(job, event)

    def ended(self, job: TrialJob, error: str | None) -> None:
        self.waiting.remove(job)
        self.ended_jobs += 1
        self.bars.ended(job, error)
        if error is not None:
            return
        trial = job.outcome(job.search.study())
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
        return f"; about {self.estimate.left(left, self.workers)} left"


def _result(trial: FrozenTrial) -> str:
    if trial.state == TrialState.PRUNED:
        return f"stopped after {len(trial.intermediate_values)} tasks"
    return f"{100 * (trial.value or 0.0):.1f} %"
