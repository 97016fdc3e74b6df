"""HAT: hard attention to the task (Serra, Suris, Miron and Karatzoglou, ICML 2018), point weights.

    minimise  -log p(y|x, theta, a_t) + c sum_l,i a_l,i (1 - M_l,i) / sum_l,i (1 - M_l,i)

    a_t = sigmoid(s e_t)    gates of task t, one for each unit; see `core/gates.py`
    s                       rises from 1 / s_max to s_max within each epoch
    M                       the largest gate that any earlier task has for a unit
    a step of w_ij          times 1 - min(M_i, M_j), a weight from unit j to unit i;
                            of a bias times 1 - M_i, of weights that read the data likewise
    e                       stays within -6 and 6

A task may use any unit, pays for those that no earlier one uses, and cannot change what earlier
ones do. It keeps M and each task's e. It needs a head per task.

The authors multiply gradients before plain SGD; here steps are multiplied, which is the same for it
and right for other optimisers too. They also lower the learning rate where the loss stands still,
drop out units and clip gradients, which is left to the training's settings.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from evclplus.core.batches import Batch
from evclplus.core.engine import Here, Step, Terms
from evclplus.core.gates import Gated, gate
from evclplus.core.heads import MultiHead
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.core.tree import per_weight
from evclplus.errors import ConversionError
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.space import PLAIN_STEPS, Log, Space
from evclplus.settings import Optimiser

LARGEST_EMBEDDING = 6.0
"""Beyond it a gate's gradient is too small to come back."""


@dataclass(frozen=True)
class Freedom:
    """How much of a step each weight makes, and which weights are gates' embeddings (ones)."""

    part: Tensor = per_weight()
    embedding: Tensor = per_weight()


@dataclass(frozen=True)
class Masks:
    """M, layer by layer; nothing before the first task. While a task is learned, what is free."""

    largest: tuple[Tensor, ...] = ()
    free: Freedom | None = None


class HAT(Method):
    """Every task opens gates to a few units of its own; their weights are then held."""

    name: ClassVar[str] = "hat"
    colour: ClassVar[str] = "#228833"
    marker: ClassVar[str] = "^"
    memory_type: ClassVar[type] = Masks
    space: ClassVar[Space] = PLAIN_STEPS | {"c": Log(0.01, 2.5), "s_max": Log(25.0, 800.0)}

    c: float = Field(0.75, ge=0, description="what units cost that no earlier task uses")
    s_max: float = Field(400.0, gt=1, description="how hard gates become")

    @property
    def needs_head_per_task(self) -> bool:
        return True

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        return ("sgd", "adam")

    def network_of(self, module: nn.Module) -> nn.Module:
        if isinstance(module, MultiHead) and not len(module.heads):
            return Gated(module, self.s_max)
        raise ConversionError(
            "a network with gates gets its heads with its tasks; take networks.mlp without heads, "
            "or MultiHead(body)"
        )

    def likelihood(
        self, weights: Weights, memory: Masks, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        s = network.buffers["hardness"].new_tensor(annealed(batch.done, self.s_max))
        output = network(weights.at({"hardness": s}), batch.inputs, batch.head, training=True)
        gates = [gate(e, s, self.s_max) for e in embeddings(weights, network, batch.head)]
        return {"nll": batch.nll(output), "units": self.c * share_of_new(gates, memory.largest)}

    def move(self, step: Step, memory: Masks, here: Here) -> Step:
        if memory.free is None:  # no task is being learned
            return step
        moved, mean = step.mean * memory.free.part, here.q.mean
        bounded = (mean + moved).clamp(-LARGEST_EMBEDDING, LARGEST_EMBEDDING) - mean
        return replace(step, mean=torch.where(memory.free.embedding > 0, bounded, moved))

    def begin(self, lesson: Lesson) -> Start:
        start = super().begin(lesson)
        free = freedom(lesson.network, lesson.memory.largest, lesson.task.head)
        return replace(start, memory=replace(lesson.memory, free=free))

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Masks:
        weights = lesson.network.weights(trained.q)
        found = embeddings(weights, lesson.network, lesson.task.head)
        new = [(self.s_max * e).sigmoid() for e in found]
        old = lesson.memory.largest or [torch.zeros_like(one) for one in new]
        return Masks(tuple(map(torch.maximum, old, new)))


def annealed(done: float, s_max: float) -> float:
    """s = 1 / s_max + (s_max - 1 / s_max) done, equation 3, when a part `done` of an epoch's
    batches is behind."""
    return 1 / s_max + (s_max - 1 / s_max) * done


def embeddings(weights: Weights, network: BayesianNetwork, head: int) -> list[Tensor]:
    """The e of a head, layer by layer."""
    module = network.skeleton
    assert isinstance(module, Gated)
    return [weights.means[module.embedding(head, layer)] for layer in range(len(module.widths))]


def share_of_new(gates: list[Tensor], largest: tuple[Tensor, ...]) -> Tensor:
    """sum a (1 - M) / sum (1 - M), equation 6: how many of the units that are left are used."""
    left = [1 - one for one in largest] or [torch.ones_like(one) for one in gates]
    used = torch.stack([(a * rest).sum() for a, rest in zip(gates, left, strict=True)]).sum()
    return used / torch.stack([rest.sum() for rest in left]).sum().clamp_min(1e-6)


def freedom(network: BayesianNetwork, largest: tuple[Tensor, ...], head: int) -> Freedom:
    """1 - min(M_i, M_j) for the body's weights, one for what the head owns, zero for all others."""
    layout, module = network.layout, network.skeleton
    assert isinstance(module, Gated)
    own = {module.embedding(head, layer) for layer in range(len(module.widths))}
    parts, marks, layer = [], [], -1
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        owner = network.owner(name)
        part = torch.full(shape, float(owner in (None, head)))
        layer += owner is None and len(shape) == 2  # a bias follows its weight
        if owner is None and largest:
            unit = largest[layer].cpu()
            part = 1 - (unit if len(shape) == 1 else _both(unit, largest, layer).expand(shape))
        parts.append(part.flatten())
        marks.append(torch.full((part.numel(),), float(name in own)))
    device = network.device
    return Freedom(torch.cat(parts).to(device), torch.cat(marks).to(device))


def _both(unit: Tensor, largest: tuple[Tensor, ...], layer: int) -> Tensor:
    """min(M_i, M_j); the data, which the first layer reads, are no units."""
    if layer == 0:
        return unit[:, None]
    return torch.minimum(unit[:, None], largest[layer - 1].cpu()[None])
