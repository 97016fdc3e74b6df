"""Which records are put together, and which never are."""

import numpy as np
import pytest

from evclplus.experiments.record import Record
from evclplus.experiments.report.comparison import Comparison, comparisons_of
from evclplus.experiments.report.headline import headline
from evclplus.methods import method, options_of
from tests.experiments.report.record_factory import TASKS, full_comparison, make_record


def only(records: list[Record]) -> Comparison:
    (comparison,) = comparisons_of(records)
    return comparison


def test_rows_are_sorted_by_final_accuracy() -> None:
    rows = only(full_comparison()).rows
    means = [np.mean([record.average_accuracy for record in row.records]) for row in rows]
    assert len(rows) == 10
    assert means == sorted(means, reverse=True)


def test_different_settings_are_never_mixed_and_labelled_by_what_differs() -> None:
    records = [
        make_record("ewc", seed, settings={"options": {"lam": lam}, "training": {"epochs": epochs}})
        for seed in range(2)
        for lam, epochs in [(10.0, 5), (1000.0, 5), (1000.0, 9)]
    ]
    rows = only(records).rows
    assert sorted(row.label for row in rows) == [
        "ewc (lam=10.0, epochs=5)",
        "ewc (lam=1000.0, epochs=5)",
        "ewc (lam=1000.0, epochs=9)",
    ]
    for row in rows:
        assert row.seeds == [0, 1]
        assert (
            len(
                {
                    record.config.model_copy(update={"seed": 0}).fingerprint()
                    for record in row.records
                }
            )
            == 1
        )


def test_a_setting_only_one_side_has_is_named() -> None:
    records = [make_record("mine"), make_record("mine", settings={"options": {"lam": 1}})]
    assert {row.label for row in only(records).rows} == {"mine (lam=not set)", "mine (lam=1)"}
    records = [make_record("ewc"), make_record("ewc", settings={"options": {"lam": 1}})]
    assert {row.label for row in only(records).rows} == {"ewc (lam=0.3)", "ewc (lam=1.0)"}


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"tasks": TASKS[:3]}, "split-mnist (number of tasks=3)"),
        ({"settings": {"stream": {"order": 1}}}, "split-mnist (order=1)"),
        ({"settings": {"evaluate_on": "validation"}}, 'split-mnist (evaluate_on="validation")'),
    ],
)
def test_another_stream_is_another_problem(changes: dict[str, object], title: str) -> None:
    comparisons = comparisons_of([make_record("ewc"), make_record("ewc", 1, **changes)])
    assert title in [comparison.title for comparison in comparisons]
    assert [len(comparison.rows) for comparison in comparisons] == [1, 1]


def test_a_repeated_seed_counts_once_and_says_so() -> None:
    row = only([make_record("ewc", 4), make_record("ewc", 4, average_accuracy=0.1)]).rows[0]
    assert row.average.count == 1
    assert row.average.mean == make_record("ewc", 4).average_accuracy
    assert "seed 4" in row.notes[0]


def test_best_baseline_is_neither_ours_nor_the_upper_bound() -> None:
    scores = {"joint": 0.99, "evcl+": 0.98, "evcl+-random": 0.97, "vcl": 0.9, "ewc": 0.8}
    comparison = only([make_record(name, average_accuracy=score) for name, score in scores.items()])
    assert comparison.baseline is not None
    assert comparison.baseline.label == "vcl"


@pytest.mark.parametrize("method", ["evcl+", "evcl+-kcenter", "joint"])
def test_there_may_be_no_baseline(method: str) -> None:
    comparison = only([make_record(method)])
    assert comparison.baseline is None
    assert comparison.against_baseline(comparison.rows[0]) is None


def test_curves_and_matrix_are_means_of_the_records() -> None:
    records = [make_record("vcl", seed) for seed in range(3)]
    row = only(records).rows[0]
    assert row.curves[1, 2] == pytest.approx(sum(records[1].matrix[2]) / 3)
    assert row.matrix[3, 1] == pytest.approx(sum(r.matrix[3][1] for r in records) / 3)
    assert np.isnan(row.matrix[1, 3])


def scored(method: str, *scores: float) -> list[Record]:
    return [
        make_record(method, seed, average_accuracy=score, forgetting=0.25)
        for seed, score in enumerate(scores)
    ]


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        (scored("evcl+", 0.9, 0.92), "evcl+ reaches 91.00 % after 5 tasks (2 seeds)."),
        (
            scored("ewc", 0.9) + scored("vcl", 0.8),
            "ewc is best with 90.00 % after 5 tasks (1 seed).",
        ),
        (scored("joint", 0.99), "Joint training on all tasks, the upper bound, reaches 99.00 %."),
        (scored("finetune", 0.6), "Plain fine-tuning forgets 25.00 points."),
        (scored("evcl+", 0.9) + scored("ewc", 0.8), "share too few seeds to compare"),
        (scored("evcl+", 0.9, 0.8) + scored("ewc", 0.8, 0.8), "2 seeds cannot tell evcl+ from ewc"),
        (scored("evcl+", 0.9, 0.901) + scored("ewc", 0.8, 0.8), "evcl+ is 10.05 points above ewc"),
        (scored("evcl+", 0.8, 0.801) + scored("ewc", 0.9, 0.9), "evcl+ is 9.95 points below ewc"),
    ],
)
def test_headline_says_only_what_the_seeds_say(records: list[Record], sentence: str) -> None:
    assert sentence in " ".join(headline(only(records)))


def test_an_option_that_came_after_a_record_makes_no_row_of_its_own() -> None:
    old = make_record("ewc", 0, settings={"options": {"lam": 5.0}})
    options = options_of(method("ewc", lam=5.0, calibration="none", shared_head="free"))
    new = make_record("ewc", 1, settings={"options": options})
    changed = make_record("ewc", 2, settings={"options": {**options, "lam_function": 1.0}})
    # An old record had no calibration and held no shared head, whatever the defaults are today.
    today = make_record("ewc", 3, settings={"options": options_of(method("ewc", lam=5.0))})
    (comparison,) = comparisons_of([old, new, changed, today])
    assert sorted(row.seeds for row in comparison.rows) == [[0, 1], [2], [3]]
    own = make_record("my-method", 0, settings={"options": {"strength": 5.0}})
    assert own.full_config == own.config  # a method that is not known here
