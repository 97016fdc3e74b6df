"""Commands that train for whole tables: reproduce and check."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from evclplus.errors import SettingsError
from evclplus.experiments.cli.options import (
    CheckpointEvery,
    DataDir,
    Epochs,
    Jobs,
    Methods,
    On,
    Overwrite,
    Scratch,
    Slurm,
    every_of,
    executor_of,
    names,
    use_data_dir,
)
from evclplus.experiments.cli.terminal import console, say, stopped_exit, typed_command
from evclplus.files import make_folder
from evclplus.locks import only_writer
from evclplus.signals import Stopped


def reproduce(
    preset: Annotated[
        str, typer.Option("--preset", help="paper, tuned, or a TOML file like theirs.")
    ],
    benchmarks: Annotated[
        str | None, typer.Option("--benchmarks", help="Only these, separated by commas.")
    ] = None,
    methods: Methods = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, max=100, help="How many seeds, not the preset's."),
    ] = None,
    epochs: Epochs = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for all results; default results/PRESET.")
    ] = None,
    jobs: Jobs = None,
    on: On = None,
    scratch: Scratch = None,
    slurm: Slurm = None,
    overwrite: Overwrite = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Run nothing; write reports and tables again.")
    ] = False,
    checkpoint_every: CheckpointEvery = None,
    data_dir: DataDir = None,
) -> None:
    """Run a whole table, benchmarks x methods x seeds. Finished runs are kept: call again to go
    on."""
    from evclplus.experiments import reproduce as reproduction
    from evclplus.experiments.display import ComparisonBars
    from evclplus.experiments.live import Live
    from evclplus.experiments.presets import load_preset

    use_data_dir(data_dir)
    wanted = load_preset(preset).changed(seeds, epochs)
    selection = reproduction.Selection.of(wanted, names(benchmarks), names(methods))
    out = out or Path("results", Path(preset).stem)
    failed: list[str] = []
    if not report_only:
        executor = executor_of(jobs, out, on, scratch, slurm)
        try:
            live = Live(out, typed_command(), selection.count, executor.room())
            with ComparisonBars(console, None, live) as bars:
                failed = reproduction.reproduce(
                    *(selection, out, executor, bars, say, typed_command(), overwrite),
                    every_of(checkpoint_every),
                )
        except Stopped as stopped:
            raise stopped_exit(stopped, "every finished run is kept") from None
    console.print(reproduction.write_reports(wanted, out))
    say(f"tables: {out / 'table.md'}")
    if failed:
        raise SettingsError(f"{len(failed)} runs failed; see the lines above")


def check(
    systems: Annotated[
        list[str] | None,
        typer.Argument(help="Methods, protocols or single checks; default: all there are."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds, from 0.")] = 5,
    out: Annotated[Path, typer.Option("--out", help="Folder for records and table.md.")] = Path(
        "results", "checks"
    ),
    page: Annotated[
        Path | None, typer.Option("--page", help="Markdown file to put the table into as well.")
    ] = None,
    jobs: Jobs = None,
    on: On = None,
    scratch: Scratch = None,
    slurm: Slurm = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Run nothing; write the table again.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Run published protocols and compare with the figures reported for them. Finished runs are
    kept: call again to go on."""
    from evclplus.experiments import check as checking
    from evclplus.experiments.checks import chosen
    from evclplus.experiments.display import ComparisonBars
    from evclplus.experiments.executors.loop import work_through
    from evclplus.experiments.live import Live

    use_data_dir(data_dir)
    wanted = {one.name for one in chosen(systems or [])}
    every = checking.check_cells(chosen([]), range(seeds), out)
    todo = [cell for cell in every if cell.check.name in wanted and not checking.has_record(cell)]
    failed: list[str] = []
    if todo and not report_only:
        executor = executor_of(jobs, out, on, scratch, slurm)
        live = Live(out, typed_command(), None, executor.room())
        try:
            with only_writer(out), ComparisonBars(console, len(todo), live) as bars:
                failed = work_through(todo, executor, bars, typed_command())
        except Stopped as stopped:
            raise stopped_exit(stopped, "every finished run is kept") from None
    found = checking.outcomes(every)
    table = Table(*checking.HEADINGS)
    for row in checking.rows([one for one in found if one.check.name in wanted]):
        table.add_row(*row)
    console.print(table)
    make_folder(out)
    checking.write_table(out / "table.md", found)
    if page is not None:
        checking.write_page(page, checking.markdown(found))
    if failed:
        raise SettingsError(f"{len(failed)} runs failed; see the lines above")
