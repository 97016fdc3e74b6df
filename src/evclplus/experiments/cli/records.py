"""Commands on what is there: report, watch, track and pack."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from evclplus.experiments.cli.terminal import say, show

Target = Literal["tensorboard", "wandb"]


def report(
    folder: Annotated[Path, typer.Argument(help="Any folder with records below it.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; default: the folder itself.")
    ] = None,
) -> None:
    """Turn records into a page, tables (CSV, Markdown, LaTeX) and figures (SVG, PNG)."""
    from evclplus.experiments.report.folder import report as write_report
    from evclplus.experiments.store import find_records

    written = write_report(folder, out)
    show(find_records(folder))
    say(f"report: {written.page}")


def watch(
    folder: Annotated[Path, typer.Argument(help="The --out folder of compare or reproduce.")],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where; 0: any that is free.")
    ] = 8642,
) -> None:
    """Show a grid while it runs, on a page for this machine alone. It reads and changes nothing."""
    from evclplus.experiments.watch.server import open_server, serve

    with open_server(folder, port) as server:
        say(f"watching {folder}: http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
        serve(server)


def track(
    folder: Annotated[Path, typer.Argument(help="Any folder with records below it.")],
    to: Annotated[Target, typer.Option("--to", help="What to send the records to.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for what is written; default FOLDER/TO.")
    ] = None,
    project: Annotated[str, typer.Option("--project", help="Of Weights & Biases.")] = "evclplus",
    offline: Annotated[
        bool, typer.Option("--offline", help="Keep it on disk, for `wandb sync`.")
    ] = False,
) -> None:
    """Send finished records to TensorBoard or Weights & Biases: curves, settings and figures."""
    from evclplus.experiments.track import track as send

    out = out or folder / to
    count = send(folder, to, out, project, "offline" if offline else "online")
    then = f"tensorboard --logdir {out}" if to == "tensorboard" else f"wandb sync {out}/wandb/*"
    shown = f"; see them: {then}" if offline or to == "tensorboard" else ""
    say(f"{count} records: {to}{shown}")


def pack(
    folder: Annotated[Path, typer.Argument(help="Any folder with records below it.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace packed records of the same runs.")
    ] = False,
) -> None:
    """Put every record below a folder into its records.jsonl, a line each. Nothing is lost:
    reports are made from it, and what is in it counts as finished. A folder of tune becomes
    searches.jsonl."""
    from evclplus.experiments import store

    if os.path.isdir(folder) and any(folder.glob("*/*.journal")):
        from evclplus.experiments.presets.best import PACKED_SEARCHES
        from evclplus.experiments.tune import pack_searches

        say(f"{pack_searches(folder)} searches: {folder / PACKED_SEARCHES}")
        return
    say(f"{store.pack(folder, overwrite)} records: {folder / store.PACKED}")
