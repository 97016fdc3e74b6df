"""Whole tables as a user runs them: tiny presets, real processes, a real kill."""

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from evclplus.benchmarks.registry import BENCHMARKS
from evclplus.errors import FileError, SettingsError
from evclplus.experiments.cli import main
from evclplus.experiments.compare import Cell
from evclplus.experiments.config import Experiment
from evclplus.experiments.estimate import Estimate, cost, duration
from evclplus.experiments.presets import Chosen, Preset, Reported, load_preset
from evclplus.experiments.report.across import verdict
from evclplus.experiments.report.comparison import UNCOMMITTED
from evclplus.experiments.report.statistics import spread
from evclplus.experiments.report.terminal import terminal_table
from evclplus.experiments.reproduce import Selection, write_reports
from evclplus.experiments.run import resolve
from evclplus.experiments.store import find_records
from evclplus.methods import METHODS, options_of
from evclplus.methods import method as build
from evclplus.settings import Training
from tests.experiments.report.record_factory import make_record
from tests.experiments.test_cli import evclplus

TINY = """
benchmarks = ["split-digits", "permuted-digits"]
methods = ["finetune", "ewc"]
seeds = 2

[training]
epochs = 1

[options]
ewc = { lam = 7 }

[reported]
source = "a paper"

[reported.accuracy.split-digits]
ewc = 0.5
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


def rows_of(table: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(table.read_text().splitlines()))


def test_the_paper_preset_is_the_papers_protocol() -> None:
    preset = load_preset("paper")
    assert preset.seeds == 3
    assert preset.benchmarks[0] == "split-notmnist"
    assert len(preset.methods) == 10
    cell = preset.experiment("split-mnist", "evcl+", 2)
    assert (cell.training.epochs, cell.training.batch_size) == (100, 256)
    assert (cell.training.learning_rate, cell.training.std_rate) == (1e-3, 1)
    assert cell.training.schedule == "constant"
    papers = {"lam": 100, "k": 5, "fisher_examples": 5000}
    readings = {
        "beta": 1,
        "kl_scale": "examples",
        "start": "mle",
        "prior_mean": "zero",
        "prior_variance": 1,
        "initial_variance": 1e-3,
        "prediction": "samples",
    }
    ours = {"calibration": "none", "fisher_tasks": "last", "lam_function": 0}
    assert cell.options.items() >= (papers | readings | ours).items()
    assert cell.options["variance_penalty"] == "grown"
    vcl = preset.experiment("split-mnist", "vcl-random", 0).options
    assert vcl == {"coreset_size": 200} | readings


def test_the_paper_preset_says_every_value_that_has_another_default() -> None:
    """So that a default may change and the paper's protocol stays."""
    preset = load_preset("paper")
    left_open = {"fisher_decay", "start_epochs", "coreset_budget", "coreset_epochs"}
    for name in preset.methods:
        options = set(METHODS[name].options)
        assert options - set(preset.options.get(name, {})) <= left_open, name
    said = preset.training.model_fields_set
    assert said >= {"epochs", "batch_size", "learning_rate", "std_rate", "schedule"}


def test_the_figures_of_the_paper_are_beside_its_preset() -> None:
    preset = load_preset("paper")
    assert preset.reported is not None
    figures = preset.reported.accuracy
    assert list(figures) == list(preset.benchmarks)
    assert all(set(preset.methods) - set(one) == {"finetune", "joint"} for one in figures.values())
    assert [one["evcl+"] for one in figures.values()] == [91.7, 98.7, 98.3, 74.1, 94]
    assert [one["ewc"] for one in figures.values()] == [62.9, 88, 74, 59, 65]


def test_what_is_not_tuned_is_not_run() -> None:
    preset = Preset(
        benchmarks=("split-digits",),
        methods=("ewc", "evcl"),
        seeds=1,
        training={"batch_size": 64},
        tuned={"split-digits": {"ewc": Chosen(training={"epochs": 3}, options={"lam": 5})}},
    )
    cell = preset.experiment("split-digits", "ewc", 0)
    assert (cell.training.epochs, cell.training.batch_size, cell.options) == (3, 64, {"lam": 5})
    shared = {"ewc": {"lam": 1.0, "fisher_decay": 0.5}}
    below = preset.model_copy(update={"options": shared}).experiment("split-digits", "ewc", 0)
    assert below.options == {"lam": 5, "fisher_decay": 0.5}  # what was tuned wins
    changed = preset.changed(seeds=None, epochs=2).experiment("split-digits", "ewc", 0)
    assert changed.training.epochs == 2
    with pytest.raises(SettingsError, match="no tuned settings for evcl on split-digits yet: run"):
        preset.experiment("split-digits", "evcl", 0)


