"""The report of a folder: what is written, that it is harmless, and that it is repeatable."""

import base64
import hashlib
import json
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evclplus.errors import FileError
from evclplus.experiments.report.comparison import comparisons_of
from evclplus.experiments.report.figures import _draw_curve
from evclplus.experiments.report.folder import Report, report
from evclplus.experiments.store import find_records
from evclplus.methods import METHODS
from tests.experiments.report.record_factory import (
    TASKS,
    full_comparison,
    make_record,
    write_records,
)

HOSTILE = (
    "<script>alert(1)</script> \"'><img src=http://e.org/x.png> {{ 7 * 7 }} $\\frac _"
    " \U0001f600\u202e"
)


class Page(HTMLParser):
    """What a browser would see: tags, loaded addresses and visible text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attributes]

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, *names: str) -> list[str]:
        return [value for name, value in self.attributes if name in names]


def contents(made: Report) -> dict[str, bytes]:
    root = made.page.parent
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in made.files}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = write_records(tmp_path_factory.mktemp("full"), full_comparison())
    return report(folder)


def test_everything_is_written_beside_the_records(full: Report) -> None:
    names = set(contents(full))
    assert {"report.html", "table.csv", "table.md", "table.tex"} <= names
    assert {"figures/split-mnist-accuracy.svg", "figures/split-mnist-accuracy.png"} <= names
    assert {
        "figures/split-mnist-matrix-evcl-plus.svg",
        "figures/split-mnist-matrix-evcl.svg",
    } <= names
    assert len(names) == 4 + 2 * 12  # accuracy, uncertainty and ten matrices
    assert full.records == 30
    assert full.unfinished == 0


def test_page_loads_nothing(full: Report) -> None:
    source = full.page.read_text(encoding="utf-8")
    found = Page(source)
    assert not found.values("src", "srcset", "data", "poster", "action")
    assert not {"link", "iframe", "object", "embed", "base", "img"} & set(found.tags)
    assert found.tags.count("script") == 1
    (policy,) = (value for value in found.values("content") if "default-src" in value)
    script = source.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'"
    )
    assert all(address.startswith("#") for address in found.values("href"))
    assert "http://" not in source
    assert "https://" not in source
    assert "url(" not in source
    assert "@import" not in source


def test_page_shows_every_method_its_numbers_and_its_origin(full: Report) -> None:
    text = Page(full.page.read_text(encoding="utf-8")).text
    for expected in [
        *("evcl+", "vcl-random", "coreset-kcenter", "upper bound", "best baseline"),
        *("evclplus compare --benchmark split-mnist --seeds 3", "0123456789abcdef", "torch 2.9.0"),
        *("training 42.2, evaluation 3.1", "0, 1, 2", "evcl+ is best with"),
    ]:
        assert expected in text


def test_figures_are_well_formed(full: Report) -> None:
    for name, data in contents(full).items():
        if name.endswith(".svg"):
            assert ElementTree.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"
        if name.endswith(".png"):
            assert data.startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("name", METHODS)
def test_no_marker_is_drawn_in_white_alone(name: str) -> None:
    (comparison,) = comparisons_of([make_record(name)])
    line = _draw_curve(Figure().subplots(), comparison.rows[0])
    filled = line.get_marker() in Line2D.filled_markers
    assert (line.get_markeredgecolor() == "white") == filled
    assert line.get_color() == METHODS[name].colour != "white"


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    record = make_record(
        HOSTILE,
        benchmark="../../" + HOSTILE,
        tasks=[HOSTILE, "_"],
        notes=[HOSTILE],
        environment={"command": HOSTILE, "commit": "HALF", "torch": {HOSTILE: 1}},
        seconds={HOSTILE: 1.0},
        settings={"options": {HOSTILE: HOSTILE, "b": "HALF"}},
    )
    plain_folder = write_records(tmp_path / "a", [make_record(notes=["x"])])
    hostile_folder = write_records(tmp_path / "b", [record])
    written = hostile_folder / "run-000" / "record.json"
    # Half a surrogate pair is valid JSON and cannot be encoded.
    written.write_text(written.read_text("utf-8").replace("HALF", "\\ud800"), "utf-8")
    plain_page = Page(report(plain_folder).page.read_text(encoding="utf-8"))
    made = report(hostile_folder)
    hostile_page = Page(made.page.read_text(encoding="utf-8"))
    assert set(hostile_page.tags) == set(plain_page.tags)
    assert {name for name, _ in hostile_page.attributes} == {
        name for name, _ in plain_page.attributes
    }
    assert hostile_page.text.count("<script>alert(1)</script>") > 5
    assert "{{ 7 * 7 }}" in hostile_page.text
    assert all(path.resolve().is_relative_to(tmp_path / "b") for path in made.files)
    assert all(path.name.isascii() for path in made.files)


def test_any_name_can_be_drawn(tmp_path: Path) -> None:
    """No mathematics, no label that means "leave me out", no warning about the font."""
    names = ["$\\frac$", "_hidden", "日本 \U0001f600", "", "-->"]
    made = report(write_records(tmp_path, [make_record(name) for name in names]))
    assert len(made.files) == 4 + 2 * (1 + len(names))
    for path in made.files:
        if path.suffix == ".svg":
            ElementTree.fromstring(path.read_bytes())


def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    records = [
        make_record(method, seed, notes=[method]) for method in ("evcl+", "vcl") for seed in (0, 1)
    ]
    first = report(write_records(tmp_path / "first", records))
    backwards = write_records(tmp_path / "second", records[::-1])
    with matplotlib.rc_context({"axes.labelsize": 30, "xtick.direction": "in"}):
        before = dict(matplotlib.rcParams)
        second = report(backwards, tmp_path / "elsewhere" / "deep")
        assert dict(matplotlib.rcParams) == before
    assert second.page.parent == tmp_path / "elsewhere" / "deep"
    assert contents(first) == contents(second)
    again = report(tmp_path / "first")
    assert contents(again) == contents(second)


def test_sections_rows_and_notes_of_unequal_records(tmp_path: Path) -> None:
    records = [
        make_record("vcl", benchmark="permuted-digits", tasks=["only"]),
        make_record("ewc", settings={"options": {"lam": 1}}),
        make_record("ewc", settings={"options": {"lam": 2}}, notes=["leaks <&"], environment={}),
        make_record("ewc", tasks=[str(task) for task in range(15)]),
    ]
    made = report(write_records(tmp_path, records))
    text = Page(made.page.read_text(encoding="utf-8")).text
    for expected in [
        *("permuted-digits", "split-mnist (number of tasks=5)", "split-mnist (number of tasks=15)"),
        *("ewc (lam=1.0)", "ewc (lam=2.0)", "leaks <&"),
        *("fewer than 2 common seeds", "3 benchmarks"),
    ]:
        assert expected in text
    assert "nan" not in made.files[1].read_text("utf-8") + made.files[2].read_text("utf-8")


def test_unfinished_runs_are_counted(tmp_path: Path) -> None:
    write_records(tmp_path, [make_record()])
    (tmp_path / "run-000" / "unfinished.json").write_text("{}")  # finished after all
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "unfinished.json").write_text("{}")
    made = report(tmp_path)
    assert made.unfinished == 2
    assert "2 runs are not finished and not shown" in made.page.read_text(encoding="utf-8")


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        report(tmp_path)
    assert str(caught.value) == (
        f"no record.json below {tmp_path}; run `evclplus run` or `evclplus compare` first"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_unfinished_runs_says_so(tmp_path: Path) -> None:
    (tmp_path / "unfinished.json").write_text("{}")
    with pytest.raises(FileError, match="1 unfinished run is there"):
        report(tmp_path)


def test_a_damaged_record_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    write_records(tmp_path, [make_record()])
    damaged = tmp_path / "run-001"
    damaged.mkdir()
    (damaged / "record.json").write_text("{")
    with pytest.raises(FileError, match="run-001"):
        report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_record_without_tasks_is_refused(tmp_path: Path) -> None:
    nothing: dict[str, list[object]] = {
        name: []
        for name in ("accuracy", "negative_log_likelihood", "brier_score", "calibration_error")
    }
    record = make_record(tasks=TASKS).model_copy(update={"tasks": [], **nothing})
    with pytest.raises(FileError, match="at least 1 item"):
        report(write_records(tmp_path, [record]))


def test_an_unwritable_target_is_one_line(tmp_path: Path) -> None:
    write_records(tmp_path / "runs", [make_record()])
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write"):
        report(tmp_path / "runs", tmp_path / "file")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"average_accuracy": 0.5}, "average_accuracy is 0.5, but its table makes it 0.99"),
        ({"average_accuracy": 5.0}, "average_accuracy is 5"),
        ({"forgetting": -7.0}, "forgetting is -7"),
        ({"average_brier_score": 1.0}, "average_brier_score is 1"),
        ({"method": "ewc"}, "method is another than the method of its config"),
        ({"benchmark": "split-digits"}, "benchmark is another"),
        ({"seed": 3}, "seed is another"),
        ({"accuracy_before": [0.5]}, "accuracy_before or accuracy_untrained is not over 5 tasks"),
        ({"tasks": ["\ud800", "1", "2", "3", "4"]}, "surrogates not allowed"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_records(tmp_path, [make_record()])
    path = folder / "run-000" / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(FileError, match=message):
        find_records(folder)


def test_a_folder_that_cannot_be_entered_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path, [make_record(), make_record("ewc")])
    closed, scandir = str(tmp_path / "run-001"), os.scandir

    def guarded(path: Any) -> Any:
        if str(path) == closed:  # nothing is closed to root, who may run this
            raise PermissionError(13, "Permission denied", closed)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.raises(FileError, match=r"cannot look into .*run-001: Permission denied"):
        find_records(tmp_path)
