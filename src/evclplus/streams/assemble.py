"""From the splits of a dataset and a cut per task to tasks: the part all builders share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evclplus.core.examples import Examples, View
from evclplus.errors import DataError
from evclplus.streams.arrays import Labelled
from evclplus.streams.holdout import Splits
from evclplus.streams.shuffle import Purpose, random_order
from evclplus.streams.task import Scenario, Task


@dataclass(frozen=True)
class TaskCut:
    """One task: the label of each of its classes, its head and how its inputs are seen. `classes`
    has the class of every output of the head, those of earlier tasks too."""

    name: str
    labels: Mapping[int, int]
    head: int
    classes: tuple[int, ...]
    view: View
    scenario: Scenario

    @property
    def outputs(self) -> int:
        return len(self.classes)


def task_cuts(
    names: Sequence[str],
    groups: Sequence[tuple[int, ...]],
    views: Sequence[View],
    scenario: Scenario,
) -> list[TaskCut]:
    """Give every group of classes its head and labels, as the scenario says."""
    if scenario == "domain" and len({len(group) for group in groups}) > 1:
        raise DataError(
            "a domain-incremental stream has one head for all tasks, so every task needs the same"
            f" number of classes; got {[len(group) for group in groups]}"
        )
    made = []
    seen: tuple[int, ...] = ()
    for index, (name, group, view) in enumerate(zip(names, groups, views, strict=True)):
        head = index if scenario == "task" else 0
        before = seen if scenario == "class" else ()
        labels = {class_: len(before) + position for position, class_ in enumerate(group)}
        made.append(TaskCut(name, labels, head, (*before, *group), view, scenario))
        seen = (*before, *group)
    return made


def cut_tasks(
    data: Splits,
    cuts: Sequence[TaskCut],
    examples_per_task: int | None = None,
    seed: int = 0,
) -> tuple[Task, ...]:
    """Cut every task out of the shared splits. Equal rows and labels are shared between tasks."""
    shared: dict[tuple[str, tuple[tuple[int, int], ...]], tuple[Tensor, Tensor]] = {}

    def examples(split_name: str, split: Labelled, cut: TaskCut) -> Examples:
        key = (split_name, tuple(cut.labels.items()))
        if key not in shared:
            shared[key] = _rows_and_labels(split, cut.labels)
        rows, labels = shared[key]
        return Examples(split.store, labels, cut.outputs, cut.head, rows, cut.view)

    made = []
    for index, cut in enumerate(cuts):
        train = examples("train", data.train, cut)
        validation = examples("validation", data.validation, cut)
        test = examples("test", data.test, cut)
        _check_classes_present(cut, train, "training")
        _check_classes_present(cut, test, "test")
        if examples_per_task is not None:
            train = _subset(train, examples_per_task, seed, index, cut.name)
            _check_classes_present(cut, train, f"training (examples_per_task {examples_per_task})")
        made.append(Task(cut.name, index, train, validation, test, cut.classes, cut.scenario))
    return tuple(made)


def classes_of(split: Labelled) -> tuple[int, ...]:
    """The classes that occur, in ascending order."""
    return tuple(torch.unique(split.classes[split.rows]).tolist())


def _rows_and_labels(split: Labelled, labels: Mapping[int, int]) -> tuple[Tensor, Tensor]:
    classes = split.classes[split.rows]
    ascending = torch.tensor(sorted(labels))
    label_of = torch.tensor([labels[class_] for class_ in ascending.tolist()])
    position = torch.searchsorted(ascending, classes).clamp(max=len(ascending) - 1)
    member = ascending[position] == classes
    return split.rows[member], label_of[position[member]]


def _check_classes_present(cut: TaskCut, examples: Examples, split: str) -> None:
    present = set(torch.unique(examples.labels).tolist())
    for class_, label in cut.labels.items():
        if label not in present:
            raise DataError(
                f"task {cut.name} has no {split} examples of class {class_}; give some or leave"
                " the class out"
            )


def _subset(examples: Examples, count: int, seed: int, index: int, name: str) -> Examples:
    """`count` of the examples, every class keeping its share."""
    if count > len(examples):
        raise DataError(
            f"examples_per_task is {count} but task {name} has only {len(examples)} training"
            " examples; give a smaller number"
        )
    order = random_order(len(examples), Purpose.SUBSET, seed, index)
    labels = examples.labels.numpy()[order]
    rank = np.empty(len(labels))
    for label in np.unique(labels):
        of_class = labels == label
        # Taking by rank over class size takes the same share of every class.
        rank[of_class] = (np.arange(of_class.sum()) + 0.5) / of_class.sum()
    chosen = np.sort(order[np.argsort(rank, kind="stable")[:count]])
    return examples.take(torch.from_numpy(chosen))
