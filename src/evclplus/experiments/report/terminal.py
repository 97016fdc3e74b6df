"""The final table for a terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evclplus.core.metrics import Metric
from evclplus.experiments.record import Record
from evclplus.experiments.report.comparison import (
    Comparison,
    MethodRow,
    comparisons_of,
)
from evclplus.experiments.report.numbers import interval_of, p_value, shown, signed
from evclplus.experiments.report.statistics import PairedDifference
from evclplus.experiments.report.tables import (
    BEST_BASELINE,
    MEASURES,
    NLL,
    TOO_FEW_PAIRS,
    Measure,
    method_cell,
)


def terminal_table(records: Sequence[Record]) -> RenderableType:
    """The rows of table.csv with the columns that fit 80 characters, under their benchmarks; a
    table for each metric."""
    comparisons = comparisons_of(records)
    used = [metric for metric in MEASURES if any(one.metric is metric for one in comparisons)]
    tables = [_table([one for one in comparisons if one.metric is metric]) for metric in used]
    return tables[0] if len(tables) == 1 else Group(*tables)


def _table(comparisons: Sequence[Comparison]) -> Table:
    metric = comparisons[0].metric
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
    table.add_column("Method", overflow="fold")
    first = f"{MEASURES[metric].average.title} {metric.unit}".rstrip()
    for title in (first, "95 % interval", *_others(metric), "Forgets", "Seeds", "Differs", "p"):
        table.add_column(title, justify="right", no_wrap=True)
    for comparison in comparisons:
        if len(comparisons) > 1:
            table.add_row(Text(comparison.title, style="italic"))
        for row in comparison.rows:
            table.add_row(*_cells(comparison, row), style="bold" if row.is_ours else "")
        table.add_section()
    table.caption = Text("\n".join(_caption(comparisons)))
    table.caption_justify = "left"
    return table


def _others(metric: Metric) -> dict[str, Measure]:
    """Columns beside the metric's own: an error alone says nothing of how sure an answer was."""
    return {} if metric.higher_is_better else {NLL.title: NLL}


def _cells(comparison: Comparison, row: MethodRow) -> list[Text]:
    metric = row.metric
    difference = comparison.against_baseline(row) or PairedDifference(0)
    method = method_cell(comparison, row)
    marks = "".join(f" [{mark}]" for mark in method.marks)
    texts = [
        f"{row.label}{marks}",
        f"{shown(metric, row.average.mean)} ± {shown(metric, row.average.deviation)}",
        interval_of(metric, row.average.interval),
        *(one.text(row.spread(one.field).mean) for one in _others(metric).values()),
        shown(metric, row.spread("forgetting").mean),
        str(row.average.count),
        "base" if method.tag == BEST_BASELINE else signed(metric, difference.mean),
        p_value(difference.p_value),
    ]
    return [Text(text) for text in texts]


def _caption(comparisons: Sequence[Comparison]) -> list[str]:
    rows = [(each, row) for each in comparisons for row in each.rows]
    found = [difference for each, row in rows if (difference := each.against_baseline(row))]
    lines = []
    if found:
        points = "points to" if comparisons[0].metric.unit == "%" else "from"
        lines.append(
            f"Differs: {points} the best baseline (base) on common seeds; paired t-test, Holm."
        )
    for bound in dict.fromkeys(row.method for _, row in rows if row.is_upper_bound):
        lines.append(f"{bound} sees all tasks at once: an upper bound, not a baseline.")
    if any(difference.pairs < 2 for difference in found):
        lines.append(f"A dash under Differs: {TOO_FEW_PAIRS}.")
    for comparison in comparisons:
        prefix = f"{comparison.title} " if len(comparisons) > 1 else ""
        lines += [f"{prefix}[{mark}] {note}" for mark, note in enumerate(comparison.notes, 1)]
    return lines
