import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from evclplus.benchmarks.registry import benchmark
from evclplus.errors import FileError, SettingsError, TrainingError
from evclplus.experiments.compare import cells
from evclplus.experiments.config import Experiment, load_grid
from evclplus.experiments.environment import commit_and_changes, environment
from evclplus.experiments.record import Record
from evclplus.experiments.run import finished, resolve, run, run_into
from evclplus.experiments.store import find_records
from evclplus.settings import Training
from evclplus.streams.task import Stream

QUICK = Experiment(
    method="evcl+",
    benchmark="split-digits",
    stream={"tasks": 3, "examples_per_task": 60},
    training=Training(epochs=3, batch_size=20),
)


def test_a_record_holds_what_the_design_promises(tmp_path: Path) -> None:
    record = run_into(tmp_path, QUICK, command="evclplus run")
    content = json.loads((tmp_path / "record.json").read_text())
    assert content["schema"] == 1
    assert [len(row) for row in content["accuracy"]] == [1, 2, 3]
    assert content["average_accuracy"] == pytest.approx(sum(content["accuracy"][-1]) / 3)
    for key in ("method", "benchmark", "seed", "config", "forgetting", "backward_transfer"):
        assert key in content
    around = content["environment"]
    for key in ("evclplus", "torch", "python", "commit", "dirty", "instruction_set"):
        assert key in around
    assert around["command"] == "evclplus run"
    assert around["threads"] == torch.get_num_threads()
    assert set(content["seconds"]) == {"data", "learn", "evaluate", "uncertainty", "total"}
    assert content["config"]["options"]["lam"] == 0.3  # defaults are written out
    assert content["config"]["training"]["std_rate"] == 10.0
    assert [sorted(one) for one in content["calibrated"]] == [["kl_weight", "strength"]] * 3
    assert record.calibrated[0]["strength"] >= 0
    assert content["config"]["network"]["hidden"] == [100, 100]
    assert Record.read(tmp_path / "record.json") == record
    assert not (tmp_path / "unfinished.json").exists()


def test_the_environment_is_what_this_thread_does() -> None:
    seen = []
    for flush in (True, False):
        torch.set_flush_denormal(flush)
        seen.append(environment(compiled=True))
    assert [one["flush_denormal"] for one in seen] == [True, False]
    assert seen[0]["compiled"]
    assert seen[0]["commit"] == commit_and_changes()[0]


def test_a_change_of_the_package_is_seen_and_one_beside_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr("evclplus.experiments.environment.PACKAGE", package)
    assert commit_and_changes() == (None, None)
    (package / "__init__.py").write_text("")
    for words in ("init", "add .", "-c user.name=me -c user.email=me@here commit -m first"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "result.md").write_text("made by it")
    commit, dirty = commit_and_changes()
    assert re.fullmatch("[0-9a-f]{12}", commit or "")
    assert dirty is False
    (package / "__init__.py").write_text("changed = True")
    assert commit_and_changes() == (commit, True)


def test_one_seed_one_result() -> None:
    first, second = run(QUICK), run(QUICK)
    other = run(QUICK.model_copy(update={"seed": 1}))
    figures = ("accuracy", "negative_log_likelihood", "accuracy_before", "accuracy_untrained")
    assert all(getattr(first, name) == getattr(second, name) for name in figures)
    assert first.negative_log_likelihood != other.negative_log_likelihood


def test_a_finished_record_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    run_into(tmp_path, QUICK)
    before = (tmp_path / "record.json").read_bytes()
    with pytest.raises(FileError, match="--overwrite"):
        run_into(tmp_path, QUICK)
    assert (tmp_path / "record.json").read_bytes() == before
    run_into(tmp_path, QUICK.model_copy(update={"seed": 3}), overwrite=True)
    assert Record.read(tmp_path / "record.json").seed == 3


def test_a_record_from_before_an_option_came_is_finished_with_its_default(tmp_path: Path) -> None:
    run_into(tmp_path, QUICK)
    path = tmp_path / "record.json"
    content = json.loads(path.read_text())
    del content["config"]["options"]["fisher_temperature"]
    path.write_text(json.dumps(content))
    assert finished(tmp_path, resolve(QUICK).experiment)
    other = QUICK.model_copy(update={"options": {"fisher_temperature": 2.0}})
    with pytest.raises(FileError, match=r"fisher_temperature is 1\.0, not 2\.0"):
        finished(tmp_path, resolve(other).experiment)


def test_a_record_from_before_calibration_is_of_a_run_without(tmp_path: Path) -> None:
    """What has another default now than what was done before there was the setting."""
    run_into(tmp_path, QUICK)
    path = tmp_path / "record.json"
    content = json.loads(path.read_text())
    for option in ("calibration", "variance_penalty", "lam_function"):
        del content["config"]["options"][option]
    del content["config"]["training"]["std_rate"]
    del content["calibrated"]
    path.write_text(json.dumps(content))
    record = Record.read(path)
    options = record.full_config.options
    assert (options["calibration"], options["variance_penalty"]) == ("none", "grown")
    assert options["lam_function"] == 0
    assert record.config.training.std_rate == record.full_config.training.std_rate == 1.0
    assert record.calibrated == []
    with pytest.raises(FileError, match="other settings"):
        finished(tmp_path, resolve(QUICK).experiment)
    before = {"calibration": "none", "lam_function": 0.0}
    training = Training(**{**QUICK.training.model_dump(), "std_rate": 1.0})
    same = QUICK.model_copy(update={"options": before, "training": training})
    assert finished(tmp_path, resolve(same).experiment)


