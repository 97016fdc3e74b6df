"""Ours against published figures: run the checks, and say within, above or below."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

from evclplus.errors import FileError
from evclplus.experiments.checks import Check
from evclplus.experiments.compare import Cell, cells
from evclplus.experiments.record import Record
from evclplus.experiments.store import find_record
from evclplus.files import write_atomically

Verdict = Literal["within", "above", "below", "open"]

FEWEST_SEEDS = 3
"""With fewer nothing is known of our own spread, and the verdict is open."""

READING = 1.0
"""How far a figure may be off that was read off a picture, in per cent."""

BEGIN, END = "<!-- checks: evclplus check -->", "<!-- end of checks -->"
"""Where the table of a page goes."""


@dataclass(frozen=True, kw_only=True)
class CheckCell(Cell):
    """One run of a check."""

    check: Check

    @property
    def title(self) -> str:
        return f"{self.check.name} seed {self.experiment.seed}"


def check_cells(checks: Sequence[Check], seeds: Sequence[int], out: Path) -> list[CheckCell]:
    """A cell for each check and seed, all checks of one seed before the next."""
    asked = [(check, seed) for seed in seeds for check in checks]
    settled = cells([check.experiment(seed) for check, seed in asked], out)
    made = []
    for cell, (check, seed) in zip(settled, asked, strict=True):
        folder = out / check.name / f"seed-{seed}"
        # A record with other settings is of a check that has changed.
        outdated = find_record(folder) is not None
        made.append(CheckCell(cell.experiment, folder, outdated, check=check))
    return made


@dataclass(frozen=True)
class Outcome:
    """A figure beside ours, in per cent."""

    check: Check
    accuracies: tuple[float, ...]
    commits: tuple[str, ...] = ()
    """Those that made ours."""

    @property
    def mean(self) -> float:
        return fmean(self.accuracies)

    @property
    def deviation(self) -> float:
        return stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0

    @property
    def bound(self) -> float:
        """How far two means of equal systems are apart at most, 19 times of 20:
        2 sqrt(sd^2 / n + sd_ours^2 / k). A spread that is not reported is taken to be ours, and a
        figure that was read off a picture may be off by `READING` more."""
        ours = self.deviation**2 / len(self.accuracies)
        theirs = ours
        if self.check.deviation is not None and self.check.runs is not None:
            theirs = self.check.deviation**2 / self.check.runs
        return 2 * sqrt(theirs + ours) + (READING if self.check.mark == "F" else 0)

    @property
    def verdict(self) -> Verdict:
        if len(self.accuracies) < FEWEST_SEEDS:
            return "open"
        apart = self.mean - self.check.accuracy
        if abs(apart) <= self.bound:
            return "within"
        return "above" if apart > 0 else "below"


def outcomes(all_cells: Sequence[CheckCell]) -> list[Outcome]:
    """Those of the checks that have a record, in the order of the checks."""
    found: dict[str, tuple[Check, list[Record]]] = {}
    for cell in all_cells:
        record = _record(cell)
        if record is not None:
            found.setdefault(cell.check.name, (cell.check, []))[1].append(record)
    return [
        Outcome(
            check,
            tuple(100 * record.average for record in records),
            tuple(dict.fromkeys(_commit(record) for record in records)),
        )
        for check, records in found.values()
    ]


def _commit(record: Record) -> str:
    """What it was made by, as far as that is known."""
    commit = str(record.environment.get("commit") or "?")[:7]
    return f"{commit} with changes" if record.environment.get("dirty") else commit


def has_record(cell: CheckCell) -> bool:
    return _record(cell) is not None


def _record(cell: CheckCell) -> Record | None:
    """Its record, if it has the settings that are asked for."""
    record = find_record(cell.folder)
    if record is None or record.full_config.fingerprint() != cell.experiment.fingerprint():
        return None
    return record


HEADINGS = (
    "system",
    "protocol",
    "theirs",
    "ours",
    "seeds",
    "may differ by",
    "verdict",
    "mark",
    "made by",
)


def rows(found: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """A row of text for each outcome."""
    made: list[tuple[str, ...]] = []
    for one in found:
        check = one.check
        theirs = f"{check.accuracy:.2f}"
        if check.deviation is not None:
            theirs += f" ± {check.deviation:.2f} ({check.runs})"
        ours = f"{one.mean:.2f} ± {one.deviation:.2f}"
        system = " ".join(part for part in (check.method, check.variant) if part)
        count = str(len(one.accuracies))
        made.append(
            (system, check.protocol.name, theirs, ours, count)
            + (f"{one.bound:.2f}", one.verdict, check.mark, ", ".join(one.commits))
        )
    return made


def markdown(found: Sequence[Outcome]) -> str:
    """The table with what is behind it."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|--:|--:|--:|--:|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows(found)]
    sources = {one.check.protocol.source: None for one in found}
    lines += ["", "Sources: " + "; ".join(sources) + "."]
    notes = {one.check.differs: None for one in found if one.check.differs}
    lines += [f"- {note}" for note in notes]
    return "\n".join(lines) + "\n"


def write_table(path: Path, found: Sequence[Outcome]) -> None:
    write_atomically(path, markdown(found))


def write_page(page: Path, table: str, first: str = BEGIN, last: str = END) -> None:
    """Put the table between its two marks in a page, and leave the rest of it as it is."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot read {page}: {error.strerror}") from None
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise FileError(f"{page} has no place for the table: a line {first} and a line {last}")
    write_atomically(page, f"{before}{first}\n\n{table}\n{last}{after}")
