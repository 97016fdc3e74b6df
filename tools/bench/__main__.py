"""`python -m tools.bench`: bad input ends with one line on standard error and exit code 2."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from typer.exceptions import TyperException

from evclplus.errors import EvclplusError, SettingsError
from evclplus.experiments.environment import environment
from evclplus.files import check_target, write_atomically
from tools.bench import show
from tools.bench.page import write_rivals

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Turns of each rival.")] = 12,
    against: Annotated[
        bool, typer.Option("--against", help="Other packages that are installed, as well.")
    ] = False,
    rivals: Annotated[
        bool, typer.Option("--rivals", help="Other packages that are installed, instead.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--page", help="Put their table into this Markdown file as well.")
    ] = None,
    parts: Annotated[
        bool, typer.Option("--parts", help="Where the time of one task goes, instead.")
    ] = False,
    growth: Annotated[
        bool,
        typer.Option(
            "--growth",
            help="How a step's time grows with parameters, batch, tasks and examples, instead.",
        ),
    ] = False,
    figure: Annotated[
        Path | None,
        typer.Option("--figure", help="Draw --growth: a PNG or SVG file, or a folder for both."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.json", help="Also write a file.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON, no table.")] = False,
) -> None:
    """Measure speed as ratios against plain PyTorch, turn by turn in one run: some ten minutes.

    With EVCLPLUS_DATA set, whole runs learn real MNIST, otherwise random pictures of its size.
    """
    if figure is not None and not growth:
        raise SettingsError("--figure draws the curves of --growth; give both or neither")
    if page is not None and not (against or rivals):
        raise SettingsError("--page is for the table of --rivals; give both or neither")
    drawings = _drawings(figure)
    for path in (*([] if out is None else [out]), *drawings):
        check_target(path, overwrite)
    screen = Console(quiet=json_output)
    measured: dict[str, Any] = {}
    if not (parts or growth or rivals):
        measured |= show.show_rows(screen, rounds)
    if parts:
        measured |= show.show_parts(screen, rounds)
    if growth:
        measured |= show.show_growth(screen, rounds)
    if against or rivals:
        measured |= show.show_rivals(screen, rounds)
    content = {"environment": environment(), "command": _command(), "rounds": rounds, **measured}
    text = json.dumps(content, indent=1)
    if json_output:
        print(text)
    if out is not None:
        write_atomically(out, text + "\n")
        screen.print(f"numbers: {out}", soft_wrap=True)
    if page is not None:
        write_rivals(page, measured, content["environment"])
        screen.print(f"table: {page}", soft_wrap=True)
    if drawings:
        from tools.bench.figure import growth_figure  # matplotlib is slow to import

        image = growth_figure(measured["growth"])
        for path in drawings:
            write_atomically(path, image.svg if path.suffix == ".svg" else image.png)
            screen.print(f"figure: {path}", soft_wrap=True)


def _drawings(figure: Path | None) -> list[Path]:
    if figure is None:
        return []
    if figure.suffix in (".png", ".svg"):
        return [figure]
    if figure.suffix:
        raise SettingsError(f"{figure} is neither .png nor .svg; give one of them or a folder")
    return [figure / "growth.png", figure / "growth.svg"]


def _command() -> str:
    return shlex.join(["python", "-m", "tools.bench", *sys.argv[1:]])


def main() -> None:
    torch.set_flush_denormal(True)  # as `evclplus run` has it; the rivals have it too
    try:
        sys.exit(app(prog_name="python -m tools.bench", standalone_mode=False))
    except (EvclplusError, TyperException) as error:
        text = error.format_message() if isinstance(error, TyperException) else str(error)
        print(f"bench: {' '.join(text.split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
