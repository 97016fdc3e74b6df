"""The final table for a terminal."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from evclplus.experiments.record import Record
from evclplus.experiments.report.comparison import (
    Comparison,
    MethodRow,
    comparisons_of,
)
from evclplus.experiments.report.numbers import p_value, percent, percent_interval, signed_percent
from evclplus.experiments.report.statistics import PairedDifference
from evclplus.experiments.report.tables import BEST_BASELINE, TOO_FEW_PAIRS, method_cell


def terminal_table(records: Sequence[Record]) -> Table:
    """The rows of table.csv with the columns that fit 80 characters, under their benchmarks."""
    comparisons = comparisons_of(records)
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
    table.add_column("Method", overflow="fold")
    for heading in ("Accuracy %", "95 % interval", "Forgets", "Seeds", "Differs", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    for comparison in comparisons:
        if len(comparisons) > 1:
            table.add_row(Text(comparison.title, style="italic"))
        for row in comparison.rows:
            table.add_row(*_cells(comparison, row), style="bold" if row.is_ours else "")
        table.add_section()
    table.caption = Text("\n".join(_caption(comparisons)))
    table.caption_justify = "left"
    return table


def _cells(comparison: Comparison, row: MethodRow) -> list[Text]:
    difference = comparison.against_baseline(row) or PairedDifference(0)
    method = method_cell(comparison, row)
    marks = "".join(f" [{mark}]" for mark in method.marks)
    texts = [
        f"{row.label}{marks}",
        f"{percent(row.accuracy.mean)} ± {percent(row.accuracy.deviation)}",
        percent_interval(row.accuracy.interval),
        percent(row.spread("forgetting").mean),
        str(row.accuracy.count),
        "base" if method.tag == BEST_BASELINE else signed_percent(difference.mean),
        p_value(difference.p_value),
    ]
    return [Text(text) for text in texts]


def _caption(comparisons: Sequence[Comparison]) -> list[str]:
    rows = [(each, row) for each in comparisons for row in each.rows]
    found = [difference for each, row in rows if (difference := each.against_baseline(row))]
    lines = []
    if found:
        lines.append(
            "Differs: points to the best baseline (base) on common seeds; paired t-test, Holm."
        )
    for bound in dict.fromkeys(row.method for _, row in rows if row.is_upper_bound):
        lines.append(f"{bound} sees all tasks at once: an upper bound, not a baseline.")
    if any(difference.pairs < 2 for difference in found):
        lines.append(f"A dash under Differs: {TOO_FEW_PAIRS}.")
    for comparison in comparisons:
        prefix = f"{comparison.title} " if len(comparisons) > 1 else ""
        lines += [f"{prefix}[{mark}] {note}" for mark, note in enumerate(comparison.notes, 1)]
    return lines
