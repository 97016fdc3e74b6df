"""Split streams: each task is a few classes of one dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from evclplus.errors import DataError
from evclplus.streams.arrays import Labelled, Pair, listed
from evclplus.streams.assemble import task_cuts
from evclplus.streams.holdout import Splits, make_splits
from evclplus.streams.scaling import Scaling
from evclplus.streams.settings import (
    StreamSettings,
    base_view,
    build_stream,
    check_known,
    chosen_classes,
    pixel_permutation,
)
from evclplus.streams.shuffle import Purpose, random_order
from evclplus.streams.task import Scenario, Stream

Groups = tuple[tuple[int, ...], ...]


class SplitSettings(StreamSettings):
    """A split stream."""

    classes_per_task: int = Field(2, ge=1, description="classes in each task")
    groups: Groups | None = Field(None, description="the classes of each task; none: consecutive")
    order_seed: int | None = Field(None, ge=0, description="shuffle the class order by this seed")
    tasks: int | None = Field(None, ge=1, description="how many tasks; none: all there are")
    permutation_seed: int | None = Field(
        None, ge=0, description="shuffle the pixels of every task by this seed; none: leave them"
    )
    padding: int = Field(0, ge=0, description="pixels of zeros added on each side of a picture")
    all_outputs: bool = Field(
        False, description="class: the classes of all tasks are outputs from the first task on"
    )

    @model_validator(mode="after")
    def _one_way_to_order(self) -> "SplitSettings":
        if self.groups is None:
            return self
        if self.class_order is not None or self.order_seed is not None:
            raise ValueError("groups already fix the order; leave class_order and order_seed out")
        named = [class_ for group in self.groups for class_ in group]
        if not self.groups or not all(self.groups) or len(set(named)) < len(named):
            raise ValueError("every group needs a class, and no class may be in two groups")
        return self


def split_tasks(
    x: Any,
    y: Any,
    classes_per_task: int = 2,
    *,
    test: Pair | None = None,
    validation: Pair | None = None,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.1,
    holdout_seed: int = 0,
    scenario: Scenario = "task",
    groups: Sequence[Sequence[int]] | None = None,
    class_order: Sequence[int] | None = None,
    order_seed: int | None = None,
    tasks: int | None = None,
    examples_per_task: int | None = None,
    scaling: Scaling | None = None,
    permutation_seed: int | None = None,
    class_names: Mapping[int, str] | Sequence[str] | None = None,
    seed: int = 0,
    name: str = "split",
) -> Stream:
    """Cut arrays into tasks of `classes_per_task` classes each.

    `x` has the shape (examples, ...), `y` an integer class per example. Without `test` and
    `validation` they are held out of the data, stratified, by `holdout_seed`.
    """
    settings = SplitSettings(
        scenario=scenario,
        class_order=class_order,
        examples_per_task=examples_per_task,
        scaling=scaling,
        permutation_seed=permutation_seed,
        validation_fraction=validation_fraction,
        holdout_seed=holdout_seed,
        classes_per_task=classes_per_task,
        groups=groups,
        order_seed=order_seed,
        tasks=tasks,
    )
    data = make_splits(
        (x, y),
        test=test,
        validation=validation,
        test_fraction=test_fraction,
        validation_fraction=settings.validation_fraction,
        seed=settings.holdout_seed,
    )
    if not isinstance(class_names, Mapping):
        given = () if class_names is None else class_names
        class_names = dict(enumerate(listed(given, "class_names")))
    return split_stream(name, replace(data, class_names=class_names), settings, seed)


def split_stream(
    name: str, data: Splits, settings: SplitSettings, seed: int, notes: tuple[str, ...] = ()
) -> Stream:
    """A split stream of a dataset whose splits are made."""
    groups = _groups(data, settings)
    view = base_view(data, settings)
    data = _padded(data, settings.padding)
    shape = tuple(data.train.store.shape[1:])
    views = [view] * len(groups)
    if settings.permutation_seed is not None:
        views = [
            replace(view, permutation=pixel_permutation(shape, settings.permutation_seed, index))
            for index in range(len(groups))
        ]
    names = [
        "/".join(str(data.class_names.get(class_, class_)) for class_ in group) for group in groups
    ]
    cuts = task_cuts(names, groups, views, settings.scenario)
    if settings.all_outputs and settings.scenario == "class":
        cuts = [replace(cut, classes=cuts[-1].classes) for cut in cuts]
    # The groups say all there is to say about the order, so that the record rebuilds the stream.
    resolved = {
        "groups": [list(group) for group in groups],
        "class_order": None,
        "order_seed": None,
        "tasks": len(groups),
    }
    return build_stream(name, data, cuts, settings, seed, resolved, notes)


def _padded(data: Splits, width: int) -> Splits:
    """The same pictures with a border of zeros, as stored: a scaling comes after it."""
    if width == 0:
        return data
    shape = tuple(data.train.store.shape[1:])
    if len(shape) < 2:
        raise DataError(f"padding is for pictures, and an input here has the shape {shape}")
    stores: dict[int, Tensor] = {}

    def padded(split: Labelled) -> Labelled:
        key = id(split.store)
        if key not in stores:  # splits may share a store, and go on to
            stores[key] = functional.pad(split.store, (width,) * 4)
        return replace(split, store=stores[key])

    return replace(
        data,
        train=padded(data.train),
        validation=padded(data.validation),
        test=padded(data.test),
    )


def _groups(data: Splits, settings: SplitSettings) -> Groups:
    groups = settings.groups
    if groups is not None:
        check_known(tuple(class_ for group in groups for class_ in group), data)
    else:
        groups = _consecutive(data, settings)
    count = settings.tasks or len(groups)
    if count > len(groups):
        raise DataError(
            f"{count} tasks were asked for but the classes make only {len(groups)}; ask for fewer"
            " tasks or fewer classes per task"
        )
    return groups[:count]


def _consecutive(data: Splits, settings: SplitSettings) -> Groups:
    classes = chosen_classes(data, settings)
    if settings.order_seed is not None:
        order = random_order(len(classes), Purpose.CLASSES, settings.order_seed)
        classes = tuple(classes[position] for position in order.tolist())
    size = settings.classes_per_task
    if len(classes) % size:
        raise DataError(
            f"{len(classes)} classes do not divide into tasks of {size}; choose another"
            " classes_per_task, or give groups= or class_order="
        )
    return tuple(classes[start : start + size] for start in range(0, len(classes), size))
