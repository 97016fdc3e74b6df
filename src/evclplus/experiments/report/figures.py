"""Figures of a comparison: its metric over tasks, and the matrix of each row."""

import hashlib
import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evclplus.core.metrics import Metric
from evclplus.experiments.report.comparison import Comparison, MethodRow
from evclplus.experiments.report.numbers import number, scale, shown
from evclplus.methods import METHODS

# Of methods that are not known here.
OTHER_COLOURS = ("#117733", "#AA4499", "#999933", "#44AA99", "#6699CC", "#661100")
OTHER_MARKERS = ("p", ">", "8", "H", "*")
LINE_STYLES = ("-", "--", ":", "-.")
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8f98",
    "axes.labelcolor": "#30343b",
    "xtick.color": "#50555e",
    "ytick.color": "#50555e",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8ec",
    "text.parse_math": False,  # a dollar in a method's name is a dollar
    "svg.hashsalt": "evclplus",  # the same figure has the same bytes
}
MOST_TASKS_WITH_NUMBERS = 12
LONGEST_LABEL = 36


@dataclass(frozen=True)
class Image:
    """A rendered figure."""

    svg: bytes
    png: bytes


def row_style(row: MethodRow) -> tuple[str, str]:
    """Colour and marker; the same for a method in every figure and every report."""
    if row.method in METHODS:
        entry = METHODS[row.method]
        return entry.colour, entry.marker
    digest = hashlib.sha256(row.method.encode()).digest()
    return (
        OTHER_COLOURS[digest[0] % len(OTHER_COLOURS)],
        OTHER_MARKERS[digest[1] % len(OTHER_MARKERS)],
    )


def curves_figure(comparison: Comparison) -> Image:
    """The metric's average against tasks learned, with a band of one standard deviation."""
    return render(lambda: _curves_figure(comparison))


def matrix_figure(comparison: Comparison, row: MethodRow) -> Image:
    """The matrix of one row, on the colour scale of its comparison."""
    return render(lambda: _matrix_figure(row, colours(comparison)))


@dataclass(frozen=True)
class Colours:
    """Of all matrices of a comparison, the brighter the better."""

    low: float
    high: float
    map: str

    def part(self, value: float) -> float:
        """From nought, dark, to one, bright."""
        part = (value - self.low) / (self.high - self.low)
        return 1 - part if self.map.endswith("_r") else part

    def hex(self, value: float) -> str:
        return to_hex(matplotlib.colormaps["cividis"](self.part(value)))

    def ink(self, value: float) -> str:
        """Of a text that can be read on it."""
        return "#000" if self.part(value) > 0.47 else "#fff"


def colours(comparison: Comparison) -> Colours:
    """From the worst of all values to the best there could be."""
    if comparison.metric.higher_is_better:
        lowest = min(float(np.nanmin(row.matrix)) for row in comparison.rows)
        return Colours(lowest, max(1.0, lowest + 0.01), "cividis")
    highest = max(float(np.nanmax(row.matrix)) for row in comparison.rows)
    return Colours(0.0, max(highest, 0.01), "cividis_r")


def render(draw: Callable[[], Figure]) -> Image:
    """Draw in our own style, whatever matplotlib was set to, and render without dates."""
    with matplotlib.style.context(STYLE, after_reset=True):
        figure = draw()
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")  # the layout is found; finding it again takes as long
        figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    return Image(svg.getvalue(), png.getvalue())


def _curves_figure(comparison: Comparison) -> Figure:
    figure = Figure(figsize=(8.0, 4.3), layout="constrained")
    axes = figure.add_subplot()
    handles = [_draw_curve(axes, row) for row in comparison.rows]
    axes.set_xlabel("tasks learned")
    axes.set_ylabel(f"average {in_unit(comparison.metric, 'on tasks seen')}")
    axes.set_xticks(_ticks(comparison.task_count))
    axes.margins(x=0.03)
    axes.grid(visible=False, axis="x")
    figure.legend(
        handles,
        [_legend_label(row) for row in comparison.rows],
        loc="outside right center",
        frameon=False,
        title=f"final {in_unit(comparison.metric)}",
        alignment="left",
    )
    return figure


