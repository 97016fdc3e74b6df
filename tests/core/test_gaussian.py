import torch
from torch.distributions import Normal, kl_divergence

from evclplus.core.gaussian import Layout, MeanField, kl

LAYOUT = Layout(names=("a", "b", "c"), shapes=((2, 3), (4,), (5,)), gaussian_names=2)


def random_gaussian(seed: int) -> MeanField:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(LAYOUT.total, generator=generator, dtype=torch.float64)
    log_std = torch.randn(LAYOUT.gaussian_total, generator=generator, dtype=torch.float64)
    return MeanField(mean, (2 * log_std).exp(), LAYOUT)


def test_kl_equals_torch_distributions() -> None:
    q, p = random_gaussian(0), random_gaussian(1)
    expected = kl_divergence(
        Normal(q.gaussian_mean, q.variance.sqrt()), Normal(p.gaussian_mean, p.variance.sqrt())
    ).sum()
    torch.testing.assert_close(kl(q, p), expected, rtol=1e-12, atol=0)


def test_kl_of_a_gaussian_to_itself_is_zero_and_so_is_its_gradient() -> None:
    q = random_gaussian(0)
    q.mean.requires_grad_()
    q.variance.requires_grad_()
    value = kl(q, q.clone())
    value.backward()
    assert value.item() == 0.0
    # Weights no task uses are held by this alone: exactly zero, or the optimiser would move them.
    assert q.mean.grad is not None
    assert q.variance.grad is not None
    assert torch.count_nonzero(q.mean.grad) == 0
    assert torch.count_nonzero(q.variance.grad) == 0


def test_point_values_have_no_kl() -> None:
    q, p = random_gaussian(0), random_gaussian(1)
    moved = MeanField(q.mean.clone(), q.variance, LAYOUT)
    moved.mean[LAYOUT.gaussian_total :] += 3.0
    assert kl(moved, p).item() == kl(q, p).item()


def test_named_parts_are_views_in_order() -> None:
    vector = torch.arange(float(LAYOUT.total))
    parts = LAYOUT.named(vector)
    assert list(parts) == ["a", "b", "c"]
    assert parts["b"].tolist() == [6, 7, 8, 9]
    parts["a"][1, 2] = -1
    assert vector[5] == -1
    assert list(LAYOUT.named(vector[:10])) == ["a", "b"]


def test_replaced_changes_only_what_is_marked() -> None:
    q = random_gaussian(0)
    where = torch.zeros(LAYOUT.total, dtype=torch.bool)
    where[3] = where[-1] = True
    new = q.replaced(where, mean=7.0, variance=4.0)
    assert new.mean[3] == new.mean[-1] == 7.0
    torch.testing.assert_close(new.variance[3].item(), 4.0)
    assert torch.equal(new.mean[~where], q.mean[~where])
    assert torch.equal(new.variance[~where[:10]], q.variance[~where[:10]])


def test_rows_of_a_matrix_are_named_each() -> None:
    pairs = LAYOUT.named(torch.arange(2.0 * LAYOUT.total).view(2, -1))
    assert pairs["a"].shape == (2, 2, 3)
    assert pairs["b"][1].tolist() == [21, 22, 23, 24]


def test_carry_puts_old_values_where_their_weights_went() -> None:
    """Another order, a parameter more, and one that has become longer."""
    old = Layout(("body", "head", "tail"), ((2,), (2, 3), (1,)), gaussian_names=2)
    new = Layout(("body", "head", "more", "tail"), ((2,), (4, 3), (5,), (1,)), gaussian_names=3)
    vector = torch.arange(1.0, old.total + 1)
    rest = -torch.arange(1.0, new.total + 1)
    before = rest.clone()
    found = new.named(old.carry(vector, new, rest))
    kept, fresh = old.named(vector), new.named(before)
    assert torch.equal(rest, before)
    assert torch.equal(found["body"], kept["body"])
    assert torch.equal(found["head"][:2], kept["head"])
    assert torch.equal(found["head"][2:], fresh["head"][2:])
    assert torch.equal(found["more"], fresh["more"])
    assert torch.equal(found["tail"], kept["tail"])


def test_carry_of_a_vector_of_variances() -> None:
    old = Layout(("body", "head", "tail"), ((2,), (2, 3), (1,)), gaussian_names=2)
    new = Layout(("body", "head", "more", "tail"), ((2,), (4, 3), (5,), (1,)), gaussian_names=3)
    vector = torch.arange(1.0, old.gaussian_total + 1)
    found = new.named(old.carry(vector, new, torch.zeros(new.gaussian_total)))
    assert list(found) == ["body", "head", "more"]
    assert torch.equal(found["head"][:2], old.named(vector)["head"])
    assert torch.count_nonzero(found["head"][2:]) == torch.count_nonzero(found["more"]) == 0
