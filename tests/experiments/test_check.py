"""Checks against published figures: their data, their verdicts, and the command."""

import sys
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest

from evclplus.benchmarks.registry import BENCHMARKS
from evclplus.callbacks import Callback
from evclplus.errors import FileError, SettingsError
from evclplus.experiments import check as checking
from evclplus.experiments import checks
from evclplus.experiments.check import BEGIN, END, Outcome, markdown, write_page
from evclplus.experiments.checks import CHECKS, Check, Protocol, chosen
from evclplus.experiments.cli import main
from evclplus.experiments.executors.base import Outcome as Came
from evclplus.experiments.store import find_records
from evclplus.methods import method
from evclplus.methods.base import training_for

SMALL = Protocol(
    "small",
    "a source",
    "split-digits",
    (20,),
    {"tasks": 2, "examples_per_task": 60},
    {"epochs": 3, "batch_size": 20, "compile": "off"},
)
EASY = Check(SMALL, "finetune", 99.0, 30.0, 1)


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_has_settings_that_are_allowed(name: str) -> None:
    one = CHECKS[name].experiment(seed=3)
    assert one.seed == 3
    found = training_for(method(one.method, **one.options), one.training)
    assert found.learning_rate == one.training.learning_rate
    assert found.optimiser == one.training.optimiser
    BENCHMARKS[one.benchmark].settings(**one.stream)
    assert found.schedule == "constant"
    assert 10 < CHECKS[name].accuracy < 100


def test_checks_are_found_by_name_method_and_protocol() -> None:
    assert chosen([]) == list(CHECKS.values())
    assert [one.name for one in chosen(["gt-ripl-task-si"])] == ["gt-ripl-task-si"]
    assert {one.method for one in chosen(["si"])} == {"si"}
    assert {one.protocol.name for one in chosen(["gt-ripl-task"])} == {"gt-ripl-task"}
    assert len(chosen(["gt-ripl"])) == len([name for name in CHECKS if name.startswith("gt-ripl")])
    assert len(chosen(["si", "gt-ripl-task-si"])) == len(chosen(["si"]))
    with pytest.raises(SettingsError, match="there is no check of 'sii'; did you mean si"):
        chosen(["sii"])


def test_the_verdict_by_hand() -> None:
    theirs = replace(EASY, accuracy=90.0, deviation=2.0, runs=10)
    # Ours: mean 91, standard deviation 1, three seeds.
    ours = (90.0, 91.0, 92.0)
    bound = 2 * sqrt(2.0**2 / 10 + 1 / 3)
    assert Outcome(theirs, ours).bound == pytest.approx(bound)
    assert Outcome(theirs, ours).verdict == "within"
    assert Outcome(replace(theirs, accuracy=91 - 1.01 * bound), ours).verdict == "above"
    assert Outcome(replace(theirs, accuracy=91 - 0.99 * bound), ours).verdict == "within"
    assert Outcome(replace(theirs, accuracy=91 + 1.01 * bound), ours).verdict == "below"
    assert Outcome(replace(theirs, accuracy=10.0), ours[:2]).verdict == "open"


def test_a_spread_that_is_not_reported_is_taken_to_be_ours() -> None:
    unknown = replace(EASY, deviation=None, runs=None)
    assert Outcome(unknown, (90.0, 91.0, 92.0)).bound == pytest.approx(2 * sqrt(2 / 3))


def test_a_figure_of_a_picture_may_be_off_by_a_point() -> None:
    shown = replace(EASY, accuracy=92.5, deviation=None, mark="F")
    ours = (90.0, 91.0, 92.0)
    assert Outcome(shown, ours).bound == pytest.approx(2 * sqrt(2 / 3) + 1)
    assert Outcome(replace(shown, accuracy=93.6), ours).verdict == "within"
    assert Outcome(replace(shown, accuracy=93.6, mark="V"), ours).verdict == "below"


def test_a_table_says_what_is_behind_it() -> None:
    found = [
        Outcome(replace(EASY, differs="theirs: this; ours: that"), (98.0, 99.0)),
        Outcome(replace(EASY, variant="more", deviation=None), (50.0,), ("abc", "def")),
    ]
    text = markdown(found)
    assert "| finetune | small | 99.00 ± 30.00 (1) | 98.50 ± 0.71 | 2 |" in text
    assert (
        "| finetune more | small | 99.00 | 50.00 ± 0.00 | 1 | 0.00 | open | V | abc, def |" in text
    )
    assert "Sources: a source." in text
    assert "- theirs: this; ours: that" in text


def test_a_page_gets_the_table_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for table in ("first\n", "second\n"):
        write_page(page, table)
        assert page.read_text() == f"before\n{BEGIN}\n\n{table}\n{END}\nafter\n"
    page.write_text("no place\n")
    with pytest.raises(FileError, match="has no place for the table"):
        write_page(page, "table")
    with pytest.raises(FileError, match="cannot read"):
        write_page(tmp_path / "nowhere.md", "table")


def command(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["evclplus", "check", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


@pytest.mark.slow
def test_the_command_runs_what_is_missing_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {one.name: one for one in (EASY, replace(EASY, variant="unfair", accuracy=150.0))}
    monkeypatch.setattr(checks, "CHECKS", own)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(f"{BEGIN}\n{END}\n")
    words = ("--jobs", "1", "--out", "made")
    assert command("small-finetune-unfair", "--seeds", "1", *words, monkeypatch=monkeypatch) == 0
    assert len(find_records(tmp_path / "made")) == 1
    assert "unfair" in capsys.readouterr().out
    assert command("finetune", "--seeds", "2", *words, monkeypatch=monkeypatch) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")}
    assert len(before) == 4
    page = ("--page", "page.md", "--seeds", "2")
    assert command(*page, *words, monkeypatch=monkeypatch) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    table = (tmp_path / "page.md").read_text()
    assert table.count("| finetune") == 2
    assert (tmp_path / "made" / "table.md").read_text() in table


def test_a_record_with_other_settings_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "CHECKS", {EASY.name: EASY})
    (cell,) = checking.check_cells([EASY], [0], tmp_path)
    cell.receive(Came(cell.work()(cell.folder, Callback(), "test")))
    (outcome,) = checking.outcomes([cell])
    assert len(outcome.commits) == 1
    other = replace(EASY, training={"learning_rate": 1e-4})
    (changed,) = checking.check_cells([other], [0], tmp_path)
    assert checking.outcomes([changed]) == []
    assert not checking.has_record(changed)
