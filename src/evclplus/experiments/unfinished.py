"""What a run leaves behind while it is not complete: unfinished.json, and its checkpoints."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evclplus.core.metrics import RegressionScores, Scores
from evclplus.experiments.config import Experiment
from evclplus.experiments.record import UNFINISHED, Triangle
from evclplus.files import make_folder, write_atomically

if TYPE_CHECKING:
    from evclplus.experiments.run import Results

CHECKPOINTS = "checkpoints"
Row = list[Scores | RegressionScores]
"""Of each task that is learned, after the last of them."""


class Unfinished(BaseModel):
    """The scores so far. `before` is one ahead of the rows while a task is learned."""

    model_config = ConfigDict(extra="ignore")

    config: Experiment
    matrix: Triangle = Field(description="for who looks at a run under way; part of `rows`")
    untrained: list[float]
    before: list[float]
    rows: list[Row]
    seconds: dict[str, float]
    steps: list[str]
    resumed: int = 0


def leave_note(
    folder: Path,
    experiment: Experiment,
    results: "Results",
    seconds: dict[str, float],
    forms: set[str],
) -> None:
    note = Unfinished(
        config=experiment,
        matrix=results.matrix(results.metric.name),
        untrained=results.untrained,
        before=results.before,
        rows=results.rows,
        seconds=seconds,
        steps=sorted(forms),
        resumed=results.resumed,
    )
    write_atomically(make_folder(folder) / UNFINISHED, note.model_dump_json(indent=1) + "\n")


def read_note(folder: Path) -> Unfinished | None:
    """What a stopped run has left; nothing where it cannot be read: it is then run again."""
    try:
        note = Unfinished.model_validate_json((folder / UNFINISHED).read_bytes())
    except (OSError, ValidationError, ValueError):
        return None
    whole = all(len(row) == index for index, row in enumerate(note.rows, start=1))
    return note if whole and len(note.rows) <= len(note.before) else None


def clear(folder: Path) -> None:
    """Remove what a run needed only while it was not complete."""
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    (folder / UNFINISHED).unlink(missing_ok=True)
