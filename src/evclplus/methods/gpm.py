"""GPM: gradient projection memory (Saha, Garg and Roy, ICLR 2021), with point weights.

    minimise  -log p(y|x, theta), with every step of a layer's weight W projected:

    dW <- dW Q,   Q = I - U U^T

The columns of U span what the layer has received in earlier tasks, up to a part of its energy. On
these inputs W x stays what it was, so what the layers above receive does too.

    after a task   U gets the leading directions of sum_x a a^T outside of U, as few as make
                   |U U^T a|^2 at least `energy` times |a|^2, summed over a few hundred examples

It keeps Q, in^2 numbers for a layer of in x out weights however many tasks there are; a head's
come with its task. When Q has nothing left, the layer cannot learn any more.

Departures: the paper's layers have no bias; here it is one more column of W, and a 1 one more
input, so that the projection stays exact. It projects the gradient; we project the step, after the
optimiser, which with plain SGD is the same and with Adam stays exact. Weights outside linear layers
and convolutions stay still after the first task, as the paper's normalisations do.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.batches import Source
from evclplus.core.engine import Here, Step
from evclplus.core.examples import Examples
from evclplus.core.gaussian import Layout, MeanField
from evclplus.core.layer_gradients import at_most, passes, received
from evclplus.core.matrices import matrix_at, names_of, places_of, put_at, with_ones
from evclplus.core.network import BayesianNetwork
from evclplus.core.tree import per_weight
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.space import TRAINING, OneOf, Space

ROUNDING = 1e-12
"""A direction with a smaller part of all that a layer receives is there by rounding."""


@dataclass(frozen=True)
class Subspace:
    """Q of the layer at a path: the projection on inputs that no task has used. `places` says where
    its weight and bias begin in flat vectors and `rows` how many outputs it has, while a task is
    learned."""

    path: str
    free: Tensor
    places: tuple[int, ...] = ()
    rows: int = 0


@dataclass(frozen=True)
class Subspaces:
    """Those of the layers that a task trains, of those that rest, and a mark at each weight outside
    of them, which stays still."""

    layers: tuple[Subspace, ...]
    still: Tensor = per_weight()
    resting: tuple[Subspace, ...] = ()


class GradientProjectionMemory(Method):
    """Point weights whose steps leave alone what layers do with inputs they have seen."""

    name: ClassVar[str] = "gpm"
    colour: ClassVar[str] = "#7B3F00"
    marker: ClassVar[str] = "_"
    memory_type: ClassVar[type] = Subspaces
    space: ClassVar[Space] = TRAINING | {"energy": OneOf((0.8, 0.9, 0.95, 0.97, 0.99))}

    energy: float = Field(
        0.9, gt=0, le=1, description="the part of what a layer receives that is left alone"
    )
    projection_examples: int = Field(300, ge=1, description="examples that it is found with")

    def first_memory(self, q: MeanField) -> Subspaces:
        return Subspaces((), q.mean.new_zeros(q.mean.shape))

    def move(self, step: Step, memory: Subspaces, here: Here) -> Step:
        mean = step.mean * (1 - memory.still)
        for layer in memory.layers:
            change = matrix_at(mean, layer.places, layer.rows, len(layer.free))
            mean = put_at(mean, layer.places, change @ layer.free)
        return Step(mean, step.log_std)

    def begin(self, lesson: Lesson) -> Start:
        memory, layout = lesson.memory, lesson.network.layout
        used = set(lesson.network.names_for(lesson.task.head))
        moving: list[Subspace] = []
        resting: list[Subspace] = []
        for layer in memory.layers:
            moves = used.intersection(names_of(layout, layer.path))
            (moving if moves else resting).append(layer)
        memory = replace(memory, layers=_placed(moving, layout), resting=tuple(resting))
        return Start(lesson.q, memory, lesson.task, (Source((lesson.task,)),))

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Subspaces:
        network, memory, q = lesson.network, start.memory, trained.q.mean
        examples = at_most(start.task, self.projection_examples, lesson.generator("projection"))
        free = {layer.path: layer.free for layer in memory.layers}
        for path, moments in second_moments(network, trained.q, examples).items():
            old = free.get(path, torch.eye(len(moments), dtype=q.dtype, device=q.device))
            free[path] = without_leading(moments, old, self.energy)
        still = memory.still.clone()
        covered = {name for path in free for name in names_of(network.layout, path)}
        for name, part in network.layout.named(still).items():
            if name in network.names_for(start.task.head) and name not in covered:
                part.fill_(1.0)
        layers = (*(Subspace(path, one) for path, one in free.items()), *memory.resting)
        return Subspaces(tuple(sorted(layers, key=lambda layer: layer.path)), still)


def second_moments(network: BayesianNetwork, q: MeanField, examples: Examples) -> dict[str, Tensor]:
    """The sum of a a^T over what each layer receives, with a 1 for the bias, by its path."""
    found: dict[str, Tensor] = {}
    for x, _ in passes(examples, q.mean.device):
        for path, a in received(network, q, x, examples.head).items():
            rows = with_ones(a, network.layout, path).flatten(0, 2).double()
            found[path] = found.get(path, torch.zeros((), dtype=rows.dtype)) + rows.T @ rows
    return found


def without_leading(moments: Tensor, free: Tensor, energy: float) -> Tensor:
    """Q without the fewest leading directions that leave at most a part 1 - energy of the moments
    in it."""
    q = free.double()
    values, vectors = torch.linalg.eigh(q @ moments @ q)  # in ascending order
    trace = moments.trace()
    stays = (values.clamp_min(0).cumsum(0) <= (1 - energy) * trace) | (values <= ROUNDING * trace)
    leading = vectors[:, ~stays]
    left = q - leading @ leading.T
    symmetric: Tensor = (left + left.T) / 2
    return symmetric.to(free.dtype)


def _placed(layers: list[Subspace], layout: Layout) -> tuple[Subspace, ...]:
    """The same where their weights are now."""
    rows = dict(zip(layout.names, layout.shapes, strict=True))
    return tuple(
        Subspace(
            layer.path,
            layer.free,
            places_of(layout, layer.path),
            rows[names_of(layout, layer.path)[0]][0],
        )
        for layer in layers
    )