def test_a_record_with_an_option_that_is_gone_is_one_of_other_settings(tmp_path: Path) -> None:
    run_into(tmp_path, QUICK)
    path = tmp_path / "record.json"
    content = json.loads(path.read_text())
    content["config"]["options"]["fisher_at"] = "samples"
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match="fisher_at is samples, not None"):
        finished(tmp_path, resolve(QUICK).experiment)


def test_finished_means_with_these_settings(tmp_path: Path) -> None:
    wanted = resolve(QUICK).experiment
    assert not finished(tmp_path, wanted)
    run_into(tmp_path, QUICK)
    assert finished(tmp_path, wanted)
    other = wanted.model_copy(update={"training": Training(epochs=4, batch_size=20)})
    with pytest.raises(FileError, match=r"training\.epochs is 3, not 4"):
        finished(tmp_path, other)


def test_a_run_that_fails_is_visibly_unfinished(tmp_path: Path) -> None:
    wild = QUICK.model_copy(update={"options": {"lam": 1e38, "k": 1e38}})
    with pytest.raises(TrainingError, match="task 2"):
        run_into(tmp_path, wild)
    assert not (tmp_path / "record.json").exists()
    note = json.loads((tmp_path / "unfinished.json").read_text())
    assert len(note["matrix"]) == 1
    assert find_records(tmp_path) == []


def test_bad_settings_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        run_into(tmp_path / "new", QUICK.model_copy(update={"options": {"lam": -1.0}}))
    assert not (tmp_path / "new").exists()


def test_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write in the folder"):
        run_into(tmp_path / "file" / "inside", QUICK)


def test_validation_scores_are_labelled() -> None:
    record = run(QUICK.model_copy(update={"evaluate_on": "validation"}))
    assert any("validation" in note for note in record.notes)
    assert record.accuracy != run(QUICK).accuracy


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c.update(accuracy=[[1.0], [1.0]]),
        lambda c: c.update(accuracy=[["a"], [1, 1], [1, 1, 1]]),
        lambda c: c.update(schema=2),
        lambda c: c.pop("method"),
        lambda c: c.update(extra=1),
        lambda c: c["config"].update(seed=-1),
    ],
)
def test_foreign_records_are_refused(damage: Any, tmp_path: Path) -> None:
    run_into(tmp_path, QUICK)
    path = tmp_path / "record.json"
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"record\.json") as caught:
        find_records(tmp_path)
    assert "\n" not in str(caught.value)


# Settings from files and flags


def test_flags_win_over_the_file_and_assignments_over_flags(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(
        'benchmark = "permuted-digits"\nseeds = 2\n[training]\nepochs = 7\nbatch_size = 9\n'
        '[options."evcl+"]\nlam = 3.0\nk = 2.0\n'
    )
    flags = {"benchmark": None, "training": {"epochs": 8}}
    assignments = ["evcl+.lam=4", "training.schedule=cosine", "network.hidden=[5, 6]"]
    grid = load_grid(file, flags, assignments)
    assert grid.benchmark == "permuted-digits"
    assert grid.seeds == (0, 1)
    assert grid.training == Training(epochs=8, batch_size=9, schedule="cosine")
    assert grid.network.hidden == (5, 6)
    assert grid.experiment("evcl+", 1).options == {"lam": 4, "k": 2.0}
    assert grid.experiment("vcl", 0).options == {}


@pytest.mark.parametrize(
    ("text", "assignments", "message"),
    [
        ("benchmrk = 'x'", [], "did you mean benchmark"),
        ("[training]\nepoch = 1", [], "did you mean epochs"),
        ("[network]\nkind = 'rnn'", [], "kind"),
        ("= broken", [], "is not TOML"),
        ("", ["epochs=3"], "SECTION.KEY=VALUE"),
        ("", ["training.epochs"], "SECTION.KEY=VALUE"),
        ("", ["training.epochs=0"], "epochs = 0 is wrong"),
    ],
)
def test_bad_plans_are_one_line(
    text: str, assignments: list[str], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(text)
    with pytest.raises((SettingsError, FileError), match=message) as caught:
        load_grid(file, {}, assignments)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot read"):
        load_grid(tmp_path / "nowhere.toml", {}, [])


# What is built, and how often


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of the streams that are built."""
    seeds: list[int] = []

    def counted(name: str, *, seed: int, **settings: Any) -> Stream:
        seeds.append(seed)
        return benchmark(name, seed=seed, **settings)

    monkeypatch.setattr("evclplus.experiments.run.benchmark", counted)
    return seeds


def test_a_run_builds_its_stream_once(tmp_path: Path, built: list[int]) -> None:
    run_into(tmp_path, QUICK)
    assert built == [0]


def test_cells_of_many_seeds_build_one_stream_and_are_what_a_run_resolves(
    tmp_path: Path, built: list[int]
) -> None:
    other = {"stream": {**QUICK.stream, "order_seed": 3}, "method": "joint", "options": {}}
    asked = [
        one.model_copy(update={"seed": seed})
        for one in (QUICK, QUICK.model_copy(update=other))
        for seed in range(20)
    ]
    made = cells(asked, tmp_path)
    assert len(built) == 2
    assert [made[7].experiment, made[33].experiment] == [
        resolve(asked[7]).experiment,
        resolve(asked[33]).experiment,
    ]


@pytest.mark.parametrize("name", ["split-digits", "permuted-digits"])
@pytest.mark.parametrize("settings", [{}, {"permutation_seed": 1}, {"examples_per_task": 30}])
def test_no_setting_of_a_stream_depends_on_the_seed(name: str, settings: dict[str, Any]) -> None:
    first, second = (benchmark(name, seed=seed, **settings).settings for seed in (0, 1))
    assert {**first, "seed": 1} == second
