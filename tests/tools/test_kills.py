"""A small version of `python -m tools.kills`: kills fall into every window, and change nothing."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools.kills import WINDOWS


def counts(tmp_path: Path, *words: str) -> "Counter[str]":
    path = tmp_path / "counts.json"
    command = [sys.executable, "-m", "tools.kills", "--json", str(path), *words]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    total: Counter[str] = Counter()
    for count in json.loads(path.read_text()).values():
        assert count["equal"] == count["runs"] > 0
        total += Counter(count)
    return total


def test_kills_in_every_window_change_nothing(tmp_path: Path) -> None:
    total = counts(tmp_path, "--each", "1", "--methods", "evcl+-random", "--compiled", "")
    for window in WINDOWS.keys() - {"between", "compile"}:
        assert total[window] >= 1, f"no kill fell into {window}: {total}"


@pytest.mark.slow
def test_kills_while_a_step_is_compiled_change_nothing(tmp_path: Path) -> None:
    total = counts(tmp_path, "--kills", "2", "--methods", "", "--compiled", "ewc")
    assert total["compile"] >= 1, total
