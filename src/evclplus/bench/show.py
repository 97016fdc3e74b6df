"""Measure and draw as the numbers come in; each function returns its part of the JSON.

Tables are redrawn only between measurements, never by a thread that would disturb them.
"""

from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from evclplus.bench.parts import step_parts
from evclplus.bench.rows import rows


def show_rows(console: Console, rounds: int) -> dict[str, Any]:
    table = _table("work", "ratio", "must", "aim", "reached")
    measured = []
    with Live(table, console=console, auto_refresh=False) as live:
        for measure in rows(rounds):
            row = measure()
            measured.append(row.as_json())
            table.add_row(
                row.name, f"{row.ratio:.2f}", _goal(row.must), _goal(row.aim), row.reached
            )
            live.refresh()
    return {"rows": measured}


def show_parts(console: Console, rounds: int) -> dict[str, Any]:
    table = _table("part of a step", "ms")
    parts = step_parts(rounds)
    for name, milliseconds in parts.items():
        table.add_row(name, f"{milliseconds:.2f}")
    console.print(table)
    return {"parts": parts}


def _table(first: str, *others: str) -> Table:
    table = Table(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _goal(goal: float | None) -> str:
    return "" if goal is None else f"{goal:g}"
