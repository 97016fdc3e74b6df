"""The four curves of growth in one figure."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MultipleLocator, NullLocator

from evclplus.experiments.report.figures import Image, render
from evclplus.methods import METHODS
from tools.bench.growth import Point


def _style(name: str) -> tuple[str, str]:
    return METHODS[name].colour, METHODS[name].marker


PANELS = {
    "parameters": "parameters",
    "batch_size": "batch size",
    "tasks": "tasks learned before",
    "examples": "examples in the task",
}
SERIES = {
    "evcl_plus": ("EVCL+", "-", _style("evcl+")),
    "plain": ("plain PyTorch", "-", _style("finetune")),
    "vectors": ("memory of EVCL+ (right axis)", "--", _style("vcl")),
}


def growth_figure(curves: Mapping[str, Sequence[Point]]) -> Image:
    return render(lambda: _growth_figure(curves))


def _growth_figure(curves: Mapping[str, Sequence[Point]]) -> Figure:
    figure = Figure(figsize=(8.6, 6.6), layout=ConstrainedLayoutEngine(wspace=0.06, hspace=0.06))
    panels = figure.subplots(2, 2).flat
    lines: dict[str, Line2D] = {}
    for axes, (name, label) in zip(panels, PANELS.items(), strict=True):
        lines |= _draw_panel(axes, name, curves[name])
        axes.set_xlabel(label)
        axes.set_ylabel("ms per step")
    figure.legend(
        [lines[series] for series in SERIES],
        [label for label, _, _ in SERIES.values()],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    return figure


def _draw_panel(axes: Axes, name: str, points: Sequence[Point]) -> dict[str, Line2D]:
    lines = {}
    for series in SERIES:
        if series in points[0]:
            target = _memory_axes(axes) if series == "vectors" else axes
            lines[series] = _draw_curve(target, name, points, series)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    if name in ("batch_size", "tasks"):
        places = [point[name] for point in points][:: 1 + len(points) // 8]
        axes.set_xticks(places, [f"{place:g}" for place in places])
    else:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if name in ("parameters", "batch_size"):  # time grows with these
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    else:
        axes.set_ylim(0, 1.8 * axes.get_ylim()[1])  # below the curve of memory
    return lines


def _memory_axes(axes: Axes) -> Axes:
    memory = axes.twinx()
    memory.spines["right"].set_visible(True)
    memory.set_ylabel("vectors as long as the weights")
    memory.set_ylim(0, 20)
    memory.yaxis.set_major_locator(MultipleLocator(5))
    memory.grid(visible=False)
    return memory


def _draw_curve(axes: Axes, name: str, points: Sequence[Point], series: str) -> Line2D:
    _, line_style, (colour, marker) = SERIES[series]
    (line,) = axes.plot(
        [point[name] for point in points],
        [point[series] for point in points],
        color=colour,
        marker=marker,
        linestyle=line_style,
        markersize=7,
        markeredgecolor="white",
        markeredgewidth=0.5,
        linewidth=2.5 if series == "evcl_plus" else 1.5,
        zorder=3 if series == "evcl_plus" else 2,
    )
    return line
