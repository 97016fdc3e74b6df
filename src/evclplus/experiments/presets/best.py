"""What a search for settings leaves behind, and how it becomes a preset."""

import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from evclplus.errors import FileError, SettingsError
from evclplus.experiments.presets import Chosen, Preset, load_preset
from evclplus.files import read_file, write_atomically
from evclplus.settings import Settings

PACKED_SEARCHES = "searches.jsonl"
HEADER = """\
# Settings chosen for each method on each benchmark, on validation data, with the same number of
# trials and with seeds that are not reported. Written by: evclplus tune --write-preset FILE
# What is not below is not tuned yet.
"""


class Best(Settings):
    """The best settings that a search has found for one method on one benchmark."""

    benchmark: str
    method: str
    validation_accuracy: float
    settings: Chosen
    trials: int
    pruned: int
    seeds: tuple[int, ...]
    command: str
    environment: dict[str, Any]
    tried: tuple[dict[str, Any], ...] = Field((), description="every trial of a packed search")

    def write(self, path: Path) -> None:
        write_atomically(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Best":
        try:
            content = json.loads(read_file(path))
        except (FileError, ValueError, RecursionError):
            raise FileError(f"cannot read {path}; it is damaged or no result of tune") from None
        return cls.of(content, path)

    @classmethod
    def of(cls, content: Any, path: Path) -> "Best":
        if not isinstance(content, dict):
            raise FileError(f"{path} is no result of tune")
        return cls(**content)


def read_packed(out: Path) -> list[Best]:
    """The searches in `out`/searches.jsonl, which `evclplus pack` writes."""
    path = out / PACKED_SEARCHES
    if not path.exists():
        return []
    try:
        contents = [json.loads(line) for line in read_file(path).decode().splitlines()]
    except (FileError, ValueError, RecursionError):
        raise FileError(f"cannot read {path}; it is damaged or no result of tune") from None
    return [Best.of(content, path) for content in contents]


def write_packed(out: Path, searches: Iterable[Best]) -> None:
    ordered = sorted(searches, key=lambda one: (one.benchmark, one.method))
    lines = [json.dumps(one.model_dump(mode="json"), separators=(",", ":")) for one in ordered]
    write_atomically(out / PACKED_SEARCHES, "\n".join(lines) + "\n")


def write_preset(file: Path, out: Path) -> int:
    """Write all that was found below `out` as a preset; returns how many settings that is."""
    loose = [Best.read(path) for path in sorted(out.glob("*/*.json"))]
    newest = {(one.benchmark, one.method): one for one in (*read_packed(out), *loose)}
    found = [newest[key] for key in sorted(newest)]
    if not found:
        raise FileError(f"there are no settings below {out}; run `evclplus tune` first")
    _check_budgets(found)
    text = _text(load_preset("tuned"), found)
    try:
        text.encode()
        Preset(**tomllib.loads(text))  # what cannot be read back is not written
    except (tomllib.TOMLDecodeError, UnicodeEncodeError):
        raise FileError(
            f"the settings below {out} have values that no preset can have; search again"
        ) from None
    write_atomically(file, text)
    return len(found)


def _check_budgets(found: Sequence[Best]) -> None:
    """Methods are compared fairly only when each had as many trials."""
    for one in found:
        for other in found:
            if one.benchmark == other.benchmark and one.trials < other.trials:
                raise SettingsError(
                    f"{one.method} has {one.trials} trials on {one.benchmark} and {other.method} "
                    f"has {other.trials}: run `evclplus tune --benchmark {one.benchmark} "
                    f"--methods {one.method} --trials {other.trials}` first"
                )


def _text(base: Preset, found: Sequence[Best]) -> str:
    benchmarks = _in_order(base.benchmarks, (one.benchmark for one in found))
    methods = _in_order(base.methods, (one.method for one in found))
    lines = [
        HEADER,
        f"benchmarks = {_value(benchmarks)}",
        f"methods = {_value(methods)}",
        f"seeds = {base.seeds}",
        "",
        "[training]",
        f"batch_size = {base.training.batch_size}",
        "",
        "[tuned]",
    ]
    place = {name: index for index, name in enumerate((*benchmarks, *methods))}
    for one in sorted(found, key=lambda one: (place[one.benchmark], place[one.method])):
        seeds = " and ".join(map(str, one.seeds))
        lines += [
            "",
            f"# {' '.join(one.command.split())}",
            f"# {100 * one.validation_accuracy:.2f} % on validation data, best of {one.trials} "
            f"trials, seeds {seeds}",
            f"[tuned.{_key(one.benchmark)}.{_key(one.method)}]",
            f"training = {_value(one.settings.training)}",
            f"options = {_value(one.settings.options)}",
        ]
    return "\n".join(lines) + "\n"


def _in_order(first: Sequence[str], names: Iterable[str]) -> list[str]:
    return [*first, *sorted(set(names) - set(first))]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, flags=re.ASCII) else json.dumps(name)


def _value(value: Any) -> str:
    """A value in TOML. What settings hold is written in TOML as in JSON, but for tables."""
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(name)} = {_value(one)}" for name, one in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list) and len(value) > 1:
        return "[\n" + "".join(f"    {_value(one)},\n" for one in value) + "]"
    return json.dumps(value)
