"""What a learner remembers of the outside of its tasks, and how they are asked for."""

from dataclasses import dataclass, field

import torch

from evclplus.errors import StateError
from evclplus.settings import is_whole
from evclplus.streams.task import Task

Asked = Task | str | int | None
"""A learned task, its name or its position; None where it is not known, or all tasks share one
head."""


@dataclass(frozen=True)
class Learned:
    """What the learner remembers of a task's outside, and the strengths that were calibrated on
    it."""

    name: str
    head: int
    outputs: int
    calibrated: dict[str, float] = field(default_factory=dict)
    classes: tuple[int, ...] = ()
    """The caller's label of each output."""
    view: str = ""
    """How stored values became inputs, see `View.fingerprint`."""
    largest: float | None = None
    """The largest input that a byte could become, where inputs were scaled bytes."""

    @classmethod
    def of(cls, task: Task, calibrated: dict[str, float]) -> "Learned":
        view, largest = task.train.view, None
        if task.train.store.dtype == torch.uint8 and view.scale != 1.0:
            largest = max(abs(view.shift), abs(255 * view.scale + view.shift))
        classes = task.classes or tuple(range(task.outputs))
        return cls(
            task.name, task.head, task.outputs, calibrated, classes, view.fingerprint(), largest
        )


Tasks = tuple[Learned, ...]


def outputs_seen(learned: Tasks) -> dict[int, int]:
    """How many outputs of each head the tasks so far have used."""
    seen: dict[int, int] = {}
    for task in learned:
        seen[task.head] = max(seen.get(task.head, 0), task.outputs)
    return seen


def head_of(learned: Tasks, task: Asked) -> int | None:
    """The head that answers for a task; None where there are several and the task is not known."""
    if task is not None:
        return known(learned, task).head
    check_any(learned)
    heads = outputs_seen(learned)
    return next(iter(heads)) if len(heads) == 1 else None


def known(learned: Tasks, task: Task | str | int) -> Learned:
    """What is remembered of a learned task."""
    check_any(learned)
    if not isinstance(task, Task | str):
        count = len(learned)
        if not is_whole(task) or not 0 <= task < count:
            raise StateError(f"there is no task {task!r:.60}; {count} are learned, counted from 0")
        return learned[task]
    name = task if isinstance(task, str) else task.name
    names = [one.name for one in learned]
    if name not in names:
        raise StateError(f"task {name!r} is not learned yet; learned: {names}")
    found = learned[names.index(name)]
    if isinstance(task, Task):
        _check_same(task, found)
    return found


def classes_of(learned: Tasks, task: Asked) -> tuple[int, ...]:
    """The caller's label of each output that answers for a task.

    A domain-incremental head may stand for other classes in every task. Asked without a task, it
    has its outputs' numbers; several heads have the classes of all of them.
    """
    head = head_of(learned, task)
    if head is not None:
        return classes_of_head(learned, head, task)
    of_heads = (classes_of_head(learned, one) for one in sorted(outputs_seen(learned)))
    return tuple(dict.fromkeys(label for labels in of_heads for label in labels))


def classes_of_head(learned: Tasks, head: int, task: Asked = None) -> tuple[int, ...]:
    """The caller's label of each output of a head, as a task knows it or as all of its tasks do."""
    own = () if task is None else known(learned, task).classes
    of_head = [one.classes for one in learned if one.head == head]
    longest = max((one for one in of_head if one[: len(own)] == own), key=len)
    same = task is not None or all(longest[: len(one)] == one for one in of_head)
    count = outputs_seen(learned)[head]
    return longest if same and len(longest) == count else tuple(range(count))


def check_any(learned: Tasks) -> None:
    if not learned:
        raise StateError("nothing is learned yet; call learn(task) before predicting")


def _check_same(task: Task, known: Learned) -> None:
    """A task is known by its name, and then has to be the one that was learned."""
    if task.head != known.head:
        raise StateError(
            f"task {task.name!r} was learned with head {known.head}, and this one of that name has "
            f"head {task.head}; it is another task"
        )
    if known.view and task.train.view.fingerprint() != known.view:
        raise StateError(
            f"the inputs of task {task.name!r} are scaled or reordered in another way than those "
            "that were learned under this name; build the stream with the same seed and settings"
        )
