"""The conformance suite catches what it is for, and the documented method passes it."""

import importlib.util
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import PrivateAttr
from torch import Tensor

import evclplus as ec
from evclplus.core.engine import Here, Step, Terms
from evclplus.methods.base import Lesson, Start, Trained
from evclplus.testing import check_compiled, check_method, example_learner, example_stream

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "add_a_method.py"


class DoesNotLearn(ec.Method):
    name: ClassVar[str] = "does-not-learn"

    def begin(self, lesson: Lesson) -> Start:
        return Start(lesson.q, lesson.memory, lesson.task, ())


class GlobalRandomness(ec.Method):
    name: ClassVar[str] = "global-randomness"

    def begin(self, lesson: Lesson) -> Start:
        start = super().begin(lesson)
        mean = start.q.mean + 0.01 * torch.randn(start.q.mean.shape)
        return replace(start, q=replace(start.q, mean=mean))


class KeepsInItself(ec.Method):
    """Holds the size of the weights, which it keeps in itself and not in its memory."""

    name: ClassVar[str] = "keeps-in-itself"
    _last: float = PrivateAttr(0.0)

    def begin(self, lesson: Lesson) -> Start:
        if lesson.position == 0:
            self._last = 0.0
        return super().begin(lesson)

    def regulariser(self, q: ec.MeanField, memory: Any, examples: Tensor) -> Terms:
        return {"penalty": (q.mean.norm() - self._last).square()}

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Any:
        self._last = trained.q.mean.norm().item()
        return start.memory


@dataclass(frozen=True)
class Counted:
    count: Tensor


class Counting(ec.Method):
    name: ClassVar[str] = "counting"
    memory_type: ClassVar[type] = Counted

    def first_memory(self, q: ec.MeanField) -> Counted:
        return Counted(torch.zeros(()))


class CountsInItsRegulariser(Counting):
    def regulariser(self, q: ec.MeanField, memory: Counted, examples: Tensor) -> Terms:
        memory.count.add_(1)
        return {"penalty": 1e-3 * q.mean.square().sum()}


class AnswersByTheCount(Counting):
    def regulariser(self, q: ec.MeanField, memory: Counted, examples: Tensor) -> Terms:
        memory.count.add_(1)
        return {"penalty": 1e-3 * memory.count * q.mean.square().sum()}


class CountsInItsMove(Counting):
    def move(self, step: Step, memory: Counted, here: Here) -> Step:
        memory.count.add_(1)
        return step


class ManyNumbers(ec.Method):
    name: ClassVar[str] = "many-numbers"

    def regulariser(self, q: ec.MeanField, memory: Any, examples: Tensor) -> Terms:
        return {"penalty": 1e-3 * q.mean.square().sum(0, keepdim=True)}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (DoesNotLearn(), "does-not-learn knows .* of the task it has just learned"),
        (GlobalRandomness(), "global-randomness gives other answers the second time"),
        (KeepsInItself(), "the mean of keeps-in-itself is another after loading"),
        (CountsInItsRegulariser(), "counting changed what a step was given"),
        (AnswersByTheCount(), "penalty is another the second time"),
        (CountsInItsMove(), "counting changed its memory in a step"),
        (ManyNumbers(), "the term penalty of many-numbers is not one number"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ec.Method) else "",
)
def test_a_broken_method_is_caught(method: ec.Method, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_method(method)


@dataclass(frozen=True)
class Listed:
    names: list[str]


class KeepsAList(ec.Method):
    name: ClassVar[str] = "keeps-a-list"
    memory_type: ClassVar[type] = Listed

    def first_memory(self, q: ec.MeanField) -> Listed:
        return Listed([])


def test_a_memory_that_cannot_be_saved_says_so() -> None:
    with pytest.raises(TypeError, match=r"a memory may not hold a list \(memory.names\)"):
        check_method(KeepsAList())


# The documented method


def example() -> Any:
    spec = importlib.util.spec_from_file_location("add_a_method", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_documented_method_conforms_and_holds_weights() -> None:
    kind = example().OnlineEWC
    check_method(kind())

    def drift(lam: float) -> float:
        stream = example_stream()
        learner = example_learner(kind(lam=lam)).learn(stream[0])
        before = learner.network.layout.named(learner.q.mean)["body.1.weight"]
        learner.learn(stream[1])
        after = learner.network.layout.named(learner.q.mean)["body.1.weight"]
        return (after - before).abs().max().item()

    assert drift(1e6) < 0.3 * drift(0.0)


@pytest.mark.slow
def test_the_documented_method_compiles() -> None:
    check_compiled(example().OnlineEWC())


def test_the_page_shows_the_example_and_nothing_that_is_not_there() -> None:
    page = (ROOT / "docs" / "add-a-method.md").read_text()
    assert f"```python\n{EXAMPLE.read_text()}```" in page
    for target in re.findall(r"\]\((\.\.[^)]*)\)", page):
        assert (ROOT / "docs" / target).resolve().exists(), target
    # The first column of its tables: functions and properties of a method, all of them.
    named = set(re.findall(r"^\| `(\w+)", page, flags=re.MULTILINE))
    assert all(hasattr(ec.Method, name) for name in named)
    verbs = ("begin", "end", "predictor", "likelihood", "regulariser", "move", "trace", "follow")
    assert named >= {*verbs, "initial", "first_memory", "is_point", "averages_samples"}
