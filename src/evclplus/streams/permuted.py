"""Permuted streams: every task has all classes, its pixels shuffled in its own fixed way."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

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
    pixel_permutation,
)
from evclplus.streams.task import Scenario, Stream


class PermutedSettings(StreamSettings):
    """A permuted stream."""

    scenario: Scenario = Field(
        "domain", description="what is known at test time: task, domain, class"
    )
    tasks: int = Field(5, ge=1, le=MOST_TASKS, description="how many tasks, a permutation each")
    permutation_seed: int | None = Field(
        None, ge=0, description="seed of the permutations; none: the experiment's seed"
    )
    # VCL's published code permutes every task, the first one too; others leave it as it is.
    permute_first: bool = Field(True, description="permute the first task as well")


def permuted_tasks(
    x: Any,
    y: Any,
    tasks: int = 5,
    *,
    test: Pair | None = None,
    validation: Pair | None = None,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.1,
    holdout_seed: int = 0,
    scenario: Scenario = "domain",
    class_order: Sequence[int] | None = None,
    examples_per_task: int | None = None,
    scaling: Scaling | None = None,
    permutation_seed: int | None = None,
    permute_first: bool = True,
    seed: int = 0,
    name: str = "permuted",
) -> Stream:
    """The same classes in every task, each task under its own pixel permutation.

    The permutations come from `permutation_seed`, or from `seed` when that is not given.
    """
    settings = PermutedSettings(
        scenario=scenario,
        class_order=class_order,
        examples_per_task=examples_per_task,
        scaling=scaling,
        permutation_seed=permutation_seed,
        validation_fraction=validation_fraction,
        holdout_seed=holdout_seed,
        tasks=tasks,
        permute_first=permute_first,
    )
    data = make_splits(
        (x, y),
        test=test,
        validation=validation,
        test_fraction=test_fraction,
        validation_fraction=settings.validation_fraction,
        seed=settings.holdout_seed,
    )
    return permuted_stream(name, data, settings, seed)


def permuted_stream(
    name: str, data: Splits, settings: PermutedSettings, seed: int, notes: tuple[str, ...] = ()
) -> Stream:
    """A permuted stream of a dataset whose splits are made."""
    permutation_seed = seed if settings.permutation_seed is None else settings.permutation_seed
    view = base_view(data, settings)
    shape = tuple(data.train.store.shape[1:])
    views = [
        replace(view, permutation=pixel_permutation(shape, permutation_seed, index))
        for index in range(settings.tasks)
    ]
    names = [f"permutation {index + 1}" for index in range(settings.tasks)]
    if not settings.permute_first:
        views[0], names[0] = view, "unpermuted"
    groups = [chosen_classes(data, settings)] * settings.tasks
    cuts = task_cuts(names, groups, views, settings.scenario)
    # permutation_seed stays as it was given: seeds of one stream must not look like many streams.
    resolved = {"class_order": list(groups[0])}
    return build_stream(name, data, cuts, settings, seed, resolved, notes)
