"""The conformance suite for methods, also those that people write themselves.

    from evclplus.testing import check_method
    check_method(MyMethod())

Each check raises an AssertionError that says what the method does not do.
"""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

from evclplus.callbacks import Callback, LazyTerms
from evclplus.core import tree
from evclplus.core.batches import steps_of_epoch
from evclplus.core.compiled import CompiledLikelihood, CompiledUpdate
from evclplus.core.engine import Problem, State, StepGradient, likelihood_gradient, loss, update
from evclplus.core.gaussian import MeanField
from evclplus.core.graphs import Graphs
from evclplus.core.noise import Noise, new_seeds
from evclplus.errors import DataError
from evclplus.learner import Learner
from evclplus.methods import KINDS
from evclplus.methods.base import Method
from evclplus.networks import mlp
from evclplus.progress import Checkpoints
from evclplus.streams.sequence import tasks
from evclplus.streams.task import Stream, Task

INPUTS = 6


def check_method(method: Method, compiled: bool = False) -> None:
    """Learn, predict, repeat, save, load and grow with a method, and look at its pure functions.
    With `compiled`, its compiled steps are compared with the definition too: it takes a while."""
    checks: list[Callable[[Method], None]] = [
        check_learns,
        check_is_deterministic,
        check_saves_and_loads,
        check_leaves_the_module_alone,
        check_step_functions_are_pure,
        check_update_follows_the_loss,
        check_goes_on_after_a_stop,
    ]
    if compiled:
        checks.append(check_compiled)
    for check in checks:
        check(method)


def example_stream(scenario: str = "task", count: int = 60) -> Stream:
    """Three tasks of two classes: clouds of points on opposite sides of a line that turns."""
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for task in range(3):
        direction = torch.randn(INPUTS, generator=generator)
        y = torch.arange(count) % 2
        noise = 0.3 * torch.randn(count, INPUTS, generator=generator)
        pairs.append(
            ((2.0 * y[:, None] - 1) * direction + noise, y + 2 * task * (scenario == "class"))
        )
    return tasks(pairs, scenario=scenario)  # type: ignore[arg-type]


def example_learner(method: Method, **settings: Any) -> Learner:
    rate = 1e-2 if method.optimisers[0] == "adam" else None
    given = {"epochs": 12, "batch_size": 20, "learning_rate": rate, "compile": "off", **settings}
    return Learner(mlp(INPUTS, [8]), method, **given)


def check_learns(method: Method) -> None:
    """A task is known better than by chance after it was learned, where all tasks have two classes;
    with a head that grows, there are probabilities for all classes seen. A method that needs a head
    per task says so."""
    for scenario in ("task", "domain", "class"):
        stream = example_stream(scenario)
        learner = example_learner(method)
        if method.needs_head_per_task and scenario != "task":
            check_refuses(learner.learn(stream[0]), stream[1])
            continue
        for task in stream:
            learner.learn(task)
        accuracy = learner.evaluate(stream[2]).average_accuracy
        assert accuracy > 0.6 or scenario == "class", (
            f"{method.name} knows {accuracy:.0%} of the task it has just learned ({scenario})"
        )
        x = stream[2].test.inputs()
        probabilities = learner.predict_proba(x, task=2)
        assert probabilities.shape == (len(x), stream[2].outputs)
        torch.testing.assert_close(probabilities.sum(1), torch.ones(len(x)))


def check_refuses(learner: Learner, task: Task) -> None:
    """One line says that this task cannot be learned."""
    said = ""
    try:
        learner.learn(task)
    except DataError as error:
        said = str(error)
    assert said, f"{learner.method.name} takes {task.name!r}, which has the head of another task"
    assert "\n" not in said


def check_is_deterministic(method: Method) -> None:
    """The same seed gives the same bits, whatever torch's global state is."""
    stream = example_stream()
    found = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        learner = example_learner(method)
        for task in stream:
            learner.learn(task)
        found.append(learner.predict_proba(stream[0].test.inputs(), task=0))
    assert torch.equal(*found), f"{method.name} gives other answers the second time"


def check_saves_and_loads(method: Method) -> None:
    """Saved after two tasks and loaded, it learns a third, with a new head, as if never stopped."""
    stream = example_stream()
    learner = example_learner(method)
    learner.learn(stream[0]).learn(stream[1])
    own = None if type(method) in KINDS.values() else method
    with tempfile.TemporaryDirectory() as folder:
        path = learner.save(Path(folder, "model"))
        loaded = Learner.load(path, method=own)
    for one in (learner, loaded):
        one.learn(stream[2])
    for name in ("mean", "variance"):
        first, second = getattr(learner.q, name), getattr(loaded.q, name)
        assert torch.equal(first, second), f"the {name} of {method.name} is another after loading"
    x = stream[0].test.inputs()
    assert torch.equal(learner.predict_proba(x, task=0), loaded.predict_proba(x, task=0))


