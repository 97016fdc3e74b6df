"""Tasks from arrays that are tasks already: a stream of them, or one that arrives by itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from evclplus.core.examples import Examples, View
from evclplus.errors import DataError
from evclplus.settings import whole
from evclplus.streams.arrays import (
    Labelled,
    Pair,
    check_alike,
    inputs_of,
    labelled,
    listed,
    tensor_of,
)
from evclplus.streams.assemble import TaskCut, classes_of, cut_tasks
from evclplus.streams.holdout import Splits, make_splits
from evclplus.streams.scaling import Scaling, default_scaling, scaled_view
from evclplus.streams.settings import StreamSettings, base_view
from evclplus.streams.task import Scenario, Stream, Task, check_name

MOST_OUTPUTS = 10**6


def tasks(
    pairs: Iterable[Pair],
    *,
    test: Sequence[Pair] | None = None,
    validation: Sequence[Pair] | None = None,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.1,
    holdout_seed: int = 0,
    scenario: Scenario = "task",
    scaling: Scaling | None = None,
    names: Sequence[str] | None = None,
    name: str = "tasks",
) -> Stream:
    """One task per pair `(inputs, labels)`, in the order given.

    In the task scenario a task's classes are numbered in ascending order for its own head; in the
    domain scenario the classes of all tasks share one numbering and one head; in the class
    scenario they are numbered in order of appearance.
    """
    settings = StreamSettings(
        scenario=scenario,
        scaling=scaling,
        validation_fraction=validation_fraction,
        holdout_seed=holdout_seed,
    )
    pairs = listed(pairs, "the tasks")
    test = None if test is None else listed(test, "the test pairs")
    validation = None if validation is None else listed(validation, "the validation pairs")
    names = None if names is None else listed(names, "names")
    titles = names if names is not None else [f"task {index + 1}" for index in range(len(pairs))]
    _check_one_each(
        len(pairs), {"test pairs": test, "validation pairs": validation, "names": titles}
    )
    parts = [
        make_splits(
            pair,
            test=None if test is None else test[index],
            validation=None if validation is None else validation[index],
            test_fraction=test_fraction,
            validation_fraction=settings.validation_fraction,
            seed=settings.holdout_seed,
            what=titles[index],
        )
        for index, pair in enumerate(pairs)
    ]
    for part, title in zip(parts, titles, strict=True):
        check_alike(parts[0].train, part.train, (titles[0], title))
    # The first task fixes the scaling: a learner has started long before it meets the others.
    view = base_view(parts[0], settings)
    cut = [
        cut_tasks(part, [cut])[0]
        for part, cut in zip(parts, _task_cuts(titles, parts, scenario, view), strict=True)
    ]
    numbered = tuple(replace(task, index=index) for index, task in enumerate(cut))
    record = {
        "test_fraction": test_fraction,
        **settings.model_dump(mode="json"),
        "scaling": settings.scaling or default_scaling(parts[0].train),
        "scale": view.scale,
        "shift": view.shift,
    }
    notes = tuple(note for part in parts for note in part.notes)
    return Stream(name, numbered, settings.scenario, record, notes)


def _check_one_each(count: int, given: Mapping[str, Sequence[object] | None]) -> None:
    if not count:
        raise DataError("a stream needs at least one task; give a list of (inputs, labels)")
    for what, values in given.items():
        if values is not None and len(values) != count:
            raise DataError(f"{len(values)} {what} for {count} tasks; give one for each task")


def task(
    x: Any,
    y: Any,
    *,
    name: str,
    outputs: int,
    head: int = 0,
    test: Pair | None = None,
) -> Task:
    """One task by itself, for data that arrives when it arrives.

    Labels are those of the head, 0 to outputs - 1. Bytes are scaled to [0, 1] unless they are all
    0 or 1, other inputs stay as they are, the same for every task. Nothing is held out: all of `x`
    is trained on, and the task can be evaluated only if `test` is given.
    """
    check_name(name, "a task")
    outputs, head = whole("outputs", outputs, 1, MOST_OUTPUTS), whole("head", head, 0)
    train = labelled((x, y), name)
    tested = train.keep(train.rows[:0]) if test is None else labelled(test, f"the test of {name}")
    check_alike(train, tested, (name, "its test part"))
    view = scaled_view(train, default_scaling(train))

    def examples(split: Labelled) -> Examples:
        return Examples(split.store, split.classes[split.rows], outputs, head, split.rows, view)

    nothing = examples(train.keep(train.rows[:0]))
    classes = tuple(range(outputs))
    return Task(name, 0, examples(train), nothing, examples(tested), classes)


def regression_task(
    x: Any, y: Any, *, name: str, head: int = 0, test: tuple[Any, Any] | None = None
) -> Task:
    """One task whose labels are numbers: y is (examples,) or (examples, outputs). For a learner
    with criterion="regression" or one of its own. Nothing is scaled or held out."""
    check_name(name, "a task")
    train = _numbers(x, y, name, whole("head", head, 0))
    nothing = train.take(torch.arange(0))
    if test is not None and (not isinstance(test, tuple | list) or len(test) != 2):
        raise DataError(f"the test of {name} must be a pair (inputs, labels)")
    tested = nothing if test is None else _numbers(*test, f"the test of {name}", head)
    return Task(name, 0, train, nothing, tested)


def _numbers(x: Any, y: Any, what: str, head: int) -> Examples:
    inputs, values = inputs_of(x, what), tensor_of(y, f"the labels of {what}")
    wrong = values.is_complex() or values.ndim not in (1, 2) or values.numel() == 0
    if wrong or not torch.isfinite(values).all():
        raise DataError(
            f"the labels of {what} have shape {tuple(values.shape)} and type {values.dtype}; "
            "expected finite numbers, (examples,) or (examples, outputs)"
        )
    values = values.to(torch.get_default_dtype()).reshape(len(values), -1)
    return Examples(inputs, values, values.shape[1], head)


def _task_cuts(
    names: Sequence[str], parts: Sequence[Splits], scenario: Scenario, view: View
) -> list[TaskCut]:
    classes = [classes_of(part.train) for part in parts]
    if scenario == "task":
        return [
            TaskCut(name, {c: i for i, c in enumerate(own)}, head, own, view, scenario)
            for head, (name, own) in enumerate(zip(names, classes, strict=True))
        ]
    if scenario == "domain":
        every = sorted({c for own in classes for c in own})
        return [
            TaskCut(name, {c: every.index(c) for c in own}, 0, tuple(every), view, scenario)
            for name, own in zip(names, classes, strict=True)
        ]
    seen: dict[int, int] = {}
    made = []
    for name, own in zip(names, classes, strict=True):
        for class_ in own:
            seen.setdefault(class_, len(seen))
        made.append(TaskCut(name, {c: seen[c] for c in own}, 0, tuple(seen), view, scenario))
    return made
