"""A stream from arrays that are tasks already."""

from collections.abc import Sequence
from dataclasses import replace

from evclplus.benchmarks.arrays import Pair, check_alike
from evclplus.benchmarks.assemble import Plan, classes_of, cut_tasks
from evclplus.benchmarks.holdout import Sides, sides
from evclplus.benchmarks.scaling import Scaling, default_scaling, scaled_view
from evclplus.benchmarks.task import Scenario, Stream
from evclplus.core.examples import View
from evclplus.errors import DataError


def tasks(
    pairs: Sequence[Pair],
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
    if names is None:
        names = [f"task {index + 1}" for index in range(len(pairs))]
    for given, what in ((test, "test pairs"), (validation, "validation pairs"), (names, "names")):
        if given is not None and len(given) != len(pairs):
            raise DataError(f"{len(given)} {what} for {len(pairs)} tasks; give one for each task")
    parts = [
        sides(
            pair,
            test=None if test is None else test[index],
            validation=None if validation is None else validation[index],
            test_fraction=test_fraction,
            validation_fraction=validation_fraction,
            seed=holdout_seed,
            what=names[index],
        )
        for index, pair in enumerate(pairs)
    ]
    if not parts:
        raise DataError("a stream needs at least one task; give a list of (inputs, labels)")
    for part, title in zip(parts, names, strict=True):
        check_alike(parts[0].train, part.train, (names[0], title))
    # The first task fixes the scaling: a learner has started long before it meets the others.
    scaling = scaling or default_scaling(parts[0].train)
    view = scaled_view(parts[0].train, scaling)
    cut = [
        cut_tasks(part, [plan])[0]
        for part, plan in zip(parts, _plans(names, parts, scenario, view), strict=True)
    ]
    settings = {
        "scenario": scenario,
        "scaling": scaling,
        "scale": view.scale,
        "shift": view.shift,
        "test_fraction": test_fraction,
        "validation_fraction": validation_fraction,
        "holdout_seed": holdout_seed,
    }
    numbered = tuple(replace(task, index=index) for index, task in enumerate(cut))
    return Stream(name, numbered, scenario, settings)


def _plans(
    names: Sequence[str], parts: Sequence[Sides], scenario: Scenario, view: View
) -> list[Plan]:
    classes = [classes_of(part.train) for part in parts]
    if scenario == "task":
        return [
            Plan(name, {c: i for i, c in enumerate(own)}, head, len(own), view)
            for head, (name, own) in enumerate(zip(names, classes, strict=True))
        ]
    if scenario == "domain":
        every = sorted({c for own in classes for c in own})
        return [
            Plan(name, {c: every.index(c) for c in own}, 0, len(every), view)
            for name, own in zip(names, classes, strict=True)
        ]
    seen: dict[int, int] = {}
    made = []
    for name, own in zip(names, classes, strict=True):
        for class_ in own:
            seen.setdefault(class_, len(seen))
        made.append(Plan(name, {c: seen[c] for c in own}, 0, len(seen), view))
    return made
