"""The learner: the only object with state."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor, nn

from evclplus import checkpoint, networks
from evclplus.callbacks import Progress
from evclplus.checks import (
    as_input,
    check_finite,
    check_labels,
    usable_device,
)
from evclplus.core.examples import Examples, rows_at_once
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import MultiHead, new_weights, shared_weights
from evclplus.core.hold import Hold
from evclplus.core.metrics import Scores, entropy, scores
from evclplus.core.network import BayesianNetwork, Predicate
from evclplus.errors import DataError, SettingsError, StateError
from evclplus.methods import method as method_named
from evclplus.methods.base import Fit, Lesson, Memory, Method
from evclplus.seeding import generator, own_random_state
from evclplus.settings import Training
from evclplus.streams.task import Task
from evclplus.train import fit

Side = Literal["test", "validation", "train"]


@dataclass(frozen=True)
class Learned:
    """What the learner remembers of a task's outside: its name, head and outputs."""

    name: str
    head: int
    outputs: int


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

    `network` is any nn.Module and is never changed; with several heads it is a `MultiHead`.
    `point(name)` says which parameters stay point values. Further keywords are the settings of
    `Training`: epochs, batch_size, learning_rate, schedule, clip_norm, compile, device, precision.
    """

    def __init__(
        self,
        network: nn.Module,
        method: Method | str = "evcl+",
        *,
        seed: int = 0,
        samples: int = 10,
        point: Predicate = lambda name: False,
        progress: Progress | None = None,
        **training: Any,
    ) -> None:
        if samples < 1:
            raise SettingsError(f"samples = {samples} is wrong: at least one is needed")
        self.method = method_named(method) if isinstance(method, str) else method
        self.training = Training(**training)
        self.seed = seed
        self.samples = samples
        self.progress = progress or Progress()
        everything_is_point = self.method.is_point
        self.network = BayesianNetwork(
            network,
            lambda name: everything_is_point or point(name),
            usable_device(self.training.device),
        )
        self.architecture = getattr(network, "architecture", None)
        self.q = self.method.initial(self.network)
        self.memory = Memory(prior=self.q)
        self.learned: tuple[Learned, ...] = ()
        self._recalled: dict[int, tuple[BayesianNetwork, MeanField]] = {}

    # Learning

    def learn(self, task: Task) -> "Learner":
        """Learn one task. If anything goes wrong the learner stays as it was before."""
        self._check(task)
        position = len(self.learned)
        network = self.network.copy()
        fit_task = self._fit(position, f"task {position + 1} ({task.name})")
        data, memory = self.method.gather(
            self.memory, task.train, generator(self.seed, position, "gather")
        )
        q = self.q
        if data:
            lesson = self._lesson(network, data, task, fit_task)
            q, memory = self.method.prepare(q, memory, lesson)
            hold = self.method.hold(memory, lesson)
            q = fit_task(network, q, self.method, memory, data, purpose="train", hold=hold)
            memory = self.method.consolidate(q, memory, lesson)
        self.network, self.q, self.memory = network, q, memory
        self.learned = (*self.learned, Learned(task.name, task.head, task.outputs))
        self._recalled = {}
        return self

    def _lesson(
        self, network: BayesianNetwork, data: Sequence[Examples], task: Task, fit_task: Fit
    ) -> Lesson:
        module, layout, device = network.skeleton, network.layout, network.device
        seen = self.outputs_seen
        return Lesson(
            network=network,
            data=data,
            new=lambda: new_weights(module, layout, task.head, seen, task.outputs).to(device),
            shared=lambda: shared_weights(module, layout).to(device),
            generator=generator(self.seed, len(self.learned), "consolidate"),
            fit=fit_task,
            earlier=tuple(sorted(set(seen) - {task.head})),
        )

    def _fit(self, position: int, label: str) -> Fit:
        """The training loop with this learner's settings and its own random numbers."""

        def fit_with_settings(
            network: BayesianNetwork,
            q: MeanField,
            method: Method | None,
            memory: Memory,
            data: Sequence[Examples],
            *,
            purpose: str,
            epochs: int | None = None,
            at_mean: bool = False,
            hold: Hold | None = None,
        ) -> MeanField:
            training = self.training
            if epochs is not None:
                training = training.model_copy(update={"epochs": epochs})
            draws = generator(self.seed, position, purpose)
            device = network.device
            with own_random_state(self.seed, position, purpose, "module", device=device):
                return fit(
                    network,
                    q,
                    method,
                    memory,
                    data,
                    training,
                    draws,
                    f"{label}, {purpose}",
                    self.progress,
                    at_mean,
                    hold=hold,
                )

        return fit_with_settings

    @property
    def outputs_seen(self) -> dict[int, int]:
        """How many outputs of each head the tasks so far have used."""
        seen: dict[int, int] = {}
        for task in self.learned:
            seen[task.head] = max(seen.get(task.head, 0), task.outputs)
        return seen

    def _check(self, task: Task) -> None:
        """Refuse a task that cannot be learned before anything is changed."""
        if any(task.name == known.name for known in self.learned):
            raise StateError(
                f"task {task.name!r} was learned already; a learner learns each task once, "
                "so give new data a new name"
            )
        examples = task.train
        if len(examples) == 0:
            raise DataError(f"task {task.name!r} has no training examples")
        check_finite(examples, task.name)
        available = self._outputs_of(examples, task.name)
        if examples.outputs > available:
            raise DataError(
                f"task {task.name!r} uses {examples.outputs} outputs but head {examples.head} of "
                f"the network has {available}; build the network with heads=stream.heads"
            )
        for side, part in (("training", task.train), ("test", task.test)):
            check_labels(part, f"{side} data of task {task.name!r}")

    def _outputs_of(self, examples: Examples, name: str) -> int:
        """How many outputs the network gives for these inputs, found by asking it."""
        module = self.network.skeleton
        heads = len(module.heads) if isinstance(module, MultiHead) else 1
        if not 0 <= examples.head < heads:
            raise DataError(
                f"task {name!r} wants head {examples.head} but the network has {heads}; wrap it: "
                "MultiHead(body, heads=[...]) with one head per task"
            )
        x = examples.inputs(torch.arange(min(2, len(examples))))
        return self._try(x, examples.head, f"the inputs of task {name!r}").shape[1]

    @torch.no_grad()
    def _try(self, x: Tensor, head: int, what: str) -> Tensor:
        """The mean network's output, or a clear line on why there is none."""
        try:
            output = self.network(self.q, x.to(self.network.device), head)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise DataError(
                f"the network cannot take {what}, {x.dtype} of shape {tuple(x.shape[1:])}: {reason}"
            ) from None
        if output.ndim != 2 or len(output) != len(x):
            raise DataError(
                f"the network's output for {len(x)} inputs has shape {tuple(output.shape)}; "
                "expected (inputs, classes)"
            )
        return output

    # Predicting

    def predict_proba(
        self, x: Any, task: Task | int | None = None, samples: int | None = None
    ) -> Tensor:
        """Class probabilities, averaged over posterior samples.

        `x` is network input, as `task.test.inputs()` gives it. `task` is a learned task or its
        position, counted from 0; it may be left out when all tasks share one head.
        """
        return self._predict_checked(x, task, samples)[0]

    def predict(self, x: Any, task: Task | int | None = None, samples: int | None = None) -> Tensor:
        """The most probable class of each input."""
        return self.predict_proba(x, task, samples).argmax(1)

    def uncertainty(
        self, x: Any, task: Task | int | None = None, samples: int | None = None
    ) -> Uncertainty:
        """How uncertain each prediction is, and how much of it more data would remove."""
        probabilities, data = self._predict_checked(x, task, samples)
        total = entropy(probabilities)
        # Rounding may take the difference a hair below zero, which it never is.
        return Uncertainty(total, data, (total - data).clamp_min(0))

    def evaluate(self, tasks: Task | Iterable[Task], on: Side = "test") -> Evaluation:
        """Scores on each of the tasks, all of them learned before."""
        chosen = [tasks] if isinstance(tasks, Task) else list(tasks)
        for task in chosen:
            self._head(task)
        return Evaluation(
            tuple(task.name for task in chosen),
            tuple(self.score(getattr(task, on), task.name) for task in chosen),
        )

    def score(self, examples: Examples, name: str) -> Scores:
        """Scores on any examples, also those of a task that is not learned yet."""
        if len(examples) == 0:
            raise DataError(f"task {name!r} has no examples to be tested on")
        outputs = max(self.outputs_seen.get(examples.head, 0), examples.outputs)
        probabilities, _ = self._predict(examples.inputs(), examples.head, outputs, None)
        return scores(probabilities, examples.labels)

    def _head(self, task: Task | int | None) -> int:
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
        if isinstance(task, Task):
            names = [known.name for known in self.learned]
            if task.name not in names:
                raise StateError(f"task {task.name!r} is not learned yet; learned: {names}")
            return task.head
        if not 0 <= task < len(self.learned):
            raise StateError(
                f"there is no task {task}; {len(self.learned)} are learned, counted from 0"
            )
        return self.learned[task].head

    def _predict_checked(
        self, x: Any, task: Task | int | None, samples: int | None
    ) -> tuple[Tensor, Tensor]:
        head = self._head(task)
        values = as_input(x, self.q.mean.dtype)
        self._try(values[:1], head, "x")
        return self._predict(values, head, self.outputs_seen[head], samples)

    @torch.no_grad()
    def _predict(
        self, x: Tensor, head: int, outputs: int, samples: int | None
    ) -> tuple[Tensor, Tensor]:
        """The mean over samples of the class probabilities and of their entropy."""
        samples = self.samples if samples is None else samples
        if samples < 1:
            raise SettingsError(f"samples = {samples} is wrong: at least one is needed")
        network, q = self._predictor(head)
        draws = None
        if self.method.averages_samples:
            purpose = (len(self.learned), "predict", head)
            draws = generator(self.seed, *purpose, device=network.device)
        probabilities, entropies = [], []
        for rows in x.split(rows_at_once(x)):
            part = rows.to(network.device)
            if draws is None:
                logits = network(q, part, head)[None]
            else:
                logits = torch.stack(list(network.samples(q, part, head, draws, samples)))
            outcomes = logits[:, :, :outputs].softmax(2)
            probabilities.append(outcomes.mean(0).to(x.device))
            entropies.append(entropy(outcomes).mean(0).to(x.device))
        return torch.cat(probabilities), torch.cat(entropies)

    def _predictor(self, head: int) -> tuple[BayesianNetwork, MeanField]:
        """What predicts for a head now; some methods train for it, so it is kept."""
        if head not in self._recalled:
            position = len(self.learned)
            with torch.enable_grad():
                self._recalled[head] = self.method.recall(
                    self.network, self.q, self.memory, head, self._fit(position, f"head {head}")
                )
        return self._recalled[head]

    # Saving

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the whole state into a folder, as safetensors and JSON."""
        header = {
            "method": self.method.title,
            "options": self.method.options(),
            "training": self.training.model_dump(mode="json"),
            "seed": self.seed,
            "samples": self.samples,
            "architecture": self.architecture and self.architecture.model_dump(mode="json"),
            "network": type(self.network.skeleton).__name__,
            "layout": asdict(self.network.layout),
            "learned": [asdict(task) for task in self.learned],
            "tasks": self.memory.tasks,
            "stored": [{"head": kept.head, "outputs": kept.outputs} for kept in self.memory.stored],
        }
        start = self.network.initial(variance=1.0).mean
        tensors = checkpoint.state_tensors(self.q, start, self.memory, self.network.buffers)
        return checkpoint.write(Path(path), header, tensors, overwrite)

    @classmethod
    def load(
        cls,
        path: str | Path,
        network: nn.Module | None = None,
        method: Method | None = None,
        progress: Progress | None = None,
        device: str | None = None,
    ) -> "Learner":
        """Read a saved learner; it goes on as if it had never stopped.

        A network or a method of your own is not in the file: pass it again. `device` is for a
        machine that has other devices than the one it was saved on.
        """
        header, tensors = checkpoint.read(Path(path))
        if network is None:
            network = networks.build(header.own_architecture(), seed=0)
        learner = cls(
            network,
            method or method_named(header.method, **header.options),
            seed=header.seed,
            samples=header.samples,
            point=lambda name: name in header.layout.point_names,
            progress=progress,
            **{**header.training, **({} if device is None else {"device": device})},
        )
        header.check_layout(learner.network.layout)
        learner.q, start, learner.memory, buffers = checkpoint.state_of(
            header, tensors, learner.network.device
        )
        learner.network.restore(start, buffers)
        learner.learned = tuple(Learned(**task.model_dump()) for task in header.learned)
        return learner
