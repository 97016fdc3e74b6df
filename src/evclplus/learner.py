"""The learner: the only object with state."""

import copy
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from evclplus import checkpoint
from evclplus.answers import Answers, Evaluation, Predictor, RegressionEvaluation, Uncertainty
from evclplus.callbacks import Callback
from evclplus.checks import check_labels, check_module, usable_device
from evclplus.conformal import Conformal
from evclplus.core import tree
from evclplus.core.batches import batches_per_epoch
from evclplus.core.engine import Moments
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import MultiHead, new_weights
from evclplus.core.likelihoods import (
    Classification,
    Criterion,
    Likelihood,
    Regression,
    likelihood_of,
)
from evclplus.core.metrics import RegressionScores, Scores, entropy, regression_scores, scores
from evclplus.core.network import BayesianNetwork, Predicate
from evclplus.core.typicality import Typical
from evclplus.core.uncertainty import conformal_threshold
from evclplus.errors import DataError, FileError, SettingsError, StateError
from evclplus.export import Format, export, exportable
from evclplus.files import own_path
from evclplus.front_door import check_network, check_task, checked_inputs
from evclplus.learned import (
    Asked,
    Learned,
    classes_of,
    head_of,
    known,
    outputs_seen,
)
from evclplus.methods import described, from_description
from evclplus.methods import method as method_named
from evclplus.methods.base import Lesson, Method, training_for
from evclplus.networks import Architecture
from evclplus.progress import Checkpoints, Identity, Progress, digest_of
from evclplus.ranks import ALONE, Ranks
from evclplus.ranks import current as current_ranks
from evclplus.recognition import Recognise, first_features, typical_of
from evclplus.saving import known_points, restore, saved
from evclplus.seeding import derived_seed, generator
from evclplus.settings import Optimiser, Training, whole
from evclplus.signals import Signals, Stopped, watched
from evclplus.streams.arrays import listed
from evclplus.streams.task import Task
from evclplus.train import Trainer

logger = logging.getLogger("evclplus")

Side = Literal["test", "validation", "train"]
MOST_SAMPLES = 10**6
MOST_EXPORTED = 10**4


