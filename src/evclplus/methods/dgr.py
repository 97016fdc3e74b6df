"""DGR: deep generative replay (Shin et al., NeurIPS 2017), with point weights.

    minimise  r mean -log p(y|x, theta)  over a batch of the task
              + (1 - r) mean -log p(y'|x', theta)  over one of generated inputs

x' are drawn from a generator that was trained on all tasks so far, y' is what the network answered
before the task came: its most probable class, for each head of an earlier task. r is 1 / t in task
t, so that every task counts the same. After the task the generator is trained likewise, on the
task's inputs and on its own, from first weights: one that goes on puts new inputs where no latent
numbers are drawn, and dreams of the old ones only. It keeps the generator's weights, and no data.

The generator is a variational autoencoder (Kingma and Welling, 2014) of two hidden layers, as in
van de Ven's comparisons; Shin et al. have a GAN. Its outputs are Gaussian with one variance for
all, the best for each batch (Rybkin, Daniilidis and Levine, ICML 2021), so that it takes inputs of
any scale. Inputs are generated once a task, `replayed` of them, and not anew in each step.
"""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from evclplus.core.batches import Batch, Source
from evclplus.core.engine import Terms
from evclplus.core.examples import Examples
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.errors import DataError
from evclplus.methods.base import Lesson, Method, Nothing, Start, Trained
from evclplus.methods.function_space import answers_of
from evclplus.methods.needs import needs_classes
from evclplus.methods.space import TRAINING, OneOf, Space
from evclplus.settings import Optimiser

SMALLEST_ERROR = 1e-6
"""The variance of an output that is always right."""


@dataclass(frozen=True)
class Dreamer:
    """The generator's weights, one after another; none before the first task."""

    generator: Tensor | None = None


class GenerativeReplay(Method):
    """Point weights trained on the task and on generated inputs that the old weights have named."""

    name: ClassVar[str] = "dgr"
    colour: ClassVar[str] = "#33BBAA"
    marker: ClassVar[str] = "<"
    memory_type: ClassVar[type] = Dreamer
    space: ClassVar[Space] = TRAINING | {"latent": OneOf((10, 30, 100))}

    share: float | None = Field(
        None, gt=0, lt=1, description="r, the weight of the task; none: 1 / tasks so far"
    )
    hidden: int = Field(400, ge=1, description="units in each hidden layer of the generator")
    latent: int = Field(100, ge=1, description="numbers that an input is generated from")
    replayed: int = Field(10_000, ge=1, description="inputs generated for each task")
    generator_epochs: int | None = Field(
        None, ge=1, description="epochs of the generator; none: as for a task"
    )

    def begin(self, lesson: Lesson) -> Start:
        needs_classes(self.name, lesson)
        if not lesson.task.inputs(torch.arange(1)).is_floating_point():
            raise DataError(f"method {self.name} generates real numbers, and these inputs are not")
        if not lesson.seen:
            return super().begin(lesson)
        old = named_by_the_old(lesson, self._dreams(lesson))
        sources = with_replay(lesson.task, old, self._share(lesson))
        return Start(lesson.q, lesson.memory, lesson.task, sources)

    def _share(self, lesson: Lesson) -> float:
        return self.share or 1 / (lesson.position + 1)

    def _network(self, lesson: Lesson) -> tuple["Autoencoder", BayesianNetwork]:
        draws = torch.randint(2**31, (1,), generator=lesson.generator("first generator"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(draws))
            module = Autoencoder(lesson.task.input_size, self.hidden, self.latent)
        module.to(lesson.q.mean)
        return module, BayesianNetwork(module, lambda name: True)

    @torch.no_grad()
    def _dreams(self, lesson: Lesson) -> Tensor:
        """Inputs of earlier tasks, as the generator has them."""
        module, network = self._network(lesson)
        named = network.layout.named(lesson.memory.generator)
        own = {name: value for name, value in named.items() if name.startswith("decoder.")}
        weights = {name.removeprefix("decoder."): value for name, value in own.items()}
        z = torch.randn(self.replayed, self.latent, generator=lesson.generator("dreams"))
        x: Tensor = functional_call(module.decoder, weights, (z.to(lesson.q.mean),))
        return x.view(-1, *lesson.task.input_shape).to(lesson.task.labels.device)

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Dreamer:
        _, network = self._network(lesson)
        sources: tuple[Source, ...] = (Source((lesson.task,)),)
        if lesson.memory.generator is not None:
            dreams = start.sources[1].examples[:1]
            sources = with_replay(lesson.task, dreams, self._share(lesson))
        found = lesson.fit(
            Reconstruction(latent=self.latent),
            network,
            network.initial(1.0),
            Nothing(),
            sources,
            purpose="generator",
            epochs=self.generator_epochs,
        )
        return Dreamer(found.q.mean)


def named_by_the_old(lesson: Lesson, x: Tensor) -> tuple[Examples, ...]:
    """Inputs with the class that each head of an earlier task gives them. In a head that grows they
    compete with the new classes too."""
    found = []
    for head, seen in lesson.seen.items():
        unnamed = Examples(x, x.new_zeros(len(x), dtype=torch.long), seen, head)
        labels = answers_of(lesson.network, lesson.q, unnamed, head)[:, :seen].argmax(1)
        outputs = max(seen, lesson.task.outputs) if head == lesson.task.head else seen
        found.append(Examples(x, labels, outputs, head))
    return tuple(found)


def with_replay(task: Examples, old: tuple[Examples, ...], share: float) -> tuple[Source, ...]:
    """r times the mean over the task, 1 - r times that over as many of the old."""
    return Source((task,), weight=share), Source(old, weight=1 - share)


# The generator.


class Autoencoder(nn.Module):
    """Outputs side by side: the input again, and mean and log-variance of its latent numbers."""

    def __init__(self, inputs: int, hidden: int, latent: int) -> None:
        super().__init__()
        self.encoder = _layers(inputs, hidden, 2 * latent)
        self.decoder = _layers(latent, hidden, inputs)

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x.flatten(1))
        mean, log_variance = code.chunk(2, 1)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        return torch.cat([self.decoder(z), code], 1)


def _layers(inputs: int, hidden: int, outputs: int) -> nn.Module:
    first, second, last = (inputs, hidden), (hidden, hidden), (hidden, outputs)
    return nn.Sequential(
        nn.Linear(*first), nn.ReLU(), nn.Linear(*second), nn.ReLU(), nn.Linear(*last)
    )


class Reconstruction(Method):
    """Trains an `Autoencoder` by its negative ELBO."""

    name: ClassVar[str] = "reconstruction"

    latent: int

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        return ("adam",)

    def likelihood(
        self, weights: Weights, memory: Nothing, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        x = batch.inputs.flatten(1)
        output = network(weights, batch.inputs, training=True)
        again, mean, log_variance = output.split(
            (output.shape[1] - 2 * self.latent, self.latent, self.latent), 1
        )
        return {"nll": gaussian_nll(again, x), "kl": standard_kl(mean, log_variance)}


def gaussian_nll(output: Tensor, x: Tensor) -> Tensor:
    """mean over x of -log N(x; output, s I) for the s that makes it least, the mean squared error;
    but for a constant."""
    error = (output - x).square().mean()
    return 0.5 * prod(x.shape[1:]) * (error + SMALLEST_ERROR).log()


def standard_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """mean over x of KL(N(mean, variance) || N(0, 1)), summed over latent numbers."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