def _draw_curve(axes: Axes, row: MethodRow) -> Line2D:
    colour, marker = row_style(row)
    curves = scale(row.metric) * row.curves
    tasks = np.arange(1, curves.shape[1] + 1)
    means = curves.mean(axis=0)
    is_filled = marker in Line2D.filled_markers  # the others are all edge
    (line,) = axes.plot(
        tasks,
        means,
        color=colour,
        marker=marker,
        markersize=8 if row.is_ours else 7,
        markeredgecolor="white" if is_filled else colour,
        markeredgewidth=0.5 if is_filled else 1.5,
        linewidth=3.0 if row.is_ours else 1.5,
        linestyle=_line_style(row),
        zorder=3 if row.is_ours else 2,
    )
    if len(curves) > 1:
        deviations = curves.std(axis=0, ddof=1)
        axes.fill_between(
            tasks, means - deviations, means + deviations, color=colour, alpha=0.13, linewidth=0
        )
    return line


def _line_style(row: MethodRow) -> str:
    """Settings of one method share its colour and differ in the line; the bound is dashed."""
    first = 1 if row.is_upper_bound else 0
    return LINE_STYLES[(first + row.variant) % len(LINE_STYLES)]


def _legend_label(row: MethodRow) -> str:
    bound = " (upper bound)" if row.is_upper_bound else ""
    return f"{shown(row.metric, row.average.mean)}  {_drawable(row.label)}{bound}"


def _matrix_figure(row: MethodRow, coloured: Colours) -> Figure:
    figure = Figure(figsize=(2.9, 2.9), layout="constrained")
    axes = figure.add_subplot()
    matrix, times = row.matrix, scale(row.metric)
    limits = Normalize(times * coloured.low, times * coloured.high)
    image = axes.imshow(times * matrix, cmap=coloured.map, norm=limits)
    size = len(matrix)
    title = textwrap.fill(_drawable(row.label), width=26)
    axes.set_title(title, fontsize=10, fontweight="bold", loc="left")
    axes.set_xlabel(f"{in_unit(row.metric)} on task")
    axes.set_ylabel("after task")
    ticks = _ticks(size)
    axes.set_xticks([tick - 1 for tick in ticks], [str(tick) for tick in ticks])
    axes.set_yticks([tick - 1 for tick in ticks], [str(tick) for tick in ticks])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if size > MOST_TASKS_WITH_NUMBERS:
        figure.colorbar(image, shrink=0.8)
    else:
        _write_numbers(axes, row, coloured)
    return figure


def _write_numbers(axes: Axes, row: MethodRow, coloured: Colours) -> None:
    matrix = row.matrix
    size = len(matrix)
    for after in range(size):
        for task in range(after + 1):
            value = float(matrix[after, task])
            axes.text(
                task,
                after,
                short(row.metric, value, size),
                ha="center",
                va="center",
                in_layout=False,  # inside the axes, so it need not be measured
                fontsize=9 if size <= 6 else 7,
                color=coloured.ink(value),
            )


def short(metric: Metric, value: float, size: int) -> str:
    """For a cell of a matrix with so many rows."""
    digits = (1 if metric.unit == "%" else 2) - (size > 6)
    return number(scale(metric) * value, digits)


def in_unit(metric: Metric, where: str = "") -> str:
    """What an axis shows: accuracy on tasks seen (%)."""
    unit = f"({metric.unit})" if metric.unit else ""
    return " ".join(part for part in (metric.title, where, unit) if part)


def _ticks(count: int) -> Sequence[int]:
    """About ten task numbers at most, always from 1."""
    return range(1, count + 1, max(1, -(-count // 10)))


def _drawable(label: str) -> str:
    """The label with what the font has, short enough to leave room for the figure."""
    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    known = font.get_charmap()
    text = "".join(letter if ord(letter) in known else "?" for letter in label)
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"
