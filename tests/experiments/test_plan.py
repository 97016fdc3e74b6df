"""The plan that init writes: it runs as it is, and says the truth about every default."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from evclplus.benchmarks.registry import BENCHMARKS
from evclplus.experiments.config import Grid
from evclplus.experiments.plan import plan
from evclplus.experiments.store import find_records
from evclplus.methods import METHODS, method
from tests.experiments.test_cli import evclplus

TINY = ("--set=stream.tasks=1", "--set=stream.examples_per_task=20", "--epochs=1", "--jobs=1")


def uncommented(text: str) -> dict[str, Any]:
    """A plan in which every setting that has a value is set."""
    return tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))


@pytest.mark.slow
def test_a_plan_runs_as_it_is(tmp_path: Path) -> None:
    made = evclplus("init", "--methods", "finetune,evcl+", "--seeds", "1", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "evclplus compare --config plan.toml" in made.stdout
    words = ("compare", "--config", "plan.toml", "--out", "out", *TINY)
    done = evclplus(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {record.method for record in find_records(tmp_path)} == {"finetune", "evcl+"}
    content = (tmp_path / "plan.toml").read_bytes()
    again = evclplus("init", folder=tmp_path)
    assert again.returncode == 2
    assert again.stderr == "evclplus: plan.toml is there already; give another name\n"
    assert (tmp_path / "plan.toml").read_bytes() == content


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_what_is_commented_out_is_the_default(benchmark: str) -> None:
    text = plan("plan.toml", benchmark, tuple(METHODS), 2)
    bare, full = Grid(**tomllib.loads(text)), Grid(**uncommented(text))
    assert bare.seeds == (0, 1)
    assert bare.training == full.training
    assert (bare.samples, bare.evaluate_on) == (full.samples, full.evaluate_on)
    assert full.network.hidden == BENCHMARKS[benchmark].hidden
    settings = BENCHMARKS[benchmark].settings
    assert settings(**full.stream) == settings(**bare.stream)
    for name in METHODS:
        assert not bare.options[name]
        assert method(name, **full.options[name]) == method(name)


def test_every_setting_is_explained() -> None:
    lines = plan("plan.toml", "split-digits", ("evcl+",), 1).splitlines()
    settings = [i for i, line in enumerate(lines) if re.match(r"# \w+ =", line)]
    assert len(settings) > 40
    assert all(lines[i - 1].startswith("## ") for i in settings)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--benchmark", "split-digit"], "did you mean split-digits?"),
        (["--methods", "evcll"], "there is no method 'evcll'"),
        (["."], ". is a folder; give the name of a file in it"),
    ],
)
def test_bad_input_writes_nothing(words: list[str], message: str, tmp_path: Path) -> None:
    done = evclplus("init", *words, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())
