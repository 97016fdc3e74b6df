import torch
from torch.distributions import MultivariateNormal

from evclplus.core.typicality import Moments


def test_the_density_is_that_of_gaussians_around_class_means() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    y = torch.arange(50) % 2 * 2  # classes 0 and 2: of class 1 nothing came
    x = x + 2.0 * y[:, None]
    moments = Moments(3, 3)
    for rows, labels in zip(x.split(20), y.split(20), strict=True):
        moments.add(rows, labels)
    found = moments.typical(shrinkage=0.1)
    means = torch.stack([x[y == c].mean(0) for c in (0, 2)])
    centred = x - means[y // 2]
    within = centred.T @ centred / 50
    shrunk = 0.9 * within + 0.1 * within.diagonal().mean() * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(found.means, means)
    torch.testing.assert_close(found.covariance, shrunk)
    new = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    each = torch.stack([MultivariateNormal(m, shrunk).log_prob(new) for m in means], 1)
    expected = each.exp().mean(1).log()
    constant = 1.5 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    torch.testing.assert_close(found.log_density(new), expected + constant)


def test_features_that_never_change_have_a_density_all_the_same() -> None:
    moments = Moments(1, 2)
    moments.add(torch.ones(5, 2), torch.zeros(5, dtype=torch.int64))
    density = moments.typical().log_density(torch.tensor([[1.0, 1.0], [1.0, 1.1]]))
    assert density.isfinite().all()
    assert density[0] > density[1]
