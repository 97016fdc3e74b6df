"""Every example runs as a person would run it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def runs(path: Path) -> Any:
    """The first example a person tries runs with every change, the others with the slow tests."""
    return pytest.param(
        path, id=path.stem, marks=[] if path.stem == "quickstart" else pytest.mark.slow
    )


@pytest.mark.parametrize("path", [runs(path) for path in EXAMPLES])
def test_example(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    if path.stem == "no_borders":  # every task was recognised or found to be new
        assert done.stdout.endswith("\n3 heads\n")
