"""Rotated streams: every task has all classes, its images rotated by its own angle."""

from collections.abc import Sequence
from dataclasses import replace
from math import cos, radians, sin
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.examples import View
from evclplus.errors import DataError
from evclplus.streams.arrays import Pair
from evclplus.streams.assemble import task_cuts
from evclplus.streams.holdout import Splits, make_splits
from evclplus.streams.scaling import Scaling
from evclplus.streams.settings import (
    MOST_TASKS,
    StreamSettings,
    base_view,
    build_stream,
    chosen_classes,
)
from evclplus.streams.task import Scenario, Stream


class RotatedSettings(StreamSettings):
    """A rotated stream."""

    scenario: Scenario = Field(
        "domain", description="what is known at test time: task, domain, class"
    )
    tasks: int = Field(5, ge=1, le=MOST_TASKS, description="how many tasks, an angle each")
    angles: tuple[float, ...] | None = Field(
        None, description="degrees per task; none: evenly from 0 up to below 180"
    )


def rotated_tasks(
    x: Any,
    y: Any,
    tasks: int = 5,
    *,
    angles: Sequence[float] | None = None,
    test: Pair | None = None,
    validation: Pair | None = None,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.1,
    holdout_seed: int = 0,
    scenario: Scenario = "domain",
    class_order: Sequence[int] | None = None,
    examples_per_task: int | None = None,
    scaling: Scaling | None = None,
    seed: int = 0,
    name: str = "rotated",
) -> Stream:
    """The same classes in every task, rotated counter-clockwise by `angles` degrees."""
    settings = RotatedSettings(
        scenario=scenario,
        class_order=class_order,
        examples_per_task=examples_per_task,
        scaling=scaling,
        validation_fraction=validation_fraction,
        holdout_seed=holdout_seed,
        tasks=tasks if angles is None else len(angles),
        angles=angles,
    )
    data = make_splits(
        (x, y),
        test=test,
        validation=validation,
        test_fraction=test_fraction,
        validation_fraction=settings.validation_fraction,
        seed=settings.holdout_seed,
    )
    return rotated_stream(name, data, settings, seed)


def rotated_stream(name: str, data: Splits, settings: RotatedSettings, seed: int) -> Stream:
    """A rotated stream of a dataset whose splits are made."""
    angles = settings.angles or tuple(180.0 * i / settings.tasks for i in range(settings.tasks))
    view = base_view(data, settings)
    shape = tuple(data.train.store.shape[1:])
    views = [_rotated_view(view, shape, angle) for angle in angles]
    names = [f"{angle:g} degrees" for angle in angles]
    groups = [chosen_classes(data, settings)] * len(angles)
    cuts = task_cuts(names, groups, views, settings.scenario)
    resolved = {
        "angles": list(angles),
        "tasks": len(angles),
        "class_order": list(groups[0]),
    }
    return build_stream(name, data, cuts, settings, seed, resolved)


def _rotated_view(view: View, shape: tuple[int, ...], angle: float) -> View:
    source, inside = rotation(shape, angle)
    return replace(view, permutation=source, blank=None if inside.all() else ~inside)


def rotation(shape: tuple[int, ...], angle: float) -> tuple[Tensor, Tensor]:
    """For every value of a rotated image: where it comes from, and whether that is inside.

    Nearest neighbour, as in the published rotated streams: so a rotated image is a choice of
    stored bytes and costs no copy of the dataset.
    """
    if len(shape) not in (2, 3):
        raise DataError(
            f"inputs of the shape {shape} cannot be rotated; expected (height, width) or"
            " (channels, height, width)"
        )
    channels = shape[0] if len(shape) == 3 else 1
    height, width = shape[-2:]
    down = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    right = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    turn = radians(angle)
    # Rounded to nine digits first, so that the last bit of a cosine cannot choose the pixel.
    row = _nearest(sin(turn) * right + cos(turn) * down + (height - 1) / 2)
    column = _nearest(cos(turn) * right - sin(turn) * down + (width - 1) / 2)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    source = torch.where(inside, row * width + column, torch.zeros_like(row)).flatten()
    every = (torch.arange(channels)[:, None] * (height * width) + source).flatten()
    return every, inside.flatten().repeat(channels)


def _nearest(position: Tensor) -> Tensor:
    return (position.round(decimals=9) + 0.5).floor().to(torch.int64)
