"""The learner: the only object with state."""

import copy
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import metadata
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from evclplus import checkpoint, networks
from evclplus.callbacks import Callback
from evclplus.checks import (
    as_input,
    check_finite,
    check_labels,
    check_module,
    check_scaled,
    usable_device,
)
from evclplus.core import tree
from evclplus.core.batches import batches_per_epoch
from evclplus.core.compiled import draws_nothing
from evclplus.core.engine import Moments
from evclplus.core.examples import Examples, rows_at_once
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import MultiHead, new_weights
from evclplus.core.likelihoods import (
    Classification,
    Criterion,
    Likelihood,
    OwnCriterion,
    likelihood_of,
)
from evclplus.core.metrics import Scores, entropy, scores
from evclplus.core.network import BayesianNetwork, Lock, Predicate, own_points
from evclplus.core.noise import new_seeds
from evclplus.errors import DataError, FileError, SettingsError, StateError
from evclplus.files import own_path
from evclplus.methods import described, from_description
from evclplus.methods import method as method_named
from evclplus.methods.base import Lesson, Method, training_for
from evclplus.progress import Checkpoints, Identity, Progress, digest_of
from evclplus.seeding import derived_seed, generator, own_random_state
from evclplus.settings import Optimiser, Training, is_whole, whole
from evclplus.signals import Signals, Stopped, watched
from evclplus.streams.arrays import listed
from evclplus.streams.task import Task
from evclplus.train import Trainer

logger = logging.getLogger("evclplus")

Side = Literal["test", "validation", "train"]
Asked = Task | str | int | None
"""A learned task, its name or its position; None where all tasks share one head."""

MOST_SAMPLES = 10**6


@dataclass(frozen=True)
class Learned:
    """What the learner remembers of a task's outside, and the strengths that were calibrated on
    it."""

    name: str
    head: int
    outputs: int
    calibrated: dict[str, float] = field(default_factory=dict)
    classes: tuple[int, ...] = ()
    """The caller's label of each output."""
    view: str = ""
    """How stored values became inputs, see `View.fingerprint`."""
    largest: float | None = None
    """The largest input that a byte could become, where inputs were scaled bytes."""

    @classmethod
    def of(cls, task: Task, calibrated: dict[str, float]) -> "Learned":
        view, largest = task.train.view, None
        if task.train.store.dtype == torch.uint8 and view.scale != 1.0:
            largest = max(abs(view.shift), abs(255 * view.scale + view.shift))
        classes = task.classes or tuple(range(task.outputs))
        return cls(
            task.name, task.head, task.outputs, calibrated, classes, view.fingerprint(), largest
        )


@dataclass(frozen=True)
class Evaluation:
    """Scores for several tasks, in the order they were asked for."""

    tasks: tuple[str, ...]
    scores: tuple[Scores, ...]

    @property
    def average_accuracy(self) -> float:
        return fmean(score.accuracy for score in self.scores)

    def __str__(self) -> str:
        pairs = zip(self.tasks, self.scores, strict=True)
        parts = [f"{name} {score.accuracy:.1%}" for name, score in pairs]
        return f"{', '.join(parts)}; average {self.average_accuracy:.1%}"


@dataclass(frozen=True)
class Uncertainty:
    """The predictive entropy of each input, in nats, and its two parts: total = data + weights.

    data      what would stay open if the weights were known: E_q[H(p(y|x, theta))]
    weights   what the weights leave open, the mutual information of label and weights
    """

    total: Tensor
    data: Tensor
    weights: Tensor


