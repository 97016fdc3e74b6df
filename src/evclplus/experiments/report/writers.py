"""The final tables as CSV, Markdown and LaTeX."""

import csv
import io
from collections.abc import Sequence

from evclplus.experiments.report.comparison import Comparison, MethodRow
from evclplus.experiments.report.escape import for_csv, for_latex, for_markdown
from evclplus.experiments.report.statistics import Interval, PairedDifference
from evclplus.experiments.report.tables import (
    ACCURACY,
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

BASELINE_RULE = (
    "The best baseline is the method with the highest mean final accuracy other than EVCL+"
    " (with or without a coreset) and the upper bound, joint training."
)


def to_csv(comparisons: Sequence[Comparison]) -> str:
    """One line per row of every comparison, for programs: an unknown number is an empty cell."""
    stream = io.StringIO()
    lines = [_csv_line(comparison, row) for comparison in comparisons for row in comparison.rows]
    writer = csv.DictWriter(stream, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()


def _csv_line(comparison: Comparison, row: MethodRow) -> dict[str, str]:
    line = {
        "benchmark": for_csv(comparison.title),
        "method": for_csv(row.label),
        "role": role(comparison, row),
        "tasks": str(comparison.task_count),
        "seeds": str(len(row.seeds)),
    }
    for measure in (*MEASURES, *UNCERTAINTY, *SETS):
        line |= _csv_measure(row, measure)
    return line | {
        "best_baseline": for_csv(comparison.baseline.label) if comparison.baseline else "",
        **_csv_difference(comparison.against_baseline(row)),
        "notes": for_csv("; ".join(row.notes)),
    }


def _csv_difference(difference: PairedDifference | None) -> dict[str, str]:
    found = difference or PairedDifference(0)
    return {
        "difference_percent": exact(found.mean, 100),
        **_csv_interval("difference_percent", found.interval),
        "p_value": exact(found.p_value),
        "pairs": str(found.pairs) if difference else "",
    }


def _csv_measure(row: MethodRow, measure: Measure) -> dict[str, str]:
    value = row.spread(measure.field)
    scale = 100 if measure.is_percent else 1
    plain = measure.field.rpartition(".")[2]
    name = f"{plain}_percent" if measure.is_percent else plain
    cells = {name: exact(value.mean, scale), f"{name}_sd": exact(value.deviation, scale)}
    return cells | (_csv_interval(name, value.interval) if measure is ACCURACY else {})


def _csv_interval(name: str, interval: Interval | None) -> dict[str, str]:
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {f"{name}_low": exact(low, 100), f"{name}_high": exact(high, 100)}


def exact(value: float | None, scale: int = 1) -> str:
    return "" if value is None else f"{scale * value:.6g}"


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
            parts += [f"Against {name}. {BASELINE_RULE}", markdown_table(against)]
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
            parts.append(_latex_float(against, caption, [for_latex(BASELINE_RULE) + r"\par"]))
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
