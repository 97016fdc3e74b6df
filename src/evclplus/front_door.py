"""Can this learner learn this task, can this network take these inputs? One clear line each when
not, before anything is changed."""

from contextlib import nullcontext
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from evclplus.checks import as_input, check_finite, check_labels, check_scaled
from evclplus.core.compiled import draws_nothing
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.likelihoods import Classification, Likelihood, OwnCriterion
from evclplus.core.network import BayesianNetwork
from evclplus.errors import DataError, SettingsError, StateError
from evclplus.learned import Tasks, outputs_seen
from evclplus.methods.base import Method
from evclplus.seeding import own_random_state
from evclplus.streams.task import Task

# A task to be learned.


def check_task(
    task: Task, learned: Tasks, network: BayesianNetwork, method: Method, likelihood: Likelihood
) -> None:
    """Refuse a task that cannot be learned after these."""
    if not isinstance(task, Task):
        raise DataError(
            f"learn takes one task, not a {type(task).__name__}: `for task in stream: "
            "learner.learn(task)`, or ec.task(x, y, name=..., outputs=...) for arrays"
        )
    if any(task.name == known.name for known in learned):
        raise StateError(
            f"task {task.name!r} was learned already; a learner learns each task once, "
            "so give new data a new name"
        )
    examples = task.train
    if len(examples) == 0:
        raise DataError(f"task {task.name!r} has no training examples")
    check_finite(examples, task.name)
    _check_head(network, examples, task.name)
    if method.needs_head_per_task and task.head in outputs_seen(learned):
        raise DataError(
            f"{method.name} needs a head for every task, and task {task.name!r} has head "
            f"{task.head}, which an earlier one has; take scenario='task', or another method"
        )
    _check_classes(task, learned)
    if isinstance(likelihood, Classification):
        for side, part in (("training", task.train), ("test", task.test)):
            check_labels(part, f"{side} data of task {task.name!r}")


def _check_head(network: BayesianNetwork, examples: Examples, name: str) -> None:
    heads, head = network.heads, examples.head
    if network.has_heads and head > heads:
        raise DataError(
            f"task {name!r} wants head {head} but the network has {heads}, and heads come one "
            "after the other; learn the tasks in their order"
        )
    if not network.has_heads and head > 0:
        raise DataError(
            f"task {name!r} wants head {head} but the network has one; wrap it: "
            "MultiHead(body), and every task gets a head"
        )


def _check_classes(task: Task, learned: Tasks) -> None:
    """The outputs of a head must not come to mean other classes: the earlier ones would be
    lost. In a domain-incremental stream they are meant to."""
    for known in learned:
        taken = known.head == task.head and (
            task.scenario == "task"
            or (task.scenario == "class" and known.classes != task.classes[: known.outputs])
        )
        if taken:
            raise StateError(
                f"task {task.name!r} wants head {task.head} for the classes {task.classes}, "
                f"but it answers for {known.classes} of task {known.name!r} already; put the "
                "tasks of several streams into one: ec.tasks([...])"
            )


# A network that is to learn it.


def check_network(
    network: BayesianNetwork,
    q: MeanField,
    task: Task,
    likelihood: Likelihood,
    batch_size: int,
    seed: int,
) -> None:
    """Ask the network, which has the task's head by now, for its outputs."""
    examples = task.train
    x = examples.inputs(torch.arange(min(2, len(examples))))
    output = tried(network, q, x, examples.head, f"the inputs of task {task.name!r}", seed)
    if examples.outputs > output.shape[1]:
        raise DataError(
            f"task {task.name!r} uses {examples.outputs} outputs but head {examples.head} of "
            f"the network has {output.shape[1]}; give the network as many, or a MultiHead"
        )
    _check_criterion(likelihood, output[:, : examples.outputs], examples)
    _check_batches(network, q, task, batch_size)


def _check_criterion(likelihood: Likelihood, output: Tensor, examples: Examples) -> None:
    """A criterion of one's own has to give one number for a batch."""
    if not isinstance(likelihood, OwnCriterion):
        return
    try:
        found: Any = likelihood(output, examples.labels[: len(output)].to(output.device))
    except Exception as error:  # whatever it does
        reason = f"{type(error).__name__}: {error}"
        raise SettingsError(f"the criterion fails: {reason}") from None
    if not isinstance(found, Tensor) or found.ndim != 0:
        raise SettingsError(
            f"the criterion gives {found!r:.60}; expected the mean loss, a tensor of one number"
        )


def _check_batches(network: BayesianNetwork, q: MeanField, task: Task, batch_size: int) -> None:
    """What normalises by a batch's statistics cannot do so with a batch of one."""
    count = len(task.train)
    smallest = count // ceil(count / batch_size)
    batch_norm = nn.modules.batchnorm._BatchNorm
    if smallest > 1 or not any(isinstance(one, batch_norm) for one in network.modules):
        return
    x = task.train.inputs(torch.arange(smallest)).to(network.device)
    try:
        with torch.no_grad():
            network.copy()(q, x, task.head, training=True)
    except ValueError:
        raise DataError(
            f"task {task.name!r} has {count} examples in batches of {batch_size}, so a batch may "
            "have one example, which batch normalisation cannot use; set batch_size higher"
        ) from None


# Inputs to be answered.


def checked_inputs(
    x: Any, learned: Tasks, network: BayesianNetwork, q: MeanField, head: int, seed: int
) -> Tensor:
    """Network input from what a caller gives, tried out on its first row."""
    values = as_input(x, q.mean.dtype)
    largest = [one.largest for one in learned]
    if None not in largest:
        check_scaled(values, max(one for one in largest if one is not None))
    tried(network, q, values[:1], head, "x", seed)
    return values


@torch.no_grad()
def tried(
    network: BayesianNetwork, q: MeanField, x: Tensor, head: int, what: str, seed: int
) -> Tensor:
    """The mean network's output, or a clear line on why there is none."""
    own = own_random_state(seed, "try", device=network.device)
    try:
        with nullcontext() if draws_nothing(network) else own:
            output = network(q, x.to(network.device), head)
    except Exception as error:  # whatever a module of one's own does with wrong inputs
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"the network cannot take {what}, {x.dtype} of shape {tuple(x.shape[1:])}: {reason}"
        ) from None
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(x):
        raise DataError(
            f"the network's output for {len(x)} inputs has shape {shape}; "
            "expected (inputs, outputs)"
        )
    return output
