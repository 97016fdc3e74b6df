"""The development set: its streams are what they say, and scores are what is written of them."""

from typing import Any

import torch

from tests.conftest import RealData
from tools.develop.__main__ import table
from tools.develop.ideas import GRID, IDEAS
from tools.develop.streams import CASES


def record(idea: str, case: str, final: float, seed: int = 0) -> dict[str, Any]:
    return {
        "idea": idea,
        "case": case,
        "seed": seed,
        "commit": "abc",
        "final": final,
        "learning": 0.99,
    }


def test_a_score_is_the_mean_difference_to_the_best_point_of_the_grid() -> None:
    found = [
        record(idea, case, final)
        for case, ours, best in (("digits", 0.95, 0.90), ("letter-2", 0.80, 0.82))
        for idea, final in {"chosen": ours, **dict.fromkeys(GRID, 0.5), "ewc-100": best}.items()
    ]
    found.append(record("beta-1", "digits", 0.97))
    found.append(record("chosen", "parity", 0.1))  # without its grid it does not count
    lines = {line.split(" | ")[0]: line for line in table(found).splitlines()}
    assert lines["| EVCL+ as it comes"] == "| EVCL+ as it comes | 2 | +1.50 | +0.00 |"
    assert lines["| beta 1"] == "| beta 1 | 1 | +7.00 | +2.00 |"
    row = next(line for name, line in lines.items() if name.startswith("| digits"))
    assert row.endswith("| 95.0 | 99.0 | 99.0 | 90.0 | EWC, lambda 100 |")
    assert not any("parity" in name for name in lines)


def test_every_idea_can_be_built() -> None:
    import evclplus as ec

    for idea in IDEAS.values():
        ec.Learner(ec.networks.mlp(4, [3]), ec.method(idea.method, **idea.options), **idea.training)


def test_a_stream_that_needs_no_data_is_learned() -> None:
    case = CASES["digits"]
    stream = case.stream()
    assert len(stream) == 5
    network = case.network(stream, 0)
    assert network(torch.zeros(2, *stream.input_shape), ()).shape == (2, 100)


def test_streams_of_three_datasets(real_data: RealData) -> None:
    for name in ("mnist", "fashion-mnist", "notmnist"):
        real_data(name)
    alphabets, unrelated = CASES["alphabets"].stream(), CASES["unrelated"].stream()
    assert [task.outputs for task in alphabets] == [24] * 5
    assert [task.outputs for task in unrelated] == [10] * 3
