"""The scripts' common part: variations against a first one, run and tabulated."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from scipy import stats

from evclplus.experiments.config import Experiment
from evclplus.experiments.record import Record
from tools.variations import Variation, vary

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_variations_are_run_once_and_compared_over_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs(lam: float) -> list[Experiment]:
        options, training = {"lam": lam}, {"epochs": 1}
        return [
            Experiment(
                method="ewc",
                benchmark="split-digits",
                seed=seed,
                options=options,
                training=training,
            )
            for seed in (0, 1)
        ]

    monkeypatch.chdir(tmp_path)
    out = Path("results")
    variations = [Variation("first", "-", runs(0.0)), Variation("stiff", "lam = 1e9", runs(1e9))]
    vary(out, "What it does.", variations, ["python", "some.py"])
    table = (out / "table.md").read_text()
    assert table.startswith("What it does.\n\n| variation | changed | split-digits |\n")
    accuracy = {}
    for name in ("first", "stiff"):
        files = sorted((out / name).rglob("record.json"))
        records = [Record.read(file) for file in files]
        assert {record.environment["command"] for record in records} == {"python some.py"}
        accuracy[name] = [100 * record.average for record in records]
    test = stats.ttest_rel(accuracy["stiff"], accuracy["first"])
    interval = test.confidence_interval()
    expected = f"{interval.low:+.2f} to {interval.high:+.2f})"
    assert re.search(rf"\| stiff \| lam = 1e9 \| .*; {re.escape(expected)} \|", table)

    before = [file.stat().st_mtime_ns for file in out.rglob("record.json")]
    vary(out, "What it does.", variations, ["python", "some.py"])
    assert [file.stat().st_mtime_ns for file in out.rglob("record.json")] == before

    few = [Variation("second", "lam = 1", runs(1.0)), Variation("same", "lam = 1", [])]
    vary(out, "Fewer.", few, ["python", "some.py"], benchmarks=["split-mnist"])
    table = (out / "table.md").read_text()
    assert "| second | lam = 1 | not run |" in table
    assert "| same | lam = 1 | nothing to change |" in table


def test_wrong_input_ends_with_a_clear_line(tmp_path: Path) -> None:
    words = ["--files", "150", "--calls", "60", "--commands", "12", "--keep", str(tmp_path)]
    command = [sys.executable, "-m", "tools.fuzz", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| record | 15 |" in done.stdout
    assert "| command lines | 12 |" in done.stdout
    assert not list(tmp_path.iterdir())
