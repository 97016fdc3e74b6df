"""Commands that train on one benchmark: run, compare and demo."""

import logging
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evclplus.errors import SettingsError
from evclplus.experiments.cli.options import (
    TEN_METHODS,
    BenchmarkName,
    CheckpointEvery,
    Config,
    DataDir,
    Epochs,
    Jobs,
    MethodName,
    Methods,
    On,
    Overwrite,
    Scratch,
    Set,
    Slurm,
    every_of,
    executor_of,
    grid_of,
    names,
    use_data_dir,
)
from evclplus.experiments.cli.records import report
from evclplus.experiments.cli.terminal import console, say, show, stopped_exit, typed_command
from evclplus.experiments.config import MOST_SEEDS, Grid, load_grid
from evclplus.locks import only_writer
from evclplus.settings import LARGEST_SEED
from evclplus.signals import Stopped

if TYPE_CHECKING:
    from evclplus.experiments.executors.base import Executor


def run(
    method: MethodName = "evcl+",
    benchmark: BenchmarkName = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=LARGEST_SEED)] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for record.json; default runs/BENCHMARK/METHOD/seed-N."),
    ] = None,
    epochs: Epochs = None,
    config: Config = None,
    assignments: Set = None,
    overwrite: Overwrite = False,
    checkpoint_every: CheckpointEvery = None,
    data_dir: DataDir = None,
) -> None:
    """Run one experiment and write its record.json. After a stop, call again to go on. torchrun
    runs it on several processes."""
    from evclplus.experiments.display import TrainingBar
    from evclplus.experiments.record import RECORD
    from evclplus.experiments.run import cut, run_into
    from evclplus.ranks import joined, launched

    _flush_denormal()
    use_data_dir(data_dir)
    grid = grid_of(config, assignments, benchmark, epochs, methods=(method,), seeds=(seed,))
    folder = out or Path("runs", grid.benchmark, method, f"seed-{seed}")
    every = every_of(checkpoint_every)
    experiment = grid.experiment(method, seed)
    if launched():
        experiment = cut(experiment)
    try:
        with joined() as ranks:
            if not ranks.writes:
                console.quiet = True
                logging.getLogger("evclplus").setLevel(logging.ERROR)
            with TrainingBar(console) as bar:
                record = run_into(folder, experiment, bar, typed_command(), overwrite, every)
    except Stopped as stopped:
        raise stopped_exit(stopped, "what was learned is saved") from None
    show([record])
    say(f"record: {folder / RECORD}")


def compare(
    methods: Methods = None,
    benchmark: BenchmarkName = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, max=MOST_SEEDS, help="How many, from 0; default 3."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for records and report.")] = Path(
        "runs", "compare"
    ),
    epochs: Epochs = None,
    config: Config = None,
    assignments: Set = None,
    jobs: Jobs = None,
    on: On = None,
    scratch: Scratch = None,
    slurm: Slurm = None,
    overwrite: Overwrite = False,
    checkpoint_every: CheckpointEvery = None,
    data_dir: DataDir = None,
) -> None:
    """Run methods x seeds in parallel and report. Finished runs are kept: call again to go on."""
    use_data_dir(data_dir)
    named = names(methods)
    grid = grid_of(config, assignments, benchmark, epochs, methods=named, seeds=seeds)
    if config is None:
        grid = _with_defaults(grid, methods=named, seeds=seeds)
    executor = executor_of(jobs, out, on, scratch, slurm)
    _compare(grid, out, executor, overwrite, checkpoint_every)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for records and report.")] = Path(
        "runs", "demo"
    ),
    jobs: Jobs = None,
    overwrite: Overwrite = False,
) -> None:
    """Four methods as they come learn handwritten digits, two classes a task: offline, a minute."""
    with resources.as_file(resources.files("evclplus.experiments") / "demo.toml") as file:
        grid = load_grid(file, {}, [])
    _compare(grid, out, executor_of(jobs, out), overwrite)


def _with_defaults(grid: Grid, methods: tuple[str, ...] | None, seeds: int | None) -> Grid:
    update: dict[str, tuple[str, ...] | tuple[int, ...]] = {}
    if methods is None:
        update["methods"] = tuple(TEN_METHODS.split(","))
    if seeds is None:
        update["seeds"] = (0, 1, 2)
    return grid.model_copy(update=update)


def _compare(
    grid: Grid,
    out: Path,
    executor: "Executor",
    overwrite: bool,
    checkpoint_every: str | None = None,
) -> None:
    """Run what is not finished, then report on all that is in the folder."""
    from evclplus.experiments import compare as comparison
    from evclplus.experiments.display import ComparisonBars
    from evclplus.experiments.executors.loop import work_through
    from evclplus.experiments.live import Live
    from evclplus.experiments.store import find_record

    cells = comparison.cells(grid.experiments(), out, overwrite, every_of(checkpoint_every))
    with only_writer(out):
        done, todo = comparison.split_finished(cells)
        if done:
            say(f"{len(done)} of {len(cells)} runs are finished already and kept")
        failed: list[str] = []
        try:
            if todo:
                live = Live(out, typed_command(), len(cells), executor.room())
                with ComparisonBars(console, len(todo), live) as bars:
                    failed = work_through(todo, executor, bars, typed_command())
        except Stopped as stopped:
            kept = sum(find_record(cell.folder) is not None for cell in cells)
            raise stopped_exit(stopped, f"{kept} of {len(cells)} runs are finished") from None
    if len(failed) < len(cells):
        report(out)
    if failed:
        raise SettingsError(f"{len(failed)} of {len(cells)} runs failed; see the lines above")


def _flush_denormal() -> None:
    """A fitted network's gradients are so small that many would be denormal numbers, on which a
    step takes up to a quarter longer."""
    import torch

    torch.set_flush_denormal(True)
