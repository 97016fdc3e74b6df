"""Curves for the page: where everything is drawn, in the units of an inline SVG."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evclplus.experiments.report.comparison import Comparison, MethodRow
from evclplus.experiments.report.escape import plain
from evclplus.experiments.report.figures import row_style
from evclplus.experiments.report.numbers import number, scale

Height = Callable[[float], float]
"""Where a value is drawn."""

DASHES = ("", "7 5", "2 4", "8 4 2 4")
"""Of the first, second, ... settings of one method; the upper bound begins with the second."""

LEFT, RIGHT, TOP, BOTTOM = 38.0, 12.0, 10.0, 40.0
STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
MOST_LINES = 6


@dataclass(frozen=True)
class Curve:
    """One row of a comparison: its line, the band of a deviation, and its values."""

    label: str
    is_ours: bool
    colour: str
    dash: str
    points: tuple[tuple[float, float], ...]
    band: str
    values: str

    @property
    def line(self) -> str:
        return " ".join(f"{x:g},{y:g}" for x, y in self.points)


@dataclass(frozen=True)
class Chart:
    """Curves in a rectangle, with what stands at its sides."""

    name: str
    width: float
    height: float
    heights: tuple[tuple[float, str], ...]
    """Of the horizontal lines, with the value that they mean."""
    places: tuple[float, ...]
    """Of the tasks, from left to right."""
    marks: tuple[tuple[float, str], ...]
    tasks: str
    curves: tuple[Curve, ...]

    @property
    def bottom(self) -> float:
        return self.height - BOTTOM

    @property
    def left(self) -> float:
        return LEFT

    @property
    def right(self) -> float:
        return self.width - RIGHT


def wide_chart(comparison: Comparison) -> Chart:
    """For a screen."""
    return _chart(comparison, "wide", 620.0, 350.0)


def narrow_chart(comparison: Comparison) -> Chart:
    """For a telephone: as large letters in a smaller picture."""
    return _chart(comparison, "narrow", 370.0, 300.0)


def _chart(comparison: Comparison, name: str, width: float, height: float) -> Chart:
    count = comparison.task_count
    places = _spaced(count, LEFT + 8, width - RIGHT - 8)
    low, high, step = _range(comparison)

    def y(value: float) -> float:
        part = (min(max(value, low), high) - low) / (high - low)
        return round(height - BOTTOM - part * (height - TOP - BOTTOM), 1)

    lines = np.arange(low, high + step / 2, step)
    names = comparison.task_names or [""] * count
    titles = (f"after task {i}{f': {plain(n)}' if n else ''}" for i, n in enumerate(names, 1))
    every = max(1, -(-count // 10))
    return Chart(
        name=name,
        width=width,
        height=height,
        heights=tuple((y(value), f"{value:g}") for value in lines.round(6)),
        places=places,
        marks=tuple((places[i], str(i + 1)) for i in range(0, count, every)),
        tasks="\n".join(titles),
        # The best is drawn last, above all others.
        curves=tuple(_curve(row, places, y) for row in reversed(comparison.rows)),
    )


def _spaced(count: int, first: float, last: float) -> tuple[float, ...]:
    if count == 1:
        return ((first + last) / 2,)
    return tuple(np.linspace(first, last, count).round(1).tolist())


def _range(comparison: Comparison) -> tuple[float, float, float]:
    """Of the means, as they are shown."""
    means = np.concatenate([_shown(row).mean(axis=0) for row in comparison.rows])
    finest = 0.1 if comparison.metric.unit == "%" else STEPS[0]
    return round_range(means[np.isfinite(means)], finest)


def _shown(row: MethodRow) -> npt.NDArray[np.float64]:
    return scale(row.metric) * row.curves


def round_range(values: npt.NDArray[np.float64], finest: float = 0.1) -> tuple[float, float, float]:
    """What is at the bottom and the top, and between two lines: round numbers around all values,
    some lines."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 100.0)
    steps = (one for one in STEPS if one >= finest and (high - low) / one <= MOST_LINES - 1)
    step = next(steps, 10.0 ** np.ceil(np.log10(max(high - low, STEPS[-1]))) / 5)
    low, high = step * np.floor(low / step), step * np.ceil(high / step)
    return float(low), float(max(high, low + step)), step


def _curve(row: MethodRow, places: tuple[float, ...], y: Height) -> Curve:
    means = _shown(row).mean(axis=0)
    points = tuple((x, y(value)) for x, value in zip(places, means, strict=True))
    values = " ".join(number(float(value), 2 if row.metric.unit == "%" else 3) for value in means)
    return curve_of(row, points, _band(row, places, y), values)


def curve_of(
    row: MethodRow, points: tuple[tuple[float, float], ...], band: str = "", values: str = ""
) -> Curve:
    """A row's line in its own colour and dashes."""
    first = 1 if row.is_upper_bound else 0
    dash = DASHES[(first + row.variant) % len(DASHES)]
    return Curve(row.label, row.is_ours, row_style(row)[0], dash, points, band, values)


def _band(row: MethodRow, places: tuple[float, ...], y: Height) -> str:
    """One deviation to either side; nothing for a single seed."""
    curves = _shown(row)
    if len(curves) < 2:
        return ""
    means, deviations = curves.mean(axis=0), curves.std(axis=0, ddof=1)
    above = [f"{x:g},{y(v):g}" for x, v in zip(places, means + deviations, strict=True)]
    below = [f"{x:g},{y(v):g}" for x, v in zip(places, means - deviations, strict=True)]
    return " ".join(above + below[::-1])
