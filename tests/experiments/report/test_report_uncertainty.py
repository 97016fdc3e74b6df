"""The section on uncertainty: a table, a figure, and nothing where records do not say it."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from evclplus.experiments.record import Record
from evclplus.experiments.report.comparison import comparisons_of
from evclplus.experiments.report.folder import report
from evclplus.experiments.report.uncertainty import known, section, uncertainty_table
from evclplus.experiments.report.writers import to_csv, to_markdown
from tests.experiments.report.record_factory import make_figures, make_record, write_records


def records(method: str = "evcl+", **changes: Any) -> list[Record]:
    return [
        make_record(method, seed, uncertainty=make_figures(seed, **changes)) for seed in range(2)
    ]


def test_the_table_has_means_over_seeds_beside_the_accuracy() -> None:
    (comparison,) = comparisons_of(records() + records("<b>ewc", heads_right=0.5))
    table = uncertainty_table(comparison)
    assert table is not None
    assert table.headings[:2] == ("Method", "Accuracy (%)")
    (ours,) = [row for row in table.rows if row[0].text == "evcl+"]
    cells = dict(zip(table.headings, ours, strict=True))
    assert cells["AUROC, noise (%)"].text == "90.50"
    assert cells["Right head (%)"].text == "68.00"
    assert cells["Right head (%)"].is_best
    assert cells["AURC (%)"].text == "1.20"
    assert not cells["Covered by 90 % sets (%)"].is_best
    shown = section(comparison, known(comparison))
    assert "<b>ewc" not in shown
    assert "&lt;b&gt;ewc" in shown
    (line, _) = csv.DictReader(io.StringIO(to_csv([comparison])))
    assert float(line["noise_auroc_percent"]) == pytest.approx(90.5)
    assert "Right head" in to_markdown([comparison])


def test_a_column_that_no_record_has_is_left_out() -> None:
    nothing = dict.fromkeys(("foreign_auroc", "foreign_fpr95", "heads_right", "accuracy_untold"))
    (comparison,) = comparisons_of(records("evcl+", **nothing))
    table = uncertainty_table(comparison)
    assert table is not None
    assert not any("other tasks" in heading or "head" in heading for heading in table.headings)


def test_records_that_do_not_say_it_have_no_section() -> None:
    (comparison,) = comparisons_of([make_record("evcl+", seed) for seed in range(2)])
    assert known(comparison) is None
    assert section(comparison, None) == ""
    assert "knows" not in to_markdown([comparison])
    (line,) = csv.DictReader(io.StringIO(to_csv([comparison])))
    assert line["noise_auroc_percent"] == ""
    # One seed of two that says it is not enough.
    (half,) = comparisons_of([make_record("evcl+", 0), *records()[1:]])
    assert known(half) is None


def test_the_page_and_the_figures_have_it(tmp_path: Path) -> None:
    found = report(write_records(tmp_path, records() + records("ewc")))
    assert "What it knows of what it knows" in found.page.read_text()
    names = {path.name for path in found.files}
    assert {"split-mnist-uncertainty.svg", "split-mnist-uncertainty.png"} <= names
    again = Record.read(next(tmp_path.glob("run-*/record.json")))
    assert again.uncertainty is not None
