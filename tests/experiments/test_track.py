"""Records sent to trackers, read back with the trackers' own readers."""

from pathlib import Path

import pytest

from evclplus.errors import FileError
from evclplus.experiments.track import _harmless, settings, summary, track
from tests.experiments.report.record_factory import make_record, write_records
from tests.experiments.test_cli import evclplus
from tests.test_trackers import scalars, written

pytest.importorskip("tensorboard")


def test_tensorboard_reads_a_record(tmp_path: Path) -> None:
    records = [make_record("ewc", 0), make_record("ewc", 1), make_record("vcl", 0)]
    folder = write_records(tmp_path / "runs", records)
    out = tmp_path / "events"
    for _ in range(2):  # a second time nothing is there twice
        assert track(folder, "tensorboard", out, "", "offline") == 3
    (place,) = out.glob("split-mnist/ewc-*/seed-1")
    read = scalars(place)
    steps, values = zip(*read["accuracy/task 1"], strict=True)
    assert steps == (1, 2, 3, 4, 5)
    assert values == pytest.approx([row[0] for row in records[1].matrix])
    assert read["accuracy/average"][-1][1] == pytest.approx(records[1].average_accuracy)
    assert read["final/forgetting"][0][1] == pytest.approx(records[1].forgetting, abs=1e-6)
    assert len(list(out.rglob("events.out.tfevents.*"))) == 3


def test_settings_and_figures_are_plain() -> None:
    record = make_record("ewc")
    found = settings(record)
    assert found["method"] == "ewc"
    assert found["training.batch_size"] == 256
    assert found["training.epochs"] == "null"
    assert summary(record)["final/average_accuracy"] == record.average_accuracy


def test_names_of_records_lead_nowhere_else() -> None:
    assert _harmless("../../x/../evil\0/seed-1") == "_.._x_../evil_/seed-1"
    assert _harmless("a/../seed-1") == "a/_/seed-1"
    assert _harmless("split-mnist/evcl+-12ab/seed-3") == "split-mnist/evcl+-12ab/seed-3"


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    write_records(tmp_path / "runs", [make_record()])
    done = evclplus("track", "runs", "--to", "tensorboard", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("see them: tensorboard --logdir runs/tensorboard")
    wrong = evclplus("track", "runs", "--to", "paper", folder=tmp_path)
    assert wrong.returncode == 2
    assert "tensorboard" in wrong.stderr
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="run `evclplus compare` first"):
        track(tmp_path / "empty", "tensorboard", tmp_path / "x", "", "offline")


@pytest.mark.slow
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder = write_records(tmp_path / "runs", [make_record("ewc"), make_record("vcl")])
    assert track(folder, "wandb", tmp_path / "out", "mine", "offline") == 2
    files = list(tmp_path.glob("out/wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    assert all(written(file, b"accuracy/average", b"final/forgetting") for file in files)
