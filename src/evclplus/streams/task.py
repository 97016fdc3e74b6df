"""A task and a stream of tasks: what every benchmark produces and every learner reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from evclplus.core.examples import Examples
from evclplus.core.likelihoods import Classification, Likelihood
from evclplus.errors import DataError

Scenario = Literal["task", "domain", "class"]
"""task: a head per task, the task is known at test time. domain: one head, the same classes in
every task. class: one head that grows over all classes seen, no task label at test time."""


def check_name(name: object, what: str) -> None:
    """A name goes into files, so it has to be text that can be written."""
    if not isinstance(name, str) or not name:
        raise DataError(f"the name of {what} is {name!r}; give it a text")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"the name of {what}, {name!r}, cannot be written as UTF-8") from None


@dataclass(frozen=True)
class Task:
    """One step of a stream. Methods train on `train`, tuning looks at `validation`, only
    evaluation touches `test`.

    `classes` are the caller's own labels, one for each output of the task's head; none: they are
    the outputs' numbers. `scenario` says how the stream shares out heads, where there is one.
    """

    name: str
    index: int
    train: Examples
    validation: Examples
    test: Examples
    classes: tuple[int, ...] = ()
    scenario: Scenario | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "a task")
        for part in ("train", "validation", "test"):
            if not isinstance(getattr(self, part), Examples):
                kind = type(getattr(self, part)).__name__
                raise DataError(
                    f"the {part} part of task {self.name!r} is of type {kind}; ec.task(x, y, "
                    "name=..., outputs=...) makes a task of arrays"
                )

    @property
    def head(self) -> int:
        return self.train.head

    @property
    def outputs(self) -> int:
        return self.train.outputs


@dataclass(frozen=True)
class Stream:
    """Tasks in the order they arrive.

    `settings` is everything needed to build the same stream again and goes into the record;
    `notes` are warnings a reader of the results must see, such as a protocol that leaks.
    """

    name: str
    tasks: tuple[Task, ...]
    scenario: Scenario
    settings: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    likelihood: Likelihood = field(default_factory=Classification)
    """What its labels are: classes, or numbers."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise DataError(f"the stream {self.name} has no tasks; give at least one")

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> Task:
        return self.tasks[index]

    def seen(self, task: Task) -> Sequence[Task]:
        """The tasks up to and including `task`."""
        return self.tasks[: task.index + 1]

    @property
    def heads(self) -> tuple[int, ...]:
        """How many outputs each head of a network for this stream needs."""
        widths: dict[int, int] = {}
        for task in self.tasks:
            widths[task.head] = max(widths.get(task.head, 0), task.outputs)
        return tuple(widths[head] for head in sorted(widths))

    @property
    def classes(self) -> tuple[int, ...]:
        """The caller's labels of all tasks, in the order of their arrival."""
        return tuple(dict.fromkeys(class_ for task in self.tasks for class_ in task.classes))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.tasks[0].train.input_shape

    @property
    def input_size(self) -> int:
        return self.tasks[0].train.input_size