class Learner:
    """Learns tasks one after another with one network and one method.

    network     any nn.Module; it is never changed. A `MultiHead` gets a head for every task that
                asks for one, when the task arrives
    criterion   "classification", "regression" (or `Regression(std)`), or a function of (outputs, y)
                that gives the mean loss of a batch
    point       says which parameters, by name, stay point values
    recognise   how a head is chosen where every task has one and a prediction is asked for without
                a task: "entropy", the surest one, or "features", for which the mean and covariance
                of each task's features are kept

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
        recognise: Recognise = "entropy",
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
        shards: int | None = None,
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
        if recognise not in get_args(Recognise):
            choices = ", ".join(get_args(Recognise))
            raise SettingsError(f"recognise = {recognise!r:.60} is wrong: one of {choices}")
        if recognise == "features" and not isinstance(network, MultiHead):
            raise SettingsError(
                "recognise = 'features' needs a network with heads; wrap it: MultiHead(body)"
            )
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
            shards=shards,
        )
        self.training = training_for(self.method, wanted)
        self.ranks = ranks_for(self.training)
        self.likelihood = likelihood_of(criterion)
        self.recognise = recognise
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
        self.typical: tuple[Typical, ...] = ()
        """What the inputs of each task look like, with recognise = "features"."""
        self.forms: set[str] = set()
        """Which forms of a training step were taken: compiled, plain, or why compiling failed."""
        self._answers = self._new_answers()

    # Learning

    @torch.inference_mode(False)
    def learn(self, task: Task, checkpoint: str | Path | Checkpoints | None = None) -> "Learner":
        """Learn one task. If anything goes wrong the learner stays as it was before.

        With a folder as `checkpoint`, training is saved there every few minutes, when the process
        is asked to stop (Ctrl-C, SIGTERM) or to save (SIGUSR1), and when the task is learned. The
        same call in another process goes on from there, and ends with the same numbers as if
        nothing had happened. All tasks of a learner may have one folder.
        """
        check_task(task, self.learned, self.network, self.method, self.likelihood)
        if checkpoint is None:
            return self._learn(task)
        place = checkpoint if isinstance(checkpoint, Checkpoints) else Checkpoints(Path(checkpoint))
        place.ranks = self.ranks
        position = len(self.learned)
        identity = self._identity_of(task, position)
        with place.locked(), watched() as signals:
            progress = Progress(place, position, identity, signals)
            known = self._take_over(progress)
            if not known:
                progress.read()
            self.ranks.agree("the checkpoint", known, *progress.how_far)
            if not known:
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
            "recognise": self.recognise,
            "data": digest_of(task.train),
            "frozen": json.dumps(checkpoint.frozen_of(network)),
            "learner": digest_of(first, q, memory, network.buffers, moments),
        }

    def _learn(self, task: Task, progress: Progress | None = None) -> "Learner":
        task = replace(task, train=task.train.for_learning())
        network, q, memory = self._with_head(task.train)
        if network is self.network:  # with a new head it is a copy already
            network = network.copy()
        batch_size = self.training.batch_size
        check_network(network, q, task, self.likelihood, batch_size, self.seed)
        trainer = self._trainer(f"task {len(self.learned) + 1} ({task.name})")
        trainer = replace(trainer, progress=progress)
        lesson = self._lesson(network, q, memory, task, trainer)
        start = self.method.begin(lesson)
        if self.training.epochs is None and start.sources:
            batches = batches_per_epoch(start.sources[0], batch_size)
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
        if self.recognise == "features":
            self.typical = (*self.typical, typical_of(network, task.train))
        self.network, self.q, self.memory = network, trained.q, memory
        self.moments = trained.moments
        self.learned = (*self.learned, Learned.of(task, lesson.calibrated))
        self._answers = self._new_answers()
        return self

    def _with_head(self, examples: Examples) -> tuple[BayesianNetwork, MeanField, Any]:
        """The network, weights and memory with the head that these examples need."""
        network, head, outputs = self.network, examples.head, examples.outputs
        own = network.linear_head(head)
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
            weights = (network.owner, network.layout, network.names_for(task.head))
            marks = new_weights(*weights, task.head, seen, task.outputs, network.rows_are_outputs)
            return marks.to(network.device)

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
            sharers=sum(one.head == task.head for one in self.learned),
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
            ranks=self.ranks,
        )

    @property
    def outputs_seen(self) -> dict[int, int]:
        """How many outputs of each head the tasks so far have used."""
        return outputs_seen(self.learned)

    @property
    def classifies(self) -> bool:
        return isinstance(self.likelihood, Classification)

    def _new_answers(self) -> Answers:
        """What answers, with all that is known now."""
        trainer = self._trainer("predicting")
        weights = (self.network, self.q, self.memory)
        return Answers(self.method, *weights, trainer, self.learned, self.typical)

    # Predicting

    def predict_proba(self, x: Any, task: Asked = None, samples: int | None = None) -> Tensor:
        """Class probabilities, averaged over posterior samples; `classes(task)` says which class a
        column is.

        `x` is network input, as `task.test.inputs()` gives it. `task` is a learned task, its name
        or its position, counted from 0. It may be left out when all tasks share one head. Left out
        when there are several, a head is chosen for each input (`which_task`), and classes of other
        heads have probability 0.
        """
        return self._predict(x, task, samples)[0]

    def predict(self, x: Any, task: Asked = None, samples: int | None = None) -> Tensor:
        """The most probable class of each input, as the caller's own label; without classes, the
        mean output."""
        if self.classifies:
            best = self.predict_proba(x, task, samples).argmax(1)
            return torch.tensor(self.classes(task))[best]
        head, values = self._asked(x, task)
        return self._answers.means(values, head, self._samples(samples))

    def which_task(self, x: Any, samples: int | None = None) -> Tensor:
        """The position of the task that each input seems to belong to, by `recognise`. With
        "entropy" only heads can be told apart: of tasks that share one it is the first."""
        _, values = self._asked(x, None)
        return self._answers.choose(values, self._samples(samples))[0]

    def known_task(self, x: Any, surprise: float = 0.5) -> int | None:
        """The position of the learned task that a batch of inputs comes from; None: of no learned
        task. For data that arrive without borders, with recognise = "features".

        The batch is compared with every task by the mean log-density of its features. It comes
        from the task that it surprises least, unless that is by more than `surprise` of the task's
        own standard deviations.
        """
        if self.recognise != "features":
            raise StateError(
                "to know a task again, statistics of its inputs have to be kept: "
                "Learner(..., recognise='features')"
            )
        if not self.learned:
            return None
        _, values = self._asked(x, 0)
        features = torch.cat(list(first_features(self.network, values)))
        found = [one.surprise(features) for one in self.typical]
        return found.index(min(found)) if min(found) <= surprise else None

    def classes(self, task: Asked = None) -> tuple[int, ...]:
        """The caller's label of each output that answers for a task, the columns of predict_proba.

        A domain-incremental head may stand for other classes in every task. Asked without a task,
        it has its outputs' numbers; several heads have the classes of all of them.
        """
        self._check_classifies("classes")
        return classes_of(self.learned, task)

    def uncertainty(self, x: Any, task: Asked = None, samples: int | None = None) -> Uncertainty:
        """How uncertain each prediction is, and how much of it more data would remove."""
        probabilities, data = self._predict(x, task, samples)
        total = entropy(probabilities)
        # Rounding may take the difference a hair below zero, which it never is.
        return Uncertainty(total, data, (total - data).clamp_min(0))

    def conformal(self, task: Task, coverage: float = 0.9, on: Side = "validation") -> Conformal:
        """Sets of classes that contain the right one with a probability of at least `coverage`,
        calibrated on a task's validation data, which nothing may have been learned from.

        The promise is for new inputs of that task and for the learner as it is now.
        """
        self._check_side(on)
        if isinstance(coverage, bool) or not isinstance(coverage, float) or not 0 < coverage < 1:
            raise SettingsError(f"coverage = {coverage!r:.60} is wrong: a number between 0 and 1")
        known(self.learned, task)
        examples = getattr(task, on)
        self._check_scored(examples, task.name)
        probabilities, _ = self._predict(self._inputs(examples), task, None)
        threshold = conformal_threshold(probabilities, examples.labels, coverage)
        return Conformal(self, task, len(self.learned), coverage, len(examples), threshold)

    def evaluate_regression(
        self, tasks: Task | Iterable[Task], on: Side = "test"
    ) -> RegressionEvaluation:
        """The same for numbers: root mean squared error and negative log-likelihood."""
        if not isinstance(self.likelihood, Regression):
            raise StateError("evaluate_regression is for a learner with criterion='regression'")
        chosen = self._chosen(tasks, on)
        names = tuple(task.name for task in chosen)
        found = [self.regression_score(getattr(task, on), task.name) for task in chosen]
        return RegressionEvaluation(names, tuple(found))

    def evaluate(
        self, tasks: Task | Iterable[Task], on: Side = "test", tell_task: bool = True
    ) -> Evaluation:
        """Scores on each of the tasks, all of them learned before. With `tell_task=False` the
        learner chooses the head of each input itself, and how often it is the right one is in
        `recognised`."""
        chosen = self._chosen(tasks, on)
        names = tuple(task.name for task in chosen)
        if not tell_task and len(self.outputs_seen) > 1:
            found = [self._score_untold(getattr(task, on), task) for task in chosen]
            return Evaluation(names, tuple(one for one, _ in found), tuple(r for _, r in found))
        return Evaluation(names, tuple(self.score(getattr(task, on), task.name) for task in chosen))

    def score(self, examples: Examples, name: str) -> Scores:
        """Scores on any examples, also those of a task that is not learned yet."""
        self._check_scored(examples, name)
        outputs, by = self._asked_of(examples)
        asked = examples.head, outputs, self._samples(None), by
        found = [
            self._answers.probabilities(self._inputs(some), *asked)[0] for some in examples.parts()
        ]
        return scores(torch.cat(found), examples.labels)

    def regression_score(self, examples: Examples, name: str) -> RegressionScores:
        """The same for numbers."""
        if not isinstance(self.likelihood, Regression):
            raise StateError("regression_score is for a learner with criterion='regression'")
        if len(examples) == 0:
            raise DataError(f"task {name!r} has no examples to be tested on")
        outputs, by = self._asked_of(examples)
        values, head = self._inputs(examples), examples.head
        parts = self._answers.outputs(values, head, self._samples(None), by)
        drawn = torch.cat([part[:, :, :outputs] for part in parts], 1)
        return regression_scores(drawn, examples.labels, self.likelihood.std)

    def _asked_of(self, examples: Examples) -> tuple[int, Predictor | None]:
        """How many outputs answer for examples, and what does where it is not what was learned:
        a head that is not there yet."""
        outputs = max(self.outputs_seen.get(examples.head, 0), examples.outputs)
        own = self.network.linear_head(examples.head)
        narrow = own is not None and own.out_features < outputs
        new = examples.head not in self.outputs_seen or narrow
        with torch.inference_mode(False):
            return outputs, self._with_head(examples)[:2] if new else None

    def _score_untold(self, examples: Examples, task: Task) -> tuple[Scores, float]:
        """Scores where the head has to be chosen, and how often it was the right one."""
        self._check_scored(examples, task.name)
        values = self._inputs(examples)
        probabilities, _, tasks = self._answers.untold(values, self._samples(None))
        labels = self._answers.columns(task.head)[examples.labels]
        heads = torch.tensor([one.head for one in self.learned])[tasks]
        return scores(probabilities, labels), (heads == task.head).double().mean().item()

    def _chosen(self, tasks: Task | Iterable[Task], on: Side) -> list[Task]:
        """The tasks to evaluate, all of them learned before."""
        chosen = [tasks] if isinstance(tasks, Task) else listed(tasks, "the tasks to evaluate")
        self._check_side(on)
        if not chosen:
            raise DataError("there are no tasks to evaluate; give at least one")
        for task in chosen:
            if not isinstance(task, Task):
                raise DataError(f"{task!r:.60} is no task; give tasks, such as those of a stream")
            known(self.learned, task)
        return chosen

    def _check_side(self, on: Side) -> None:
        if not isinstance(on, str) or on not in get_args(Side):
            raise SettingsError(f"on = {on!r:.60} is wrong: one of {', '.join(get_args(Side))}")

    def _check_scored(self, examples: Examples, name: str) -> None:
        self._check_classifies("scores")
        check_labels(examples, f"data of task {name!r}")
        if len(examples) == 0:
            raise DataError(f"task {name!r} has no examples to be tested on")

    def _inputs(self, examples: Examples) -> Tensor:
        values = examples.inputs()
        return values.to(self.q.mean.dtype) if values.is_floating_point() else values

    def _asked(self, x: Any, task: Asked) -> tuple[int | None, Tensor]:
        """The head that answers for a task, None where it is to be chosen, and inputs that it can
        take."""
        head = head_of(self.learned, task)
        tried = self.learned[0].head if head is None else head
        return head, checked_inputs(x, self.learned, self.network, self.q, tried, self.seed)

    def _predict(self, x: Any, task: Asked, samples: int | None) -> tuple[Tensor, Tensor]:
        """Class probabilities, and the mean entropy of those under each sample."""
        self._check_classifies("probabilities")
        head, values = self._asked(x, task)
        if head is None:
            return self._answers.untold(values, self._samples(samples))[:2]
        return self._answers.told(values, head, self._samples(samples))

    def _samples(self, samples: int | None) -> int:
        return whole("samples", self.samples if samples is None else samples, 1, MOST_SAMPLES)

    def _check_classifies(self, what: str) -> None:
        if not self.classifies:
            raise StateError(
                f"{what} are for classes, and this learner was given another criterion; predict(x) "
                "gives its mean outputs"
            )

    # Saving

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the whole state into a folder, as safetensors and JSON."""
        header, tensors = saved(self)
        return checkpoint.write(own_path(path, "the path"), header, tensors, overwrite is True)

    @torch.inference_mode(False)
    def export(
        self,
        path: str | Path,
        task: Asked = None,
        samples: int = 0,
        format: Format = "onnx",
        example: Any = None,
        overwrite: bool = False,
    ) -> Path:
        """Write what answers for a task as one file that runs without this package, see export.py.

        samples    0: the mean network; else an ensemble of so many draws of the weights, with the
                   entropies of its answers. They are other draws than those of `predict`
        format     "onnx" (`pip install 'evclplus[export]'`) or "pt2", torch's own
        example    network input, of which the shape is taken; not needed where `task` is a Task,
                   whose inputs have it, or where the network is ready-made: `mlp(64, ...)` takes
                   (inputs, 64)
        """
        if format not in get_args(Format):
            raise SettingsError(f"format = {format!r:.60} is wrong: one of onnx, pt2")
        samples = whole("samples", samples, 0, MOST_EXPORTED)
        head = head_of(self.learned, task)
        if head is None:
            raise StateError("a file answers for one head; say for which: export(path, task=0)")
        network, q = self._answers.predictor(head)
        if samples and not len(q.variance):
            raise SettingsError(
                f"{self.method.name} has point weights, of which there is one draw: samples=0"
            )
        target = own_path(path, "the path")
        if target.exists() and overwrite is not True:
            raise FileError(f"{target} exists already; pass overwrite=True to replace it")
        draws = generator(self.seed, len(self.learned), "export", head)
        outputs = self.outputs_seen[head]
        module = exportable(network, q, head, outputs, self.classifies, samples, draws)
        return export(module, self._example(task, example, head), target, format)

    def _example(self, task: Asked, example: Any, head: int) -> Tensor:
        if example is not None:
            tried = (self.learned, self.network, self.q, head, self.seed)
            return checked_inputs(example, *tried).cpu()
        if isinstance(task, Task):
            return self._inputs(task.train.take(torch.arange(min(2, len(task.train)))))
        made_of = getattr(self.network.skeleton, "architecture", None)
        if isinstance(made_of, Architecture):
            return torch.zeros(2, *made_of.input_shape, dtype=self.q.mean.dtype)
        raise SettingsError(
            "the shape of inputs is not known; give some: export(path, task=0, example=x[:2])"
        )

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
            point=header.own_point(point, known_points(network, method)),
            recognise=header.recognise,
            callback=callback,
            **settings.model_dump(),
        )
        learner._restore(header, tensors)
        return learner

    def _restore(self, header: checkpoint.Header, tensors: dict[str, Tensor]) -> None:
        restore(self, header, tensors)
        self._answers = self._new_answers()


def ranks_for(training: Training) -> Ranks:
    """The processes that share out the shards of a batch. Where batches are not cut, each process
    learns by itself."""
    shards = training.shards or 1
    ranks = current_ranks() if shards > 1 else ALONE
    ranks.own(shards)  # or a line that says why not
    return ranks
