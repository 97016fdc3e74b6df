"""All that is made of a folder of records: tables, figures and a page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evclplus.errors import FileError
from evclplus.experiments.record import UNFINISHED
from evclplus.experiments.report.comparison import Comparison, comparisons_of
from evclplus.experiments.report.figures import (
    Image,
    curves_figure,
    matrix_figure,
)
from evclplus.experiments.report.page import page
from evclplus.experiments.report.uncertainty import Known, known
from evclplus.experiments.report.writers import to_csv, to_latex, to_markdown
from evclplus.experiments.store import find_record, find_records
from evclplus.files import make_folder, write_atomically

LONGEST_FILE_NAME = 60


@dataclass(frozen=True)
class Figures:
    """The figures of one comparison."""

    curves: Image
    matrices: tuple[Image, ...]
    """In the order of the rows."""
    known: Known | None = None


@dataclass(frozen=True)
class Report:
    """What was written and from how much."""

    page: Path
    files: tuple[Path, ...]
    records: int
    unfinished: int


def report(folder: Path, out: Path | None = None) -> Report:
    """Write the page, the tables and the figures of every record below `folder` into `out`."""
    records = find_records(folder)
    unfinished = _count_unfinished(folder)
    if not records:
        raise FileError(_nothing_to_report(folder, unfinished))
    comparisons = comparisons_of(records)
    figures = [_draw(comparison) for comparison in comparisons]
    contents: dict[str, bytes | str] = {
        "report.html": page(comparisons, unfinished),
        "table.csv": to_csv(comparisons),
        "table.md": to_markdown(comparisons),
        "table.tex": to_latex(comparisons),
        **_figure_files(comparisons, figures),
    }
    target = make_folder(folder if out is None else out)
    make_folder(target / "figures")
    for name, content in contents.items():
        write_atomically(target / name, content)
    files = tuple(target / name for name in contents)
    return Report(target / "report.html", files, len(records), unfinished)


def _count_unfinished(folder: Path) -> int:
    """Runs that were begun and have no record yet."""
    return sum(find_record(path.parent) is None for path in folder.rglob(UNFINISHED))


def _nothing_to_report(folder: Path, unfinished: int) -> str:
    runs = "run is" if unfinished == 1 else "runs are"
    begun = f" ({unfinished} unfinished {runs} there)" if unfinished else ""
    return f"no record.json below {folder}{begun}; run `evclplus run` or `evclplus compare` first"


def _draw(comparison: Comparison) -> Figures:
    matrices = tuple(matrix_figure(comparison, row) for row in comparison.rows)
    return Figures(curves_figure(comparison), matrices, known(comparison))


def _figure_files(
    comparisons: Sequence[Comparison], figures: Sequence[Figures]
) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for comparison, drawn in zip(comparisons, figures, strict=True):
        images = [(comparison.metric.title, drawn.curves)]
        for row, image in zip(comparison.rows, drawn.matrices, strict=True):
            images.append((f"matrix {row.label}", image))
        if drawn.known is not None:
            images.append(("uncertainty", drawn.known.image))
        for title, image in images:
            contents |= _image_files(f"{comparison.title} {title}", image, contents)
    return contents


def _image_files(title: str, image: Image, taken: dict[str, bytes]) -> dict[str, bytes]:
    """Both formats under a name made of the title's letters and digits, numbered if taken."""
    words = re.findall(r"[a-z0-9.]+", title.lower().replace("+", "-plus "))
    stem = "-".join(words)[:LONGEST_FILE_NAME].strip("-.")
    number, name = 1, f"figures/{stem}"
    while f"{name}.svg" in taken:
        number += 1
        name = f"figures/{stem}-{number}"
    return {f"{name}.svg": image.svg, f"{name}.png": image.png}
