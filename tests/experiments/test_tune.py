"""The search for settings: real trials on the embedded digits, stopped and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.pruners import MedianPruner
from optuna.trial import FrozenTrial, TrialState, create_trial

from evclplus.benchmarks.registry import benchmark
from evclplus.callbacks import Callback
from evclplus.errors import DataError, FileError, SettingsError, TrainingError
from evclplus.experiments import tune as tuning
from evclplus.experiments.cli import main
from evclplus.experiments.config import Experiment
from evclplus.experiments.executors.base import Outcome
from evclplus.experiments.presets import load_preset
from evclplus.experiments.presets.best import Best, read_packed, write_preset
from evclplus.experiments.run import run
from evclplus.experiments.spaces import space_of, start_of
from evclplus.experiments.store import find_records
from evclplus.experiments.tune import (
    FIRST_SEED,
    Answer,
    Search,
    TrialJob,
    TrialWork,
    chosen_of,
    falls_behind,
    medians_of,
    score,
)
from evclplus.learner import Learner
from evclplus.methods import METHODS
from evclplus.methods.base import training_for
from evclplus.methods.evcl_plus import EVCLPlus
from evclplus.methods.space import Log, OneOf
from evclplus.settings import Training
from evclplus.streams.task import Stream
from tests.experiments.test_cli import evclplus

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
QUICK = ("tune", "--benchmark", "split-digits", "--epochs-limit", "1", "--jobs", "1")


def first_work(search: Search) -> TrialWork:
    """What the first trial of a search does."""
    return search.work(chosen_of(start_of(search.method, search.space)), {})


def done(search: Search, study: optuna.Study) -> FrozenTrial:
    """A trial asked for, done here and told."""
    job = TrialJob(search, study, 1)
    job.receive(Outcome(job.work()(None, Callback(), "")))
    return job.outcome()


def trials(folder: Path, method: str) -> list[FrozenTrial]:
    study: optuna.Study = Search("split-digits", method, folder / "results" / "search").study()
    return study.get_trials(states=FINISHED)


@pytest.mark.slow
def test_methods_get_equal_budgets_and_a_search_goes_on(tmp_path: Path) -> None:
    first = evclplus(*QUICK, "--methods", "ewc,finetune", "--trials", "5", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "[1/10] split-digits ewc trial 1: " in first.stdout
    assert "[2/10] split-digits finetune trial 1: " in first.stdout
    before = {method: trials(tmp_path, method) for method in ("ewc", "finetune")}
    assert [len(one) for one in before.values()] == [5, 5]
    first_point = before["ewc"][0].params
    assert first_point == start_of("ewc", space_of("ewc", 1))

    second = evclplus(*QUICK, "--methods", "ewc,finetune", "--trials", "8", folder=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "split-digits ewc: 5 of 8 trials are finished already and kept" in second.stdout
    for method, kept in before.items():
        after = trials(tmp_path, method)
        assert len(after) == 8
        assert after[:5] == kept
        # A sampler that begins anew must not draw the same values again.
        rates = [trial.params["training.learning_rate"] for trial in after[5:]]
        assert len(set(rates)) == 3
        best = Best.read(tmp_path / "results/search/split-digits" / f"{method}.json")
        assert best.trials == 8
        assert best.seeds == (100, 101)
        values = [trial.value for trial in after if trial.state == TrialState.COMPLETE]
        assert best.validation_accuracy == max(value or 0.0 for value in values)
        assert best.command.startswith("evclplus tune --benchmark split-digits")
        assert best.environment["torch"]

    written = evclplus("tune", "--write-preset", "mine.toml", folder=tmp_path)
    assert written.returncode == 0, written.stderr
    assert "preset: mine.toml, with 2 tuned settings" in written.stdout
    assert "\n# evclplus tune --benchmark split-digits" in (tmp_path / "mine.toml").read_text()
    words = ("--benchmarks", "split-digits", "--methods", "ewc", "--seeds", "1", "--jobs", "1")
    done = evclplus("reproduce", "--preset", "mine.toml", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (record,) = find_records(tmp_path / "results" / "mine")
    chosen = Best.read(tmp_path / "results/search/split-digits/ewc.json").settings
    assert record.config.options["lam"] == chosen.options["lam"]
    assert record.config.training == training_for(
        METHODS["ewc"].build(), Training(**chosen.training)
    )
    assert record.config.evaluate_on == "test"
    assert record.seed < FIRST_SEED

    tried = {method: trials(tmp_path, method) for method in ("ewc", "finetune")}
    preset = (tmp_path / "mine.toml").read_text()
    packed = evclplus("pack", "results/search", folder=tmp_path)
    assert packed.stdout == "2 searches: results/search/searches.jsonl\n", packed.stderr
    assert [path.name for path in (tmp_path / "results/search").rglob("*")] == ["searches.jsonl"]
    for one in read_packed(tmp_path / "results/search"):
        assert [trial["params"] for trial in one.tried] == [t.params for t in tried[one.method]]
        assert [trial["value"] for trial in one.tried] == [t.value for t in tried[one.method]]
    assert evclplus("tune", "--write-preset", "mine.toml", folder=tmp_path).returncode == 0
    assert (tmp_path / "mine.toml").read_text() == preset
    refused = evclplus(*QUICK, "--methods", "ewc", "--trials", "9", folder=tmp_path)
    assert refused.returncode == 2
    assert "has the search for ewc on split-digits, which cannot go on" in refused.stderr


@pytest.mark.slow
def test_a_killed_trial_is_repeated_and_does_not_count(tmp_path: Path) -> None:
    words = [*QUICK, "--methods", "vcl", "--trials", "6"]
    process = subprocess.Popen(
        [sys.executable, "-m", "evclplus", *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    search = Search("split-digits", "vcl", tmp_path / "results" / "search")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if search.journal.exists() and 'prior_variance","param' in search.journal.read_text():
            break
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (running,) = search.study().get_trials(states=(TrialState.RUNNING,))
    again = evclplus(*words, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    study = search.study()
    assert study.trials[running.number].state == TrialState.FAIL
    counted = study.get_trials(states=FINISHED)
    assert len(counted) == 6
    assert running.params in [trial.params for trial in counted]


def test_a_lock_that_a_killed_process_left_is_waited_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("evclplus.experiments.tune.OLDEST_LOCK", 3)
    search = Search("split-digits", "ewc", Path("search"), epochs_limit=1)
    search.prepare()
    backend = search.study()._storage._backend  # type: ignore[attr-defined]
    backend._lock.acquire()  # and never released
    assert len(search.prepare().trials) == 1


def test_a_piece_of_a_line_is_dropped_and_damage_is_named(tmp_path: Path) -> None:
    search = Search("split-digits", "ewc", tmp_path, epochs_limit=1)
    search.prepare()
    whole = search.journal.read_bytes()
    search.journal.write_bytes(whole + b'{"op_code":4,"wor')
    assert len(search.prepare().trials) == 1
    assert search.journal.read_bytes().startswith(whole)
    for other in (replace(search, epochs_limit=2), replace(search, runs=1)):
        with pytest.raises(FileError, match="in another space or with other seeds"):
            other.prepare()
    search.journal.write_text("this\nis no journal\n")
    with pytest.raises(FileError, match=r"ewc\.journal is damaged"):
        search.prepare()


@pytest.mark.parametrize(
    "line",
    [
        {"op_code": 131},
        {"op_code": "5"},
        {"op_code": 8, "trial_id": 0, "user_attr": {"job": "seven"}},
        {"op_code": 6, "trial_id": 0, "state": 77, "values": [0.5]},
        {"op_code": 7, "trial_id": 0, "step": 0, "intermediate_value": "high"},
        {"op_code": 5, "trial_id": 0, "param_name": "lam", "distribution": "{}"},
        {"op_code": 9, "trial_id": 0, "system_attr": {"fixed_params": 5}},
    ],
)
def test_a_journal_from_a_stranger_is_one_line(line: dict[str, Any], tmp_path: Path) -> None:
    search = Search("split-digits", "ewc", tmp_path, epochs_limit=1)
    search.prepare()
    with search.journal.open("a") as journal:
        journal.write(json.dumps({"worker_id": "stranger", **line}) + "\n")
    with pytest.raises(FileError, match=r"ewc\.journal is damaged"):
        search.prepare()


def test_only_validation_data_and_unreported_seeds_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search("split-digits", "ewc", tmp_path, epochs_limit=1)
    seeds: list[int] = []

    def without_test(name: str, *, seed: int, **settings: Any) -> Stream:
        seeds.append(seed)
        stream = benchmark(name, seed=seed, **settings)
        nothing = torch.arange(0)
        tasks = tuple(replace(task, test=task.test.take(nothing)) for task in stream)
        return replace(stream, tasks=tasks)

    work = first_work(search)
    with_test_data = score(work, None)
    monkeypatch.setattr("evclplus.experiments.run.benchmark", without_test)
    assert score(work, None) == with_test_data
    assert seeds == [100, 101]
    with pytest.raises(SettingsError, match="seeds = 101 is wrong"):
        type(load_preset("tuned"))(benchmarks=("split-digits",), methods=("ewc",), seeds=101)
    experiment = work.experiments[0]
    assert experiment.seed == FIRST_SEED
    with pytest.raises(DataError, match="no examples to be tested on"):
        run(experiment.model_copy(update={"evaluate_on": "test"}))
    monkeypatch.undo()

    def on_test(self: Search, chosen: Any, seed: int) -> Experiment:
        return experiment.model_copy(update={"evaluate_on": "test"})

    # A trial on test data is refused, whatever builds its experiment.
    monkeypatch.setattr(Search, "experiment", on_test)
    with pytest.raises(AssertionError, match="must not look at test data"):
        score(first_work(search), None)


def test_what_is_reported_ends_as_the_score(tmp_path: Path) -> None:
    search = Search("split-digits", "finetune", tmp_path, epochs_limit=1)
    trial = done(search, search.prepare())
    reported = [trial.intermediate_values[step] for step in range(5 * search.runs)]
    assert reported[-1] == pytest.approx(trial.value)
    records = [run(search.experiment(chosen_of(trial.params), seed)) for seed in search.seeds]
    first, second = (record.average for record in records)
    assert trial.value == pytest.approx((first + second) / 2)
    for step, seen in enumerate(records[0].matrix):
        assert reported[step] == pytest.approx(sum(seen) / 5 / 2)
    for step, seen in enumerate(records[1].matrix):
        assert reported[5 + step] == pytest.approx((first + sum(seen) / 5) / 2)


def test_a_hopeless_trial_is_stopped_before_it_has_learned_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search("split-digits", "finetune", tmp_path, epochs_limit=1)
    study = search.prepare()
    far_ahead = {step: (step + 1) / 10 for step in range(10)}
    for _ in range(tuning.UNPRUNED_TRIALS):
        study.add_trial(create_trial(value=1.0, intermediate_values=far_ahead))
    learned: list[str] = []
    learn = Learner.learn

    def counted(self: Learner, task: Any, *others: Any) -> Learner:
        learned.append(task.name)
        return learn(self, task, *others)

    monkeypatch.setattr(Learner, "learn", counted)
    trial = done(search, study)
    assert trial.state == TrialState.PRUNED
    assert len(learned) == len(trial.intermediate_values) == tuning.UNPRUNED_TASKS + 1
    assert trial in search.study().get_trials(states=FINISHED)


def test_training_that_diverges_scores_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(*words: Any, **more: Any) -> None:
        raise TrainingError("nll is not finite")

    monkeypatch.setattr(tuning, "run", diverges)
    search = Search("split-digits", "finetune", tmp_path, epochs_limit=1)
    assert score(first_work(search), None) == Answer(score=0.0)


def test_who_falls_behind_is_who_optunas_median_pruner_stops() -> None:
    numbers = torch.Generator().manual_seed(0)
    pruner = MedianPruner(tuning.UNPRUNED_TRIALS, tuning.UNPRUNED_TASKS)
    answers = []
    for others in (0, 2, 3, 4, 7):
        study = optuna.create_study(direction="maximize", pruner=pruner)
        for number in range(others):
            values = torch.rand(6, generator=numbers).tolist()
            pruned = number == 3  # a trial that was stopped is not compared with
            state = TrialState.PRUNED if pruned else TrialState.COMPLETE
            steps = dict(enumerate(values[: 3 if pruned else 6]))
            study.add_trial(create_trial(value=1.0, intermediate_values=steps, state=state))
        for _ in range(10):
            trial = study.ask()
            medians = medians_of(study.trials)
            reported: list[float] = []
            for step, value in enumerate(torch.rand(6, generator=numbers).tolist()):
                trial.report(value, step)
                reported.append(value)
                answers.append(falls_behind(reported, medians))
                assert answers[-1] == trial.should_prune()
            study.tell(trial, state=TrialState.FAIL)
    assert 10 < sum(answers) < len(answers)


def test_a_lost_trial_is_tried_again_and_a_failed_one_is_not(tmp_path: Path) -> None:
    search = Search("split-digits", "ewc", tmp_path, epochs_limit=1)
    study = search.prepare()
    jobs = [TrialJob(search, study, number) for number in (1, 2)]
    tried = [job.work().experiments for job in jobs]
    jobs[0].receive(Outcome(error="its worker died", lost=True))
    jobs[1].receive(Outcome(error="there is no data"))
    study = search.prepare()
    assert jobs[1].outcome().state == TrialState.FAIL
    assert TrialJob(search, study, 3).work().experiments == tried[0]
    assert TrialJob(search, study, 4).work().experiments not in tried


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_space_of_its_own_settings(method: str) -> None:
    space = METHODS[method].space
    for name, dimension in space.items():
        values = (dimension.low, dimension.high) if isinstance(dimension, Log) else dimension.values
        for value in values:
            chosen = chosen_of({name: value})
            Training(**chosen.training)
            METHODS[method].build(**chosen.options)
            assert set(chosen.options) <= set(METHODS[method].options)
    point = start_of(method, space)
    assert point.keys() <= space.keys()
    for name, value in point.items():
        dimension = space[name]
        if isinstance(dimension, Log):
            assert dimension.low <= value <= dimension.high
        else:
            assert value in dimension.values


def test_a_search_begins_with_the_method_as_it_comes() -> None:
    point = start_of("evcl+", METHODS["evcl+"].space)
    chosen = chosen_of(point)
    defaults = EVCLPlus()
    assert chosen.options == {
        name: 0.01 if name == "prior_variance" else getattr(defaults, name)
        for name in chosen.options
    }
    assert chosen.training == {"epochs": 10, "learning_rate": 3e-3, "schedule": "cosine"}


def test_a_variant_does_not_search_what_it_fixes() -> None:
    assert "lam_function" not in METHODS["evcl+-weights"].space
    assert not {"lam", "lam_function"} & METHODS["vcl-function"].space.keys()


def test_the_limit_on_epochs_leaves_a_choice() -> None:
    assert space_of("ewc", 10)["training.epochs"] == OneOf((3, 10))
    assert space_of("ewc", 2)["training.epochs"] == OneOf((2,))
    assert space_of("ewc", None)["training.epochs"] == OneOf((3, 10, 20, 40))


def test_settings_are_rounded_before_they_are_tried() -> None:
    chosen = chosen_of({"lam": 123456.789, "training.learning_rate": 0.00123456, "k": 5.0})
    assert chosen.options == {"lam": 123000.0, "k": 5.0}
    assert chosen.training == {"learning_rate": 0.00123}


def best_of(method: str, trials: int, out: Path, **changes: Any) -> None:
    values: dict[str, Any] = {
        "benchmark": "split-mnist",
        "method": method,
        "validation_accuracy": 0.987,
        "settings": {"training": {"epochs": 5}, "options": {"beta": 1e-05}},
        "trials": trials,
        "pruned": 1,
        "seeds": (100, 101),
        "command": "evclplus tune\nseeds = 7",
        "environment": {},
        **changes,
    }
    folder = out / values["benchmark"]
    folder.mkdir(parents=True, exist_ok=True)
    Best(**values).write(folder / f"{method}.json")


def test_a_written_preset_reads_back(tmp_path: Path) -> None:
    best_of("evcl+", 20, tmp_path)
    best_of("vcl", 20, tmp_path)
    best_of("vcl", 10, tmp_path, benchmark="split-digits")
    file = tmp_path / "preset.toml"
    assert write_preset(file, tmp_path) == 3
    preset = load_preset(str(file))
    assert preset.benchmarks == (*load_preset("tuned").benchmarks, "split-digits")
    assert preset.seeds == load_preset("tuned").seeds
    cell = preset.experiment("split-mnist", "evcl+", 0)
    assert (cell.options, cell.training.epochs) == ({"beta": 1e-05}, 5)
    text = file.read_text()
    assert write_preset(file, tmp_path) == 3
    assert file.read_text() == text


def test_results_that_no_preset_can_have_are_one_line(tmp_path: Path) -> None:
    best_of("evcl+", 20, tmp_path)
    path = tmp_path / "split-mnist" / "evcl+.json"
    path.write_text(path.read_text().replace("0.00001", "1e400").replace("1e-05", "1e400"))
    with pytest.raises(FileError, match="values that no preset can have"):
        write_preset(tmp_path / "preset.toml", tmp_path)
    best_of("evcl+", 20, tmp_path)
    path.write_text(path.read_text().replace("evclplus tune", "\\ud800"))
    with pytest.raises(FileError, match="values that no preset can have"):
        write_preset(tmp_path / "preset.toml", tmp_path)
    path.write_text("[" * 100_000)
    with pytest.raises(FileError, match="it is damaged or no result of tune"):
        write_preset(tmp_path / "preset.toml", tmp_path)


def test_unequal_budgets_make_no_preset(tmp_path: Path) -> None:
    best_of("evcl+", 20, tmp_path)
    best_of("vcl", 10, tmp_path)
    with pytest.raises(SettingsError, match=r"vcl has 10 trials on split-mnist and evcl\+ has 20"):
        write_preset(tmp_path / "preset.toml", tmp_path)
    assert not (tmp_path / "preset.toml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to do: give --benchmark, --write-preset or both"),
        (["--benchmark", "split-digit"], "did you mean split-digits?"),
        (["--benchmark", "split-digits", "--methods", "evclp"], "there is no method 'evclp'"),
        (["--benchmark", "split-digits", "--trials", "0"], "--trials"),
        (["--write-preset", "mine.toml"], "there are no settings below results/search"),
        (["--write-preset", "mine.toml", "--out", "bad"], "x.json; it is damaged or no result"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bad" / "split-digits").mkdir(parents=True)
    (tmp_path / "bad" / "split-digits" / "x.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["evclplus", "tune", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_without_optuna_a_line_says_how_to_get_it(tmp_path: Path) -> None:
    blocked = (
        "import sys; sys.modules['optuna'] = None; "
        "sys.argv = ['evclplus', 'tune', '--benchmark', 'split-digits']; "
        "from evclplus.experiments.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocked], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 2
    assert done.stderr == (
        "evclplus: tuning needs optuna: install it with `pip install 'evclplus[tune]'`\n"
    )
    assert not list(tmp_path.iterdir())


def test_journals_are_json_lines(tmp_path: Path) -> None:
    search = Search("split-digits", "ewc", tmp_path, epochs_limit=1)
    search.prepare()
    lines = search.journal.read_text().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