@pytest.mark.slow
def test_a_preset_runs_reports_and_goes_on(tiny: Path) -> None:
    words = ("reproduce", "--preset", "tiny.toml", "--jobs", "1")
    first = evclplus(*words, "--methods", "finetune", "--seeds", "1", folder=tiny)
    assert first.returncode == 0, first.stderr
    out = tiny / "results" / "tiny"
    lines = [
        line.replace(f", {UNCOMMITTED}", "")  # as it is while somebody works on the code
        for line in first.stdout.splitlines()
        if line.startswith("[")
    ]
    assert re.fullmatch(
        r"\[1/2\] split-digits finetune seed 0: \d+\.\d % in \d+ s; about \d+ s left", lines[0]
    )
    assert re.fullmatch(r"\[2/2\] permuted-digits finetune seed 0: \d+\.\d % in \d+ s", lines[1])
    rows = rows_of(out / "table.csv")
    assert rows[1]["split-digits_percent"] == "not run"
    assert rows[1]["split-digits_seeds"] == "0"
    assert "| ewc | not run" in (out / "table.md").read_text()

    kept = {path: path.read_bytes() for path in out.rglob("record.json")}
    second = evclplus(*words, folder=tiny)
    assert second.returncode == 0, second.stderr
    assert re.search(r"2 of 8 runs are finished already and kept; about \d+ s left", second.stdout)
    # All methods of a seed, then the next seed, then the next benchmark.
    order = re.findall(r"^\[\d/8\] (\S+ \S+ seed \d)", second.stdout, flags=re.MULTILINE)
    assert order == [
        "split-digits ewc seed 0",
        "split-digits finetune seed 1",
        "split-digits ewc seed 1",
        "permuted-digits ewc seed 0",
        "permuted-digits finetune seed 1",
        "permuted-digits ewc seed 1",
    ]
    assert all(path.read_bytes() == content for path, content in kept.items())
    records = find_records(out)
    assert len(records) == 8
    assert {record.config.options["lam"] for record in records if record.method == "ewc"} == {7}
    for benchmark in ("split-digits", "permuted-digits"):
        # One row per method: the seeds were averaged.
        assert len(rows_of(out / benchmark / "table.csv")) == 2
        assert (out / benchmark / "report.html").exists()
    rows = rows_of(out / "table.csv")
    mean = sum(r.average for r in records if r.method == "ewc" and "split" in r.benchmark)
    assert float(rows[1]["split-digits_percent"]) == pytest.approx(50 * mean, abs=1e-3)
    paper = (out / "paper.md").read_text()
    assert "a paper" in paper
    assert re.search(r"\| ewc \| .*\(0\.50 (within|above)\)", paper)

    for name in ("table.md", "table.csv", "paper.md", "split-digits/report.html"):
        (out / name).unlink()
    again = evclplus(*words, "--report-only", folder=tiny)
    assert again.returncode == 0, again.stderr
    assert (out / "paper.md").read_text() == paper
    assert (out / "split-digits" / "report.html").exists()

    other = evclplus(*words, "--epochs", "2", folder=tiny)
    assert other.returncode == 2
    assert "other settings (training.epochs is 1, not 2)" in other.stderr


