"""Presets: a whole table of experiments, benchmarks x methods x seeds, in one TOML file.

Those of the package lie beside this file; `load_preset` reads any other one as well.
"""

from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from evclplus.benchmarks.registry import BENCHMARKS
from evclplus.errors import SettingsError
from evclplus.experiments.config import Experiment, read_toml
from evclplus.methods import METHODS, method
from evclplus.settings import Settings, Training, nearest

NAMES = ("untuned", "systems", "tuned", "paper", "paper-summed")


class Chosen(Settings):
    """What was chosen for one method on one benchmark."""

    training: dict[str, Any] = Field(default_factory=dict, description="wins over the common one")
    options: dict[str, Any] = Field(default_factory=dict, description="the method's settings")


class Reported(Settings):
    """What a publication reports: per cent for each method, by benchmark."""

    source: str
    accuracy: dict[str, dict[str, float]]


class Preset(Settings):
    """Every method on every benchmark with the same number of seeds.

    All benchmarks share `training` and each method's `options`. With `tuned`, every cell needs
    settings of its own there, which win: what was not tuned is not run.
    """

    benchmarks: tuple[str, ...] = Field(min_length=1, description="in the order of running")
    methods: tuple[str, ...] = Field(min_length=1, description="in the order of the table")
    seeds: int = Field(ge=1, le=100, description="how many, from 0; tuning has those from 100 on")
    training: Training = Training()
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    tuned: dict[str, dict[str, Chosen]] | None = Field(
        None, description="settings by benchmark and method"
    )
    reported: Reported | None = Field(None, description="figures to compare with")

    @model_validator(mode="after")
    def _every_name_and_option_is_known(self) -> "Preset":
        tuned = self.tuned or {}
        reported = self.reported.accuracy if self.reported else {}
        for name in (*self.benchmarks, *tuned, *reported):
            if name not in BENCHMARKS:
                raise SettingsError(f"there is no benchmark {name!r}; {nearest(name, BENCHMARKS)}")
        for table in (self.methods, self.options, *tuned.values(), *reported.values()):
            for name in table:
                if name not in METHODS:
                    raise SettingsError(f"there is no method {name!r}; {nearest(name, METHODS)}")
        for name, options in self.options.items():
            method(name, **options)
        for methods in tuned.values():
            for name, chosen in methods.items():
                method(name, **chosen.options)
                self._training_with(chosen)
        return self

    def _training_with(self, chosen: Chosen) -> Training:
        return Training(**{**self.training.model_dump(), **chosen.training})

    def has(self, benchmark: str, method: str) -> bool:
        """Whether there are settings for a cell."""
        return self.tuned is None or method in self.tuned.get(benchmark, {})

    def fits(self, benchmark: str, name: str) -> bool:
        """Whether a method can learn a benchmark: some need a head for every task."""
        needs = method(name, **self.options.get(name, {})).needs_head_per_task
        return not needs or BENCHMARKS[benchmark].settings().scenario == "task"

    def experiment(self, benchmark: str, method: str, seed: int) -> Experiment:
        if self.tuned is None:
            chosen = Chosen(options=self.options.get(method, {}))
        elif (found := self.tuned.get(benchmark, {}).get(method)) is not None:
            chosen = found.model_copy(
                update={"options": self.options.get(method, {}) | found.options}
            )
        else:
            raise SettingsError(
                f"no tuned settings for {method} on {benchmark} yet: run `evclplus tune "
                f"--benchmark {benchmark} --methods {method}`, or choose others with "
                "--benchmarks and --methods"
            )
        return Experiment(
            method=method,
            benchmark=benchmark,
            seed=seed,
            options=chosen.options,
            training=self._training_with(chosen),
        )

    def changed(self, seeds: int | None, epochs: int | None) -> "Preset":
        """The same with another number of seeds, or of epochs in every cell."""
        update: dict[str, Any] = {}
        if seeds is not None:
            update["seeds"] = seeds
        if epochs is not None:
            update["training"] = Training(**{**self.training.model_dump(), "epochs": epochs})
            update["tuned"] = self.tuned and {
                benchmark: {name: _with_epochs(chosen, epochs) for name, chosen in methods.items()}
                for benchmark, methods in self.tuned.items()
            }
        return self.model_copy(update=update)


def _with_epochs(chosen: Chosen, epochs: int) -> Chosen:
    return chosen.model_copy(update={"training": {**chosen.training, "epochs": epochs}})


def load_preset(name: str) -> Preset:
    """A preset of the package by its name, or any by its TOML file."""
    if name in NAMES:
        with resources.as_file(
            resources.files("evclplus.experiments.presets") / f"{name}.toml"
        ) as file:
            return Preset(**read_toml(file))
    if name.endswith(".toml"):
        return Preset(**read_toml(Path(name)))
    raise SettingsError(f"there is no preset {name!r}; {nearest(name, NAMES)}, or a .toml file")
