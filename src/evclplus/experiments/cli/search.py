"""The command tune."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evclplus.errors import FileError, SettingsError
from evclplus.experiments.cli.options import (
    TEN_METHODS,
    BenchmarkName,
    CheckpointEvery,
    DataDir,
    Jobs,
    Methods,
    On,
    Scratch,
    Slurm,
    check_methods,
    every_of,
    executor_of,
    names,
    use_data_dir,
)
from evclplus.experiments.cli.terminal import console, say, stopped_exit, typed_command
from evclplus.signals import Stopped

if TYPE_CHECKING:
    from evclplus.experiments.executors.base import Executor

MOST_TRIALS = 10_000


def tune(
    benchmark: BenchmarkName = None,
    methods: Methods = None,
    trials: Annotated[
        int, typer.Option("--trials", min=1, max=MOST_TRIALS, help="Trials of each method in all.")
    ] = 20,
    epochs_limit: Annotated[
        int | None, typer.Option("--epochs-limit", min=1, help="No more epochs than this.")
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=100, help="How many seeds a trial is run with.")
    ] = 2,
    out: Annotated[Path, typer.Option("--out", help="Folder for the searches.")] = Path(
        "results", "search"
    ),
    jobs: Jobs = None,
    on: On = None,
    scratch: Scratch = None,
    slurm: Slurm = None,
    write_preset: Annotated[
        Path | None,
        typer.Option("--write-preset", help="TOML file for all settings found below --out."),
    ] = None,
    checkpoint_every: CheckpointEvery = None,
    data_dir: DataDir = None,
) -> None:
    """Search settings on validation data. Finished trials are kept: call again to go on."""
    if benchmark is None and write_preset is None:
        raise SettingsError("nothing to do: give --benchmark, --write-preset or both")
    use_data_dir(data_dir)
    if benchmark is not None:
        named = names(methods) or tuple(TEN_METHODS.split(","))
        executor = executor_of(jobs, out, on, scratch, slurm)
        _tune(
            *(benchmark, named, trials, epochs_limit, seeds, out, executor),
            checkpoint_every,
        )
    if write_preset is not None:
        from evclplus.experiments.presets import best

        count = best.write_preset(write_preset, out)
        say(f"preset: {write_preset}, with {count} tuned settings")


def _tune(
    benchmark: str,
    methods: tuple[str, ...],
    trials: int,
    epochs_limit: int | None,
    seeds: int,
    out: Path,
    executor: "Executor",
    checkpoint_every: str | None,
) -> None:
    try:
        from evclplus.experiments import tune as tuning  # optuna comes with an extra
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise SettingsError(
            "tuning needs optuna: install it with `pip install 'evclplus[tune]'`"
        ) from None
    from evclplus.experiments.display import ComparisonBars
    from evclplus.experiments.live import Live

    check_methods(methods)
    every = every_of(checkpoint_every)
    searches = [tuning.Search(benchmark, name, out, epochs_limit, seeds, every) for name in methods]
    try:
        live = Live(out, typed_command(), None, executor.room())
        with ComparisonBars(console, None, live) as bars:
            failed = tuning.tune(searches, trials, executor, bars, say, typed_command())
    except Stopped as stopped:
        raise stopped_exit(stopped, "every finished trial is kept") from None
    except OSError as error:  # optuna writes its journal itself
        raise FileError(
            f"cannot write the search below {out}: {error.strerror or error}; every finished trial "
            "is kept, call again to go on"
        ) from None
    for search in searches:
        say(search.summary())
    if failed:
        raise SettingsError(f"{len(failed)} trials failed; see the lines above")