@pytest.mark.slow
def test_a_kill_loses_nothing_that_is_finished(tiny: Path) -> None:
    # Long enough to be killed in the middle of a cell, short enough to be done again.
    words = ["reproduce", "--preset=tiny.toml", "--benchmarks=split-digits", "--jobs=1"]
    words += ["--epochs=60", "--out=out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "evclplus", *words],
        cwd=tiny,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    folder = tiny / "out" / "split-digits"
    deadline = time.monotonic() + 120
    while not (folder / "ewc/seed-0/unfinished.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path: path.read_bytes() for path in folder.rglob("record.json")}
    assert 1 <= len(kept) < 4
    again = evclplus(*words, folder=tiny)
    assert again.returncode == 0, again.stderr
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert len(find_records(folder)) == 4
    assert not list(folder.rglob("unfinished.json"))


def test_missing_data_is_named_before_anything_starts(tmp_path: Path) -> None:
    empty = {"EVCLPLUS_CACHE": str(tmp_path), "EVCLPLUS_DATA": "", "HOME": str(tmp_path)}
    done = evclplus("reproduce", "--preset", "paper", folder=tmp_path, **empty)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "split-mnist, permuted-mnist: the dataset mnist is not on this machine" in done.stderr
    assert "split-cifar10: the dataset cifar10 is not on this machine" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "papers"], "there is no preset 'papers'; did you mean paper?"),
        (["--preset", "nowhere.toml"], "cannot read nowhere.toml"),
        (["--preset", "tiny.toml", "--benchmarks", "split-digit"], "did you mean split-digits?"),
        (["--preset", "tiny.toml", "--methods", "joint"], "the preset has no method 'joint'"),
        (["--preset", "tiny.toml", "--epochs", "0"], "epochs = 0 is wrong"),
        (["--preset", "tiny.toml", "--report-only"], "no record.json below results/tiny"),
        (["--preset", "untuned.toml"], "no tuned settings for finetune on split-digits yet"),
        (["--preset", "bad.toml"], "Preset has no setting 'seed'; did you mean seeds?"),
        ([], "--preset"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    message: str,
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tiny / "bad.toml").write_text("seed = 2" + TINY)
    (tiny / "untuned.toml").write_text(TINY + "\n[tuned]\n")
    monkeypatch.chdir(tiny)
    monkeypatch.setattr(sys, "argv", ["evclplus", "reproduce", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1
    assert not (tiny / "results").exists()


def test_a_benchmark_that_is_not_tuned_is_left_out_unless_it_is_asked_for() -> None:
    preset = Preset(
        benchmarks=("split-digits", "permuted-digits"),
        methods=("ewc", "vcl"),
        seeds=1,
        tuned={"split-digits": {"ewc": {}, "vcl": {}}, "permuted-digits": {"ewc": {}}},
    )
    everything = Selection.of(preset, None, None)
    assert (everything.benchmarks, everything.untuned) == (("split-digits",), ("permuted-digits",))
    assert Selection.of(preset, None, ["ewc"]).untuned == ()
    asked = Selection.of(preset, ["permuted-digits"], None)
    with pytest.raises(SettingsError, match="no tuned settings for vcl on permuted-digits yet"):
        asked.cells(Path("results"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"benchmarks": ["split-mnits"]}, "there is no benchmark 'split-mnits'; did you mean"),
        ({"methods": ["evclp"]}, "there is no method 'evclp'; did you mean"),
        ({"methods": []}, "methods"),
        ({"seeds": 0}, "seeds = 0 is wrong"),
        ({"options": {"ewc": {"lamm": 1}}}, "did you mean lam?"),
        ({"training": {"epoch": 1}}, "Training has no setting 'epoch'; did you mean epochs?"),
        ({"tuned": {"split-mnist": {"evclp": {}}}}, "there is no method 'evclp'"),
        ({"tuned": {"split-mnist": {"ewc": {"training": {"epoch": 1}}}}}, "no setting 'epoch'"),
        ({"tuned": {"split-mnist": {"ewc": {"options": {"lam": -1}}}}}, "lam = -1 is wrong"),
        ({"reported": {"source": "", "accuracy": {"mnist": {}}}}, "there is no benchmark 'mnist'"),
    ],
)
def test_a_wrong_preset_is_one_line(changes: dict[str, object], message: str) -> None:
    values = {"benchmarks": ["split-mnist"], "methods": ["ewc"], "seeds": 1, **changes}
    with pytest.raises(SettingsError) as error:
        Preset(**values)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def cell(method: str, benchmark: str = "split-digits", epochs: int = 1) -> Cell:
    experiment = Experiment(method=method, benchmark=benchmark, training={"epochs": epochs})
    return Cell(resolve(experiment).experiment, Path(benchmark, method))


def test_cost_follows_epochs_data_and_method() -> None:
    plain = cost(cell("finetune").experiment)
    assert cost(cell("finetune", epochs=3).experiment) == pytest.approx(3 * plain)
    assert cost(cell("joint").experiment) == pytest.approx(3 * plain)  # 1 + ... + 5 tasks, not 5
    assert cost(cell("vcl").experiment) > plain
    assert cost(cell("vcl-random").experiment) > cost(cell("vcl").experiment)
    assert cost(cell("finetune", "permuted-digits").experiment) > 4 * plain


