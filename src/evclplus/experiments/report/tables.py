"""The final tables of a comparison as text cells, before any format's escaping."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evclplus.core import metrics
from evclplus.core.metrics import Metric
from evclplus.experiments.report.comparison import Comparison, MethodRow
from evclplus.experiments.report.numbers import (
    interval_of,
    number,
    p_value,
    percent,
    shown,
    signed,
)
from evclplus.experiments.report.statistics import PairedDifference, Spread

BEST_BASELINE = "best baseline"
TOO_FEW_PAIRS = "fewer than 2 common seeds"


@dataclass(frozen=True)
class Measure:
    """A summary figure of a record and how it is shown."""

    field: str
    title: str
    is_percent: bool
    higher_is_better: bool
    meaning: str

    @property
    def heading(self) -> str:
        return f"{self.title} (%)" if self.is_percent else self.title

    def text(self, value: float | None) -> str:
        return percent(value) if self.is_percent else number(value, 3)


NLL = Measure(
    "average_negative_log_likelihood", "NLL", False, False, "negative log-likelihood at the end"
)
ACCURACY = Measure(
    "average_accuracy", "Accuracy", True, True, "mean accuracy on all tasks after the last one"
)
FORGETTING = Measure(
    "forgetting", "Forgetting", True, False, "how far tasks fell from the best they had been"
)
LEARNING_ACCURACY = Measure(
    "learning_accuracy", "Learning accuracy", True, True, "on each task just after learning it"
)
OTHER_MEASURES = (
    FORGETTING,
    Measure(
        "backward_transfer",
        "Backward transfer",
        True,
        True,
        "what later tasks added to a task since it was learned; negative is loss",
    ),
    Measure(
        "forward_transfer",
        "Forward transfer",
        True,
        True,
        "accuracy on a task just before learning it, beyond an untrained network's",
    ),
    LEARNING_ACCURACY,
    NLL,
    Measure("average_brier_score", "Brier", False, False, "Brier score at the end"),
    Measure(
        "average_calibration_error", "ECE", False, False, "expected calibration error at the end"
    ),
)

RMSE = Measure(
    "average_error",
    "RMSE",
    False,
    False,
    "root mean squared error on a task after the last one, mean over tasks",
)
RISE = Measure(
    "forgetting", "Forgetting", False, False, "how far errors rose from the lowest they had been"
)
LEARNING_ERROR = Measure(
    "learning_error", "Learning error", False, False, "RMSE on each task just after learning it"
)


@dataclass(frozen=True)
class Measures:
    """What is shown of records that have one metric: first the metric after the last task."""

    average: Measure
    summary: tuple[Measure, ...]
    others: tuple[Measure, ...]

    @property
    def all(self) -> tuple[Measure, ...]:
        return self.average, *self.others


MEASURES = {
    metrics.ACCURACY: Measures(ACCURACY, (ACCURACY, FORGETTING, LEARNING_ACCURACY), OTHER_MEASURES),
    metrics.ERROR: Measures(
        RMSE,
        (RMSE, NLL, RISE, LEARNING_ERROR),
        (
            RISE,
            Measure(
                "backward_transfer",
                "Backward transfer",
                False,
                True,
                "by how much later tasks lowered a task's RMSE since it was learned; negative is "
                "loss",
            ),
            Measure(
                "forward_transfer",
                "Forward transfer",
                False,
                True,
                "how far the RMSE on a task just before learning it is below an untrained "
                "network's",
            ),
            LEARNING_ERROR,
            NLL,
        ),
    ),
}


@dataclass(frozen=True)
class TableCell:
    text: str
    detail: str = ""
    is_best: bool = False
    tag: str = ""
    marks: tuple[int, ...] = ()
    """Numbers of the notes that belong to the cell."""


@dataclass(frozen=True)
class Table:
    headings: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]


def summary_table(comparison: Comparison) -> Table:
    """What to look at first."""
    measures = MEASURES[comparison.metric].summary
    columns = [
        [method_cell(comparison, row) for row in comparison.rows],
        *(measure_column(comparison.rows, measure) for measure in measures),
    ]
    headings = (measure.heading for measure in measures)
    return Table(("Method", *headings), tuple(zip(*columns, strict=True)))


def results_table(comparison: Comparison) -> Table:
    """Every measure of every row."""
    metric, measures = comparison.metric, MEASURES[comparison.metric]
    others = [measure_column(comparison.rows, measure) for measure in measures.others]
    columns = [
        [method_cell(comparison, row) for row in comparison.rows],
        [replace(cell, detail="") for cell in measure_column(comparison.rows, measures.average)],
        [TableCell(shown(metric, row.average.deviation)) for row in comparison.rows],
        [TableCell(interval_of(metric, row.average.interval)) for row in comparison.rows],
        *others,
        [TableCell(str(row.average.count)) for row in comparison.rows],
    ]
    headings = [measure.heading for measure in measures.others]
    return Table(
        ("Method", measures.average.heading, "SD", "95 % interval", *headings, "Seeds"),
        tuple(zip(*columns, strict=True)),
    )


def baseline_table(comparison: Comparison) -> Table | None:
    """Every row against the best baseline; None where there is nothing to compare."""
    rows = tuple(
        (method_cell(comparison, row), *_difference_cells(comparison.metric, difference))
        for row in comparison.rows
        if (difference := comparison.against_baseline(row))
    )
    headings = (
        "Method",
        "Difference (points)" if comparison.metric.unit == "%" else "Difference",
        "95 % interval",
        "p (paired t-test, Holm)",
        "Pairs",
    )
    return Table(headings, rows) if rows else None


def method_cell(comparison: Comparison, row: MethodRow) -> TableCell:
    notes = comparison.notes
    marks = tuple(sorted(notes.index(note) + 1 for note in row.notes))
    return TableCell(row.label, tag=role(comparison, row), marks=marks)


def role(comparison: Comparison, row: MethodRow) -> str:
    if row.is_upper_bound:
        return "upper bound"
    is_compared = row is comparison.baseline and len(comparison.rows) > 1
    return BEST_BASELINE if is_compared else ""


def measure_column(rows: Sequence[MethodRow], measure: Measure) -> list[TableCell]:
    """Mean and deviation of each row; the best, as it is shown, is marked.

    The upper bound sees all data at once, so it does not compete.
    """
    spreads = [row.spread(measure.field) for row in rows]
    competing = [
        value.mean
        for row, value in zip(rows, spreads, strict=True)
        if value.mean is not None and not row.is_upper_bound
    ]
    choose = max if measure.higher_is_better else min
    best = measure.text(choose(competing)) if len(competing) > 1 else None
    return [
        _spread_cell(value, measure, None if row.is_upper_bound else best)
        for row, value in zip(rows, spreads, strict=True)
    ]


def _spread_cell(value: Spread, measure: Measure, best: str | None) -> TableCell:
    text = measure.text(value.mean)
    detail = "" if value.deviation is None else f"± {measure.text(value.deviation)}"
    return TableCell(text, detail, is_best=text == best)


def _difference_cells(metric: Metric, difference: PairedDifference) -> tuple[TableCell, ...]:
    texts = (
        TOO_FEW_PAIRS if difference.pairs < 2 else signed(metric, difference.mean),
        interval_of(metric, difference.interval),
        p_value(difference.p_value),
        str(difference.pairs),
    )
    return tuple(TableCell(text) for text in texts)
