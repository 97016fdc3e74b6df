"""LwF: learning without forgetting (Li and Hoiem, ECCV 2016), with point weights.

    minimise  -log p(y|x, theta) + lambda sum_s KL( p_h(x; theta_prev) || p_h(x; theta) )

    p_h(x; theta) = softmax(z_h(x; theta) / T)

s are the earlier tasks, h their heads, x the inputs of the task being learned. A head that tasks
share counts once for each of them, as in van de Ven's comparisons, where the term has the weight
1 - 1 / t beside 1 / t. In a head that grows, p_prev of the classes that came with this task is
zero, as there. It keeps nothing between tasks: what the old weights answer is computed once, when
the task arrives.

In a logit this curves by p (1 - p) / T^2, at T = 2 by 0.01 to 0.06. The function-space term of
`function_space.py` curves by lambda_f alike for sure answers and open ones, which is why that one
is a strength to choose and this one has the weight 1.

Departures. The paper's old heads are trained along; here they stay at theta_prev, and only a head
that the new task itself uses moves. A head that follows the new inputs, which are not its own,
keeps the term small while its answers on its own inputs drift; held, all of the drift is the
body's, where the term sees it. It also makes one pass serve all heads. The paper first trains a new
head alone (a warm-up), which most public code leaves out, as this does.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.batches import Batch, Source
from evclplus.core.engine import Terms
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.distillation import distillation
from evclplus.methods.function_space import HeldHeads, block, hold
from evclplus.methods.needs import needs_classes
from evclplus.methods.space import TRAINING, Log, Space

LEAST_HEADS = 8
"""Heads come in blocks of this many, as in `function_space.py`: a compiled graph serves more."""

UNUSED = -1e9
"""The logit of an output that is not in use: its probability is zero, its logarithm a number."""


@dataclass(frozen=True)
class Answerers:
    """Where the outputs of each head lie among all that are asked for, (heads, outputs), and
    which of these places are in use now and were before, and how many tasks each head has had. The
    number of heads is filled up to a block's, as `hold` does it, by heads that had none."""

    places: Tensor
    used: Tensor
    known: Tensor
    tasks: Tensor

    def logits(self, outputs: Tensor, used: Tensor) -> Tensor:
        """(examples, heads, outputs) from the outputs side by side."""
        every = outputs.index_select(1, self.places.flatten()).view(-1, *self.places.shape)
        return every.masked_fill(~used, UNUSED)


@dataclass(frozen=True)
class Distilled:
    """What is held while a task is learned; nothing between tasks."""

    held: HeldHeads = field(default_factory=HeldHeads)
    answerers: Answerers | None = None


class LearningWithoutForgetting(Method):
    """Earlier outputs keep their softened answers on the new inputs; no data are stored."""

    name: ClassVar[str] = "lwf"
    colour: ClassVar[str] = "#8B5A2B"
    marker: ClassVar[str] = "4"
    memory_type: ClassVar[type] = Distilled
    space: ClassVar[Space] = TRAINING | {"lam": Log(0.1, 10.0), "temperature": Log(1.0, 10.0)}

    lam: float = Field(1.0, ge=0, description="lambda, the weight of each earlier task")
    temperature: float = Field(2.0, gt=0, description="T, divides the logits of both answers")

    def likelihood(
        self, weights: Weights, memory: Distilled, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        if memory.answerers is None or batch.answers is None:
            return super().likelihood(weights, memory, batch, network)
        output = memory.held.together(network, weights, batch)
        heads = memory.answerers
        now, before = heads.logits(output, heads.used), heads.logits(batch.answers, heads.known)
        held = distillation(now, before, self.temperature, heads.tasks)
        return {"nll": batch.nll(output), "distillation": self.lam * held}

    def begin(self, lesson: Lesson) -> Start:
        needs_classes(self.name, lesson)
        if not lesson.seen:
            return super().begin(lesson)
        heads = (lesson.task.head, *lesson.earlier)
        held, task = hold(lesson.network, lesson.q, heads[1:], lesson.task, own=heads[:1])
        memory = Distilled(held, answerers(lesson, heads))
        return Start(lesson.q, memory, task, (Source((task,)),))

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Distilled:
        return Distilled()


@torch.no_grad()
def answerers(lesson: Lesson, heads: tuple[int, ...]) -> Answerers:
    """Where the outputs in use of these heads lie, when all outputs are asked for in this order."""
    x = lesson.task.inputs(torch.arange(1)).to(lesson.network.device)
    rows, start = [], 0
    for head in heads:
        seen, own = lesson.seen.get(head, 0), head == lesson.task.head
        width = max(seen, lesson.task.outputs) if own else seen
        rows.append((start, width, seen, lesson.sharers if own else 1))
        start += lesson.network.copy()(lesson.q, x, head).shape[1]
    rows = [row for row in rows if row[2]]
    rows += [(0, 1, 1, 0)] * (block(len(rows), LEAST_HEADS) - len(rows))
    first, now, known, tasks = torch.tensor(rows, device=x.device).unbind(1)
    number = torch.arange(int(now.max()), device=x.device)
    used = number < now[:, None]
    places = torch.where(used, first[:, None] + number, 0)
    return Answerers(places, used, number < known[:, None], tasks.to(lesson.q.mean))
