"""Measure and draw as the numbers come in; each function returns its part of the JSON.

Tables are redrawn only between measurements, never by a thread that would disturb them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from tools.bench.growth import Point, growth
from tools.bench.parts import task_parts
from tools.bench.rivals import RivalRow, rivals
from tools.bench.rows import rows


def show_rows(console: Console, rounds: int) -> dict[str, Any]:
    table = _table("work", "ratio", "must", "aim", "reached", "ours s", "rival s")
    measured = []
    with _live(console, table) as live:
        for measure in rows(rounds):
            row = measure()
            measured.append(row.as_json())
            table.add_row(
                *(row.name, f"{row.ratio:.2f}", _goal(row.must), _goal(row.aim), row.reached),
                *(_seconds(row.ours), _seconds(row.rival)),
            )
            live.refresh()
    return {"rows": measured}


def show_rivals(console: Console, rounds: int) -> dict[str, Any]:
    table = _table("rival", "its epoch", "our epoch", "its / ours")
    table.show_lines = True
    table.title = "12,000 x 784, 2x256, batch 256; the plain epoch is 1"
    measured = []
    with _live(console, table) as live:
        for measure in rivals(rounds):
            row = measure()
            measured.append(row.as_json())
            table.add_row(*_rival_cells(row))
            live.refresh()
    return {"rivals": measured}


def _rival_cells(row: RivalRow) -> list[str]:
    name = f"{row.package} {row.version or ''}\n{row.what}"
    if row.rival_ratio is None or row.our_ratio is None:
        return [escape(f"{name}\nnot measured: {row.not_measured}")]
    return [
        name,
        f"{row.rival_ratio:.2f}",
        f"{row.ours} {row.our_ratio:.2f}",
        f"{row.rival_ratio / row.our_ratio:.2f}",
    ]


def show_parts(console: Console, rounds: int) -> dict[str, Any]:
    table = _table("part of a second task", "s")
    parts = task_parts(rounds)
    for name, seconds in parts.items():
        table.add_row(name, f"{seconds:.3f}")
    console.print(table)
    return {"parts": parts}


def show_growth(console: Console, rounds: int) -> dict[str, Any]:
    columns = {
        "evcl_plus": "EVCL+ ms",
        "plain": "plain ms",
        "vectors": "vectors",
    }
    table = _table("what grows", "to", *columns.values())
    curves: dict[str, list[Point]] = {}
    with _live(console, table) as live:
        for name, point in growth(rounds):
            curves.setdefault(name, []).append(point)
            found = [f"{point[key]:.3g}" if key in point else "" for key in columns]
            table.add_row(name.replace("_", " "), f"{point[name]:,}", *found)
            live.refresh()
    return {"growth": curves}


@contextmanager
def _live(console: Console, table: Table) -> Iterator[Live]:
    with Live(table, console=console, auto_refresh=False) as live:
        yield live
    if not console.is_terminal:
        console.print()  # into a file or pipe, rich leaves the last line open


def _table(first: str, *others: str) -> Table:
    table = Table(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _goal(goal: float | None) -> str:
    return "" if goal is None else f"{goal:g}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3g}"
