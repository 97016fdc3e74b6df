import pytest
import torch
from torch import Tensor

from evclplus.core.gaussian import Layout, MeanField, kl
from evclplus.core.penalties import (
    Norm,
    asymmetric_variance,
    elastic_mean,
    elastic_variance,
    expected_variance,
    has_grown,
)

LAYOUT = Layout(names=("a", "b"), shapes=((2, 2), (3,)), gaussian_names=2)
LAM, K = 3.0, 5.0


def vectors(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Variances, previous variances (one of them equal: the boundary) and a Fisher."""
    generator = torch.Generator().manual_seed(seed)
    new, old, fisher = torch.rand(3, 7, generator=generator, dtype=torch.float64) + 0.1
    new[2] = old[2]
    return new, old, fisher


def test_elastic_mean_equals_a_scalar_loop() -> None:
    mean, previous, fisher = vectors()
    expected = sum(
        0.5 * LAM * f * (m - p) ** 2
        for m, p, f in zip(mean.tolist(), previous.tolist(), fisher.tolist(), strict=True)
    )
    assert elastic_mean(mean, previous, fisher, LAM).item() == pytest.approx(expected, rel=1e-12)


def test_elastic_variance_equals_a_scalar_loop() -> None:
    new, old, fisher = vectors()
    expected = sum(
        0.5 * LAM * f * (s - p) ** 2
        for s, p, f in zip(new.tolist(), old.tolist(), fisher.tolist(), strict=True)
    )
    assert elastic_variance(new, old, fisher, LAM).item() == pytest.approx(expected, rel=1e-12)


def v(s: float, p: float) -> float:
    """EVCL+'s equation for one weight, as the paper writes it."""
    return (s - p) ** 2 if s <= p else K * s


def test_asymmetric_variance_equals_a_scalar_loop() -> None:
    new, old, fisher = vectors()
    grown = has_grown(new, old, LAYOUT, "weight")
    assert grown.any()  # both branches
    assert not grown.all()
    assert not grown[2]  # and the boundary, which counts as not grown
    expected = sum(
        0.5 * LAM * f * v(s, p)
        for s, p, f in zip(new.tolist(), old.tolist(), fisher.tolist(), strict=True)
    )
    found = asymmetric_variance(new, old, fisher, LAM, K, grown)
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_the_jump_at_the_boundary_is_k_f_p() -> None:
    p, fisher = torch.tensor([0.4], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    one = Layout(("a",), ((1,),), 1)

    def penalty(s: Tensor) -> float:
        return asymmetric_variance(s, p, fisher, 2.0, K, has_grown(s, p, one, "weight")).item()

    assert penalty(p) == 0.0
    assert penalty(p + 1e-12) == pytest.approx(K * 2.0 * 0.4)


@pytest.mark.parametrize("norm", ["weight", "tensor"])
def test_the_gradient_is_that_of_the_branch_in_force(norm: Norm) -> None:
    new, old, fisher = vectors()
    new.requires_grad_()
    grown = has_grown(new, old, LAYOUT, norm)
    asymmetric_variance(new, old, fisher, LAM, K, grown).backward()
    expected = 0.5 * LAM * fisher * torch.where(grown, torch.tensor(K).double(), 2 * (new - old))
    assert new.grad is not None
    torch.testing.assert_close(new.grad, expected.detach())


def test_by_tensor_all_weights_of_a_tensor_follow_its_norm() -> None:
    old = torch.ones(7)
    new = torch.tensor([2.0, 0.9, 0.9, 0.9, 1.1, 0.5, 0.5])
    assert has_grown(new, old, LAYOUT, "tensor").tolist() == [True] * 4 + [False] * 3
    assert has_grown(new, old, LAYOUT, "weight").tolist() == [True] + [False] * 3 + [True] + (
        [False] * 2
    )


def test_a_tensor_has_grown_by_its_l2_norm_not_by_its_sum() -> None:
    old = torch.tensor([1.0, 1.0, 1.0, 1.0, 3.0, 0.0, 0.0])
    new = torch.tensor([3.0, 0.0, 0.0, 0.0, 1.3, 1.3, 1.3])
    # a: the sum falls from 4 to 3, the norm grows from 2 to 3; b: the sum grows, the norm falls.
    assert has_grown(new, old, LAYOUT, "tensor").tolist() == [True] * 4 + [False] * 3


def test_expected_variance_equals_a_scalar_loop() -> None:
    new, _, fisher = vectors()
    expected = sum(
        0.5 * LAM * K * f * s for s, f in zip(new.tolist(), fisher.tolist(), strict=True)
    )
    found = expected_variance(new, fisher, LAM, K)
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_with_k_one_it_completes_the_expectation_of_the_elastic_penalty() -> None:
    """E_q[(lambda / 2) F (theta - mu_prev)^2], by drawing theta."""
    variance, previous, fisher = vectors()
    mean = vectors(seed=1)[0]
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(100_000, 7, generator=generator, dtype=torch.float64)
    theta = mean + variance.sqrt() * noise
    drawn = 0.5 * LAM * (fisher * (theta - previous).square()).sum(1)
    found = elastic_mean(mean, previous, fisher, LAM) + expected_variance(variance, fisher, LAM, 1)
    error = (drawn.std() / len(drawn) ** 0.5).item()
    assert found.item() == pytest.approx(drawn.mean().item(), abs=4 * error)
    assert error < 0.01 * found  # so the test can tell


@pytest.mark.parametrize(("beta", "examples"), [(1.0, 40.0), (0.3, 7.0)])
def test_with_the_kl_it_adds_to_the_precision(beta: float, examples: float) -> None:
    """(beta / N) KL(q || p) + (lambda k / 2) F s is least at 1 / s = 1 / p + N lambda k F / beta:
    the old tasks' curvature is added to the precision, as in Laplace's approximation."""
    _, old, fisher = vectors()
    least = 1 / (1 / old + examples * LAM * K * fisher / beta)
    mean = torch.zeros(7, dtype=torch.float64)

    def slope(variance: Tensor) -> Tensor:
        variance = variance.clone().requires_grad_()
        q, p = (MeanField(mean, one, LAYOUT) for one in (variance, old))
        total = beta / examples * kl(q, p) + expected_variance(variance, fisher, LAM, K)
        (found,) = torch.autograd.grad(total, variance)
        return found

    scale = slope(2 * least).abs()
    assert (slope(least).abs() < 1e-9 * scale).all()
    assert (slope(1.1 * least) > 0).all()
    assert (slope(0.9 * least) < 0).all()
