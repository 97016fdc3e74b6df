"""The demo, run as a user runs it, and its claim, checked with a margin."""

from pathlib import Path
from statistics import fmean

import pytest

from evclplus.experiments.store import find_records
from tests.experiments.test_cli import evclplus


@pytest.mark.slow
def test_the_demo_shows_the_point(tmp_path: Path) -> None:
    done = evclplus("demo", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last == "report: runs/demo/report.html"
    assert (tmp_path / "runs/demo/report.html").exists()
    records = find_records(tmp_path)
    assert len(records) == 20

    def mean(method: str, figure: str) -> float:
        chosen = [getattr(record, figure) for record in records if record.method == method]
        assert len(chosen) == 5
        return fmean(chosen)

    assert all(record.method in done.stdout for record in records)
    # Fine-tuning forgets, EVCL+ does not, and both learned their tasks in the first place.
    assert mean("finetune", "forgetting") > 0.06
    assert mean("evcl+", "forgetting") < 0.01
    assert mean("evcl+", "average_accuracy") > 0.985
    assert mean("evcl+", "average_accuracy") > mean("finetune", "average_accuracy") + 0.04
    assert mean("evcl+", "average_accuracy") > mean("ewc", "average_accuracy") + 0.01
    assert min(mean(m, "learning_accuracy") for m in ("evcl+", "finetune")) > 0.95
    # Joint training is the upper bound.
    assert mean("joint", "average_accuracy") > 0.97
    again = evclplus("demo", folder=tmp_path)
    assert "20 of 20 runs are finished already and kept" in again.stdout
