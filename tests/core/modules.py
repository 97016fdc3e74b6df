"""Networks of every kind, and small problems to train them on."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.batches import Batch
from evclplus.core.engine import Here, Problem, Step
from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork
from evclplus.methods.base import Nothing
from evclplus.methods.coreset import WithCoreset
from evclplus.methods.elastic import Anchored
from evclplus.methods.importance import Importance
from evclplus.methods.variational import Posterior

CLASSES = 3


class Read(nn.Module):
    """Reads a layer's weights instead of calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)
        self.output = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.linear(x, self.layer.weight, self.layer.bias)
        out: Tensor = self.output(h.tanh())
        return out


class CalledTwice(nn.Module):
    """One layer used twice in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.output = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.layer(self.layer(x).tanh()).tanh())
        return out


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    module[0].weight.requires_grad_(False)
    return module


torch.manual_seed(0)  # the networks below are the same in every run
MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "mlp": (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES)), (4,)),
    "in place": (
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, CLASSES)),
        (4,),
    ),
    "no bias": (nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 3)), (4,)),
    "sequence": (nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(10, 3)), (5, 4)),
    "conv": (
        nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
            nn.ReLU(),
            nn.Conv2d(4, 4, 2, dilation=2, bias=False),
            nn.Flatten(),
            nn.Linear(4, CLASSES),
        ),
        (2, 6, 6),
    ),
    "circular conv": (
        nn.Sequential(
            nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(15, 3)
        ),
        (2, 5),
    ),
    "norms": (
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        (4,),
    ),
    "attention": (
        nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        (3, 4),
    ),
    "frozen": (frozen(), (4,)),
    "read": (Read(), (4,)),
    "twice": (CalledTwice(), (4,)),
}


class Looking(ec.FineTune):
    """Steps by what it is shown and by nothing else."""

    @property
    def is_point(self) -> bool:
        return False

    def move(self, step: Step, memory: Any, here: Here) -> Step:
        assert here.reference is not None
        return Step(
            here.gradient.mean + 10 * here.reference.mean + 100 * here.q.mean,
            here.gradient.variance * here.reference.variance * here.examples,
        )


def converted(name: str, point: str = "") -> BayesianNetwork:
    """One of the modules in float64; parameters with `point` in their names are point values."""
    module = copy.deepcopy(MODULES[name][0]).double()
    return BayesianNetwork(module, point=lambda n: bool(point) and point in n)


def posterior(network: BayesianNetwork) -> MeanField:
    """The module's weights as means, with a different variance for every weight."""
    q = network.initial(1.0)
    log_std = torch.rand(q.variance.shape, generator=torch.Generator().manual_seed(3)) - 2.0
    return MeanField(q.mean, (2 * log_std).exp().to(q.mean.dtype), q.layout)


def pushed(q: MeanField, by: float = 0.3) -> MeanField:
    """q with every mean moved."""
    push = torch.randn(q.mean.shape, generator=torch.Generator().manual_seed(4)).to(q.mean)
    return MeanField(q.mean + by * push, q.variance, q.layout)


def batch_for(
    shape: tuple[int, ...], head: int = 0, count: int = 6, dtype: torch.dtype = torch.float64
) -> Batch:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, *shape, generator=generator, dtype=dtype)
    return Batch(x, torch.randint(0, CLASSES, (count,), generator=generator), head, CLASSES)


def problem_for(
    network: BayesianNetwork, method: ec.Method | None = None, memory: Any = None, **options: Any
) -> Problem:
    """Training of a task of 50 examples, by default without a regulariser."""
    examples = torch.tensor(50.0, dtype=network.dtype)
    return Problem(network, method or ec.FineTune(), memory or Nothing(), examples, **options)


def memory_for(method: ec.Method, q: MeanField) -> Any:
    """What a method may have kept of a first task that left other weights than q."""
    fisher = torch.rand(len(q.mean), generator=torch.Generator().manual_seed(4)).to(q.mean)
    prior = MeanField(q.mean + 0.1, 0.9 * q.variance, q.layout)
    if isinstance(method, ec.Coreset):
        return WithCoreset(memory_for(method.method, q))
    if method.memory_type is Anchored:
        return Anchored(prior, fisher)
    if method.memory_type is Posterior:
        return Posterior(prior)
    return Importance(prior, fisher) if method.memory_type is Importance else Nothing()
