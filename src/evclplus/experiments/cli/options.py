"""Options that several commands share, and what they mean."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evclplus.errors import SettingsError
from evclplus.experiments.config import Grid, load_grid
from evclplus.settings import nearest

if TYPE_CHECKING:
    from evclplus.experiments.executors.base import Executor
    from evclplus.progress import Every


def method_names(incomplete: str) -> list[str]:
    """What may be meant by the beginning of a method's name, for the shell."""
    from evclplus.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def listed_names(incomplete: str) -> list[str]:
    """The same for the last name of a list separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in method_names(last)]


def benchmark_names(incomplete: str) -> list[str]:
    from evclplus.benchmarks.registry import BENCHMARKS

    return [name for name in BENCHMARKS if name.startswith(incomplete)]


Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="One setting, e.g. training.batch_size=64, stream.scenario=class, evcl+.lam=1000. "
        "Wins over --config; may be given many times.",
    ),
]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Passes over each task's data.")]
BenchmarkName = Annotated[
    str | None,
    typer.Option(
        "--benchmark", help="A name from `evclplus list`.", autocompletion=benchmark_names
    ),
]
MethodName = Annotated[
    str,
    typer.Option("--method", help="A name from `evclplus list`.", autocompletion=method_names),
]
Methods = Annotated[
    str | None,
    typer.Option("--methods", help="Names separated by commas.", autocompletion=listed_names),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace finished results.")]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Processes at once; default: the cores.")
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="ray[://HOST:PORT]|slurm",
        help="Where runs are made; default: processes of this machine.",
    ),
]
Scratch = Annotated[
    Path | None,
    typer.Option(
        "--scratch", help="With --on: folder for runs under way, best one that all nodes see."
    ),
]
Slurm = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        metavar="KEY=VALUE",
        help="With --on slurm: what a job asks for, e.g. timeout_min=120, slurm_partition=short, "
        "mem_gb=4; may be given many times.",
    ),
]

CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-every",
        metavar="epoch|MINUTES",
        help="How often training is saved inside a task; default: 5 minutes.",
    ),
]

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder with datasets; default EVCLPLUS_DATA.")
]

TEN_METHODS = (
    "evcl+,evcl,vcl,vcl-random,vcl-kcenter,ewc,coreset-random,coreset-kcenter,finetune,joint"
)


def names(text: str | None) -> tuple[str, ...] | None:
    """The names in a list separated by commas."""
    return tuple(name.strip() for name in text.split(",")) if text else None


def use_data_dir(folder: Path | None) -> None:
    """Worker processes inherit the environment, so this reaches them too."""
    if folder is not None:
        os.environ["EVCLPLUS_DATA"] = str(folder)


def grid_of(
    config: Path | None,
    assignments: list[str] | None,
    benchmark: str | None,
    epochs: int | None,
    methods: tuple[str, ...] | None,
    seeds: tuple[int, ...] | int | None,
) -> Grid:
    """The grid of a command line, with every name in it checked."""
    flags = {
        "benchmark": benchmark,
        "methods": methods,
        "seeds": seeds,
        "training": None if epochs is None else {"epochs": epochs},
    }
    grid = load_grid(config, flags, assignments or [])
    check_methods((*grid.methods, *grid.options))
    return grid


def check_methods(names: Sequence[str]) -> None:
    from evclplus.methods import METHODS

    for name in names:
        if name not in METHODS:
            raise SettingsError(f"there is no method {name!r}; {nearest(name, METHODS)}")


def executor_of(
    jobs: int | None,
    out: Path,
    on: str | None = None,
    scratch: Path | None = None,
    slurm: Sequence[str] | None = None,
) -> "Executor":
    """Where runs are made: what --on and the options beside it say."""
    from evclplus.experiments.executors.choose import executor_for

    return executor_for(on, jobs, out, scratch, slurm or ())


def every_of(text: str | None) -> "Every":
    """How often to save: what --checkpoint-every says."""
    from evclplus.experiments.run import MINUTES

    if text is None or text == "epoch":
        return "epoch" if text else MINUTES
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 <= minutes < float("inf"):
        raise SettingsError(
            f"--checkpoint-every {text!r} is wrong: expected 'epoch' or a number of minutes"
        )
    return minutes
