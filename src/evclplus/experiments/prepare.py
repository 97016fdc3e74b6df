"""All that a benchmark needs before it can be run: data, a pretrained network, features."""

from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from evclplus.benchmarks.registry import find_benchmark
from evclplus.data.fetch import fetch


def prepare(name: str, say: Callable[[str], None]) -> None:
    """Fetch what is not here yet and compute features that are not kept yet."""
    benchmark = find_benchmark(name)
    for needed in (benchmark.dataset, benchmark.model):
        if needed is not None:
            say(f"{needed}: {fetch(needed, say=say).source}")
    if benchmark.features is not None:
        console = Console(stderr=True)
        bar = Progress(
            *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        with bar:
            for features, _ in benchmark.features(None):
                task = bar.add_task(features.name, total=features.count)
                features.prepare(partial(_show, bar, task))
                say(f"{features.count:,} features {features.name}: in {features.folder}")
    say(f"{name} can be run")


def _show(bar: Progress, task: TaskID, done: int) -> None:
    bar.update(task, completed=done)