def test_the_estimate_prefers_what_is_most_alike() -> None:
    estimate = Estimate()
    first, other = cell("finetune"), cell("joint")
    estimate.learn(first.experiment, 10.0)
    estimate.learn(first.experiment, 20.0)
    assert estimate.of(first.experiment) == pytest.approx(15)
    assert estimate.of(other.experiment) == pytest.approx(45)  # by cost: nothing nearer is known
    estimate.learn(other.experiment, 100.0)
    assert estimate.of(other.experiment) == pytest.approx(100)
    twice = cell("joint", epochs=2)
    assert estimate.of(twice.experiment) == pytest.approx(200)
    estimate.learn(first.experiment, 0.0)
    left = [(first.experiment, 0.0), (other.experiment, 60.0)]
    assert estimate.left(left, workers=1) == "50 s"
    assert estimate.left(left, workers=2) == "40 s"  # one run cannot be shared


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (125, "2 min"), (7500, "2 h 5 min")]
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("ours", "figure", "word"),
    [
        ([0.90, 0.91, 0.92], 91.5, "within"),
        ([0.90, 0.91, 0.92], 80.0, "above"),
        ([0.90, 0.91, 0.92], 95.0, "below"),
        ([0.90], 80.0, "one seed"),
        # The t interval of three seeds is mean ± 2.48 deviations, no narrower.
        ([0.90, 0.91, 0.92], 93.4, "within"),
        ([0.90, 0.91, 0.92], 93.6, "below"),
    ],
)
def test_verdicts(ours: list[float], figure: float, word: str) -> None:
    assert verdict(spread(ours), figure) == word


def made(folder: Path, *runs: tuple[str, str, int, int]) -> Path:
    """Records of (benchmark, method, seed, epochs) where a reproduction leaves them."""
    for benchmark, method, seed, epochs in runs:
        place = folder / benchmark / method / f"seed-{seed}"
        place.mkdir(parents=True)
        settings = {"training": {"epochs": epochs}, "options": options_of(build(method))}
        make_record(method, seed, benchmark=benchmark, settings=settings).write(place)
    return folder


def preset_of(methods: tuple[str, ...], seeds: int = 2) -> Preset:
    figures = {"split-mnist": {"vcl": 10.0}}
    return Preset(
        benchmarks=("split-mnist", "split-cifar10"),
        methods=methods,
        seeds=seeds,
        training={"epochs": 3},
        reported=Reported(source="somewhere", accuracy=figures),
    )


