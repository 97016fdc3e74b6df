"""UCL: uncertainty-based continual learning (Ahn, Cha, Lee and Moon, NeurIPS 2019).

Weights are Gaussian, with one variance for all weights that enter a unit; biases are point values.
With r_i^2 = s_init / s_i_prev for unit i, how much more certain it is than at first:

    minimise  E_q[-log p(y|x, theta)] + (1 / B) {
        1/2 sum_ij max(r_i, r_j)^2 (mu_ij - mu_ij_prev)^2            a weight from unit j to unit i
      + s_init sum_ij (mu_ij_prev^2 / s_i_prev) |mu_ij - mu_ij_prev|
      + (b / 2) sum over units of s / s_prev - log(s / s_prev) + s - log s }

    s_init = ratio * 2 / fan-in

A unit's bias, and weights that read the data, are held by r_i alone. For weights that no task has
used yet, the previous ones are their first values, r^2 is `alpha` and there is no second sum. The
last two terms let units that nothing needs become uncertain again.

B is the batch size of the published settings and not that of the training (`per`), so that another
batch size is no other method. It keeps the last means and, once for each weight, the variance of
its unit. The authors draw weights once a batch; here pre-activations are drawn, which have the same
distribution for every example. They give the heads of tasks neither a variance nor a penalty; here
a head is a layer like all others, and one that another task owns is left alone.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from evclplus.core.batches import Batch
from evclplus.core.engine import Terms
from evclplus.core.gaussian import Layout, MeanField
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.core.tree import per_weight
from evclplus.errors import ConversionError
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.space import TRAINING, Log, OneOf, Space


@dataclass(frozen=True)
class Hold:
    """How a task's weights are held: the strength of the squared distance, that of the absolute
    one, and for each Gaussian weight its part of its unit's variance term."""

    squared: Tensor = per_weight()
    absolute: Tensor = per_weight()
    part: Tensor = per_weight()


@dataclass(frozen=True)
class LastUnits:
    """The last weights, and while a task is learned how they are held."""

    prior: MeanField
    hold: Hold | None = None


