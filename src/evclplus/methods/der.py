"""DER++: dark experience replay (Buzzega et al., NeurIPS 2020), with point weights.

    minimise  -log p(y|x, theta), mean over a batch of the task
              + alpha  mean |z(x; theta) - z_stored|^2 / outputs,  over a draw of stored examples
              + beta   -log p(y|x, theta), mean over another draw of them

z are the logits, z_stored those that were answered when the example came into memory; without beta
this is DER, without alpha it is ER, but for the factor that makes ER's a mean over both batches.
It keeps M examples with their logits, a reservoir over the stream.

The squared distance is divided by the number of outputs, as in the authors' published code, whose
settings these are; the paper's equation is without. Departures: an example comes into memory when
its task ends, and its logits are those of the task's solution, where the paper stores those of
some step on the way to it, see `replay.py`. In a head that grows, an output that was not there yet
is held to the example's least logit: it is no likelier than the other classes that it was not. Left
free, the new classes would take all old examples, since without beta nothing else holds them down.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch.nn import functional as F

from evclplus.core.batches import Batch, Source
from evclplus.core.engine import Terms
from evclplus.core.examples import Examples
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.function_space import answers_of
from evclplus.methods.reservoir import Reservoir, beside, reservoir
from evclplus.methods.space import TRAINING, Log, OneOf, Space


class DarkExperienceReplay(Method):
    """Point weights trained on the task, on stored examples and on what was answered for them."""

    name: ClassVar[str] = "der++"
    colour: ClassVar[str] = "#DD5577"
    marker: ClassVar[str] = "^"
    memory_type: ClassVar[type] = Reservoir
    space: ClassVar[Space] = TRAINING | {
        "alpha": Log(0.03, 3.0),
        "beta": Log(0.1, 3.0),
        "replay_batch": OneOf((32, 128, 256)),
    }

    alpha: float = Field(0.5, ge=0, description="weight of the stored logits")
    beta: float = Field(1.0, ge=0, description="weight of the stored labels; 0: DER")
    buffer_size: int = Field(200, ge=1, description="examples stored in all")
    replay_batch: int | None = Field(
        None, ge=1, description="stored examples in each draw; none: as many as of the task"
    )

    def likelihood(
        self, weights: Weights, memory: Reservoir, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        if batch.answers is None:
            return super().likelihood(weights, memory, batch, network)
        output = network(weights, batch.inputs, batch.head, training=True)
        return {"logits": F.mse_loss(output[:, : batch.outputs], batch.answers)}

    def begin(self, lesson: Lesson) -> Start:
        task, stored = lesson.task, beside(lesson.memory.stored, lesson.task)
        labelled = tuple(replace(one, answers=None) for one in stored)
        own = Source((task,), weight=1.0)
        draws = (
            Source(tuple(map(_padded, stored)), self.replay_batch, weight=self.alpha),
            Source(labelled, self.replay_batch, weight=self.beta),
        )
        more = tuple(draw for draw in draws if len(draw) and draw.weight)
        return Start(lesson.q, lesson.memory, task, (own, *more))

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Reservoir:
        generator = lesson.generator("reservoir")
        kept = reservoir(start.memory, lesson.task, self.buffer_size, generator)
        stored = tuple(_with_logits(one, lesson, trained) for one in kept.stored)
        return replace(kept, stored=stored)


def _with_logits(one: Examples, lesson: Lesson, trained: Trained) -> Examples:
    """With what the solution of the task says, if they came with it."""
    if one.answers is not None:
        return one
    logits = answers_of(lesson.network, trained.q, one, one.head)
    return replace(one, answers=logits[:, : one.outputs])


def _padded(one: Examples) -> Examples:
    """With a logit for each output that is in use now: the least, where there was none."""
    assert one.answers is not None
    more = one.outputs - one.answers.shape[1]
    least = one.answers.amin(1, keepdim=True).expand(-1, more)
    return replace(one, answers=torch.cat([one.answers, least], 1))
