"""What an experiment is: settings from a TOML file, flags and assignments. No torch here."""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from evclplus.errors import FileError, SettingsError
from evclplus.files import read_file
from evclplus.settings import LARGEST_SEED, Settings, Training

MOST_SEEDS = 10_000
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]


class Network(Settings):
    """The network a benchmark is run with. What is left out comes from the benchmark."""

    kind: Literal["mlp", "convnet"] = Field("mlp", description="mlp or convnet")
    hidden: tuple[Annotated[int, Field(ge=1, le=10**7)], ...] | None = Field(
        None, description="widths of the hidden layers (mlp) or channels (convnet)"
    )
    film: bool = Field(False, description="each task has a scale and a shift for every unit")


class Experiment(Settings):
    """One cell of a comparison: everything that decides its result."""

    method: str
    benchmark: str
    seed: Seed = 0
    options: dict[str, Any] = Field(default_factory=dict, description="the method's settings")
    stream: dict[str, Any] = Field(default_factory=dict, description="the benchmark's settings")
    network: Network = Network()
    training: Training = Training()
    samples: int = Field(10, ge=1, description="posterior samples averaged in a prediction")
    evaluate_on: Literal["test", "validation"] = Field(
        "test", description="the side scores are taken on; tuning looks at validation only"
    )

    def fingerprint(self) -> str:
        """A short hash of the settings: equal settings, equal fingerprint."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Grid(Settings):
    """What a TOML file and the flags of run and compare say: experiments that differ in method
    and seed. `options` has a table for each method that is not run with its defaults."""

    benchmark: str = "split-digits"
    methods: tuple[str, ...] = Field(("evcl+",), min_length=1)
    seeds: tuple[Seed, ...] = Field((0,), min_length=1, max_length=MOST_SEEDS)
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    stream: dict[str, Any] = Field(default_factory=dict)
    network: Network = Network()
    training: Training = Training()
    samples: int = Field(10, ge=1)
    evaluate_on: Literal["test", "validation"] = "test"

    @field_validator("seeds", mode="before")
    @classmethod
    def _count_of_seeds(cls, seeds: Any) -> Any:
        """A number n stands for the seeds 0 to n-1."""
        if not isinstance(seeds, int):
            return seeds
        if not 1 <= seeds <= MOST_SEEDS:
            raise ValueError(f"from 1 to {MOST_SEEDS} seeds, or a list of them")
        return tuple(range(seeds))

    @field_validator("methods", "seeds")
    @classmethod
    def _each_once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(values)) < len(values):
            raise ValueError("name each of them once")
        return values

    def experiment(self, method: str, seed: int) -> Experiment:
        return Experiment(
            method=method,
            benchmark=self.benchmark,
            seed=seed,
            options=self.options.get(method, {}),
            stream=self.stream,
            network=self.network,
            training=self.training,
            samples=self.samples,
            evaluate_on=self.evaluate_on,
        )

    def experiments(self) -> list[Experiment]:
        """Every method with every seed, all methods of one seed before the next."""
        return [self.experiment(method, seed) for seed in self.seeds for method in self.methods]


def load_grid(file: Path | None, flags: dict[str, Any], assignments: Sequence[str]) -> Grid:
    """A grid from a TOML file, then flags, then `SECTION.KEY=VALUE` assignments, each winning
    over what came before."""
    values = {} if file is None else read_toml(file)
    values = _merged(values, {key: value for key, value in flags.items() if value is not None})
    for assignment in assignments:
        values = _merged(values, _parse_assignment(assignment))
    return Grid(**values)


def read_toml(file: Path) -> dict[str, Any]:
    content = read_file(file)
    try:
        return tomllib.loads(content.decode())
    except ValueError as error:
        raise FileError(f"{file} is not TOML: {error}") from None
    except RecursionError:
        raise FileError(f"{file} is nested too deeply to be read") from None


def _parse_assignment(text: str) -> dict[str, Any]:
    """`training.epochs=5` as nested tables. A section that is no setting names a method."""
    key, equals, value = text.partition("=")
    section, dot, name = key.strip().rpartition(".")
    if not equals or not dot or not name:
        raise SettingsError(
            f"--set {text!r} is wrong: expected SECTION.KEY=VALUE, such as training.epochs=5 or "
            "evcl+.lam=100"
        )
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except ValueError:
        parsed = value.strip()  # a bare word is a string
    except RecursionError:
        raise SettingsError(f"--set {key} is nested too deeply to be read") from None
    if section in ("training", "network", "stream"):
        return {section: {name: parsed}}
    return {"options": {section: {name: parsed}}}


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both, table by table; where both have a value the one above wins."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key, {})
        both = isinstance(old, dict) and isinstance(value, dict)
        if isinstance(value, dict) and not both:
            raise SettingsError(f"{key} = {old!r:.60} is wrong: expected a table of settings")
        result[key] = _merged(old, value) if both else value
    return result
