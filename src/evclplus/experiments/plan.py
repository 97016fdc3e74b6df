"""A plan to begin with: a TOML file for `run` and `compare` in which every setting stands with its
default and what it does, commented out. All of it is read from the settings themselves."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from evclplus.benchmarks.registry import BENCHMARKS
from evclplus.errors import FileError, SettingsError
from evclplus.experiments.config import Experiment, Network
from evclplus.experiments.explain import explain
from evclplus.files import check_target, write_atomically
from evclplus.settings import Settings, Training, nearest

WIDTH = 100

BEGINNING = """\
## What is compared, on what and how often. Run it:
##
##     evclplus compare --config {file}
##     evclplus run --config {file} --method {method}
##
## A line that begins with a single # is a setting with its default: remove the # to set it. Where
## there is no value, one is chosen automatically. --set SECTION.KEY=VALUE on the command line wins.

## {description}. Others: evclplus list
benchmark = {benchmark}
## What each of them is: evclplus explain {method}
methods = {methods}
## The number of seeds, counted from 0, or a list of them.
seeds = {seeds}
"""


def write_plan(file: Path, benchmark: str, methods: tuple[str, ...], seeds: int) -> None:
    """A plan in a file that was not there."""
    if file.is_file():
        raise FileError(f"{file} is there already; give another name")
    check_target(file, overwrite=False)
    write_atomically(file, plan(file.name, benchmark, methods, seeds))


def plan(file: str, benchmark: str, methods: tuple[str, ...], seeds: int) -> str:
    """The text of a plan."""
    if benchmark not in BENCHMARKS:
        raise SettingsError(
            f"there is no benchmark {benchmark!r}; {nearest(benchmark, BENCHMARKS)}"
        )
    chosen = BENCHMARKS[benchmark]
    beginning = BEGINNING.format(
        file=file,
        method=methods[0],
        description=chosen.description,
        benchmark=_toml(benchmark),
        methods=_toml(methods),
        seeds=seeds,
    )
    parts = [beginning.rstrip(), *_lines(_settings(Experiment, only=("samples", "evaluate_on")))]
    parts += ["", "[stream]", *_lines(_settings(chosen.settings))]
    hidden = {"hidden": chosen.hidden}
    parts += ["", "[network]", *_lines(_settings(Network, known=hidden))]
    parts += ["", "[training]", *_lines(_settings(Training))]
    for name in methods:
        options = explain(name).options
        parts += ["", f"[options.{_toml(name)}]"]
        parts += _lines((one.name, one.default, one.description) for one in options)
    return "\n".join(parts) + "\n"


def _settings(
    kind: type[Settings], only: tuple[str, ...] = (), known: dict[str, Any] | None = None
) -> Iterator[tuple[str, Any, str]]:
    """The name, default and description of each setting."""
    for name, field in kind.model_fields.items():
        if not only or name in only:
            default = None if field.default is PydanticUndefined else field.default
            yield name, (known or {}).get(name, default), field.description or ""


def _lines(settings: Iterator[tuple[str, Any, str]]) -> Iterator[str]:
    for name, default, description in settings:
        yield from textwrap.wrap(description, WIDTH, initial_indent="## ", subsequent_indent="## ")
        yield f"# {name} =" if default is None else f"# {name} = {_toml(default)}"


def _toml(value: Any) -> str:
    """JSON's words for texts, numbers, true, false and lists are TOML's too."""
    return json.dumps(value)
