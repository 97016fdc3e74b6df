"""The table of rivals in a page."""

from pathlib import Path

import pytest

from evclplus.errors import FileError
from tools.bench.page import BEGIN, END, write_rivals

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {"evclplus": "0.4.0", "commit": "abc", "torch": "2.13.0", "threads": 1}
ROWS = [
    {
        "package": "fast",
        "version": "1.0",
        "what": "an epoch",
        "ours": "ewc",
        "rival_ratio": 3.0,
        "our_ratio": 1.5,
        "not_measured": None,
    },
    {
        "package": "gone",
        "version": None,
        "what": "an epoch",
        "ours": "ewc",
        "rival_ratio": None,
        "our_ratio": None,
        "not_measured": "gone is not installed",
    },
]


def test_the_table_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_rivals(page, {"rivals": ROWS}, ENVIRONMENT)
    lines = page.read_text().splitlines()
    assert "| fast 1.0, an epoch | 3.00 | ewc 1.50 | 2.00 |" in lines
    assert "| gone, an epoch | not measured: gone is not installed | | |" in lines
    assert "*evclplus 0.4.0, commit abc, torch 2.13.0; 1 thread.*" in lines
    assert (lines[0], lines[-1], "old" in lines) == ("before", "after", False)


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(FileError, match="has no place for the table"):
        write_rivals(page, {"rivals": ROWS}, ENVIRONMENT)
    assert page.read_text() == "nothing"


def test_the_page_of_the_project_has_its_marks() -> None:
    text = (ROOT / "docs" / "comparison.md").read_text()
    assert text.index(BEGIN) < text.index(END)