class UCL(Method):
    """Gaussian weights with one variance per unit; certain units are held."""

    name: ClassVar[str] = "ucl"
    colour: ClassVar[str] = "#AA3377"
    marker: ClassVar[str] = "."
    memory_type: ClassVar[type] = LastUnits
    space: ClassVar[Space] = TRAINING | {
        "b": Log(1e-4, 0.1),
        "ratio": OneOf((0.125, 0.25, 0.5, 0.75)),
    }

    b: float = Field(0.03, ge=0, description="strength of the variances' terms")
    ratio: float = Field(
        0.5, gt=0, lt=1, description="first variance of a weight, in parts of 2 / fan-in"
    )
    alpha: float = Field(0.01, ge=0, description="how new weights are held to their first values")
    per: int = Field(256, ge=1, description="B, which the three terms are divided by")

    @property
    def is_point(self) -> bool:
        return False

    def has_variance(self, name: str) -> bool:
        """Weights have one, biases and whatever else there is do not."""
        return name.rpartition(".")[2] == "weight"

    def network_of(self, module: nn.Module) -> nn.Module:
        for name, parameter in module.named_parameters():
            if self.has_variance(name) and parameter.dim() < 2:
                raise ConversionError(
                    f"ucl has a variance for each unit of a layer, and {name} is no layer's; take "
                    "a network of linear and convolutional layers, or another method"
                )
        return module

    def initial(self, network: BayesianNetwork) -> MeanField:
        q = network.initial(variance=1.0)
        return replace(q, variance=self.first_variances(q.layout).to(q.variance))

    def first_variances(self, layout: Layout) -> Tensor:
        """s_init of every weight that has a variance."""
        each = [
            torch.full((prod(shape),), 2 * self.ratio / prod(shape[1:]))
            for shape in layout.shapes[: layout.gaussian_names]
        ]
        return torch.cat(each) if each else torch.zeros(0)

    def first_memory(self, q: MeanField) -> LastUnits:
        return LastUnits(q)

    def likelihood(
        self, weights: Weights, memory: LastUnits, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        return super().likelihood(with_unit_variances(weights), memory, batch, network)

    def regulariser(self, q: MeanField, memory: LastUnits, examples: Tensor) -> Terms:
        if memory.hold is None:  # no task is being learned
            return {}
        hold, moved = memory.hold, q.mean - memory.prior.mean
        variance = unit_variances(q.variance, memory.prior.variance, q.gaussian(hold.part))
        return {
            "squared": 0.5 / self.per * (hold.squared * moved.square()).sum(),
            "absolute": (hold.absolute * moved.abs()).sum() / self.per,
            "variance": 0.5 * self.b / self.per * variance,
        }

    def begin(self, lesson: Lesson) -> Start:
        start = super().begin(lesson)
        hold = self.hold(lesson.network, lesson.memory.prior, lesson.new(), lesson.task.head)
        return replace(start, memory=replace(start.memory, hold=hold))

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> LastUnits:
        return LastUnits(trained.q)

    def hold(self, network: BayesianNetwork, prior: MeanField, new: Tensor, head: int) -> Hold:
        """How a task holds the weights that it uses."""
        layout = prior.layout
        first = layout.named(self.first_variances(layout).to(prior.variance))
        last, is_new = layout.named(prior.variance), layout.named(new)
        certainty = {name: of_units(first[name] / last[name]) for name in last}
        before = layers_before(network)
        rows: list[tuple[Tensor, Tensor, Tensor]] = []
        for name, mean in layout.named(prior.mean).items():
            nothing = torch.zeros_like(mean)
            unit = certainty.get(name if name in last else f"{name.rpartition('.')[0]}.weight")
            if unit is None or network.owner(name) not in (None, head):
                rows.append((nothing, nothing, nothing))
                continue
            own = unit.view(-1, *(1,) * (mean.dim() - 1)).expand_as(mean)
            both = own
            if name in before:
                both = torch.maximum(own, of_inputs(certainty[before[name]], mean))
            part = torch.full_like(mean, 1 / prod(mean.shape[1:]))
            rows.append(
                (
                    torch.where(is_new[name], self.alpha, both),
                    torch.where(is_new[name], 0.0, own * mean.square()),
                    part if name in last else nothing,
                )
            )
        return Hold(
            *(torch.cat([one.flatten() for one in each]) for each in zip(*rows, strict=True))
        )


def with_unit_variances(weights: Weights) -> Weights:
    """One variance for all weights that enter a unit: their mean. So all of them have the same
    gradient, and stay as equal as they are at first."""
    shared = {
        name: of_units(variance).view(-1, *(1,) * (variance.dim() - 1)).expand_as(variance)
        for name, variance in weights.variances.items()
    }
    return Weights(weights.means, shared, weights.noise)


def of_units(values: Tensor) -> Tensor:
    """The mean over the weights that enter each unit."""
    return values.flatten(1).mean(1)


def of_inputs(units: Tensor, weight: Tensor) -> Tensor:
    """A number of each unit that a layer reads, for each of the layer's weights. A channel that was
    flattened is read at each of its positions."""
    positions = weight.shape[1] // len(units)
    each = units.repeat_interleave(positions)
    return each.view(1, -1, *(1,) * (weight.dim() - 2)).expand_as(weight)


def unit_variances(variance: Tensor, previous: Tensor, part: Tensor) -> Tensor:
    """sum over units of s / s_prev - log(s / s_prev) + s - log s; each weight has a part of its
    unit's term."""
    log_variance = variance.log()
    ratio = variance / previous - (log_variance - previous.log())
    return (part * (ratio + variance - log_variance)).sum()


def layers_before(network: BayesianNetwork) -> dict[str, str]:
    """For each weight, the weight that enters the units it reads: the shared one before it in the
    module's order, if its units fit."""
    layout = network.layout
    found: dict[str, str] = {}
    last: tuple[str, int] | None = None
    for name, shape in zip(layout.names[: layout.gaussian_names], layout.shapes, strict=False):
        if last is not None and shape[1] % last[1] == 0:
            found[name] = last[0]
        if network.owner(name) is None:
            last = (name, shape[0])
    return found
