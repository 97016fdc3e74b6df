"""The elastic term in function space: answers that were given before are kept.

    + (lambda_f / 2) mean over x of [ sum_h |z_h(x; theta) - z_h(x; mu_prev)|^2
                                      + t r(x) |z(x; theta) - z(x; mu_prev)|^2 ]

x are inputs of the task being learned, h the heads of earlier tasks, z_h their outputs. The body
is drawn from q; the heads themselves stay at mu_prev, so that only the body can answer for a
change. A Fisher cannot see a unit that is silent on the old data and may switch on; this can, and
it needs no old data: what the heads answered before is computed once, when the task arrives.

The second term is for a head that the task shares with t earlier ones; z are those of its outputs
that they used. It counts once for each of them, as their heads would if they had one each. Here the
task has labels for the very answers that would be held, and an old answer is held as far as its
label confirms it: r(x) = p(y | x; mu_prev). On inputs of another kind the old network guesses and
little is held; where tasks have something in common, it is right and much is.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.batches import Batch, Source
from evclplus.core.engine import Terms
from evclplus.core.examples import Examples, rows_at_once
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import Held
from evclplus.core.likelihoods import Classification
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.methods.base import Lesson, Method, Start

SharedHead = Literal["confirmed", "all", "free"]

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

    def together(
        self, network: BayesianNetwork, weights: Weights, batch: Batch, training: bool = True
    ) -> Tensor:
        """What the batch's own head answers and then what the held ones do, all from one pass."""
        head = (batch.head, *self.heads) if self.heads else batch.head
        weights = weights.at(dict(self.named)) if self.heads else weights
        return network(weights, batch.inputs, head, held=self.linear, training=training)


class FunctionSpace(Method):
    """A method that can hold answers. Its memory has a `prior`, the last weights, and a place for
    what is `held` while a task is learned."""

    before: ClassVar[dict[str, Any]] = {"shared_head": "free"}

    lam_function: float = Field(
        0.0,
        ge=0,
        description="strength of holding earlier heads to their answers on the new inputs",
    )
    shared_head: SharedHead = Field(
        "confirmed",
        description="which old answers of a head that tasks share are held as well: each as far as "
        "the new label confirms it, all, or none (free)",
    )

    def begin(self, lesson: Lesson) -> Start:
        start = super().begin(lesson)
        if self.lam_function == 0:
            return start
        held, task = trusted_answers(
            lesson.network,
            lesson.memory.prior,
            lesson.earlier,
            start.task,
            self._seen(lesson),
            lesson.sharers,
            self.shared_head == "confirmed",
        )
        if self._seen(lesson) and task.answers is not None:
            lesson.calibrated["confirmed"] = float(task.answers[:, 1, 0].mean()) / lesson.sharers
        memory = replace(start.memory, held=held)
        return Start(start.q, memory, task, (Source((task,)), *start.sources[1:]))

    def _seen(self, lesson: Lesson) -> int:
        """How many outputs of the task's own head are held."""
        # Only of a class can a label say how probable the old answer made it.
        says = self.shared_head == "all" or isinstance(lesson.likelihood, Classification)
        return lesson.seen.get(lesson.task.head, 0) if says and self.shared_head != "free" else 0

    def likelihood(
        self, weights: Weights, memory: Any, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        if batch.answers is None:
            return super().likelihood(weights, memory, batch, network)
        before, trust = batch.answers.unbind(1)
        # What was answered before is what the network predicts with. Where it computes otherwise
        # while it learns (batch normalisation, dropout) the two are compared as predictions: else
        # answers would be pulled from the first step on, though nothing has changed.
        together, otherwise = memory.held.together, network.learns_otherwise
        held = together(network, weights, batch, training=False) if otherwise else None
        now = together(network, weights, batch)
        held = now if held is None else held
        return {
            "nll": batch.nll(now),
            "function": function_space(held, before, trust, self.lam_function),
        }


def trusted_answers(
    network: BayesianNetwork,
    previous: MeanField,
    heads: tuple[int, ...],
    examples: Examples,
    seen: int = 0,
    sharers: int = 1,
    confirm: bool = True,
) -> tuple[HeldHeads, Examples]:
    """The heads to hold, and the examples with what was answered before anything is learned: for
    each example the outputs of its own head and then those of the held ones, and beside them how
    far each is trusted. Of the own head `seen` outputs are held too, once for each of the earlier
    tasks that are its `sharers`; the others are not."""
    held, asked = hold(network, previous, heads, examples)
    if asked.answers is None and not seen:
        return held, examples
    own = answers_of(network, previous, examples, examples.head)
    trust = torch.zeros_like(own)
    known = own[:, :seen]
    of_one = confirmed(known, examples.labels)[:, None] if confirm and seen else 1.0
    trust[:, :seen] = sharers * of_one
    if asked.answers is not None:
        own = torch.cat([own, asked.answers], 1)
        trust = torch.cat([trust, torch.ones_like(asked.answers)], 1)
    return held, replace(examples, answers=torch.stack([own, trust], 1))


def confirmed(answers: Tensor, labels: Tensor) -> Tensor:
    """r(x) = p(y | x; mu_prev): how probable the old answers made each label. One for a class that
    they did not know: such a label says nothing against them."""
    known = labels < answers.shape[1]
    chosen = torch.where(known, labels, 0)[:, None]
    return torch.where(known, answers.softmax(1).gather(1, chosen)[:, 0], 1.0)


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


def function_space(
    now: Tensor, before: Tensor, trust: Tensor, lam_function: float | Tensor
) -> Tensor:
    """(lambda_f / 2) mean over x of the sum over outputs of r (z(x; theta) - z(x; mu_prev))^2."""
    return 0.5 * lam_function * (trust * (now - before).square()).sum(1).mean()
