"""The elastic term in function space: earlier heads keep their answers.

    (lambda_f / 2) mean over x of sum_h |z_h(x; theta) - z_h(x; mu_prev)|^2

x are inputs of the task being learned, h the heads of earlier tasks, z_h their outputs. The body
is drawn from q; the heads themselves stay at mu_prev, so that only the body can answer for a
change. A Fisher cannot see a unit that is silent on the old data and may switch on; this can, and
it needs no old data.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork


@dataclass(frozen=True)
class Hold:
    """What earlier heads answered before the task: a network of its own, so that its running
    statistics stay as they were, its weights then, and the heads."""

    network: BayesianNetwork
    previous: MeanField
    heads: tuple[int, ...]
    lam_function: float

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The heads' own weights, by name: their previous means."""
        prefixes = tuple(f"heads.{head}." for head in self.heads)
        named = self.network.layout.named(self.previous.mean)
        return {name: value for name, value in named.items() if name.startswith(prefixes)}

    def term(self, x: Tensor, output: Tensor) -> Tensor:
        """What it costs that the heads, last in `output`, now answer so."""
        with torch.no_grad():
            before = self.network(self.previous, x, self.heads)
        answers = output[:, -before.shape[1] :]
        return 0.5 * self.lam_function * (answers - before).square().sum(1).mean()