class Learner:
    """Learns tasks one after another with one network and one method.

    network     any nn.Module; it is never changed. A `MultiHead` gets a head for every task that
                asks for one, when the task arrives
    criterion   "classification", "regression" (or `Regression(std)`), or a function of (outputs, y)
                that gives the mean loss of a batch
    point       says which parameters, by name, stay point values

    The other settings are those of `Training`.
    """

    def __init__(
        self,
        network: nn.Module,
        method: Method | str = "evcl+",
        *,
        seed: int = 0,
        samples: int = 10,
        criterion: Literal["classification", "regression"]
        | Likelihood
        | Criterion = "classification",
        point: Predicate = lambda name: False,
        callback: Callback | None = None,
        epochs: int | None = None,
        batch_size: int = Training.default("batch_size"),
        optimiser: Optimiser | None = None,
        learning_rate: float | None = None,
        momentum: float = 0.0,
        keep_optimiser: bool = False,
        std_rate: float = Training.default("std_rate"),
        schedule: Literal["constant", "linear", "cosine"] = Training.default("schedule"),
        clip_norm: float | None = None,
        compile: Literal["auto", "on", "off"] = "auto",
        device: str | None = None,
        precision: Literal["full", "bf16"] = "full",
    ) -> None:
        check_module(network)
        self.seed, self.samples = whole("seed", seed, 0), whole("samples", samples, 1, MOST_SAMPLES)
        self.method = method_named(method) if isinstance(method, str) else method
        if not isinstance(self.method, Method):
            raise SettingsError(
                f"method = {method!r:.60} is wrong: a name from `evclplus list` or an object such "
                "as EVCLPlus()"
            )
        if not callable(point):
            raise SettingsError(f"point = {point!r:.60} is wrong: a function of a parameter's name")
        wanted = Training(
            epochs=epochs,
            batch_size=batch_size,
            optimiser=optimiser,
            learning_rate=learning_rate,
            momentum=momentum,
            keep_optimiser=keep_optimiser,
            std_rate=std_rate,
            schedule=schedule,
            clip_norm=clip_norm,
            compile=compile,
            device=device,
            precision=precision,
        )
        self.training = training_for(self.method, wanted)
        self.likelihood = likelihood_of(criterion)
        self.callback = callback or Callback()
        has_variance = self.method.has_variance
        with torch.inference_mode(False):
            self.network = BayesianNetwork(
                self.method.network_of(network),
                lambda name: not has_variance(name) or point(name),
                usable_device(device),
            )
            self.q = self.method.initial(self.network)
            self.memory = self.method.first_memory(self.q)
        self.moments: Moments | None = None
        """What the optimiser remembers from task to task, with `keep_optimiser`."""
        self.learned: tuple[Learned, ...] = ()
        self.forms: set[str] = set()
        """Which forms of a training step were taken: compiled, plain, or why compiling failed."""
        self._predictors: dict[int, tuple[BayesianNetwork, MeanField]] = {}
        self._one_at_a_time = Lock()

    # Learning

    @torch.inference_mode(False)
    def learn(self, task: Task, checkpoint: str | Path | Checkpoints | None = None) -> "Learner":
        """Learn one task. If anything goes wrong the learner stays as it was before.

        With a folder as `checkpoint`, training is saved there every few minutes, when the process
        is asked to stop (Ctrl-C, SIGTERM) or to save (SIGUSR1), and when the task is learned. The
        same call in another process goes on from there, and ends with the same numbers as if
        nothing had happened. All tasks of a learner may have one folder.
        """
        self._check(task)
        if checkpoint is None:
            return self._learn(task)
        place = checkpoint if isinstance(checkpoint, Checkpoints) else Checkpoints(Path(checkpoint))
        position = len(self.learned)
        identity = self._identity_of(task, position)
        with place.locked(), watched() as signals:
            progress = Progress(place, position, identity, signals)
            if not self._take_over(progress):
                self._learn_on(task, progress)
        return self

    def resume(self, place: Checkpoints, tasks: Sequence[Task]) -> None:
        """Become the learner in a folder of checkpoints that has learned most of these tasks, if
        there is one that has learned the first of them and no others."""
        for position in reversed(range(len(self.learned), len(tasks))):
            task = tasks[position]
            identity = self._identity_of(task, position)
            progress = Progress(place, position, identity, Signals())
            # It has learned from what those before it knew, which is no longer there.
            if self._take_over(progress, unknown="learner"):
                return

    def _learn_on(self, task: Task, progress: Progress) -> None:
        """Learn a task from where a stopped process was."""
        progress.read()
        self.forms |= progress.forms
        try:
            self._learn(task, progress)
        except Stopped:
            progress.write()  # what is finished of the task and not saved yet
            raise
        local = list(self.network.local_layers)
        complete = partial(progress.complete, partial(self.save, overwrite=True), self.forms, local)
        progress.place.task_ended(complete)

    def _take_over(self, progress: Progress, unknown: str = "") -> bool:
        """Become the learner that has learned the task already, if there is one."""
        about = progress.done(unknown)
        if about is None:
            return False
        other = copy.copy(self)
        other.network = self.network.copy()
        try:
            other._restore(*checkpoint.read(progress.folder))
        except FileError as error:
            logger.warning("the task is learned again: %s", error)
            return False
        other.network.keep_local(about["local"])
        self.forms |= set(about["forms"])
        vars(self).update(vars(other))
        return True

    def _identity_of(self, task: Task, position: int) -> Callable[[], Identity]:
        """Of what this learner is now, whenever it is asked for."""
        known = (self.q, self.memory, self.moments, self.network)
        return lambda: self._identity(task, position, *known)

    def _identity(
        self,
        task: Task,
        position: int,
        q: MeanField,
        memory: Any,
        moments: Moments | None,
        network: BayesianNetwork,
    ) -> Identity:
        """All that the result of learning a task depends on, as far as it can be named."""
        first = network.initial(variance=1.0).mean
        training = self.training.model_dump(mode="json")
        return {
            "version": metadata.version("evclplus"),
            "task": f"{position + 1}: {task.name}",
            "seed": str(self.seed),
            "method": json.dumps(described(self.method), sort_keys=True),
            "training": json.dumps(training, sort_keys=True),
            "likelihood": json.dumps(checkpoint.saved_likelihood(self.likelihood)),
            "data": digest_of(task.train),
            "learner": digest_of(first, q, memory, network.buffers, moments),
        }

    def _learn(self, task: Task, progress: Progress | None = None) -> "Learner":
        task = replace(task, train=task.train.for_learning())
        network, q, memory = self._with_head(task.train)
        network = network.copy()
        self._check_outputs(network, q, task)
        trainer = self._trainer(f"task {len(self.learned) + 1} ({task.name})")
        trainer = replace(trainer, progress=progress)
        lesson = self._lesson(network, q, memory, task, trainer)
        start = self.method.begin(lesson)
        if self.training.epochs is None and start.sources:
            batches = batches_per_epoch(start.sources[0], self.training.batch_size)
            lesson.calibrated["epochs"] = self.training.epochs_of(batches)
        moments = self.moments and self.moments.grown(self.network.layout, network.layout)
        trained = trainer(
            self.method,
            network,
            start.q,
            start.memory,
            start.sources,
            purpose="train",
            moments=moments,
        )
        memory = self.method.end(lesson, start, trained)
        self.network, self.q, self.memory = network, trained.q, memory
        self.moments = trained.moments
        self.learned = (*self.learned, Learned.of(task, lesson.calibrated))
        self._predictors = {}
        return self

    def _with_head(self, examples: Examples) -> tuple[BayesianNetwork, MeanField, Any]:
        """The network, weights and memory with the head that these examples need."""
        network, head, outputs = self.network, examples.head, examples.outputs
        own = self._linear_head(head)
        wider = own is not None and own.out_features < outputs
        missing = range(network.heads, head + 1) if network.has_heads else ()
        x = examples.inputs(torch.arange(min(2, len(examples))))
        for one in (head,) if wider else missing:
            seed = derived_seed(self.seed, "head", one, outputs)
            network = network.grown(one, outputs, network.features(x), seed)
        if network is self.network:
            return network, self.q, self.memory
        start, old = self.method.initial(network), self.network.layout
        return network, tree.grown(self.q, old, start), tree.grown(self.memory, old, start)

    def _lesson(
        self, network: BayesianNetwork, q: MeanField, memory: Any, task: Task, trainer: Trainer
    ) -> Lesson:
        seen, position = self.outputs_seen, len(self.learned)

        def new() -> Tensor:
            weights = (network.owner, network.layout, task.head, seen, task.outputs)
            return new_weights(*weights, network.rows_are_outputs).to(network.device)

        return Lesson(
            network=network,
            q=q,
            memory=memory,
            task=task.train,
            position=position,
            earlier=tuple(sorted(set(seen) - {task.head})),
            new=new,
            generator=lambda purpose: generator(self.seed, position, purpose),
            fit=trainer,
            likelihood=self.likelihood,
            seen=seen,
        )

    def _trainer(self, label: str) -> Trainer:
        """The training loop with this learner's settings and its own random numbers."""
        return Trainer(
            self.training,
            self.seed,
            len(self.learned),
            label,
            self.callback,
            self.likelihood,
            forms=self.forms,
        )

    @property
    def outputs_seen(self) -> dict[int, int]:
        """How many outputs of each head the tasks so far have used."""
        seen: dict[int, int] = {}
        for task in self.learned:
            seen[task.head] = max(seen.get(task.head, 0), task.outputs)
        return seen

    @property
    def classifies(self) -> bool:
        return isinstance(self.likelihood, Classification)

    def _check(self, task: Task) -> None:
        """Refuse a task that cannot be learned before anything is changed."""
        if not isinstance(task, Task):
            raise DataError(
                f"learn takes one task, not a {type(task).__name__}: `for task in stream: "
                "learner.learn(task)`, or ec.task(x, y, name=..., outputs=...) for arrays"
            )
        if any(task.name == known.name for known in self.learned):
            raise StateError(
                f"task {task.name!r} was learned already; a learner learns each task once, "
                "so give new data a new name"
            )
        examples = task.train
        if len(examples) == 0:
            raise DataError(f"task {task.name!r} has no training examples")
        check_finite(examples, task.name)
        self._check_head(examples, task.name)
        if self.method.needs_head_per_task and task.head in self.outputs_seen:
            raise DataError(
                f"{self.method.name} needs a head for every task, and task {task.name!r} has head "
                f"{task.head}, which an earlier one has; take scenario='task', or another method"
            )
        self._check_classes(task)
        if self.classifies:
            for side, part in (("training", task.train), ("test", task.test)):
                check_labels(part, f"{side} data of task {task.name!r}")

    def _check_head(self, examples: Examples, name: str) -> None:
        heads, head = self.network.heads, examples.head
        if self.network.has_heads and head > heads:
            raise DataError(
                f"task {name!r} wants head {head} but the network has {heads}, and heads come one "
                "after the other; learn the tasks in their order"
            )
        if not self.network.has_heads and head > 0:
            raise DataError(
                f"task {name!r} wants head {head} but the network has one; wrap it: "
                "MultiHead(body), and every task gets a head"
            )

    def _check_classes(self, task: Task) -> None:
        """The outputs of a head must not come to mean other classes: the earlier ones would be
        lost. In a domain-incremental stream they are meant to."""
        for known in self.learned:
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

    def _check_outputs(self, network: BayesianNetwork, q: MeanField, task: Task) -> None:
        """Ask the network how many outputs it gives for these inputs."""
        examples = task.train
        x = examples.inputs(torch.arange(min(2, len(examples))))
        output = self._try(network, q, x, examples.head, f"the inputs of task {task.name!r}")
        if examples.outputs > output.shape[1]:
            raise DataError(
                f"task {task.name!r} uses {examples.outputs} outputs but head {examples.head} of "
                f"the network has {output.shape[1]}; give the network as many, or a MultiHead"
            )
        self._check_criterion(output[:, : examples.outputs], examples)
        self._check_batches(network, q, task)

    def _check_criterion(self, output: Tensor, examples: Examples) -> None:
        """A criterion of one's own has to give one number for a batch."""
        if not isinstance(self.likelihood, OwnCriterion):
            return
        try:
            found: Any = self.likelihood(output, examples.labels[: len(output)].to(output.device))
        except Exception as error:  # whatever it does
            reason = f"{type(error).__name__}: {error}"
            raise SettingsError(f"the criterion fails: {reason}") from None
        if not isinstance(found, Tensor) or found.ndim != 0:
            raise SettingsError(
                f"the criterion gives {found!r:.60}; expected the mean loss, a tensor of one number"
            )

    def _check_batches(self, network: BayesianNetwork, q: MeanField, task: Task) -> None:
        """What normalises by a batch's statistics cannot do so with a batch of one."""
        count, size = len(task.train), self.training.batch_size
        smallest = count // ceil(count / size)
        batch_norm = nn.modules.batchnorm._BatchNorm
        if smallest > 1 or not any(isinstance(one, batch_norm) for one in network.modules):
            return
        x = task.train.inputs(torch.arange(smallest)).to(network.device)
        try:
            with torch.no_grad():
                network.copy()(q, x, task.head, training=True)
        except ValueError:
            raise DataError(
                f"task {task.name!r} has {count} examples in batches of {size}, so a batch may "
                "have one example, which batch normalisation cannot use; set batch_size higher"
            ) from None

    @torch.no_grad()
    def _try(
        self, network: BayesianNetwork, q: MeanField, x: Tensor, head: int, what: str
    ) -> Tensor:
        """The mean network's output, or a clear line on why there is none."""
        own = own_random_state(self.seed, "try", device=network.device)
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

    # Predicting

    def predict_proba(self, x: Any, task: Asked = None, samples: int | None = None) -> Tensor:
        """Class probabilities, averaged over posterior samples; `classes(task)` says which class a
        column is.

        `x` is network input, as `task.test.inputs()` gives it. `task` is a learned task, its name
        or its position, counted from 0; it may be left out when all tasks share one head.
        """
        return self._predict_checked(x, task, samples)[0]

    def predict(self, x: Any, task: Asked = None, samples: int | None = None) -> Tensor:
        """The most probable class of each input, as the caller's own label; without classes, the
        mean output."""
        if self.classifies:
            best = self.predict_proba(x, task, samples).argmax(1)
            return torch.tensor(self.classes(task))[best]
        head, values = self._asked(x, task)
        outputs = self.outputs_seen[head]
        return torch.cat(
            [logits.mean(0)[:, :outputs] for logits in self._outputs(values, head, samples)]
        )

    def classes(self, task: Asked = None) -> tuple[int, ...]:
        """The caller's label of each output that answers for a task, the columns of predict_proba.

        A domain-incremental head may stand for other classes in every task. Asked without a task,
        it has its outputs' numbers.
        """
        self._check_classifies("classes")
        head = self._head(task)
        own = () if task is None else self._known(task).classes
        of_head = [one.classes for one in self.learned if one.head == head]
        longest = max((one for one in of_head if one[: len(own)] == own), key=len)
        same = task is not None or all(longest[: len(one)] == one for one in of_head)
        count = self.outputs_seen[head]
        return longest if same and len(longest) == count else tuple(range(count))

    def uncertainty(self, x: Any, task: Asked = None, samples: int | None = None) -> Uncertainty:
        """How uncertain each prediction is, and how much of it more data would remove."""
        probabilities, data = self._predict_checked(x, task, samples)
        total = entropy(probabilities)
        # Rounding may take the difference a hair below zero, which it never is.
        return Uncertainty(total, data, (total - data).clamp_min(0))

    def evaluate(self, tasks: Task | Iterable[Task], on: Side = "test") -> Evaluation:
        """Scores on each of the tasks, all of them learned before."""
        chosen = [tasks] if isinstance(tasks, Task) else listed(tasks, "the tasks to evaluate")
        if not isinstance(on, str) or on not in get_args(Side):
            raise SettingsError(f"on = {on!r:.60} is wrong: one of {', '.join(get_args(Side))}")
        if not chosen:
            raise DataError("there are no tasks to evaluate; give at least one")
        for task in chosen:
            if not isinstance(task, Task):
                raise DataError(f"{task!r:.60} is no task; give tasks, such as those of a stream")
            self._known(task)
        return Evaluation(
            tuple(task.name for task in chosen),
            tuple(self.score(getattr(task, on), task.name) for task in chosen),
        )

    def score(self, examples: Examples, name: str) -> Scores:
        """Scores on any examples, also those of a task that is not learned yet."""
        self._check_classifies("scores")
        check_labels(examples, f"data of task {name!r}")
        if len(examples) == 0:
            raise DataError(f"task {name!r} has no examples to be tested on")
        outputs = max(self.outputs_seen.get(examples.head, 0), examples.outputs)
        known = examples.head in self.outputs_seen and outputs <= self._width(examples.head)
        with torch.inference_mode(False):
            by = None if known else self._with_head(examples)[:2]
        values = examples.inputs()
        if values.is_floating_point():
            values = values.to(self.q.mean.dtype)
        probabilities, _ = self._predict(values, examples.head, outputs, None, by)
        return scores(probabilities, examples.labels)

    def _head(self, task: Asked) -> int:
        if not self.learned:
            raise StateError("nothing is learned yet; call learn(task) before predicting")
        if task is None:
            heads = sorted({known.head for known in self.learned})
            if len(heads) > 1:
                raise StateError(
                    f"the network has a head for each of {len(heads)} tasks; say which: "
                    "predict(x, task=0)"
                )
            return heads[0]
        return self._known(task).head

    def _known(self, task: Task | str | int) -> Learned:
        """What is remembered of a learned task."""
        if not self.learned:
            raise StateError("nothing is learned yet; call learn(task) before predicting")
        if not isinstance(task, Task | str):
            count = len(self.learned)
            if not is_whole(task) or not 0 <= task < count:
                raise StateError(
                    f"there is no task {task!r:.60}; {count} are learned, counted from 0"
                )
            return self.learned[task]
        name = task if isinstance(task, str) else task.name
        names = [known.name for known in self.learned]
        if name not in names:
            raise StateError(f"task {name!r} is not learned yet; learned: {names}")
        known = self.learned[names.index(name)]
        if isinstance(task, Task):
            _check_same(task, known)
        return known

    def _asked(self, x: Any, task: Asked) -> tuple[int, Tensor]:
        head = self._head(task)
        values = as_input(x, self.q.mean.dtype)
        largest = [one.largest for one in self.learned]
        if None not in largest:
            check_scaled(values, max(one for one in largest if one is not None))
        self._try(self.network, self.q, values[:1], head, "x")
        return head, values

    def _check_classifies(self, what: str) -> None:
        if not self.classifies:
            raise StateError(
                f"{what} are for classes, and this learner was given another criterion; predict(x) "
                "gives its mean outputs"
            )

    def _width(self, head: int) -> int:
        """How many outputs a head has, as far as that can be seen without asking it."""
        own = self._linear_head(head)
        return self.outputs_seen[head] if own is None else own.out_features

    def _linear_head(self, head: int) -> nn.Linear | None:
        """A head that can become wider."""
        module = self.network.skeleton
        if not isinstance(module, MultiHead) or head >= len(module.heads):
            return None
        own = module.heads[head]
        return own if isinstance(own, nn.Linear) else None

    def _predict_checked(self, x: Any, task: Asked, samples: int | None) -> tuple[Tensor, Tensor]:
        self._check_classifies("probabilities")
        head, values = self._asked(x, task)
        return self._predict(values, head, self.outputs_seen[head], samples)

    def _predict(
        self,
        x: Tensor,
        head: int,
        outputs: int,
        samples: int | None,
        by: tuple[BayesianNetwork, MeanField] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The mean over samples of the class probabilities and of their entropy."""
        probabilities, entropies = [], []
        for logits in self._outputs(x, head, samples, by):
            outcomes = logits[:, :, :outputs].softmax(2)
            probabilities.append(outcomes.mean(0))
            entropies.append(entropy(outcomes).mean(0))
        return torch.cat(probabilities), torch.cat(entropies)

    @torch.no_grad()
    def _outputs(
        self,
        x: Tensor,
        head: int,
        samples: int | None,
        by: tuple[BayesianNetwork, MeanField] | None = None,
    ) -> list[Tensor]:
        """Outputs under each sample, (samples, inputs, outputs), for some of the inputs at a time;
        `by` the network that answers for the head, or by another one."""
        samples = whole("samples", self.samples if samples is None else samples, 1, MOST_SAMPLES)
        network, q = by or self._predictor(head)
        draws = generator(self.seed, len(self.learned), "predict", head)
        seeds = new_seeds(draws, samples)
        # A module that draws numbers in a prediction too draws the same ones every time.
        purpose = (len(self.learned), "predict", head, "module")
        own = own_random_state(self.seed, *purpose, device=network.device)
        found = []
        with nullcontext() if draws_nothing(network) else own:
            for rows in x.split(rows_at_once(x)):
                part = rows.to(network.device)
                if self.method.averages_samples:
                    logits = torch.stack(list(network.samples(q, part, head, seeds)))
                else:
                    logits = network(q, part, head)[None]
                found.append(logits.to(x.device))
        return found

    def _predictor(self, head: int) -> tuple[BayesianNetwork, MeanField]:
        """What predicts for a head now; some methods train for it, so it is kept."""
        with self._one_at_a_time:
            if head not in self._predictors:
                trainer = self._trainer(f"head {head}")
                with torch.inference_mode(False), torch.enable_grad():
                    self._predictors[head] = self.method.predictor(
                        self.network, self.q, self.memory, head, trainer
                    )
            return self._predictors[head]

    # Saving

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the whole state into a folder, as safetensors and JSON."""
        module = self.network.skeleton
        tensors = {
            "q.mean": self.q.mean,
            "q.variance": self.q.variance,
            "start": self.network.initial(variance=1.0).mean,
            **{f"buffer.{name}": buffer for name, buffer in self.network.buffers.items()},
        }
        if self.moments is not None:
            tensors |= {
                "optimiser.first": self.moments.first,
                "optimiser.second": self.moments.second,
            }
        kept = checkpoint.as_plain(self.memory, "memory", tensors)
        made_of = getattr(module, "architecture", None)
        ready = made_of if isinstance(made_of, networks.Architecture) else None
        header = {
            "method": described(self.method),
            "training": self.training.model_dump(mode="json"),
            "seed": self.seed,
            "samples": self.samples,
            **checkpoint.saved_likelihood(self.likelihood),
            "architecture": ready and ready.model_dump(mode="json"),
            "network": type(module).__name__,
            "growth": self.network.growth,
            "layout": asdict(self.network.layout),
            "modules": checkpoint.modules_of(self.network),
            "frozen": checkpoint.frozen_of(self.network),
            "learned": [asdict(task) for task in self.learned],
            "kept": kept,
            "optimiser_steps": 0 if self.moments is None else self.moments.steps,
        }
        return checkpoint.write(own_path(path, "the path"), header, tensors, overwrite is True)

    @classmethod
    def load(
        cls,
        path: str | Path,
        network: nn.Module | None = None,
        method: Method | None = None,
        criterion: Criterion | None = None,
        point: Predicate | None = None,
        callback: Callback | None = None,
        device: str | None = None,
    ) -> "Learner":
        """Read a saved learner; it goes on as if it had never stopped.

        A network, a method, a criterion or a choice of point values of your own is not in the
        file: pass it again, the network as it was before the first task. `device` is for a machine
        that has other devices than the one it was saved on.
        """
        header, tensors = checkpoint.read(own_path(path, "the path"))
        header.check_size(tensors)
        if network is None:
            network = header.own_network()
        given = {} if device is None else {"device": device}
        settings = Training(**(Training.before | header.training | given))
        if method is not None:
            if not isinstance(method, Method):
                raise SettingsError(f"method = {method!r:.60} is wrong: an object such as EWC()")
            header.check_method(method)
        method = method or from_description(header.method)
        learner = cls(
            network,
            method,
            seed=header.seed,
            samples=header.samples,
            criterion=header.own_likelihood(criterion),
            point=header.own_point(point, _known_points(network, method)),
            callback=callback,
            **settings.model_dump(),
        )
        learner._restore(header, tensors)
        return learner

    def _restore(self, header: checkpoint.Header, tensors: dict[str, Tensor]) -> None:
        """Take over all that was learned; network and settings are the saved learner's already."""
        self._grow_to(header)
        header.check_layout(self.network.layout)
        header.check_modules(self.network)
        layout, where = self.network.layout, self.network.device
        reader = checkpoint.Reader(
            tensors, layout, where, self.method.memory_types, self.network.dtype
        )
        self.q = MeanField(reader.tensor("q.mean"), reader.tensor("q.variance"), layout)
        start = MeanField(reader.tensor("start"), self.q.variance, layout)
        for q, name in ((self.q, "q"), (start, "start")):
            reader.check_weights(q, name)
        self.memory = reader.value(header.kept, "memory")
        if header.optimiser_steps:
            self.moments = reader.moments(header.optimiser_steps)
        buffers = {
            name.removeprefix("buffer."): tensor
            for name, tensor in tensors.items()
            if name.startswith("buffer.")
        }
        if buffers.keys() != self.network.buffers.keys():
            odd = sorted(buffers.keys() ^ self.network.buffers.keys())[0]
            raise FileError(f"the network does not match the saved learner: buffer {odd}")
        for name, buffer in self.network.buffers.items():
            if (buffers[name].shape, buffers[name].dtype) != (buffer.shape, buffer.dtype):
                raise FileError(f"the saved buffer {name} does not fit the network's")
        self.network.restore(start.mean, buffers)
        self.learned = tuple(Learned(**task.model_dump()) for task in header.learned)
        self._predictors = {}
        self._check_kept()

    def _check_kept(self) -> None:
        """What a file says was learned and kept must be something that this network can answer."""
        for task in self.learned:
            if task.head >= self.network.heads or task.outputs > self._width(task.head):
                raise FileError(f"the saved task {task.name!r} has a head that the network has not")
        if not self.method.keeps(self.memory):
            raise FileError(f"the saved memory is none of {self.method.name}; it is damaged")
        for examples in tree.found(self.memory, Examples):
            if self.classifies and examples.labels.dtype != torch.int64:
                raise FileError("the saved examples have labels that are no classes")
            if examples.head not in self.outputs_seen:
                raise FileError(f"the saved examples are of head {examples.head}, never learned")
            if len(examples):
                x = examples.inputs(torch.arange(1))
                try:
                    self._try(self.network, self.q, x, examples.head, "the saved examples")
                except DataError as error:
                    raise FileError(str(error)) from None

    def _grow_to(self, header: checkpoint.Header) -> None:
        """Give the network the heads that came before it was saved; their weights are in the file.
        A ready-made one is built with them."""
        for head, outputs, features in header.growth:
            own = self._linear_head(head)
            if head == self.network.heads or (own is not None and own.out_features < outputs):
                made_by = getattr(self.network.skeleton, "new_head", None)
                if made_by is nn.Linear and outputs * features > header.layout.total:
                    raise FileError(f"the saved growth of head {head} does not fit the state")
                self.network = self.network.grown(head, outputs, features, seed=0)
        self.network.growth = tuple(header.growth)


def _known_points(network: nn.Module, method: Method) -> Predicate | None:
    """The point values that need not be passed again, whatever heads come; none: no heads come."""
    module = method.network_of(network)
    if not isinstance(module, MultiHead):
        return None
    own = own_points(module)
    return lambda name: own(name) or not method.has_variance(name)


def _check_same(task: Task, known: Learned) -> None:
    """A task is known by its name, and then has to be the one that was learned."""
    if task.head != known.head:
        raise StateError(
            f"task {task.name!r} was learned with head {known.head}, and this one of that name has "
            f"head {task.head}; it is another task"
        )
    if known.view and task.train.view.fingerprint() != known.view:
        raise StateError(
            f"the inputs of task {task.name!r} are scaled or reordered in another way than those "
            "that were learned under this name; build the stream with the same seed and settings"
        )
