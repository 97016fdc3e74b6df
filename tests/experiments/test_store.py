"""Records, each in a file of its own or packed into one."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from evclplus.errors import FileError
from evclplus.experiments.cli import main
from evclplus.experiments.record import Record
from evclplus.experiments.report.folder import report
from evclplus.experiments.run import finished
from evclplus.experiments.store import PACKED, find_record, find_records, pack
from tests.experiments.report.record_factory import make_record

RUNS = [("vcl", 10), ("vcl", 2), ("ewc", 0)]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for method, seed in RUNS:
        place(tmp_path / "out", method, seed)
    return tmp_path / "out"


def place(out: Path, method: str, seed: int, **changes: Any) -> Path:
    folder = out / "split-mnist" / method / f"seed-{seed}"
    folder.mkdir(parents=True)
    make_record(method, seed, **changes).write(folder)
    return folder


def test_packing_changes_nothing_but_the_files(out: Path) -> None:
    (out / "split-mnist" / "notes.txt").write_text("kept")
    before = find_records(out)
    of_vcl = find_records(out / "split-mnist" / "vcl")
    folders = {folder: find_record(folder) for folder in out.glob("*/*/*")}
    assert pack(out) == 3
    left = sorted(path.relative_to(out).as_posix() for path in out.rglob("*"))
    assert left == ["records.jsonl", "split-mnist", "split-mnist/notes.txt"]
    assert find_records(out) == before
    assert find_records(out / "split-mnist" / "vcl") == of_vcl  # from the file above
    assert find_records(out.parent) == before
    assert {folder: find_record(folder) for folder in folders} == folders
    assert find_record(out / "split-mnist") is None
    wanted = make_record("vcl", 2).full_config
    assert finished(out / "split-mnist" / "vcl" / "seed-2", wanted)
    assert report(out / "split-mnist", out / "report").records == 3


def test_the_file_has_a_line_for_each_in_an_order_that_does_not_depend_on_them(out: Path) -> None:
    pack(out)
    lines = [json.loads(line) for line in (out / PACKED).read_text().splitlines()]
    assert [(line["method"], line["seed"]) for line in lines] == [
        ("ewc", 0),
        ("vcl", 2),
        ("vcl", 10),
    ]
    assert lines[1]["folder"] == "split-mnist/vcl/seed-2"
    place(out, "evcl", 1)
    assert pack(out) == 1
    assert [record.method for record in find_records(out)] == ["evcl", "ewc", "vcl", "vcl"]


def test_a_run_done_again_wins_and_is_packed_over_the_old_one_only_when_asked(out: Path) -> None:
    pack(out)
    packed = (out / PACKED).read_bytes()
    folder = place(out, "ewc", 0, seconds={"total": 0.5})
    assert [r.seconds for r in find_records(out) if r.method == "ewc"] == [{"total": 0.5}]
    with pytest.raises(FileError, match="--overwrite"):
        pack(out)
    assert (out / PACKED).read_bytes() == packed
    assert (folder / "record.json").exists()
    assert pack(out, overwrite=True) == 1
    found = find_record(folder)
    assert found is not None
    assert found.seconds == {"total": 0.5}
    assert len(find_records(out)) == 3


@pytest.mark.parametrize("damage", ["{}", "no json", "[]", '{"folder": 1}', '{"folder": "x"}'])
def test_a_damaged_file_is_one_line(damage: str, out: Path) -> None:
    pack(out)
    with (out / PACKED).open("a") as file:
        file.write(damage + "\n")
    with pytest.raises(FileError, match=r"records\.jsonl") as caught:
        find_records(out)
    assert "\n" not in str(caught.value)


def test_one_folder_twice_in_a_file_is_refused(out: Path) -> None:
    pack(out)
    lines = (out / PACKED).read_text()
    (out / PACKED).write_text(lines + lines)
    with pytest.raises(FileError, match=r"line 4: 'split-mnist/ewc/seed-0' is .* there twice"):
        find_records(out)


def test_a_damaged_record_is_not_packed(out: Path) -> None:
    path = out / "split-mnist" / "vcl" / "seed-2" / "record.json"
    path.write_text(path.read_text().replace('"schema"', '"scheme"'))
    with pytest.raises(FileError, match=r"record\.json has schema None"):
        pack(out)
    assert len(list(out.rglob("record.json"))) == 3
    assert not (out / PACKED).exists()


def test_the_command(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["evclplus", "pack", str(out)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert capsys.readouterr().out == f"3 records: {out / PACKED}\n"
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "nothing to pack" in capsys.readouterr().err
    assert all(isinstance(record, Record) for record in find_records(out))
