"""The one visible training loop."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import cos, pi
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from evclplus.callbacks import Callback
from evclplus.core.batches import (
    Batch,
    Source,
    batches_of_each_kind,
    batches_per_epoch,
    shards_of_epoch,
)
from evclplus.core.compiled import (
    CompiledLikelihood,
    CompiledUpdate,
    can_be_compiled,
    draws_nothing,
)
from evclplus.core.engine import (
    SMALL_RATE,
    LikelihoodFunction,
    Moments,
    Problem,
    State,
    StepGradient,
    Terms,
    UpdateFunction,
    Vectors,
    likelihood_gradient,
    step_rate,
    update,
)
from evclplus.core.gaussian import Layout, MeanField
from evclplus.core.graphs import Graphs, shared_graphs
from evclplus.core.likelihoods import Classification, Likelihood, OwnCriterion
from evclplus.core.network import BayesianNetwork
from evclplus.core.noise import Noise, new_seeds
from evclplus.core.shards import ShardedGradient, room_for_shards, rooms_for
from evclplus.errors import RanksError, TrainingError
from evclplus.methods.base import Method, Trained
from evclplus.progress import Fit, Progress
from evclplus.ranks import ALONE, Ranks
from evclplus.seeding import generator, own_random_state
from evclplus.settings import Training
from evclplus.signals import SAVING, STOPPING

logger = logging.getLogger("evclplus")

P = ParamSpec("P")
Result = TypeVar("Result")

WORK_THAT_EARNS_COMPILING = 3e7
"""Steps of a task times the numbers that each passes over one by one, weights and noise, above
which compiling pays for itself within a few tasks. A count, not a measurement: the same settings
must always take the same path."""

STEPS_AT_MEAN_THAT_EARN_IT = 3000
"""Steps of a task without noise, whose gradient is quick uncompiled as well."""


@dataclass(frozen=True)
class Trainer:
    """Trains with a learner's settings; every random number follows from seed, task and purpose.

    `forms` notes which form of a step was taken: compiled, plain, or why compiling failed.
    """

    training: Training
    seed: int
    position: int
    label: str
    callback: Callback
    likelihood: Likelihood = field(default_factory=Classification)
    graphs: Graphs = field(default_factory=shared_graphs)
    forms: set[str] = field(default_factory=set)
    progress: Progress | None = None
    """Where the loop is saved on its way, and goes on from."""
    ranks: Ranks = ALONE
    """Who computes the shards of each batch."""

    def __call__(
        self,
        method: Method,
        network: BayesianNetwork,
        q: MeanField,
        memory: Any,
        sources: tuple[Source, ...],
        *,
        purpose: str,
        epochs: int | None = None,
        at_mean: bool = False,
        moments: Moments | None = None,
    ) -> Trained:
        """Minimise the method's loss over the sources, starting from q, which is left as it is; the
        optimiser from its moments, if it has any. A method that does not work with the learner's
        optimiser, inside another method, gets one that it works with."""
        sources = tuple(source.ready(q.mean.device) for source in sources)
        if not sources or len(sources[0]) == 0:
            return Trained(q, moments=moments)
        training = self.training.suited(method.optimisers, method.learning_rates)
        label = f"{self.label}, {purpose}"
        assert training.optimiser is not None
        assert training.learning_rate is not None
        problem = Problem(
            network,
            method,
            memory,
            examples=q.mean.new_tensor(float(len(sources[0]))),
            at_mean=at_mean or len(q.variance) == 0,  # point values have no spread to learn
            clip_norm=training.clip_norm,
            low_precision=training.precision == "bf16",
            # Only of Adam is it known how far it goes at most.
            small_steps=training.optimiser == "adam"
            and training.learning_rate * training.std_rate <= SMALL_RATE,
            optimiser=training.optimiser,
        )
        apart = any(source.apart for source in sources)
        shards = training.shards or 1
        room = room_for_shards(q, network, apart) if shards > 1 else None
        state = State(q, method.trace(q), moments, apart, room)
        before = 0 if moments is None else moments.steps
        each = batches_per_epoch(sources[0], training.batch_size)
        epochs = epochs or training.epochs_of(each)
        most = sum(len({one.head for one in source.examples}) for source in sources)
        forms = self._forms(problem, state, sources[0], epochs * each)
        gradient: GradientFunction = forms.whole
        move, own = forms.move, range(1)
        if shards > 1:
            own = self.ranks.own(shards)
            gradient = self._sharded(forms, state, q, len(own))
        saved = None if self.progress is None else self.progress.begin(purpose)
        if saved is not None and saved.finished:
            saved.restore(state, network)
            return self._trained(state, before + saved.step, training.keep_optimiser)
        step = 0 if saved is None else saved.step
        self.callback.start(label, epochs * each)
        with self._numbers(network, purpose, saved):
            # A run that goes on must take the same graphs as one that was not stopped: what failed
            # before has failed, and all are tried on the numbers that training begins with.
            if saved is not None and not saved.compiles:
                forms.fallback.stay_plain()
            kinds = batches_of_each_kind(sources, training.batch_size, self.likelihood)
            forms.prepare(state.vectors, q.mean.new_zeros(3), q.layout, kinds)
            if saved is not None:
                saved.restore(state, network)
            for epoch in range(1 + step // each, epochs + 1):
                done = step % each
                draws = generator(self.seed, self.position, purpose, epoch)
                # What a step needs of numbers is made for all of them, so that none waits for it.
                seeds = new_seeds(draws, each * shards * most).view(each, shards, most, 4)
                rows = _rates(training, step - done, each, epochs * each, before)
                rates = q.mean.new_tensor(rows)
                total = torch.zeros_like(problem.examples)
                if saved is not None and done:
                    total.copy_(saved.tensors["total"])
                steps = shards_of_epoch(
                    sources, training.batch_size, draws, self.likelihood, done, shards, own
                )
                seeds = seeds[done:, own.start : own.stop]
                for parts, seed, rate in zip(steps, seeds, rates[done:], strict=True):
                    found = gradient(parts, seed)
                    for term in found.values():
                        total += term
                    move(problem, state.vectors, rate, q.layout)
                    step += 1
                    self.callback.advance(step, partial(_terms, found, problem, state))
                    if step % each:
                        self._save(purpose, step, state, network, total, forms)
                # Looking at a number waits for the device, so this is done once per epoch.
                if not self._all_finite(total, state):
                    terms = _terms(found, problem, state)
                    raise TrainingError(_what_is_not_finite(terms, label, epoch, epochs))
                self._save(purpose, step, state, network, total, forms, epoch_ended=True)
            if self.progress is not None:
                kept = training.keep_optimiser
                self.progress.finish(Fit.of(purpose, step, state, network, moments=kept))
        self.callback.finish()
        return self._trained(state, before + step, training.keep_optimiser)

    @staticmethod
    def _trained(state: State, steps: int, keep_optimiser: bool) -> Trained:
        kept = Moments(*state.moments, steps) if keep_optimiser else None
        return Trained(state.posterior(), state.vectors.running, kept)

    def _save(
        self,
        purpose: str,
        step: int,
        state: State,
        network: BayesianNetwork,
        total: Tensor,
        forms: "Forms",
        epoch_ended: bool = False,
    ) -> None:
        """After a step, if it is time or asked for."""
        if self.progress is not None and self.progress.is_wanted(epoch_ended):
            self.progress.forms |= self.forms
            compiles = forms.fallback.works
            fit = Fit.of(purpose, step, state, network, total, compiles=compiles)
            self.progress.save(fit)

    @contextmanager
    def _numbers(self, network: BayesianNetwork, purpose: str, saved: Fit | None) -> Iterator[None]:
        """All that decides a number beside the settings, whoever calls: modules that draw numbers
        of their own draw from the seed, and numbers too small to matter are zero (a fitted
        network's gradients are full of them, and a step takes up to a quarter longer). A request
        to stop waits for the end of a step."""
        purposes = (self.position, purpose, "module")
        alone = self.ranks.count == 1
        held = nullcontext() if self.progress is None else self.progress.signals.held(alone)
        own = own_random_state(self.seed, *purposes, device=network.device)
        nothing = self._draws_nothing(network)
        with held, nullcontext() if nothing else own, flushed_denormals():
            if saved is not None and not nothing:
                saved.restore_random_state(network.device)
            yield

    def _draws_nothing(self, network: BayesianNetwork) -> bool:
        """Whether neither network nor criterion draws numbers of its own."""
        return draws_nothing(network) and not isinstance(self.likelihood, OwnCriterion)

    def _all_finite(self, total: Tensor, state: State) -> bool:
        """Of all processes, which must have come to the same weights as well."""
        finite = _all_finite(total, state)
        if self.ranks.count == 1:
            return finite
        every = self.ranks.gather(finite, _sum_of_bits(state))
        if len({bits for _, bits in every}) > 1:
            raise RanksError(
                f"{self.label}: the processes have come to different weights; they need the same "
                "kind of processor, the same versions and the same OMP_NUM_THREADS"
            )
        return all(finite for finite, _ in every)

    def _sharded(
        self, forms: "Forms", state: State, q: MeanField, shards: int
    ) -> "ShardedGradient":
        """The gradient of so many shards here, and of those of all other processes."""
        network, apart = forms.gradient.problem.network, state.reference is not None
        return ShardedGradient(
            forms.gradient,
            rooms_for(state.room, shards, lambda: room_for_shards(q, network, apart)),
            self.ranks.add_up,
            Agreement(self.progress, forms.fallback),
            not self._draws_nothing(network),
        )

    def _forms(self, problem: Problem, state: State, source: Source, steps: int) -> "Forms":
        """The two functions of a step, and what is done before the first one."""
        likelihood: LikelihoodFunction = likelihood_gradient
        move: UpdateFunction = update
        prepare_move: Callable[[Vectors, Tensor, Layout], object] | None = None
        prepare_gradient: Callable[[Batch, Sequence[str], Sequence[Tensor]], object] | None = None
        wanted = self.training.compile
        fallback = Fallback(self.forms)
        if wanted != "off" and can_be_compiled(problem.network):
            work = steps * (len(state.vectors.mean) + self._noise(problem, state, source))
            enough = wanted == "on" or work >= WORK_THAT_EARNS_COMPILING
            drawn = wanted == "on" or not problem.at_mean or steps >= STEPS_AT_MEAN_THAT_EARN_IT
            if enough and drawn:
                compiled = CompiledLikelihood(problem, self.graphs)
                likelihood = fallback(compiled, likelihood_gradient)
                prepare_gradient = fallback(compiled.prepare, _nothing)
            if enough:
                compiled_update = CompiledUpdate(problem, self.graphs)
                move = fallback(compiled_update, update)
                prepare_move = fallback(compiled_update.prepare, _nothing)
        self.forms.add("plain" if move is update else "compiled")
        gradient = StepGradient(problem, state, likelihood)
        return Forms(gradient, move, prepare_move, prepare_gradient, fallback)

    @torch.no_grad()
    def _noise(self, problem: Problem, state: State, source: Source) -> int:
        """How many numbers a step draws, from what one example needs."""
        if problem.at_mean:
            return 0
        one = next(examples for examples in source.examples if len(examples))
        noise, network = Noise(torch.zeros(4, dtype=torch.int32)), problem.network.copy()
        x = one.inputs(torch.arange(1))
        network(network.weights(state.posterior(), noise, one.head), x, one.head)
        return 2 * noise.used * min(self.training.batch_size, len(source))


GradientFunction = Callable[[Sequence[Sequence[Batch]], Tensor], Terms]
"""Leaves the gradient of a step in the state, from batches and seeds shard by shard."""


@dataclass(frozen=True)
class Forms:
    """What a step calls, compiled or not."""

    gradient: StepGradient
    move: UpdateFunction
    prepare_move: Callable[[Vectors, Tensor, Layout], object] | None
    prepare_gradient: Callable[[Batch, Sequence[str], Sequence[Tensor]], object] | None
    fallback: "Fallback"

    def prepare(
        self, vectors: Vectors, rates: Tensor, layout: Layout, kinds: Iterable[Batch]
    ) -> None:
        """Find the graphs for batches of these kinds: the update's kernels are compiled while the
        gradient is traced."""
        if self.prepare_move is not None:
            self.prepare_move(vectors, rates, layout)
        if self.prepare_gradient is not None:
            for batch in kinds:
                self.prepare_gradient(batch, *self.gradient.weights(batch.head))

    def whole(self, shards: Sequence[Sequence[Batch]], seeds: Tensor) -> Terms:
        """The gradient of batches that are not cut."""
        (batches,) = shards
        return self.gradient(batches, seeds[0, : len(batches)])


@dataclass(frozen=True)
class Agreement:
    """What processes that train together do alike, whoever of them was asked: stop, save, and go on
    uncompiled."""

    progress: Progress | None
    fallback: "Fallback"

    def said(self) -> list[float]:
        heard = set() if self.progress is None else self.progress.signals.heard
        asked = [float(number in heard) for number in (*STOPPING, SAVING)]
        return [*asked, float(not self.fallback.works)]

    def heard(self, counts: Sequence[float]) -> None:
        *asked, failed = counts
        if self.progress is not None:
            named = zip((*STOPPING, SAVING), asked, strict=True)
            self.progress.signals.heed(number for number, count in named if count and number)
        if failed and self.fallback.works:
            self.fallback.give_up("it failed in another process")


def _sum_of_bits(state: State) -> int:
    """A number that is another one where weights are."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    vectors = (state.vectors.mean, state.vectors.variance)
    return sum(int(one.view(kinds[one.element_size()]).sum()) for one in vectors)


def _terms(found: Terms, problem: Problem, state: State) -> Terms:
    """The named parts of the loss after a step."""
    with torch.no_grad():
        q = state.posterior()
        return found | problem.objective.regulariser(q, problem.memory, problem.examples)


def _all_finite(total: Tensor, state: State) -> bool:
    """From the least and the largest numbers, which take no room; both are nan if one is."""
    parts = [part for part in (total, state.vectors.mean, state.vectors.variance) if part.numel()]
    return bool(torch.stack([edge for part in parts for edge in part.aminmax()]).isfinite().all())


def _rates(
    training: Training, first: int, count: int, steps: int, before: int
) -> list[tuple[float, float, float]]:
    """The rates of `count` steps of a task, after `first` of all its steps and after `before` that
    the optimiser made in earlier tasks."""
    momentum = training.momentum if training.optimiser == "sgd" else None
    return [
        step_rate(
            learning_rate(training, step / steps), training.std_rate, before + step + 1, momentum
        )
        for step in range(first, first + count)
    ]


def learning_rate(training: Training, done: float) -> float:
    """The step size when a part `done`, from 0 to 1, of a task's steps is behind."""
    factors = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + cos(pi * done)),
    }
    assert training.learning_rate is not None, "it is filled in before training begins"
    return training.learning_rate * factors[training.schedule]


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Denormal numbers count as zero here, and as before afterwards."""
    smallest = torch.tensor([1e-39])
    before = bool((smallest * 1 == 0).all())
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


class Fallback:
    """Where a compilation fails, everything goes on uncompiled and one line says so."""

    def __init__(self, forms: set[str]) -> None:
        self.works, self.forms = True, forms

    def __call__(
        self, compiled: Callable[P, Result], plain: Callable[P, Result]
    ) -> Callable[P, Result]:
        def call(*arguments: P.args, **options: P.kwargs) -> Result:
            if self.works:
                try:
                    return compiled(*arguments, **options)
                except Exception as error:  # whatever a machine's compiler can do wrong
                    self.give_up(_in_one_line(error))
            return plain(*arguments, **options)

        return call

    def give_up(self, reason: str) -> None:
        self.stay_plain()
        logger.warning("training goes on without compiling: %s", reason)
        self.forms.add(f"plain, because compiling failed: {reason}")

    def stay_plain(self) -> None:
        """As it was when a stopped run was saved."""
        self.works = False
        self.forms.discard("compiled")


def _nothing(*arguments: object) -> None:
    """What has to be prepared for a step that is not compiled."""


def _in_one_line(error: Exception) -> str:
    """What went wrong: torch may put a line that only names its backend before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith(":")), type(error).__name__)


def _what_is_not_finite(terms: Terms, label: str, epoch: int, epochs: int) -> str:
    values = ", ".join(f"{name} {value.item():g}" for name, value in terms.items())
    return (
        f"{label}, epoch {epoch} of {epochs}: a number is not finite ({values}); the learner "
        "keeps the state it had before this task; lower learning_rate or lam, or set clip_norm"
    )
