"""The elastic terms, one small pure function per equation.

Every function takes flat vectors over the weights and returns a scalar that gradients flow
through: a penalty that did not change the gradient would protect nothing.
"""

from typing import Literal

import torch
from torch import Tensor

from evclplus.core.gaussian import Layout

Number = float | Tensor
Norm = Literal["weight", "tensor"]
"""What is compared to tell whether a variance has grown: each by itself, or tensors by L2 norm."""


def elastic_mean(mean: Tensor, previous_mean: Tensor, fisher: Tensor, lam: Number) -> Tensor:
    """EWC's term: (lambda / 2) sum_i F_i (mu_i - mu_i_prev)^2."""
    return 0.5 * lam * (fisher * (mean - previous_mean).square()).sum()


def elastic_variance(
    variance: Tensor, previous_variance: Tensor, fisher: Tensor, lam: Number
) -> Tensor:
    """EVCL's term: (lambda / 2) sum_j F_j (sigma_j^2 - sigma_j_prev^2)^2."""
    return 0.5 * lam * (fisher * (variance - previous_variance).square()).sum()


def asymmetric_variance(
    variance: Tensor,
    previous_variance: Tensor,
    fisher: Tensor,
    lam: Number,
    k: Number,
    grown: Tensor,
) -> Tensor:
    """EVCL+'s term: (lambda / 2) sum_j F_j v(sigma_j^2, sigma_j_prev^2) with

    v(s, p) = (s - p)^2 where the variance has not grown, k s where it has (`grown`).

    v jumps by k p where s = p; the indicator is a constant for the gradient, so the gradient
    there is that of the branch in force and the jump itself pushes nothing.
    """
    shrunk = (variance - previous_variance).square()
    return 0.5 * lam * (fisher * torch.where(grown, k * variance, shrunk)).sum()


def expected_variance(variance: Tensor, fisher: Tensor, lam: Number, k: Number) -> Tensor:
    """(lambda k / 2) sum_j F_j sigma_j^2: with k = 1 what the expectation of the elastic penalty,
    E_q[(lambda / 2) F (theta - mu_prev)^2] = (lambda / 2) F ((mu - mu_prev)^2 + sigma^2), has
    beside the term of the means."""
    return 0.5 * lam * k * (fisher * variance).sum()


@torch.no_grad()
def has_grown(variance: Tensor, previous_variance: Tensor, layout: Layout, norm: Norm) -> Tensor:
    """The indicator [|sigma^2| > |sigma_prev^2|], for each weight.

    norm "weight": each weight by itself. norm "tensor": the L2 norms of each parameter tensor
    are compared, and all its weights follow.
    """
    if norm == "weight":
        return variance > previous_variance
    sizes = layout.sizes[: layout.gaussian_names]
    pairs = zip(variance.split(sizes), previous_variance.split(sizes), strict=True)
    return torch.cat([(new.norm() > old.norm()).expand(len(new)) for new, old in pairs])
