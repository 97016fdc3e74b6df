"""S-FSVI: sequential function-space variational inference (Rudner et al., ICML 2022).

    minimise  E_q[-log p(y|x, theta)]
              + sum_h mean over context points x of KL( N(m_h(x), v_h(x)) || N(m_h-(x), v_h-(x)) )

    m = f(x; mu),   v = diag J s J^T        of the network linearised in its weights, see
                                            core/linearised.py; a minus: at the last posterior

h are the heads of earlier tasks, N(m-, v-) what they answered before the task came, computed once.
A head that is new has N(0, v_0) there. Since (m - m-)^2 is divided by v-, an answer is held as
firmly as it was sure; the function-space term of `function_space.py` has lambda_f in the place
of 1 / v-, and says nothing of the variances.

Context points are `stored_points` stored inputs of each earlier task, or without any of them inputs
of the new task, for the heads of the earlier ones; that needs a head per task, since a head that
goes on would be kept from learning. A step draws `context_size` of them, as many for each head.
There is no KL between weights. It keeps the points.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.batches import Batch, Source
from evclplus.core.coresets import random_subset
from evclplus.core.engine import Terms
from evclplus.core.examples import Examples, rows_at_once
from evclplus.core.gaussian import MeanField
from evclplus.core.linearised import linearised
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.errors import DataError
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.space import TRAINING, Log, Space


@dataclass(frozen=True)
class Context:
    """The stored context points, task by task."""

    stored: tuple[Examples, ...] = ()


class FunctionSpaceVI(Method):
    """Gaussian weights whose answers on context points are held as firmly as they were sure."""

    name: ClassVar[str] = "s-fsvi"
    colour: ClassVar[str] = "#7744AA"
    marker: ClassVar[str] = "X"
    memory_type: ClassVar[type] = Context
    space: ClassVar[Space] = TRAINING | {
        "initial_variance": Log(1e-6, 1e-2),
        "function_variance": Log(1e-3, 1e3),
    }

    initial_variance: float = Field(1e-4, gt=0, description="variance of every weight at first")
    stored_points: int = Field(
        40, ge=0, description="context points stored of each task; 0: inputs of the new task"
    )
    context_size: int = Field(40, ge=1, description="context points in each step")
    function_variance: float = Field(
        100.0, gt=0, description="v_0, the prior variance of what a new head answers"
    )

    def likelihood(
        self, weights: Weights, memory: Context, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        if batch.answers is None:
            return super().likelihood(weights, memory, batch, network)
        mean, variance = linearised(
            network, weights, batch.inputs, batch.head, batch.outputs, training=True
        )
        return {"function": function_kl(mean, variance, *batch.answers.chunk(2, 1))}

    @property
    def is_point(self) -> bool:
        return False

    @property
    def averages_samples(self) -> bool:
        return True

    def initial(self, network: BayesianNetwork) -> MeanField:
        return network.initial(self.initial_variance)

    def begin(self, lesson: Lesson) -> Start:
        heads: dict[int, list[Examples]] = {}
        for one in self._context(lesson):
            heads.setdefault(one.head, []).append(one)
        each = max(1, self.context_size // max(1, len(heads)))
        context = (Source(tuple(some), each, weight=1.0) for some in heads.values())
        sources = (Source((lesson.task,), weight=1.0), *context)
        return Start(lesson.q, lesson.memory, lesson.task, sources)

    def _context(self, lesson: Lesson) -> tuple[Examples, ...]:
        """The points with what is said of them before the task is learned."""
        task, seen = lesson.task, lesson.seen
        goes_on = task.head in seen
        if goes_on and self.stored_points == 0:
            raise DataError(
                f"method {self.name} without stored points holds earlier heads, and this task goes "
                f"on with head {task.head}: give each task a head of its own, or set stored_points"
            )
        if self.stored_points:
            chosen = tuple(replace(one, outputs=seen[one.head]) for one in lesson.memory.stored)
        else:
            chosen = tuple(replace(task, head=head, outputs=seen[head]) for head in lesson.earlier)
        held = tuple(_with_moments(one, lesson) for one in chosen)
        return held if goes_on else (*held, self._new(task))

    def _new(self, task: Examples) -> Examples:
        """Points of a new head, which are held to the first prior."""
        zeros = torch.zeros(len(task), task.outputs)
        return replace(task, answers=torch.cat([zeros, zeros + self.function_variance], 1))

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Context:
        stored: tuple[Examples, ...] = start.memory.stored
        if self.stored_points:
            generator = lesson.generator("context")
            chosen = random_subset(lesson.task, self.stored_points, generator)
            stored = (*stored, lesson.task.take(chosen).materialised())
        return Context(stored)


def _with_moments(one: Examples, lesson: Lesson) -> Examples:
    network = lesson.network.copy()  # running statistics stay as they are
    weights, found = network.weights(lesson.q), []
    weights = replace(weights, variances=network.layout.named(lesson.q.variance))
    for index in torch.arange(len(one)).split(rows_at_once(one.store)):
        x = one.inputs(index).to(network.device)
        both = linearised(network, weights, x, one.head, one.outputs)
        found.append(torch.cat(both, 1).detach().to(one.labels.device))
    return replace(one, answers=torch.cat(found))


def function_kl(mean: Tensor, variance: Tensor, old_mean: Tensor, old_variance: Tensor) -> Tensor:
    """mean over x of KL(N(m, v) || N(m-, v-)), summed over outputs."""
    ratio = variance / old_variance
    distance = (mean - old_mean).square() / old_variance
    return 0.5 * (ratio + distance - 1 - ratio.log()).sum(1).mean()
