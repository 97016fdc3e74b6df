"""Finished records sent to TensorBoard or Weights & Biases: it costs training nothing."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from evclplus.errors import FileError
from evclplus.experiments.record import Record
from evclplus.experiments.report.tables import MEASURES
from evclplus.experiments.store import find_records
from evclplus.files import make_folder
from evclplus.trackers import Mode, tensorboard, wandb

Target = Literal["tensorboard", "wandb"]
SUFFIX = ".evclplus"
"""Of event files that are made of records, so that they can be made again."""


def track(folder: Path, to: Target, out: Path, project: str, mode: Mode) -> int:
    """Send every record below a folder; returns how many."""
    records = find_records(folder)
    if not records:
        raise FileError(f"no record.json below {folder}; run `evclplus compare` first")
    send = to_tensorboard if to == "tensorboard" else to_wandb(project, mode)
    make_folder(out)
    for record in records:
        send(record, out)
    return len(records)


def scores(record: Record) -> Iterator[tuple[int, dict[str, float]]]:
    """After each task: the metric's mean over all tasks so far, and each of them."""
    name = record.metric.name
    for after, row in enumerate(record.matrix, 1):
        each = {f"{name}/task {task}": value for task, value in enumerate(row, 1)}
        yield after, {f"{name}/average": float(np.mean(row)), **each}


def summary(record: Record) -> dict[str, float]:
    """What a table shows of a record."""
    measures = MEASURES[record.metric].all
    return {f"final/{measure.field}": getattr(record, measure.field) for measure in measures}


def settings(record: Record) -> dict[str, bool | float | str]:
    """Every setting by its path; lists and what is left out as JSON."""
    flat: dict[str, bool | float | str] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{path}.{key}" if path else key, inner)
        elif isinstance(value, bool | int | float | str):
            flat[path] = value
        else:
            flat[path] = json.dumps(value)

    walk("", record.full_config.model_dump(mode="json"))
    return flat


def name(record: Record) -> str:
    """Equal settings, equal name: a record that is sent again takes its own place."""
    marks = record.full_config.model_copy(update={"seed": 0}).fingerprint()[:6]
    return f"{record.benchmark}/{record.method}-{marks}/seed-{record.seed}"


def to_tensorboard(record: Record, out: Path) -> None:
    folder = make_folder(out / _harmless(name(record)))
    for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    package = tensorboard()
    with package.SummaryWriter(str(folder), filename_suffix=SUFFIX) as writer:
        # What add_hparams does, in this file and not in another.
        for part in package.summary.hparams(settings(record), summary(record)):
            writer.file_writer.add_summary(part)
        for key, value in summary(record).items():
            writer.add_scalar(key, value, len(record.tasks))
        writer.add_text("command", str(record.environment.get("command", "")))
        for step, values in scores(record):
            for key, value in values.items():
                writer.add_scalar(key, value, step)


def to_wandb(project: str, mode: Mode) -> Callable[[Record, Path], None]:
    package = wandb()

    def send(record: Record, out: Path) -> None:
        run = package.init(
            project=project,
            mode=mode,
            dir=str(out),
            id=record.full_config.fingerprint(),
            name=name(record),
            group=f"{record.benchmark}/{record.method}",
            config={**settings(record), "environment": record.environment},
            reinit="finish_previous",
        )
        for step, values in scores(record):
            run.log(values, step=step)
        run.summary.update(summary(record))
        run.finish()

    return send


def _harmless(text: str) -> str:
    """A path of three folders, whatever a record's names are."""
    parts = text.split("/")
    kept = ["/".join(parts[:-2]), *parts[-2:]]
    clean = ["".join(c if c.isalnum() or c in "+-_." else "_" for c in part) for part in kept]
    return "/".join(part.lstrip(".")[:80] or "_" for part in clean)
