"""From a learner to what is written of it, and back."""

from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from evclplus import checkpoint, networks
from evclplus.core import tree
from evclplus.core.engine import Moments
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import MultiHead
from evclplus.core.likelihoods import Classification, Likelihood
from evclplus.core.network import BayesianNetwork, Predicate, own_points
from evclplus.core.typicality import Typical
from evclplus.errors import DataError, FileError
from evclplus.front_door import tried
from evclplus.learned import Learned, Tasks, outputs_seen
from evclplus.methods import described
from evclplus.methods.base import Method
from evclplus.recognition import Recognise
from evclplus.settings import Training


class State(Protocol):
    """What there is to save of a learner."""

    method: Method
    training: Training
    seed: int
    samples: int
    likelihood: Likelihood
    network: BayesianNetwork
    q: MeanField
    memory: Any
    moments: Moments | None
    learned: Tasks
    recognise: Recognise
    typical: tuple[Typical, ...]


def saved(learner: State) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The whole state: the content of a header, and tensors by name."""
    network, moments = learner.network, learner.moments
    module = network.skeleton
    tensors = {
        "q.mean": learner.q.mean,
        "q.variance": learner.q.variance,
        "start": network.initial(variance=1.0).mean,
        **{f"buffer.{name}": buffer for name, buffer in network.buffers.items()},
    }
    if moments is not None:
        tensors |= {"optimiser.first": moments.first, "optimiser.second": moments.second}
    for index, one in enumerate(learner.typical):
        tensors |= {f"typical.{index}.means": one.means, f"typical.{index}.within": one.covariance}
    kept = checkpoint.as_plain(learner.memory, "memory", tensors)
    made_of = getattr(module, "architecture", None)
    ready = made_of if isinstance(made_of, networks.Architecture) else None
    header = {
        "method": described(learner.method),
        "training": learner.training.model_dump(mode="json"),
        "seed": learner.seed,
        "samples": learner.samples,
        **checkpoint.saved_likelihood(learner.likelihood),
        "architecture": ready and ready.model_dump(mode="json"),
        "network": type(module).__name__,
        "growth": network.growth,
        "layout": asdict(network.layout),
        "modules": checkpoint.modules_of(network),
        "frozen": checkpoint.frozen_of(network),
        "learned": [asdict(task) for task in learner.learned],
        "recognise": learner.recognise,
        "typical": [(one.level, one.deviation) for one in learner.typical],
        "kept": kept,
        "optimiser_steps": 0 if moments is None else moments.steps,
    }
    return header, tensors


def restore(learner: State, header: checkpoint.Header, tensors: dict[str, Tensor]) -> None:
    """Take over all that was learned; network and settings are the saved learner's already."""
    _grow_to(learner, header)
    network = learner.network
    header.check_layout(network.layout)
    header.check_modules(network)
    reader = checkpoint.Reader(
        tensors, network.layout, network.device, learner.method.memory_types, network.dtype
    )
    q = MeanField(reader.tensor("q.mean"), reader.tensor("q.variance"), network.layout)
    start = MeanField(reader.tensor("start"), q.variance, network.layout)
    for one, name in ((q, "q"), (start, "start")):
        reader.check_weights(one, name)
    learner.q, learner.memory = q, reader.value(header.kept, "memory")
    if header.optimiser_steps:
        learner.moments = reader.moments(header.optimiser_steps)
    buffers = {
        name.removeprefix("buffer."): tensor
        for name, tensor in tensors.items()
        if name.startswith("buffer.")
    }
    if buffers.keys() != network.buffers.keys():
        odd = sorted(buffers.keys() ^ network.buffers.keys())[0]
        raise FileError(f"the network does not match the saved learner: buffer {odd}")
    for name, buffer in network.buffers.items():
        if (buffers[name].shape, buffers[name].dtype) != (buffer.shape, buffer.dtype):
            raise FileError(f"the saved buffer {name} does not fit the network's")
    network.restore(start.mean, buffers)
    learner.learned = tuple(Learned(**task.model_dump()) for task in header.learned)
    learner.typical = tuple(
        _typical(reader, index, *pair) for index, pair in enumerate(header.typical)
    )
    _check_kept(learner)


def _typical(reader: checkpoint.Reader, index: int, level: float, deviation: float) -> Typical:
    means, within = (reader.tensor(f"typical.{index}.{name}").cpu() for name in ("means", "within"))
    shapes_fit = means.ndim == 2 and within.shape == (means.shape[1], means.shape[1])
    fit = shapes_fit and means.dtype == within.dtype == torch.float64 and deviation > 0
    if not fit or not (means.isfinite().all() and torch.linalg.cholesky_ex(within).info == 0):
        raise FileError(f"the saved statistics of task {index + 1} are damaged")
    return Typical(means, within, level, deviation)


def known_points(network: nn.Module, method: Method) -> Predicate | None:
    """The point values that need not be passed again, whatever heads come; none: no heads come."""
    module = method.network_of(network)
    if not isinstance(module, MultiHead):
        return None
    own = own_points(module)
    return lambda name: own(name) or not method.has_variance(name)


def _grow_to(learner: State, header: checkpoint.Header) -> None:
    """Give the network the heads that came before it was saved; their weights are in the file.
    A ready-made one is built with them."""
    for head, outputs, features in header.growth:
        network = learner.network
        own = network.linear_head(head)
        if head == network.heads or (own is not None and own.out_features < outputs):
            made_by = getattr(network.skeleton, "new_head", None)
            if made_by is nn.Linear and outputs * features > header.layout.total:
                raise FileError(f"the saved growth of head {head} does not fit the state")
            learner.network = network.grown(head, outputs, features, seed=0)
    learner.network.growth = tuple(header.growth)


def _check_kept(learner: State) -> None:
    """What a file says was learned and kept must be something that this network can answer."""
    network = learner.network
    for task in learner.learned:
        own = network.linear_head(task.head)
        if task.head >= network.heads or (own is not None and task.outputs > own.out_features):
            raise FileError(f"the saved task {task.name!r} has a head that the network has not")
    if len(learner.typical) != (len(learner.learned) if learner.recognise == "features" else 0):
        raise FileError("the saved statistics are not those of the saved tasks")
    if not learner.method.keeps(learner.memory):
        raise FileError(f"the saved memory is none of {learner.method.name}; it is damaged")
    for examples in tree.found(learner.memory, Examples):
        classifies = isinstance(learner.likelihood, Classification)
        if classifies and examples.labels.dtype != torch.int64:
            raise FileError("the saved examples have labels that are no classes")
        if examples.head not in outputs_seen(learner.learned):
            raise FileError(f"the saved examples are of head {examples.head}, never learned")
        if len(examples):
            x = examples.inputs(torch.arange(1))
            try:
                tried(network, learner.q, x, examples.head, "the saved examples", learner.seed)
            except DataError as error:
                raise FileError(str(error)) from None
