"""The README's promises, run: its commands, its Python and its files."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import evclplus
from evclplus.experiments.presets import load_preset
from evclplus.experiments.reproduce import Selection

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line]


def run(*words: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Python with these words, one thread each: tests run side by side."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_every_command_of_the_readme(tmp_path: Path) -> None:
    assert len(commands()) >= 4
    for line in commands():
        name, *words = shlex.split(line, comments=True)
        assert name == "evclplus"
        done = run("-m", "evclplus", *words, folder=tmp_path)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    assert (tmp_path / "results" / "report.html").exists()


def test_long_tables_of_the_readme_have_their_settings() -> None:
    """These run for hours; here every cell of theirs is only looked up."""
    lines = re.findall(r"^    evclplus (reproduce .*)", README, flags=re.MULTILINE)
    assert len(lines) >= 2
    for line in lines:
        words = shlex.split(line, comments=True)
        options = dict(zip(words[1::2], words[2::2], strict=True))
        preset = load_preset(options.pop("--preset"))
        chosen = options.pop("--benchmarks", None)
        assert not options
        selection = Selection.of(preset, chosen.split(",") if chosen else None, None)
        for benchmark in selection.benchmarks:
            for method in selection.methods:
                preset.experiment(benchmark, method, 0)


@pytest.mark.slow
def test_the_python_of_the_readme(tmp_path: Path) -> None:
    assert blocks("python")
    for block in blocks("python"):
        done = run("-W", "error", "-c", block, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "average" in done.stdout


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)h][^)]*)\)", README))
def test_every_link_leads_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


@pytest.mark.parametrize("target", re.findall(r"^    (make \w+)", README, flags=re.MULTILINE))
def test_every_make_target_exists(target: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target.split()[1]], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, flags=re.MULTILINE) == [evclplus.__version__]
