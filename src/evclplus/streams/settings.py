"""The settings every stream has, whatever its data and however it is cut into tasks."""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field, field_validator
from torch import Tensor

from evclplus.core.examples import View
from evclplus.errors import DataError
from evclplus.settings import Settings, whole
from evclplus.streams.assemble import TaskCut, classes_of, cut_tasks
from evclplus.streams.holdout import Splits
from evclplus.streams.scaling import Scaling, default_scaling, scaled_view
from evclplus.streams.shuffle import Purpose, random_order
from evclplus.streams.task import Scenario, Stream, check_name

MOST_TASKS = 10_000
"""A stream is built as a whole: every task has its order of pixels, or its rows."""


class StreamSettings(Settings):
    """What can be chosen for any stream."""

    scenario: Scenario = Field(
        "task", description="what is known at test time: task, domain, class"
    )
    class_order: tuple[int, ...] | None = Field(
        None, description="the classes to use, in this order; none: all, ascending"
    )
    examples_per_task: int | None = Field(
        None, ge=1, description="training examples per task, every class keeping its share"
    )
    scaling: Scaling | None = Field(
        None, description="unit, centred, symmetric, standard or raw; none: the benchmark's own"
    )
    scale: float | None = Field(None, description="factor of a stored value; none: from scaling")
    shift: float | None = Field(None, description="added after the factor; none: from scaling")
    validation_fraction: float = Field(
        0.1, ge=0, lt=1, description="share of the training data held out for tuning"
    )
    holdout_seed: int = Field(0, ge=0, description="seed of every hold-out")

    @field_validator("scale")
    @classmethod
    def _keeps_the_inputs(cls, scale: float | None) -> float | None:
        if scale == 0:
            raise ValueError("a factor of 0 makes all inputs equal")
        return scale

    @field_validator("class_order")
    @classmethod
    def _each_class_once(cls, order: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if order is not None and (not order or len(set(order)) < len(order)):
            raise ValueError("name at least one class and none of them twice")
        return order


def chosen_classes(data: Splits, settings: StreamSettings) -> tuple[int, ...]:
    """The classes in the order asked for, all of them present in the training data."""
    if settings.class_order is None:
        return classes_of(data.train)
    check_known(settings.class_order, data)
    return settings.class_order


def check_known(classes: tuple[int, ...], data: Splits) -> None:
    known = classes_of(data.train)
    missing = [class_ for class_ in classes if class_ not in known]
    if missing:
        raise DataError(
            f"class {missing[0]} is not in the training data; it has the classes"
            f" {', '.join(map(str, known))}"
        )


def base_view(data: Splits, settings: StreamSettings) -> View:
    """How stored values are scaled, before any permutation."""
    scaling = settings.scaling or default_scaling(data.train)
    view = scaled_view(data.train, scaling, data.max_value)
    scale = view.scale if settings.scale is None else settings.scale
    shift = view.shift if settings.shift is None else settings.shift
    return View(scale, shift)


def pixel_permutation(shape: tuple[int, ...], seed: int, task: int) -> Tensor:
    """The order of an input's values in which its pixels are shuffled.

    For (channels, height, width) a pixel moves with all its channels; any other shape is
    shuffled value by value.
    """
    channels = shape[0] if len(shape) == 3 else 1
    pixels = torch.Size(shape).numel() // channels
    order = torch.from_numpy(random_order(pixels, Purpose.PIXELS, seed, task))
    return (torch.arange(channels)[:, None] * pixels + order).flatten()


def build_stream(
    name: str,
    data: Splits,
    cuts: list[TaskCut],
    settings: StreamSettings,
    seed: int,
    resolved: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> Stream:
    """Build the stream and write into it every setting as it was resolved."""
    view, seed = cuts[0].view, whole("seed", seed, 0)
    check_name(name, "a stream")
    record = {
        "seed": seed,
        **settings.model_dump(mode="json"),
        **resolved,
        "scaling": settings.scaling or default_scaling(data.train),
        "scale": view.scale,
        "shift": view.shift,
    }
    tasks = cut_tasks(data, cuts, settings.examples_per_task, seed)
    return Stream(name, tasks, settings.scenario, record, data.notes + notes)
