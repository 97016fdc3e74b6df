"""What a shell is told when somebody presses tab."""

import subprocess
from pathlib import Path

import pytest

from evclplus.methods import METHODS
from tests.experiments.test_cli import evclplus


def completed(line: str, folder: Path) -> list[str]:
    """What bash would offer at the end of a line."""
    words = line.split(" ")
    environment = {
        "_EVCLPLUS_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = evclplus(folder=folder, **environment)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("evclplus comp", ["compare"]),
        ("evclplus run --meth", ["--method"]),
        ("evclplus run --method vcl-", [n for n in METHODS if n.startswith("vcl-")]),
        ("evclplus compare --methods ewc,fine", ["ewc,finetune"]),
        ("evclplus run --benchmark split-dig", ["split-digits"]),
        ("evclplus explain joi", ["joint"]),
    ],
)
def test_names_are_completed(line: str, offered: list[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == offered


def test_the_script_for_bash_is_one_that_bash_reads(tmp_path: Path) -> None:
    environment = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = evclplus("--show-completion", "bash", folder=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert "complete " in done.stdout
    checked = subprocess.run(["bash", "-n"], input=done.stdout, text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr
