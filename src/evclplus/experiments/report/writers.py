"""The final tables as CSV, Markdown and LaTeX."""

import csv
import io
from collections import ChainMap
from collections.abc import Sequence

from evclplus.core import metrics
from evclplus.core.metrics import Metric
from evclplus.experiments.report.comparison import Comparison, MethodRow
from evclplus.experiments.report.escape import for_csv, for_latex, for_markdown
from evclplus.experiments.report.numbers import scale
from evclplus.experiments.report.statistics import Interval, PairedDifference
from evclplus.experiments.report.tables import (
    MEASURES,
    Measure,
    Table,
    TableCell,
    baseline_table,
    results_table,
    role,
)
from evclplus.experiments.report.uncertainty import MEASURES as UNCERTAINTY
from evclplus.experiments.report.uncertainty import SETS, uncertainty_table


def baseline_rule(metric: Metric) -> str:
    best = "highest" if metric.higher_is_better else "lowest"
    return (
        f"The best baseline is the method with the {best} mean final {metric.title} other than "
        "EVCL+ (with or without a coreset) and the upper bound, joint training."
    )


def to_csv(comparisons: Sequence[Comparison]) -> str:
    """One line per row of every comparison, for programs: an unknown number is an empty cell, and
    so is what other metrics have."""
    stream = io.StringIO()
    parts = [_csv_parts(comparison, row) for comparison in comparisons for row in comparison.rows]
    names = [name for place in zip(*parts, strict=True) for part in place for name in part]
    writer = csv.DictWriter(stream, list(dict.fromkeys(names)), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(dict(ChainMap(*line)) for line in parts)
    return stream.getvalue()


def _csv_parts(comparison: Comparison, row: MethodRow) -> tuple[dict[str, str], ...]:
    about = {
        "benchmark": for_csv(comparison.title),
        "method": for_csv(row.label),
        "role": role(comparison, row),
        "tasks": str(comparison.task_count),
        "seeds": str(len(row.seeds)),
    }
    sure = (*UNCERTAINTY, *SETS) if comparison.metric is metrics.ACCURACY else ()
    measured: dict[str, str] = {}
    for measure in (*MEASURES[comparison.metric].all, *sure):
        measured |= _csv_measure(row, measure)
    judged = {
        "best_baseline": for_csv(comparison.baseline.label) if comparison.baseline else "",
        **_csv_difference(row.metric, comparison.against_baseline(row)),
    }
    return about, measured, judged, {"notes": for_csv("; ".join(row.notes))}


def _csv_difference(metric: Metric, difference: PairedDifference | None) -> dict[str, str]:
    found = difference or PairedDifference(0)
    name = "difference_percent" if metric.unit == "%" else "difference"
    return {
        name: exact(found.mean, scale(metric)),
        **_csv_interval(name, found.interval, scale(metric)),
        "p_value": exact(found.p_value),
        "pairs": str(found.pairs) if difference else "",
    }


def _csv_measure(row: MethodRow, measure: Measure) -> dict[str, str]:
    value = row.spread(measure.field)
    times = 100 if measure.is_percent else 1
    plain = measure.field.rpartition(".")[2]
    name = f"{plain}_percent" if measure.is_percent else plain
    cells = {name: exact(value.mean, times), f"{name}_sd": exact(value.deviation, times)}
    is_average = measure is MEASURES[row.metric].average
    return cells | (_csv_interval(name, value.interval, times) if is_average else {})


def _csv_interval(name: str, interval: Interval | None, times: float) -> dict[str, str]:
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {f"{name}_low": exact(low, times), f"{name}_high": exact(high, times)}


def exact(value: float | None, times: float = 1) -> str:
    return "" if value is None else f"{times * value:.6g}"


def to_markdown(comparisons: Sequence[Comparison]) -> str:
    parts = ["# Results"]
    for comparison in comparisons:
        parts += [
            f"## {for_markdown(comparison.title)}",
            markdown_table(results_table(comparison)),
        ]
        if comparison.notes:
            parts.append("\n".join(_markdown_notes(comparison.notes)))
        if (uncertainty := uncertainty_table(comparison)) is not None:
            parts += ["How sure the answers are:", markdown_table(uncertainty)]
        against = baseline_table(comparison)
        if against and comparison.baseline:
            name = for_markdown(comparison.baseline.label)
            rule = baseline_rule(comparison.metric)
            parts += [f"Against {name}. {rule}", markdown_table(against)]
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    lines = [
        [for_markdown(heading) for heading in table.headings],
        [":--"] + ["--:"] * (len(table.headings) - 1),
        *([_markdown_cell(cell) for cell in row] for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(cell: TableCell) -> str:
    text = for_markdown(cell.text)
    text = f"**{text}**" if cell.is_best else text
    tag = f"({cell.tag})" if cell.tag else ""
    marks = "".join(f"<sup>{mark}</sup>" for mark in cell.marks)
    return " ".join(part for part in (text, for_markdown(cell.detail), tag, marks) if part)


def _markdown_notes(notes: Sequence[str]) -> list[str]:
    return [f"- <sup>{mark}</sup> {for_markdown(note)}" for mark, note in enumerate(notes, 1)]


def to_latex(comparisons: Sequence[Comparison]) -> str:
    r"""Two floats per comparison, shrunk to the width of the text where they are wider."""
    parts = [r"% \usepackage{booktabs, graphicx}"]
    for comparison in comparisons:
        title = for_latex(comparison.title)
        notes = [
            rf"\textsuperscript{{{mark}}} {for_latex(note)}\par"
            for mark, note in enumerate(comparison.notes, 1)
        ]
        parts.append(_latex_float(results_table(comparison), title, notes))
        against = baseline_table(comparison)
        if against and comparison.baseline:
            caption = f"{title}: against {for_latex(comparison.baseline.label)}, the best baseline"
            rule = for_latex(baseline_rule(comparison.metric)) + r"\par"
            parts.append(_latex_float(against, caption, [rule]))
    return "\n\n".join(parts) + "\n"


def _latex_float(table: Table, caption: str, notes: Sequence[str]) -> str:
    lines = [
        r"\begin{table*}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{caption}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}",
        r"\toprule",
        " & ".join(for_latex(heading) for heading in table.headings) + r" \\",
        r"\midrule",
        *(" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}}\par",
        *notes,
        r"\end{table*}",
    ]
    return "\n".join(lines)


def _latex_cell(cell: TableCell) -> str:
    text = for_latex(cell.text)
    text = rf"\textbf{{{text}}}" if cell.is_best else text
    detail = rf"{{\scriptsize {for_latex(cell.detail)}}}" if cell.detail else ""
    tag = f"({cell.tag})" if cell.tag else ""
    marks = "".join(rf"\textsuperscript{{{mark}}}" for mark in cell.marks)
    return " ".join(part for part in (text, detail, tag, marks) if part)
