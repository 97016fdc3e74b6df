"""A choice on validation data: tried once, and tabulated with its score."""

from pathlib import Path

import pytest

from tests.helpers import blobs
from tools import choose
from tools.journal import Run, finished, write


@pytest.mark.slow
def test_values_are_tried_once_on_validation_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {"digits": lambda: blobs(2), "mnist": lambda: blobs(2, seed=1)}
    monkeypatch.setattr(choose, "STREAMS", streams)
    path = tmp_path / "runs.jsonl"
    first = choose.work(path, "ewc", "lam", [1.0], ["digits"], [100])
    assert first[0]["accuracy"] > 0.5
    first[0]["accuracy"] = 0.25  # as no run would find it
    write(path, first)
    both = choose.work(path, "ewc", "lam", [1.0, 10.0], ["digits", "mnist"], [100])
    assert both[0] == first[0]
    assert len(both) == 4 == len(finished(path))
    rates = choose.work(path, "ewc", "training.learning_rate", [0.01], ["digits"], [100])
    assert rates[-1]["option"] == "training.learning_rate"


def test_a_score_is_the_mean_distance_from_the_best() -> None:
    def run(value: float, stream: str, accuracy: float) -> Run:
        one = {"method": "ewc", "option": "lam", "value": value, "stream": stream, "seed": 100}
        return one | {"accuracy": accuracy, "commit": "abc"}

    runs = [
        *(run(1.0, "digits", 0.9), run(1.0, "mnist", 0.8)),
        *(run(2.0, "digits", 0.7), run(2.0, "mnist", 0.9)),
        run(3.0, "digits", 1.0),  # not run on all streams
    ]
    text = choose.table(runs)
    assert "| 1 | 90.00 | 80.00 | -5.00 |" in text
    assert "| 2 | 70.00 | 90.00 | -10.00 |" in text
    assert "| 3 |" not in text