def test_tables_tell_what_is_missing_or_of_other_settings(tmp_path: Path) -> None:
    made(
        tmp_path,
        ("split-mnist", "vcl", 0, 3),
        ("split-mnist", "vcl", 1, 3),
        ("split-mnist", "ewc", 0, 3),
        ("split-cifar10", "vcl", 0, 99),
    )
    write_reports(preset_of(("vcl", "ewc")), tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert re.search(r"\| vcl \| 9\S+ ± \S+ \| not run \|", table)
    assert re.search(r"\| ewc \| \S+ \(1 of 2 seeds\) \| not run \|", table)
    assert "Left out: 1 made with other settings" in table
    assert re.search(r"\| vcl \| .*\(10.00 above\)", (tmp_path / "paper.md").read_text())


def test_evcl_plus_is_tested_against_each_rival_and_tables_tell_what_limits(tmp_path: Path) -> None:
    cells = [("split-mnist", name, seed, 3) for name in ("evcl+", "vcl") for seed in range(3)]
    made(tmp_path, *cells, ("split-mnist", "ewc", 0, 3))
    write_reports(preset_of(("evcl+", "vcl", "ewc"), seeds=3), tmp_path)
    accuracy = {
        name: [record.average for record in find_records(tmp_path / "split-mnist" / name)]
        for name in ("evcl+", "vcl")
    }
    test = stats.ttest_rel(accuracy["evcl+"], accuracy["vcl"])
    interval = test.confidence_interval()
    table = (tmp_path / "table.md").read_text()
    _, differences, learning, forgetting = table.split("\n## ")
    assert (
        f"| vcl | +{100 * np.mean(np.subtract(accuracy['evcl+'], accuracy['vcl'])):.2f} "
        f"\\[{100 * interval.low:.2f}, {100 * interval.high:.2f}\\] "
    ) in differences
    shown = re.search(r"\| vcl .*\(p (= (\S+)|< 0.001)\)", differences)
    assert shown
    assert float(shown[2] or 0) == pytest.approx(test.pvalue, abs=1e-3)
    assert "| ewc | fewer than 2 common seeds | not run |" in differences
    assert "| evcl+" not in differences
    (record, *_) = find_records(tmp_path / "split-mnist" / "ewc")
    assert f"| ewc | {100 * (record.learning_accuracy or 0):.2f} (1 of 3" in learning
    assert f"| ewc | {100 * record.forgetting:.2f} (1 of 3" in forgetting


def test_what_uncommitted_code_has_made_says_so_everywhere(tmp_path: Path) -> None:
    made(tmp_path, ("split-mnist", "vcl", 0, 3), ("split-mnist", "ewc", 0, 3))
    write_reports(preset_of(("vcl", "ewc")), tmp_path)
    pages = ("table.md", "paper.md", "split-mnist/table.md", "split-mnist/report.html")
    assert not any(UNCOMMITTED in (tmp_path / page).read_text() for page in pages)
    path = tmp_path / "split-mnist" / "vcl" / "seed-0" / "record.json"
    clean = json.loads(path.read_text())
    for marks in ({"dirty": True}, {"commit": "0123456789ab-dirty"}):  # as now, as it was
        path.write_text(json.dumps({**clean, "environment": {**clean["environment"], **marks}}))
        shown = Console(width=200, record=True)
        shown.print(write_reports(preset_of(("vcl", "ewc")), tmp_path))
        shown.print(terminal_table(find_records(tmp_path)))
        assert shown.export_text().count(UNCOMMITTED) == 2
        for page in pages:
            assert (tmp_path / page).read_text().count(UNCOMMITTED) == 1, page
        assert f"{UNCOMMITTED}: split-mnist vcl seed 0." in (tmp_path / "table.md").read_text()
        assert " with changes</code>" in (tmp_path / "split-mnist/report.html").read_text()


def test_records_that_differ_where_the_preset_is_silent_share_no_table(tmp_path: Path) -> None:
    made(tmp_path, ("split-mnist", "vcl", 0, 3))
    place = tmp_path / "split-mnist" / "vcl" / "seed-1"
    place.mkdir()
    options = options_of(build("vcl"))
    settings = {"training": {"epochs": 3}, "samples": 99, "options": options}
    make_record("vcl", 1, benchmark="split-mnist", settings=settings).write(place)
    with pytest.raises(FileError, match=r"cannot share a table: vcl \(samples=10\); vcl \(samples"):
        write_reports(preset_of(("vcl",)), tmp_path)


def test_the_table_of_five_benchmarks_fits_a_terminal(tmp_path: Path) -> None:
    paper = load_preset("paper")
    runs = [(b, m, s, 100) for b in paper.benchmarks for m in ("evcl+", "joint") for s in (0, 1)]
    # The records have the defaults, so the preset must not ask for anything else.
    defaults = {"options": {}, "training": Training(epochs=100)}
    preset = paper.model_copy(update={**defaults, "seeds": 2})
    shown = Console(width=80, record=True)
    shown.print(write_reports(preset, made(tmp_path, *runs)))
    text = shown.export_text()
    assert re.search(r"^evcl\+( +\d\d\.\d\d ± \d\.\d\d){5} *$", text, flags=re.MULTILINE)


def test_selection_keeps_the_order_of_the_preset() -> None:
    preset = load_preset("paper")
    chosen = Selection.of(preset, ["permuted-mnist", "split-mnist"], ["joint", "evcl+"])
    assert chosen.benchmarks == ("split-mnist", "permuted-mnist")
    assert chosen.methods == ("evcl+", "joint")
    assert set(Selection.of(preset, None, None).benchmarks) < set(BENCHMARKS)


def test_the_summed_fisher_is_all_that_the_other_reading_changes() -> None:
    paper, summed = load_preset("paper"), load_preset("paper-summed")
    assert summed.methods == ("evcl+", "evcl", "ewc")
    assert (summed.training, summed.seeds) == (paper.training, paper.seeds)
    assert summed.benchmarks == paper.benchmarks
    for name in summed.methods:
        assert summed.options[name] == paper.options[name] | {"fisher_reduction": "sum"}


def test_the_systems_preset_has_every_method_as_it_comes() -> None:
    preset = load_preset("systems")
    variants = {name for name in METHODS if name.startswith(("evcl+-", "coreset-"))}
    variants |= {name for name in METHODS if name.endswith("-function")} | {"vcl-kcenter"}
    assert set(preset.methods) == set(METHODS) - variants
    assert (preset.training, preset.options, preset.tuned) == (Training(), {}, None)
    assert len(preset.benchmarks) == 6


def test_a_method_that_needs_a_head_per_task_is_left_out_where_there_is_one_head() -> None:
    preset = load_preset("systems")
    assert preset.fits("split-mnist", "hat")
    assert not preset.fits("split-mnist-class", "hat")
    assert not preset.fits("permuted-mnist", "progressive")
    assert preset.fits("permuted-mnist", "er")
    small = Preset(benchmarks=("permuted-digits",), methods=("hat", "ewc"), seeds=1)
    (cell,) = Selection.of(small, None, None).cells(Path("nowhere"))
    assert cell.experiment.method == "ewc"
