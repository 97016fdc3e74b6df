"""What the bench command prints and writes, with measurements that take no time."""

import json
import sys
from pathlib import Path

import pytest

from tools.bench import show
from tools.bench.__main__ import main
from tools.bench.rivals import RivalRow
from tools.bench.rows import Row

ROWS = [
    Row("quick / slow", 0.5, must=1.4, aim=1.0, ours=1.0, rival=2.0),
    Row("held", 15.0, must=16.0, aim=13.0),
    Row("fed", 1.0, must=1.05),
    Row("slow / quick", 2.0, must=1.4, aim=1.0),
]
RIVALS = [
    RivalRow("quick-package", "1.2", "the same", "evcl+", rival_ratio=3.0, our_ratio=1.5),
    RivalRow("no-package", None, "another", "ewc", not_measured="no_package is not installed"),
]

POINT = {"evcl_plus": 2.0, "plain": 1.0, "vectors": 16.0}
CURVES = [
    (name, {name: size, **POINT})
    for name in ("parameters", "batch_size", "tasks", "examples")
    for size in (10, 2000)
]


@pytest.fixture(autouse=True)
def _quick_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    def ready(row: object) -> object:
        return lambda: row

    monkeypatch.setattr(show, "rivals", lambda rounds: [ready(row) for row in RIVALS])
    monkeypatch.setattr(show, "rows", lambda rounds: [ready(row) for row in ROWS])
    monkeypatch.setattr(show, "growth", lambda rounds: iter(CURVES))
    monkeypatch.setattr(show, "task_parts", lambda rounds: {"all of it": 5.7, "Fisher": 0.7})


def bench(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_each_row_says_which_goal_is_reached() -> None:
    assert [row.reached for row in ROWS] == ["aim", "must", "yes", "no"]


def test_help_names_every_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(monkeypatch, "--help") == 0
    printed = capsys.readouterr().out
    options = "--rounds --against --parts --growth --figure --out --overwrite --json"
    assert all(option in printed for option in options.split())


def test_a_wrong_option_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(monkeypatch, "--rounds", "0") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_table_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "bench.json"
    assert bench(monkeypatch, "--rounds", "3", "--out", str(out)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [word in lines[1] for word in ("ratio", "must", "aim", "reached")] == [True] * 4
    assert any("quick / slow" in line and "0.50" in line and "aim" in line for line in lines)
    content = json.loads(out.read_text())
    assert content["command"] == f"python -m tools.bench --rounds 3 --out {out}"
    assert content["rounds"] == 3
    assert {"commit", "torch", "threads"} <= set(content["environment"])
    assert content["rows"][0]["ratio"] == 0.5
    assert content["rows"][3]["reached"] == "no"


def test_parts_are_written_too_and_json_prints_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "parts.json"
    assert bench(monkeypatch, "--parts", "--json", "--out", str(out)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(out.read_text())
    assert printed["parts"] == {"all of it": 5.7, "Fisher": 0.7}
    assert "rows" not in printed


def test_rivals_come_after_the_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(monkeypatch, "--against") == 0
    printed = capsys.readouterr().out
    assert "quick / slow" in printed
    assert "quick-package 1.2" in printed
    assert "evcl+ 1.50" in printed
    assert "not measured: no_package" in printed
    assert bench(monkeypatch, "--against", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)["rivals"]
    assert (first["rival_ratio"], first["our_ratio"]) == (3.0, 1.5)
    assert second["not_measured"] == "no_package is not installed"


def test_a_file_is_replaced_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    out.write_text("old")
    assert bench(monkeypatch, "--out", str(out)) == 2
    assert capsys.readouterr().err == f"bench: {out} exists; pass --overwrite or another name\n"
    assert out.read_text() == "old"
    assert bench(monkeypatch, "--out", str(out), "--overwrite") == 0
    assert json.loads(out.read_text())["rows"]
    assert bench(monkeypatch, "--out", str(tmp_path)) == 2
    assert "is a folder" in capsys.readouterr().err


def test_growth_is_written_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figure = tmp_path / "growth.json", tmp_path / "images" / "growth.png"
    assert bench(monkeypatch, "--growth", "--out", str(out), "--figure", str(figure)) == 0
    assert "batch size" in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert "rows" not in content
    assert content["growth"]["tasks"][1] == {"tasks": 2000, **POINT}
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert bench(monkeypatch, "--growth", "--figure", str(figure)) == 2
    assert "exists; pass --overwrite" in capsys.readouterr().err
    assert bench(monkeypatch, "--growth", "--figure", str(tmp_path / "both")) == 0
    assert {path.name for path in (tmp_path / "both").iterdir()} == {"growth.png", "growth.svg"}


def test_a_figure_needs_growth_and_a_known_format(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(monkeypatch, "--figure", "growth.png") == 2
    assert "--figure draws the curves of --growth" in capsys.readouterr().err
    assert bench(monkeypatch, "--growth", "--figure", "growth.pdf") == 2
    assert "neither .png nor .svg" in capsys.readouterr().err
