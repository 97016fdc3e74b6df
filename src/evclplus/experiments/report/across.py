"""Several benchmarks in one table: methods as rows, benchmarks as columns."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich import box
from rich import table as rich_table
from rich.text import Text

from evclplus.errors import FileError
from evclplus.experiments.record import Record
from evclplus.experiments.report.comparison import (
    UNCOMMITTED,
    Comparison,
    MethodRow,
    comparisons_of,
)
from evclplus.experiments.report.escape import for_csv, for_markdown
from evclplus.experiments.report.numbers import number, p_value, percent_interval, signed_percent
from evclplus.experiments.report.statistics import Spread, holm, paired_difference
from evclplus.experiments.report.tables import (
    ACCURACY,
    FORGETTING,
    LEARNING_ACCURACY,
    TOO_FEW_PAIRS,
    Measure,
    Table,
    TableCell,
    measure_column,
)
from evclplus.experiments.report.writers import exact, markdown_table
from evclplus.methods import role_of

NOT_RUN = "not run"
RULE = (
    "Within: the reported figure lies in the 95 % interval of our mean. Above, below: it does not,"
    " and our mean is above or below it."
)


@dataclass(frozen=True)
class Across:
    """The records of several benchmarks; of each benchmark all of one problem and one row per
    method."""

    benchmarks: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: int
    comparisons: Mapping[str, Comparison]

    @classmethod
    def of(
        cls,
        benchmarks: Sequence[str],
        methods: Sequence[str],
        seeds: int,
        records: Sequence[Record],
    ) -> "Across":
        comparisons = {}
        for name in benchmarks:
            found = comparisons_of([record for record in records if record.benchmark == name])
            if found:
                comparisons[name] = _only(found)
        return cls(tuple(benchmarks), tuple(methods), seeds, comparisons)

    def row(self, benchmark: str, method: str) -> MethodRow | None:
        rows = self.comparisons[benchmark].rows if benchmark in self.comparisons else ()
        return next((row for row in rows if row.method == method), None)

    @property
    def note(self) -> str:
        """What a reader of any of the tables must know."""
        changed = [
            f"{name} {row.method} seed {record.seed}"
            for name, comparison in self.comparisons.items()
            for row in comparison.rows
            for record in row.records
            if record.is_dirty
        ]
        return f"\nNote: {UNCOMMITTED}: {', '.join(changed)}.\n" if changed else ""

    def table(self, measure: Measure = ACCURACY) -> Table:
        """Mean and deviation; the best of each benchmark is marked, joint training apart."""
        return self._table(self.methods, partial(self._cell, measure))

    def _table(self, methods: Sequence[str], cell: Callable[[str, str], TableCell]) -> Table:
        return Table(
            ("Method", *self.benchmarks),
            tuple(
                (TableCell(method), *(cell(benchmark, method) for benchmark in self.benchmarks))
                for method in methods
            ),
        )

    def _cell(self, measure: Measure, benchmark: str, method: str) -> TableCell:
        row = self.row(benchmark, method)
        if row is None:
            return TableCell(NOT_RUN)
        rows = self.comparisons[benchmark].rows
        cell = measure_column(rows, measure)[rows.index(row)]
        count = len(row.seeds)
        return replace(cell, tag=f"{count} of {self.seeds} seeds") if count < self.seeds else cell

    def differences(self) -> Table:
        """Our method minus every other one on the seeds they share."""
        return self._table([name for name in self.methods if name != self.ours], self._difference)

    @property
    def ours(self) -> str | None:
        """The first of our methods."""
        return next((name for name in self.methods if role_of(name) == "ours"), None)

    def _corrected(self, benchmark: str) -> dict[str, float | None]:
        """p of our method against each other one, by Holm for all of the benchmark."""
        ours = self.row(benchmark, self.ours or "")
        rows = {name: self.row(benchmark, name) for name in self.methods if name != self.ours}
        found = [
            paired_difference(ours.average_by_seed, row.average_by_seed).p_value
            if ours and row
            else None
            for row in rows.values()
        ]
        return dict(zip(rows, holm(found), strict=True))

    def _difference(self, benchmark: str, method: str) -> TableCell:
        assert self.ours is not None
        ours, theirs = self.row(benchmark, self.ours), self.row(benchmark, method)
        if ours is None or theirs is None:
            return TableCell(NOT_RUN)
        found = paired_difference(ours.average_by_seed, theirs.average_by_seed)
        if found.pairs < 2:
            return TableCell(TOO_FEW_PAIRS)
        shown = p_value(self._corrected(benchmark)[method])
        return TableCell(
            signed_percent(found.mean),
            percent_interval(found.interval),
            tag=f"p {shown}" if shown.startswith("<") else f"p = {shown}",
        )

    def beside(self, reported: Mapping[str, Mapping[str, float]]) -> Table:
        """The same table with a reported figure, in per cent, and a verdict in each cell."""
        rows = []
        for method, row in zip(self.methods, self.table().rows, strict=True):
            figures = [reported.get(benchmark, {}).get(method) for benchmark in self.benchmarks]
            spreads = [
                found.average if (found := self.row(benchmark, method)) else None
                for benchmark in self.benchmarks
            ]
            cells = [
                cell if figure is None else _with_figure(cell, figure, verdict(spread, figure))
                for cell, figure, spread in zip(row[1:], figures, spreads, strict=True)
            ]
            rows.append((row[0], *cells))
        return Table(self.table().headings, tuple(rows))

    def markdown(self) -> str:
        parts = [
            "# Accuracy after the last task (%)",
            "Mean ± standard deviation over seeds, on test data.",
            markdown_table(self.table()),
        ]
        if self.ours is not None and len(self.methods) > 1:
            parts += [
                f"## {self.ours.upper()} minus each method, points",
                "Mean over the seeds both have, 95 % interval, p of a two-sided paired t-test, "
                "corrected by Holm for the number of methods on a benchmark.",
                markdown_table(self.differences()),
            ]
        for measure in (LEARNING_ACCURACY, FORGETTING):
            parts += [f"## {measure.heading}: {measure.meaning}"]
            parts += [markdown_table(self.table(measure))]
        return "\n\n".join(parts) + "\n"

    def markdown_beside(self, source: str, reported: Mapping[str, Mapping[str, float]]) -> str:
        parts = [
            "# Accuracy after the last task (%), beside reported figures",
            f"Ours, then in brackets the figure of {for_markdown(source)}. {RULE}",
            markdown_table(self.beside(reported)),
        ]
        return "\n\n".join(parts) + "\n"

    def csv(self) -> str:
        stream = io.StringIO()
        headings = [
            f"{benchmark}{what}"
            for benchmark in self.benchmarks
            for what in ("_percent", "_percent_sd", "_seeds")
        ]
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["method", *headings])
        for method in self.methods:
            line = [for_csv(method)]
            for benchmark in self.benchmarks:
                row = self.row(benchmark, method)
                line += [NOT_RUN, "", "0"] if row is None else _csv_cells(row)
            writer.writerow(line)
        return stream.getvalue()


def _only(found: Sequence[Comparison]) -> Comparison:
    """The one problem of a benchmark, with one row per method."""
    labels = [row.label for one in found for row in one.rows]
    if len(found) > 1 or len({row.method for row in found[0].rows}) < len(labels):
        titles = "; ".join([one.title for one in found] if len(found) > 1 else labels)
        raise FileError(f"records with different settings cannot share a table: {titles}")
    return found[0]


def verdict(spread: Spread | None, figure: float) -> str:
    """How a reported figure, in per cent, stands to our mean."""
    if spread is None or spread.mean is None:
        return ""
    if spread.interval is None:
        return "one seed"
    if figure / 100 in spread.interval:
        return "within"
    return "above" if spread.mean > figure / 100 else "below"


def _with_figure(cell: TableCell, figure: float, word: str) -> TableCell:
    shown = f"{number(figure, 2)} {word}" if word else number(figure, 2)
    return replace(cell, tag="; ".join(part for part in (cell.tag, shown) if part))


def _csv_cells(row: MethodRow) -> list[str]:
    accuracy = row.average
    return [exact(accuracy.mean, 100), exact(accuracy.deviation, 100), str(accuracy.count)]


def terminal(table: Table, caption: str) -> rich_table.Table:
    """A table of this kind for a terminal: each cell's tag stands below its number."""
    shown = rich_table.Table(
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
        caption=Text(caption.strip()),
        caption_justify="left",
    )
    for index, heading in enumerate(table.headings):
        # Spaces, so that a long name is broken between its words.
        shown.add_column(
            heading.replace("-", " "), justify="right" if index else "left", no_wrap=not index
        )
    for row in table.rows:
        shown.add_row(*(Text(_lines(cell), style="bold" if cell.is_best else "") for cell in row))
    return shown


def _lines(cell: TableCell) -> str:
    number_ = " ".join(part for part in (cell.text, cell.detail) if part)
    return f"{number_}\n{cell.tag}" if cell.tag else number_
