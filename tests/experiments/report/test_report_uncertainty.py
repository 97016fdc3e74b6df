"""The section on uncertainty: a table, a figure, and nothing where records do not say it."""

import csv
import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

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
    shown = section(comparison)
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
    assert section(comparison) == ""
    assert "How sure" not in to_markdown([comparison])
    (line,) = csv.DictReader(io.StringIO(to_csv([comparison])))
    assert line["noise_auroc_percent"] == ""
    # One seed of two that says it is not enough.
    (half,) = comparisons_of([make_record("evcl+", 0), *records()[1:]])
    assert known(half) is None


def test_the_page_draws_what_the_records_say() -> None:
    """One method, by hand: its points in the units that stand at the sides."""
    bins = [0] * 13 + [30, 70]
    changes = {"bin_counts": bins, "bin_confidence": [0.0] * 13 + [0.9, 1.0], "risk": [0.0, 0.1]}
    accuracy = {0: [0.0] * 13 + [0.5, 0.9], 1: [0.0] * 13 + [0.7, 1.0]}
    made = [
        make_record("evcl+", seed, uncertainty=make_figures(seed, bin_accuracy=own, **changes))
        for seed, own in accuracy.items()
    ]
    (comparison,) = comparisons_of(made)
    calibration, risk = (ElementTree.fromstring(svg) for svg in drawings(section(comparison)))
    assert points(calibration) == [
        pytest.approx((90, 60), abs=0.2),
        pytest.approx((100, 95), abs=0.2),
    ]
    assert points(risk) == [pytest.approx((50, 0), abs=0.2), pytest.approx((100, 10), abs=0.2)]


def drawings(page: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)


def points(svg: ElementTree.Element) -> list[tuple[float, float]]:
    """Where the line goes, read off the numbers at the sides as a person would."""
    texts = [one for one in svg.iter("text") if (one.text or "").replace(".", "").isdigit()]
    upright = [one for one in texts if one.get("text-anchor") == "end"]
    level = [one for one in texts if one.get("text-anchor") == "middle"]

    def read(marks: list[ElementTree.Element], side: str, shift: float, place: str) -> float:
        at = [float(one.get(side, "")) - shift for one in marks]
        values = [float(one.text or "") for one in marks]
        return values[0] + (float(place) - at[0]) / (at[-1] - at[0]) * (values[-1] - values[0])

    (line,) = svg.iter("polyline")
    pairs = [pair.split(",") for pair in line.get("points", "").split()]
    return [(read(level, "x", 0, x), read(upright, "y", 4, y)) for x, y in pairs]


def test_the_page_and_the_figures_have_it(tmp_path: Path) -> None:
    found = report(write_records(tmp_path, records() + records("ewc")))
    assert "How sure the answers are" in found.page.read_text()
    names = {path.name for path in found.files}
    assert {"split-mnist-uncertainty.svg", "split-mnist-uncertainty.png"} <= names
    again = Record.read(next(tmp_path.glob("run-*/record.json")))
    assert again.uncertainty is not None
