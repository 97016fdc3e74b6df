"""How sure the answers of a comparison's methods are, and how rightly: a table, a figure and a
section of the page. Records of earlier versions do not say it; a comparison of such records has
none of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evclplus.experiments.report.chart import Curve, curve_of, round_range
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


WIDTH, HEIGHT = 440.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 14.0, 26.0, 40.0
"""Of a plot on the page, in its own units."""

Points = npt.NDArray[np.float64]
"""Rows of two numbers: across and above."""

Scale = tuple[float, float, float]
"""First, last, and the distance of two marks."""


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
    """A row's line in both."""
    colour, marker = row_style(row)
    width = 2.5 if row.is_ours else 1.5
    calibration.plot(*_calibration(row).T, color=colour, marker=marker, linewidth=width)
    (line,) = risk.plot(*_risk(row).T, color=colour, marker=marker, markersize=4, linewidth=width)
    return line


def _calibration(row: MethodRow) -> Points:
    """Confidence and accuracy in per cent, the bins of all seeds together."""
    found = [record.uncertainty for record in row.records if record.uncertainty is not None]
    counts = np.array([one.bin_counts for one in found])
    total = counts.sum(0)
    some = total >= max(10, total.sum() // 500)  # a few answers say nothing of a bin

    def pooled(values: list[list[float]]) -> Points:
        mean: Points = 100 * (np.array(values) * counts).sum(0)[some] / total[some]
        return mean

    confidence = pooled([one.bin_confidence for one in found])
    return np.stack([confidence, pooled([one.bin_accuracy for one in found])], 1)


def _risk(row: MethodRow) -> Points:
    """Inputs answered and errors among them in per cent, the mean over seeds."""
    found = [record.uncertainty for record in row.records if record.uncertainty is not None]
    means = 100 * np.array([one.risk for one in found]).mean(0)
    return np.stack([100 * np.arange(1, len(means) + 1) / len(means), means], 1)


# Their curves on the page.


@dataclass(frozen=True)
class Plot:
    """Curves in a rectangle of an inline SVG, with what stands at its sides."""

    title: str
    across: str
    above: str
    marks: tuple[tuple[float, str], ...]
    heights: tuple[tuple[float, str], ...]
    curves: tuple[Curve, ...]
    diagonal: tuple[float, float, float, float] | None = None


def _calibration_plot(rows: Sequence[MethodRow]) -> Plot:
    points = [_calibration(row) for row in rows]
    scale = round_range(np.append(np.concatenate(points), 100.0))
    titles = ("Calibration", "confidence (%)", "accuracy (%)")
    return _plot(titles, rows, points, scale, scale, diagonal=True)


def _risk_plot(rows: Sequence[MethodRow]) -> Plot:
    points = [_risk(row) for row in rows]
    scale = round_range(np.append(np.concatenate(points)[:, 1], 0.0))
    titles = ("Risk and coverage", "inputs answered, the surest first (%)", "errors among them (%)")
    return _plot(titles, rows, points, (0.0, 100.0, 20.0), scale, diagonal=False)


def _plot(
    titles: tuple[str, str, str],
    rows: Sequence[MethodRow],
    points: Sequence[Points],
    across: Scale,
    above: Scale,
    diagonal: bool,
) -> Plot:
    def x(value: float) -> float:
        return _between(value, across, LEFT, WIDTH - RIGHT)

    def y(value: float) -> float:
        return _between(value, above, HEIGHT - BOTTOM, TOP)

    lines = [
        curve_of(row, tuple((x(a), y(b)) for a, b in found))
        for row, found in zip(rows, points, strict=True)
    ]
    ends = (x(across[0]), y(above[0]), x(across[1]), y(above[1]))
    return Plot(
        *titles,
        marks=tuple((x(value), f"{value:g}") for value in _ticks(across)),
        heights=tuple((y(value), f"{value:g}") for value in _ticks(above)),
        curves=tuple(reversed(lines)),  # the best is drawn last, above all others
        diagonal=ends if diagonal else None,
    )


def _between(value: float, scale: Scale, first: float, last: float) -> float:
    return round(float(first + (value - scale[0]) / (scale[1] - scale[0]) * (last - first)), 1)


def _ticks(scale: Scale) -> list[float]:
    low, high, step = scale
    ticks: list[float] = np.arange(low, high + step / 2, step).round(6).tolist()
    return ticks


def section(comparison: Comparison) -> Markup:
    """The part of the page, with everything that comes from records escaped; empty if there is
    nothing to say."""
    table = uncertainty_table(comparison)
    if table is None:
        return Markup("")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = files("evclplus.experiments.report").joinpath("uncertainty.html")
    template = environment.from_string(source.read_text(encoding="utf-8"))
    rows = [row for row in comparison.rows if _has_all(row)]
    return Markup(
        template.render(
            title=comparison.title,
            table=table,
            plots=[_calibration_plot(rows), _risk_plot(rows)],
            size=(WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM),
            ours=[row.label for row in rows if row.is_ours],
            colours={row.label: row_style(row)[0] for row in rows},
            measures=[*MEASURES, *SETS],
        )
    )
