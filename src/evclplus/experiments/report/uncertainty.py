"""What the methods of a comparison know of what they know: a table, a figure and a section of the
page. Records of earlier versions do not say it; a comparison of such records has none of them."""

import base64
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evclplus.experiments.report.comparison import Comparison, MethodRow
from evclplus.experiments.report.figures import Image, render, row_style
from evclplus.experiments.report.tables import (
    ACCURACY,
    Measure,
    Table,
    TableCell,
    measure_column,
    method_cell,
)

MEASURES = (
    Measure("uncertainty.selective_accuracy", "On the surest 80 %", True, True, "accuracy of them"),
    Measure(
        "uncertainty.area_under_risk", "AURC", True, False, "mean share of errors over coverages"
    ),
    Measure(
        "uncertainty.foreign_auroc",
        "AUROC, other tasks",
        True,
        True,
        "how well entropy tells the other tasks' inputs from a task's own; 50 is chance",
    ),
    Measure(
        "uncertainty.foreign_fpr95",
        "FPR95, other tasks",
        True,
        False,
        "the other tasks' inputs that pass where 95 % of a task's own do",
    ),
    Measure(
        "uncertainty.noise_auroc",
        "AUROC, noise",
        True,
        True,
        "the same for noise: every value is another input's at its place",
    ),
    Measure("uncertainty.noise_fpr95", "FPR95, noise", True, False, "noise that passes"),
    Measure(
        "uncertainty.heads_right",
        "Right head",
        True,
        True,
        "how often the surest head is that of the input's task",
    ),
    Measure(
        "uncertainty.accuracy_untold",
        "Accuracy, task not told",
        True,
        True,
        "where the surest head answers",
    ),
)
SETS = (
    Measure(
        "uncertainty.conformal_coverage",
        "Covered by 90 % sets",
        True,
        True,
        "labels that are in their conformal set; 90 is what is promised, more is not better",
    ),
    Measure(
        "uncertainty.conformal_size",
        "Classes in 90 % sets",
        False,
        False,
        "mean number of classes in conformal sets; fewer is better where as many are covered",
    ),
)
"""The two are judged together: none of them has a best."""


@dataclass(frozen=True)
class Known:
    """What is shown of one comparison."""

    table: Table
    image: Image


def known(comparison: Comparison) -> Known | None:
    """None where no record says it."""
    rows = [row for row in comparison.rows if _has_all(row)]
    if not rows:
        return None
    return Known(_table(comparison, rows), render(lambda: _figure(rows)))


def _has_all(row: MethodRow) -> bool:
    """Whether every seed says it: a mean over some of them would be of another thing."""
    return all(record.uncertainty is not None for record in row.records)


def uncertainty_table(comparison: Comparison) -> Table | None:
    rows = [row for row in comparison.rows if _has_all(row)]
    return _table(comparison, rows) if rows else None


def _table(comparison: Comparison, rows: list[MethodRow]) -> Table:
    shown = [one for one in MEASURES if any(row.spread(one.field).mean is not None for row in rows)]
    columns = [
        [method_cell(comparison, row) for row in rows],
        *(measure_column(rows, measure) for measure in (ACCURACY, *shown)),
        *([_plain(row, measure) for row in rows] for measure in SETS),
    ]
    headings = [measure.heading for measure in (ACCURACY, *shown, *SETS)]
    return Table(("Method", *headings), tuple(zip(*columns, strict=True)))


def _plain(row: MethodRow, measure: Measure) -> TableCell:
    value = row.spread(measure.field)
    detail = "" if value.deviation is None else f"± {measure.text(value.deviation)}"
    return TableCell(measure.text(value.mean), detail)


def _figure(rows: list[MethodRow]) -> Figure:
    figure = Figure(figsize=(8.0, 3.8 + 0.2 * ((len(rows) + 2) // 3)), layout="constrained")
    calibration, risk = figure.subplots(1, 2)
    handles = [_draw(row, calibration, risk) for row in rows]
    calibration.plot([0, 100], [0, 100], color="#8a8f98", linewidth=1, linestyle=":")
    calibration.set_xlabel("confidence (%)")
    calibration.set_ylabel("accuracy (%)")
    calibration.set_title("Calibration", loc="left", fontsize=10, fontweight="bold")
    risk.set_xlabel("inputs answered, the surest first (%)")
    risk.set_ylabel("errors among them (%)")
    risk.set_ylim(bottom=0)
    risk.set_title("Risk and coverage", loc="left", fontsize=10, fontweight="bold")
    labels = [row.label if len(row.label) <= 30 else f"{row.label[:29]}…" for row in rows]
    figure.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False)
    return figure


def _draw(row: MethodRow, calibration: Axes, risk: Axes) -> Line2D:
    """A row's line in both: of calibration all seeds' bins together, of risk the mean."""
    colour, marker = row_style(row)
    found = [record.uncertainty for record in row.records if record.uncertainty is not None]
    counts = np.array([one.bin_counts for one in found])
    total = counts.sum(0)
    some = total >= max(1, total.sum() // 500)  # a few answers say nothing of a bin

    def pooled(values: list[list[float]]) -> list[float]:
        mean = 100 * (np.array(values) * counts).sum(0)[some] / total[some]
        return [float(value) for value in mean]

    confidence = pooled([one.bin_confidence for one in found])
    accuracy = pooled([one.bin_accuracy for one in found])
    width = 2.5 if row.is_ours else 1.5
    calibration.plot(confidence, accuracy, color=colour, marker=marker, linewidth=width)
    points = len(found[0].risk)
    means = [100 * fmean(one.risk[point] for one in found) for point in range(points)]
    places = [100 * (point + 1) / points for point in range(points)]
    (line,) = risk.plot(places, means, color=colour, marker=marker, markersize=4, linewidth=width)
    return line


def section(comparison: Comparison, found: Known | None) -> Markup:
    """The part of the page, with everything that comes from records escaped; empty if there is
    nothing to say."""
    if found is None:
        return Markup("")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = files("evclplus.experiments.report").joinpath("uncertainty.html")
    template = environment.from_string(source.read_text(encoding="utf-8"))
    image = base64.b64encode(found.image.svg).decode()
    rows = comparison.rows
    return Markup(
        template.render(
            title=comparison.title,
            table=found.table,
            image=f"data:image/svg+xml;base64,{image}",
            ours=[row.label for row in rows if row.is_ours],
            colours={row.label: row_style(row)[0] for row in rows},
            measures=[*MEASURES, *SETS],
        )
    )
