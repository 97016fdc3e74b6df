"""Numbers to predict, from the benchmark to the page: errors by hand, signs, and what is absent."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch.distributions import Normal

from evclplus.benchmarks.digits import turned
from evclplus.benchmarks.registry import benchmark
from evclplus.core.metrics import ACCURACY, ERROR
from evclplus.errors import FileError, SettingsError
from evclplus.experiments.config import Experiment
from evclplus.experiments.record import FIELDS, Record
from evclplus.experiments.report.comparison import comparisons_of
from evclplus.experiments.report.folder import report
from evclplus.experiments.report.headline import headline
from evclplus.experiments.report.tables import results_table, summary_table
from evclplus.experiments.run import build_learner, resolve, run, run_into
from evclplus.experiments.store import find_records
from evclplus.experiments.unfinished import read_note
from evclplus.settings import Training
from tests.experiments.report.record_factory import make_figures, make_record, write_records
from tests.experiments.test_cli import evclplus

NAME = "rotated-digits-angle"
QUICK = Experiment(
    method="finetune",
    benchmark=NAME,
    stream={"tasks": 3, "examples_per_task": 40},
    training=Training(epochs=4, batch_size=20, compile="off"),
)
RESULTS = Path(__file__).parents[2] / "results"
PACKED = [RESULTS / name / "records.jsonl" for name in ("paper", "pretrained", "untuned")]


# The benchmark.


@pytest.mark.parametrize("degrees", [-60.0, 0.0, 17.3, 90.0, 180.0])
def test_pictures_are_turned_as_scipy_turns_them(degrees: float) -> None:
    generator = torch.Generator().manual_seed(1)
    pictures = torch.randint(0, 17, (5, 1, 8, 8), generator=generator, dtype=torch.uint8)
    found = turned(pictures, torch.full((5,), degrees)).double()
    expected = ndimage.rotate(
        pictures.double().numpy(),
        degrees,
        axes=(3, 2),
        reshape=False,
        order=1,
        mode="grid-constant",
    )
    assert np.abs(found.numpy() - expected).max() <= 0.5 + 1e-6  # found are whole numbers


def test_targets_are_the_angles_in_the_units_of_a_tasks_training_part() -> None:
    stream = benchmark(NAME, largest_angle=45.0, turns=3)
    plain = benchmark("split-digits")
    for task, pictures in zip(stream, plain, strict=True):
        assert task.outputs == 1
        assert task.head == task.index
        for part, source in ((task.train, pictures.train), (task.test, pictures.test)):
            assert part.labels.shape == (3 * len(source), 1)
            assert part.labels.dtype == torch.float32
        assert task.train.labels.mean().item() == pytest.approx(0, abs=1e-6)
        assert task.train.labels.std(correction=0).item() == pytest.approx(1, abs=1e-6)


def test_a_target_is_the_angle_that_its_picture_was_turned_by() -> None:
    """Whoever turns the plain pictures by the targets has the pictures of the stream."""
    (task,), (plain,) = (
        tuple(benchmark(NAME, turns=2, tasks=1)),
        tuple(benchmark("split-digits", tasks=1)),
    )
    sources = plain.train.stored().repeat_interleave(2, 0)
    labels = task.train.labels[:, 0].double()
    spread, middle = 34.0, 0.0
    for _ in range(2):  # the two numbers of the scale, from pictures alone
        candidates = [
            (
                float((turned(sources, labels * s + m).double() - task.train.store).abs().mean()),
                s,
                m,
            )
            for s in np.linspace(spread - 2, spread + 2, 9)
            for m in np.linspace(middle - 2, middle + 2, 9)
        ]
        error, spread, middle = min(candidates)
    assert error < 0.1  # of 16
    assert spread == pytest.approx(60 / 3**0.5, abs=1.0)
    assert middle == pytest.approx(0.0, abs=1.5)


def test_no_picture_is_in_two_splits() -> None:
    stream = benchmark(NAME, largest_angle=1e-9, turns=2)  # so that they can be recognised
    seen: set[bytes] = set()
    for task in stream:
        for part in (task.train, task.validation, task.test):
            contents = {row.tobytes() for row in part.store.numpy()}
            assert len(contents) <= len(part) // 2
            assert not contents & seen
            seen |= contents


def test_the_stream_follows_from_its_settings_alone() -> None:
    torch.manual_seed(1)
    first = benchmark(NAME, seed=3, examples_per_task=50)
    torch.manual_seed(2)
    again = benchmark(NAME, **json.loads(json.dumps(first.settings)))
    other = benchmark(NAME, seed=4)
    assert again.settings == first.settings
    for one, two, three in zip(first, again, other, strict=True):
        assert torch.equal(one.train.inputs(), two.train.inputs())
        assert torch.equal(one.train.labels, two.train.labels)
        assert torch.equal(one.test.store, three.test.store)  # seeds are of learners
    turned_otherwise = benchmark(NAME, angle_seed=1)
    assert not torch.equal(first[0].test.labels, turned_otherwise[0].test.labels)
    with pytest.raises(SettingsError, match="numbers are to be predicted, not classes"):
        benchmark(NAME, scenario="class")


def test_one_head_can_have_all_tasks() -> None:
    stream = benchmark(NAME, scenario="domain", tasks=2)
    assert stream.heads == (1,)
    other = QUICK.model_copy(update={"stream": {**QUICK.stream, "scenario": "domain"}})
    assert [len(row) for row in run(other).matrix] == [1, 2, 3]


# Records.


@pytest.fixture(scope="module")
def record() -> Record:
    return run(QUICK)


def test_a_record_has_the_errors_that_one_finds_by_hand(record: Record) -> None:
    resolved = resolve(QUICK)
    stream, learner = resolved.stream, build_learner(resolved)
    std = resolved.experiment.stream["std"]
    errors, nlls = [], []
    for task in stream:
        learner.learn(task)
        error_row, nll_row = [], []
        for seen in stream.seen(task):
            y = seen.test.labels.double()
            predicted = learner.predict(seen.test.inputs(), seen).double()
            error_row.append(((predicted - y) ** 2).mean().item() ** 0.5)
            nll_row.append(-Normal(predicted, std).log_prob(y).mean().item())
        errors.append(error_row)
        nlls.append(nll_row)
    for found, expected in zip(record.matrix, errors, strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    for found, expected in zip(record.negative_log_likelihood, nlls, strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    last = errors[-1]
    assert record.average == record.average_error == pytest.approx(sum(last) / 3, rel=1e-5)
    rises = [last[0] - min(errors[0][0], errors[1][0]), last[1] - errors[1][1]]
    assert record.forgetting == pytest.approx(sum(rises) / 2, rel=1e-5)
    drops = [errors[0][0] - last[0], errors[1][1] - last[1]]
    assert record.backward_transfer == pytest.approx(sum(drops) / 2, rel=1e-5)
    learned = sum(row[-1] for row in errors) / 3
    assert record.learning_error == pytest.approx(learned, rel=1e-5)


def test_the_draws_of_a_posterior_are_a_mixture() -> None:
    bayesian = QUICK.model_copy(update={"method": "vcl", "samples": 3})
    found = run(bayesian)
    resolved = resolve(bayesian)
    learner = build_learner(resolved)
    for task in resolved.stream:
        learner.learn(task)
    task = resolved.stream[0]
    (drawn,) = learner._answers.outputs(task.test.inputs(), 0, 3)
    each = Normal(drawn.double(), resolved.experiment.stream["std"]).log_prob(task.test.labels)
    expected = -each.exp().mean(0).log().mean().item()
    assert found.negative_log_likelihood[-1][0] == pytest.approx(expected, rel=1e-5)


def test_signs_by_hand() -> None:
    matrix = [[0.2], [0.1, 0.3], [0.5, 0.25, 0.4]]
    found = ERROR.summary(matrix, [1.0, 0.9, 0.8], [1.0, 1.0, 1.2])
    assert found == {
        "average_error": pytest.approx((0.5 + 0.25 + 0.4) / 3),
        "learning_error": pytest.approx(0.3),
        "forgetting": pytest.approx(((0.5 - 0.1) + (0.25 - 0.3)) / 2),
        "backward_transfer": pytest.approx(-((0.5 - 0.2) + (0.25 - 0.3)) / 2),
        "forward_transfer": pytest.approx((0.1 + 0.4) / 2),
    }


def test_what_is_of_classes_is_absent(record: Record) -> None:
    content = json.loads(record.to_bytes())
    assert content["schema"] == 1
    assert not (FIELDS[ACCURACY] - FIELDS[ERROR]) & set(content)
    assert content["uncertainty"] is None
    assert FIELDS[ERROR] <= set(content)
    assert not (FIELDS[ERROR] - FIELDS[ACCURACY]) & set(json.loads(make_record().to_bytes()))


def test_a_written_record_is_read_back(record: Record, tmp_path: Path) -> None:
    record.write(tmp_path)
    assert Record.read(tmp_path / "record.json") == record


@pytest.mark.parametrize("packed", PACKED, ids=lambda path: path.parent.name)
def test_records_of_earlier_versions_keep_their_meaning(packed: Path) -> None:
    for line in packed.read_text().splitlines()[::10]:
        content = json.loads(line)
        content.pop("folder")
        found = Record.of(content, packed)
        assert (found.metric, found.matrix) == (ACCURACY, content["accuracy"])
        assert found.average == content["average_accuracy"]
        again = json.loads(found.to_bytes())
        for field in FIELDS[ACCURACY] | {"forgetting", "tasks", "seconds", "notes"}:
            assert again[field] == content[field]
        assert not set(again) - set(content) - {"calibrated", "uncertainty"}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda c: c.update(average_error=2 * c["average_error"]), "average_error is"),
        (lambda c: c.update(forgetting=-c["forgetting"] - 1), "forgetting is"),
        (lambda c: c["root_mean_squared_error"][2].__setitem__(0, 9.0), "but its table makes it"),
        (lambda c: c["root_mean_squared_error"][2].__setitem__(0, -0.1), "greater than or equal"),
        (lambda c: c["negative_log_likelihood"].pop(), "negative_log_likelihood is not a lower"),
        (lambda c: c.update(average_accuracy=0.9), "average_accuracy is in a record of RMSE"),
        (lambda c: c.pop("error_before"), "error_before is missing in a record of RMSE"),
        (lambda c: c["error_untrained"].pop(), "error_before or error_untrained is not over"),
        (lambda c: c.pop("root_mean_squared_error"), "root_mean_squared_error is missing"),
        (
            lambda c: c.update(uncertainty=make_figures().model_dump()),
            "uncertainty, which is of classes",
        ),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(
    damage: Any, said: str, record: Record, tmp_path: Path
) -> None:
    content = json.loads(record.to_bytes())
    damage(content)
    path = tmp_path / "record.json"
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match=said) as caught:
        Record.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("made", "benchmark"), [("regression", "split-digits"), ("classes", NAME)])
def test_the_metric_is_that_of_the_benchmark(made: str, benchmark: str, record: Record) -> None:
    one = record if made == "regression" else make_record()
    content = json.loads(one.to_bytes())
    content["benchmark"] = content["config"]["benchmark"] = benchmark
    with pytest.raises(FileError, match=f"is not what {benchmark} is judged by"):
        Record.of(content, Path("record.json"))


def test_a_stopped_run_goes_on_to_the_same_record(record: Record, tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def after_two(results: Any) -> None:
        if len(results.rows) == 2:
            raise StopError

    with pytest.raises(StopError):
        run(QUICK, after_task=after_two, keep=tmp_path, every=0.0)
    note = read_note(tmp_path)
    assert note is not None
    assert note.untrained == record.error_untrained
    gone_on = run_into(tmp_path, QUICK)
    assert gone_on.matrix == record.matrix
    assert gone_on.error_before == record.error_before
    assert gone_on.negative_log_likelihood == record.negative_log_likelihood


# Commands, tables and the page.


@pytest.mark.parametrize("method", ["lwf", "fromp"])
def test_a_method_of_class_probabilities_refuses_in_one_line(method: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is for classes"):
        run_into(tmp_path, QUICK.model_copy(update={"method": method}))


def test_a_search_refuses_before_anything_is_written(tmp_path: Path) -> None:
    words = ("tune", "--benchmark", NAME, "--methods", "ewc", "--trials", "1", "--out", "found")
    done = evclplus(*words, folder=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(f"evclplus: {NAME} has no classes, .*\n", done.stderr)
    assert not list(tmp_path.rglob("*.journal"))


def error_record(method: str, seed: int, error: float, nll: float) -> Record:
    """A record of two tasks, the first of which got worse by 0.1 when the second was learned."""
    matrix = [[error - 0.05], [error + 0.05, error - 0.05]]
    values = ERROR.summary(matrix, [1.0, 1.0], [1.0, 1.0])
    plain = make_record(method, seed, tasks=["0/1", "2/3"])
    kept = ("method", "seed", "tasks", "notes", "environment", "seconds")
    return Record(
        **{name: getattr(plain, name) for name in kept},
        benchmark=NAME,
        config=Experiment(method=method, benchmark=NAME, seed=seed),
        root_mean_squared_error=matrix,
        negative_log_likelihood=[[nll], [nll, nll]],
        error_before=[1.0, 1.0],
        error_untrained=[1.0, 1.0],
        average_negative_log_likelihood=nll,
        **values,
    )


def known_errors() -> list[Record]:
    errors = {"joint": 0.10, "evcl+": 0.20, "ewc": 0.30, "finetune": 0.60}
    return [
        error_record(method, seed, error + 0.01 * seed, nll=10 * error)
        for method, error in errors.items()
        for seed in range(3)
    ]


def test_the_lowest_error_is_first_bold_and_the_baseline() -> None:
    (comparison,) = comparisons_of(known_errors())
    assert [row.method for row in comparison.rows] == ["joint", "evcl+", "ewc", "finetune"]
    assert comparison.baseline is not None
    assert comparison.baseline.method == "ewc"
    difference = comparison.against_baseline(comparison.rows[1])
    assert difference is not None
    assert difference.mean == pytest.approx(-0.1)
    table = summary_table(comparison)
    assert table.headings == ("Method", "RMSE", "NLL", "Forgetting", "Learning error")
    assert [row[1].is_best for row in table.rows] == [False, True, False, False]
    assert [row[1].text for row in table.rows] == ["0.110", "0.210", "0.310", "0.610"]
    assert [row[2].is_best for row in table.rows] == [False, True, False, False]
    assert {row[3].text for row in table.rows} == {"0.100"}
    text = " ".join(headline(comparison))
    assert "evcl+ is best with RMSE 0.210 after 2 tasks (3 seeds)." in text
    assert "RMSE of evcl+ is 0.100 below that of ewc, the best baseline" in text
    assert "the RMSE rises by 0.100" in text
    assert "%" not in " ".join(results_table(comparison).headings).replace("95 %", "")


def test_classes_and_numbers_share_a_report(tmp_path: Path) -> None:
    classes = [make_record(name, seed) for name in ("evcl+", "ewc") for seed in range(3)]
    made = report(write_records(tmp_path, [*classes, *known_errors()]))
    lines = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    numbers = {line["method"]: line for line in lines if line["benchmark"] == NAME}
    assert float(numbers["evcl+"]["average_error"]) == pytest.approx(0.21)
    assert float(numbers["evcl+"]["average_error_sd"]) == pytest.approx(0.01)
    assert float(numbers["evcl+"]["difference"]) == pytest.approx(-0.1)
    assert float(numbers["evcl+"]["forgetting"]) == pytest.approx(0.1)
    for name in ("average_accuracy_percent", "forgetting_percent", "difference_percent"):
        assert numbers["evcl+"][name] == ""
    (ours,) = (line for line in lines if line["benchmark"] != NAME and line["method"] == "evcl+")
    assert ours["average_error"] == ours["difference"] == ""
    assert float(ours["average_accuracy_percent"]) > 90
    figures = {path.name for path in made.files}
    assert f"{NAME}-rmse.svg" in figures
    assert "split-mnist-accuracy.svg" in figures
    drawn = (tmp_path / "figures" / f"{NAME}-rmse.svg").read_text()
    assert "average RMSE on tasks seen" in drawn
    assert "accuracy" not in drawn


@pytest.mark.slow
def test_compare_and_report_from_end_to_end(tmp_path: Path) -> None:
    settings = ("stream.examples_per_task=100", "stream.tasks=3", "training.compile=off")
    sets = [word for one in settings for word in ("--set", one)]
    words = ("--methods", "evcl+,ewc,finetune,joint,vcl,lwf", "--seeds", "2", "--epochs", "5")
    done = evclplus(
        *("compare", "--benchmark", NAME, *words, *sets, "--jobs", "1", "--out", "made"),
        folder=tmp_path,
    )
    assert done.returncode == 2  # lwf is for classes
    assert "2 of 12 runs failed" in done.stderr
    records = find_records(tmp_path / "made")
    assert len(records) == 10
    assert {record.metric for record in records} == {ERROR}
    assert "RMSE" in done.stdout
    assert "Accuracy" not in done.stdout
    for record in records:
        if record.method == "ewc":
            assert record.average < 1.0  # better than the mean of all angles
    page = (tmp_path / "made" / "report.html").read_text()
    assert "accuracy" not in page.replace("accuracy-", "").split("<style>")[0]
    body = page.split("</style>")[1].split("<script")[0]
    assert "accuracy" not in body.lower().split("where the numbers come from")[0]
    assert "Average RMSE on the tasks seen so far, lower is better." in body
    means = {
        name: np.mean([one.average for one in records if one.method == name])
        for name in ("evcl+", "ewc", "finetune", "joint", "vcl")
    }
    for mean in means.values():
        assert f"{mean:.3f}" in body
