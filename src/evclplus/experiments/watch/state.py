"""What there is to see of a folder: what runs, is finished, has failed, and how long it takes."""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from evclplus.core.metrics import Metric
from evclplus.errors import FileError
from evclplus.experiments.estimate import duration
from evclplus.experiments.live import Progress, read_progress
from evclplus.experiments.record import RECORD, Record
from evclplus.experiments.report.numbers import heading, shown
from evclplus.experiments.store import below, packed_below


class Result(NamedTuple):
    """What is shown of a record."""

    benchmark: str
    method: str
    metric: Metric
    average: float
    forgetting: float


class Folder:
    """A folder that is looked at again and again; a record is read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[tuple[str, int], Result] = {}

    def state(self) -> dict[str, Any]:
        """As JSON."""
        results = list(self._results())
        progress = read_progress(self.path)
        seen: dict[str, Any] = {
            "folder": str(self.path),
            "finished": len(results),
            "results": _groups(results),
            "report": (self.path / "report.html").is_file(),
            "condition": "idle",
            "running": [],
            "failed": [],
            "total": None,
            "left": None,
        }
        return seen if progress is None else {**seen, **_under_way(progress, len(results))}

    def _results(self) -> Iterator[Result]:
        for _, record in packed_below(self.path.absolute()):
            yield _result(record)
        for path in below(self.path, RECORD):
            try:
                key = str(path), path.stat().st_mtime_ns
                if key not in self._known:
                    self._known[key] = _result(Record.read(path))
                yield self._known[key]
            except (OSError, FileError):  # gone, or none of ours: the report will say so
                continue


def _result(record: Record) -> Result:
    return Result(record.benchmark, record.method, record.metric, record.average, record.forgetting)


def _groups(results: list[Result]) -> list[dict[str, Any]]:
    """Each method's mean so far, benchmark by benchmark, the best first."""
    groups: dict[tuple[str, str, Metric], list[Result]] = {}
    for one in results:
        groups.setdefault((one.benchmark, one.method, one.metric), []).append(one)
    means = {key: fmean(one.average for one in group) for key, group in groups.items()}

    def order(item: tuple[tuple[str, str, Metric], list[Result]]) -> tuple[str, str, float, str]:
        benchmark, method, metric = item[0]
        return benchmark, metric.title, -metric.sign * means[item[0]], method

    return [
        {
            "benchmark": benchmark,
            "method": method,
            "metric": heading(metric),
            "runs": len(group),
            "average": shown(metric, means[benchmark, method, metric]),
            "forgetting": shown(metric, fmean(one.forgetting for one in group)),
        }
        for (benchmark, method, metric), group in sorted(groups.items(), key=order)
    ]


def _under_way(progress: Progress, finished: int) -> dict[str, Any]:
    condition = progress.condition
    now = time.time()
    left = progress.seconds_left(finished) if condition == "running" else None
    return {
        "condition": condition,
        "command": progress.command,
        "workers": progress.workers,
        "total": progress.total,
        "left": None if left is None else duration(left),
        "since": duration(max(0.0, now - progress.since)),
        "silent": duration(max(0.0, now - progress.updated)),
        "running": [
            {
                "title": title,
                "text": one.text,
                "part": min(1.0, one.step / max(1, one.steps)),
                "since": duration(max(0.0, now - one.since)),
            }
            for title, one in progress.running.items()
        ],
        "failed": [
            {"title": title, "error": one.error}
            for title, one in progress.ended.items()
            if one.error is not None
        ],
    }
