"""Sets of classes with a promise (split conformal prediction)."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from evclplus.core.uncertainty import conformal_sets, covered
from evclplus.errors import StateError
from evclplus.learned import Asked, Tasks
from evclplus.streams.task import Task


class Predicts(Protocol):
    """What is asked of a learner."""

    learned: Tasks

    def predict_proba(self, x: Any, task: Asked = None, samples: int | None = None) -> Tensor: ...

    def classes(self, task: Asked = None) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Conformal:
    """Sets of classes for inputs of a task, see `Learner.conformal`.

    A class is in the set if its probability is at least the threshold, which was found on
    `examples` calibration examples. The set of an input may be empty: none of the classes is as
    probable as those of the calibration data were.
    """

    learner: Predicts
    task: Task
    tasks_learned: int
    coverage: float
    examples: int
    threshold: float

    def sets(self, x: Any) -> Tensor:
        """Which classes, the columns of `learner.classes(task)`, are in each input's set."""
        if len(self.learner.learned) != self.tasks_learned:
            raise StateError(
                f"these sets were calibrated after {self.tasks_learned} tasks and "
                f"{len(self.learner.learned)} are learned now; call learner.conformal again"
            )
        return conformal_sets(self.learner.predict_proba(x, self.task), self.threshold)

    def labels(self, x: Any) -> list[tuple[int, ...]]:
        """The caller's own labels in each input's set."""
        classes = self.learner.classes(self.task)
        return [
            tuple(label for label, inside in zip(classes, row, strict=True) if inside)
            for row in self.sets(x).tolist()
        ]

    def covered(self) -> float:
        """The share of the task's test inputs whose label is in their set."""
        return covered(self.sets(self.task.test.inputs()), self.task.test.labels)