class _StopAfter(Callback):
    """Raises after so many steps, wherever training is then."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def advance(self, step: int, terms: LazyTerms) -> None:
        self.left -= 1
        if self.left == 0:
            raise _StoppedHereError


class _StoppedHereError(Exception):
    pass


def check_goes_on_after_a_stop(method: Method, **settings: Any) -> None:
    """Stopped inside a task, again and again, it goes on from its checkpoint and ends with the same
    bits in all that it keeps."""
    stream = example_stream()
    undisturbed = example_learner(method, **settings)
    for task in stream:
        undisturbed.learn(task)
    with tempfile.TemporaryDirectory() as folder:
        for steps in (5, 20, 11, 10**9):
            learner = example_learner(method, callback=_StopAfter(steps), **settings)
            with suppress(_StoppedHereError):
                for task in stream:
                    learner.learn(task, checkpoint=Checkpoints(Path(folder), every=0.0))
    found = [_saved(one) for one in (undisturbed, learner)]
    assert found[0].keys() == found[1].keys(), f"{method.name} keeps other tensors after stops"
    for name, first in found[0].items():
        same = torch.equal(first, found[1][name])
        assert same, f"{name} of {method.name} is another after stops inside tasks"


def _saved(learner: Learner) -> dict[str, Tensor]:
    """All tensors of a learner as they are on disk: in memory, examples may be rows of a larger
    store."""
    with tempfile.TemporaryDirectory() as folder:
        (state,) = learner.save(Path(folder, "learner")).glob("state-*.safetensors")
        return load_tensors(state.read_bytes())


def check_leaves_the_module_alone(method: Method) -> None:
    network = mlp(INPUTS, [8])
    before = {name: value.clone() for name, value in network.state_dict().items()}
    stream = example_stream()
    Learner(network, method, epochs=2, batch_size=20, compile="off").learn(stream[0])
    after = network.state_dict()
    assert before.keys() == after.keys(), f"{method.name} changed the user's module"
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def _second_task(method: Method) -> tuple[Problem, State, list[Any]]:
    """A problem, the state of its training and the batches of a step, in the middle of things."""
    stream = example_stream()
    learner = example_learner(method).learn(stream[0])
    network, q, memory = learner._with_head(stream[1].train)
    network = network.copy()
    trainer = learner._trainer("second task")
    lesson = learner._lesson(network, q, memory, stream[1], trainer)
    start = method.begin(lesson)
    sources = tuple(source.ready(torch.device("cpu")) for source in start.sources)
    examples = torch.tensor(float(max(1, sum(map(len, sources[:1])))))
    problem = Problem(
        network,
        method,
        start.memory,
        examples,
        at_mean=method.is_point,
        optimiser=method.optimisers[0],
    )
    apart = any(source.apart for source in sources)
    state = State(_pushed(start.q), method.trace(start.q), apart=apart)
    steps = steps_of_epoch(sources, 20, torch.Generator().manual_seed(0)) if sources else iter(())
    return problem, state, next(steps, [])


def _pushed(q: MeanField) -> MeanField:
    """Away from where training starts, where penalties are zero."""
    generator = torch.Generator().manual_seed(1)
    push = 0.05 * torch.randn(q.mean.shape, generator=generator)
    stretch = (0.1 * torch.randn(q.variance.shape, generator=generator)).exp()
    return replace(q, mean=q.mean + push, variance=q.variance * stretch)


def check_step_functions_are_pure(method: Method) -> None:
    """Asked twice they say the same, and change nothing that they are given."""
    problem, state, batches = _second_task(method)
    kept = [value.clone() for _, value in tree.tensors((problem.memory, state.vectors))]
    q = state.posterior()
    for batch in batches:
        both = [
            loss(
                method,
                q,
                problem.memory,
                batch,
                problem.network,
                problem.examples,
                None if problem.at_mean else Noise(torch.arange(4, dtype=torch.int32)),
            )
            for _ in range(2)
        ]
        assert both[0].keys() == both[1].keys()
        for name, term in both[0].items():
            assert term.ndim == 0, f"the term {name} of {method.name} is not one number"
            assert torch.equal(term, both[1][name]), f"{name} is another the second time"
    after = [value for _, value in tree.tensors((problem.memory, state.vectors))]
    assert all(map(torch.equal, kept, after)), f"{method.name} changed what a step was given"
    memory = [value.clone() for _, value in tree.tensors(problem.memory)]
    update(problem, state.vectors, torch.tensor([0.01, 0.01, 1.0]), state.layout)
    unchanged = map(torch.equal, memory, (value for _, value in tree.tensors(problem.memory)))
    assert all(unchanged), f"{method.name} changed its memory in a step; `end` is the place for it"


def check_update_follows_the_loss(method: Method) -> None:
    """The engine's gradient is that of the loss: likelihood + regulariser, by autograd."""
    problem, state, batches = _second_task(method)
    if not batches:
        return
    seeds = new_seeds(torch.Generator().manual_seed(2), len(batches))
    q = state.posterior().clone()
    leaves = MeanField(q.mean.requires_grad_(), q.variance.requires_grad_(), q.layout)
    total = torch.zeros(())
    for batch, seed in zip(batches, seeds, strict=True):
        if batch.apart:
            continue
        noise = None if problem.at_mean else Noise(seed)
        weights = problem.network.weights(leaves, noise)
        terms = method.likelihood(weights, problem.memory, batch, problem.network)
        total = total + batch.share * torch.stack(list(terms.values())).sum()
    expected = torch.autograd.grad(
        total, (leaves.mean, leaves.variance), allow_unused=True, materialize_grads=True
    )
    StepGradient(problem, state, likelihood_gradient)(batches, seeds)
    found = state.vectors.gradient
    torch.testing.assert_close(found.mean, expected[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.variance, expected[1], rtol=1e-4, atol=1e-6)


def check_compiled(method: Method) -> None:
    """A compiled step leaves what the definition leaves."""
    results: list[list[Tensor]] = []
    for is_compiled in (False, True):
        problem, state, batches = _second_task(method)
        if not batches:
            return
        graphs = Graphs()
        likelihood = CompiledLikelihood(problem, graphs) if is_compiled else likelihood_gradient
        move = CompiledUpdate(problem, graphs) if is_compiled else update
        gradient = StepGradient(problem, state, likelihood)
        for step in range(1, 4):
            seeds = new_seeds(torch.Generator().manual_seed(step), len(batches))
            gradient(batches, seeds)
            move(problem, state.vectors, torch.tensor([0.01, 0.01, 1.0]), state.layout)
        results.append([value for _, value in tree.tensors(state.vectors)])
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-5)
