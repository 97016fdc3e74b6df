"""`python -m tools.scale NAME`: measure, write results/scale/NAME.json, print."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from evclplus.experiments.environment import environment
from evclplus.files import make_folder, write_atomically
from tools.scale import disk, large, many, ranks

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Out = Annotated[Path, typer.Option("--out", help="Folder for the figures.")]
RESULTS = Path("results", "scale")


@app.command("ranks")
def ranks_(rounds: int = 3, out: Out = RESULTS) -> None:
    """One model on one and two processes: some minutes on two quiet cores."""
    _write("ranks", lambda: ranks.measure(rounds), out)


@app.command("large")
def large_(weights: int = 10**8, out: Out = RESULTS) -> None:
    """A network of 10^8 weights learns two tasks: 7 GB of memory."""
    _write("large", lambda: large.measure(weights), out)


@app.command("disk")
def disk_(folder: Path, gigabytes: float = 20.0, out: Out = RESULTS) -> None:
    """A stream of that size on disk, below FOLDER; removed afterwards."""
    _write("disk", lambda: disk.measure(folder, gigabytes), out)


@app.command("many")
def many_(count: int = 1000, method: str = "ewc", epochs: int = 5, out: Out = RESULTS) -> None:
    """Tiny tasks with a head each."""
    _write(f"many-{method}", lambda: many.measure(count, method, epochs), out)


def _write(name: str, measure: Callable[[], dict[str, Any]], out: Path) -> None:
    load = os.getloadavg()[0]
    command = shlex.join(["python", "-m", "tools.scale", *sys.argv[1:]])
    found = measure()
    content = {**found, "environment": environment(command=command, load_before=round(load, 2))}
    write_atomically(make_folder(out) / f"{name}.json", json.dumps(content, indent=1) + "\n")
    rows = found["rows"]
    for label, row in rows.items() if isinstance(rows, dict) else enumerate(rows, start=1):
        print(label, "; ".join(f"{key} {value}" for key, value in row.items()))
    print({key: value for key, value in found.items() if key != "rows"})


if __name__ == "__main__":
    app()
