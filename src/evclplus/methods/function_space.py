"""The elastic term in function space: earlier heads keep their answers.

    (lambda_f / 2) mean over x of sum_h |z_h(x; theta) - z_h(x; mu_prev)|^2

x are inputs of the task being learned, h the heads of earlier tasks, z_h their outputs. The body
is drawn from q; the heads themselves stay at mu_prev, so that only the body can answer for a
change. A Fisher cannot see a unit that is silent on the old data and may switch on; this can, and
it needs no old data: what the heads answered before is computed once, when the task arrives.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.batches import Batch, Source
from evclplus.core.engine import Terms
from evclplus.core.examples import Examples, rows_at_once
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import Held
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.methods.base import Lesson, Method, Start

LEAST_OUTPUTS = 16
"""Linear heads are held in blocks of this many outputs, twice, four times as many: unused rows are
zero. So a graph that was compiled for one task serves the next ones, which hold more heads."""


@dataclass(frozen=True)
class HeldHeads:
    """The heads that are held, at mu_prev: linear ones as one weight and one bias, all others by
    their numbers and the names of their parameters."""

    linear: Held | None = None
    heads: tuple[int, ...] = ()
    named: tuple[tuple[str, Tensor], ...] = ()

    def outputs(
        self, network: BayesianNetwork, weights: Weights, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """What the batch's own head answers, and what the held ones do."""
        output = self.together(network, weights, batch)
        if self.linear is not None:
            count = self.linear[0].shape[0]
        else:
            assert batch.answers is not None
            count = batch.answers.shape[1]
        return output[:, :-count], output[:, -count:]

    def together(self, network: BayesianNetwork, weights: Weights, batch: Batch) -> Tensor:
        """The same side by side, all from one pass."""
        head = (batch.head, *self.heads) if self.heads else batch.head
        weights = weights.at(dict(self.named)) if self.heads else weights
        return network(weights, batch.inputs, head, held=self.linear, training=True)


class FunctionSpace(Method):
    """A method that can hold earlier heads to their answers. Its memory has a `prior`, the last
    weights, and a place for what is `held` while a task is learned."""

    lam_function: float = Field(
        0.0,
        ge=0,
        description="strength of holding earlier heads to their answers on the new inputs",
    )

    def begin(self, lesson: Lesson) -> Start:
        start = super().begin(lesson)
        if self.lam_function == 0:
            return start
        held, task = hold(lesson.network, lesson.memory.prior, lesson.earlier, start.task)
        memory = replace(start.memory, held=held)
        return Start(start.q, memory, task, (Source((task,)), *start.sources[1:]))

    def likelihood(
        self, weights: Weights, memory: Any, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        if batch.answers is None:
            return super().likelihood(weights, memory, batch, network)
        output, answers = memory.held.outputs(network, weights, batch)
        return {
            "nll": batch.nll(output),
            "function": function_space(answers, batch.answers, self.lam_function),
        }


def hold(
    network: BayesianNetwork,
    previous: MeanField,
    heads: tuple[int, ...],
    examples: Examples,
    own: tuple[int, ...] = (),
) -> tuple[HeldHeads, Examples]:
    """The heads to hold, and the examples with what these answer before anything is learned; the
    answers of `own` heads, which are not held, come first."""
    linear = network.linear_heads(previous, heads) if network.has_heads else None
    if linear is not None:
        linear = _padded(linear)
        held = HeldHeads(linear)
    elif heads:
        held = HeldHeads(None, heads, tuple(network.weights_of_head(previous, heads).items()))
    else:
        held = HeldHeads()
    asked = (*own, *held.heads)
    if linear is None and not asked:
        return held, examples
    return held, replace(examples, answers=answers_of(network, previous, examples, asked, linear))


@torch.no_grad()
def answers_of(
    network: BayesianNetwork,
    q: MeanField,
    examples: Examples,
    heads: int | tuple[int, ...],
    held: Held | None = None,
) -> Tensor:
    """What these heads say of all the examples, under the means."""
    network = network.copy()  # running statistics stay as they are
    answers = []
    for index in torch.arange(len(examples)).split(rows_at_once(examples.store)):
        output = network(q, examples.inputs(index).to(network.device), heads, held=held)
        answers.append(output.to(examples.labels.device))
    return torch.cat(answers)


def _padded(linear: Held) -> Held:
    weight, bias = linear
    more = block(len(weight), LEAST_OUTPUTS) - len(weight)
    return (
        torch.cat([weight, weight.new_zeros(more, weight.shape[1])]),
        torch.cat([bias, bias.new_zeros(more)]),
    )


def block(count: int, least: int) -> int:
    """`least`, or twice, four times as many: the first that is enough."""
    while least < count:
        least *= 2
    return least


def function_space(now: Tensor, before: Tensor, lam_function: float | Tensor) -> Tensor:
    """(lambda_f / 2) mean over x of |z(x; theta) - z(x; mu_prev)|^2, summed over outputs."""
    return 0.5 * lam_function * (now - before).square().sum(1).mean()
