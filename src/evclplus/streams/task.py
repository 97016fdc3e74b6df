"""A task and a stream of tasks: what every benchmark produces and every learner reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from evclplus.core.examples import Examples
from evclplus.errors import DataError

Scenario = Literal["task", "domain", "class"]
"""task: a head per task, the task is known at test time. domain: one head, the same classes in
every task. class: one head that grows over all classes seen, no task label at test time."""


@dataclass(frozen=True)
class Task:
    """One step of a stream. Methods train on `train`, tuning looks at `validation`, only
    evaluation touches `test`."""

    name: str
    index: int
    train: Examples
    validation: Examples
    test: Examples

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
    def input_shape(self) -> tuple[int, ...]:
        return self.tasks[0].train.input_shape

    @property
    def input_size(self) -> int:
        return self.tasks[0].train.input_size
