"""Commands that say what there is: list, explain and init."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from evclplus.experiments.cli.options import (
    BenchmarkName,
    Methods,
    check_methods,
    method_names,
    names,
)
from evclplus.experiments.cli.terminal import console, say
from evclplus.experiments.config import MOST_SEEDS


def list_() -> None:
    """Methods and benchmarks by name."""
    from evclplus.benchmarks.registry import BENCHMARKS
    from evclplus.methods import METHODS

    methods = Table("method", "what it is", title="Methods", title_justify="left")
    for name, entry in METHODS.items():
        methods.add_row(name, entry.description)
    benchmarks = Table("benchmark", "what it is", title="Benchmarks", title_justify="left")
    for name, one in BENCHMARKS.items():
        benchmarks.add_row(name, f"{one.description}\n[dim]{one.dimensions}[/dim]")
    console.print(methods, benchmarks)


def explain(
    method: Annotated[
        str, typer.Argument(help="A name from `evclplus list`.", autocompletion=method_names)
    ],
) -> None:
    """What a method is: its equation, what it keeps, its options with defaults, its paper."""
    from evclplus.experiments.explain import explain as explanation

    found = explanation(method)
    _paragraphs(found.title)
    for line in found.equation.splitlines():  # not broken: it would be unreadable
        say(f"    {line}")
    console.print()
    _paragraphs(found.keeps, f"Paper: {found.paper}.")
    table = Table("option", "default", "what it does", box=None, pad_edge=False)
    for option in found.options:
        table.add_row(option.name, option.shown, option.description)
    console.print(table if found.options else "It has no options.", "")
    _paragraphs(*found.notes)


def _paragraphs(*texts: str) -> None:
    for text in texts:
        console.print(text, markup=False, highlight=False)
        console.print()


def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("plan.toml"),
    benchmark: BenchmarkName = None,
    methods: Methods = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=MOST_SEEDS)] = 3,
) -> None:
    """Write a plan for `run` and `compare`: every setting with its default and what it does."""
    from evclplus.experiments.plan import write_plan

    chosen = names(methods) or ("evcl+", "ewc", "finetune", "joint")
    check_methods(chosen)
    write_plan(file, benchmark or "split-digits", chosen, seeds)
    say(f"plan: {file}; run it: evclplus compare --config {file}")
