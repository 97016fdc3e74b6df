import pytest
import torch
from sklearn.metrics import log_loss
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from evclplus.core import metrics

ACCURACY = [[0.9], [0.8, 0.95], [0.85, 0.6, 1.0]]


def test_matrix_metrics_by_hand() -> None:
    assert metrics.average(ACCURACY) == pytest.approx((0.85 + 0.6 + 1.0) / 3)
    assert metrics.learning_accuracy(ACCURACY) == pytest.approx((0.9 + 0.95 + 1.0) / 3)
    assert metrics.backward_transfer(ACCURACY) == pytest.approx((-0.05 - 0.35) / 2)
    # The fall from the best a task ever had, not from when it was learned.
    assert metrics.forgetting(ACCURACY) == pytest.approx((0.05 + 0.35) / 2)
    rising = [[0.5], [0.9, 0.9], [0.7, 0.9, 0.9]]
    assert metrics.forgetting(rising) == pytest.approx((0.2 + 0.0) / 2)
    assert metrics.backward_transfer(rising) == pytest.approx((0.2 + 0.0) / 2)
    # A task that is known best at the end is not forgotten: it was never better before.
    better = [[0.5], [0.6, 0.9], [0.8, 0.9, 0.9]]
    assert metrics.forgetting(better) == pytest.approx((-0.2 + 0.0) / 2)
    assert metrics.forward_transfer([0.5, 0.7, 0.6], [0.5, 0.5, 0.5]) == pytest.approx(0.15)


def test_one_task_has_nothing_to_forget() -> None:
    assert metrics.forgetting([[0.9]]) == 0.0
    assert metrics.backward_transfer([[0.9]]) == 0.0
    assert metrics.forward_transfer([0.5], [0.4]) == 0.0


def random_predictions() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 4, generator=generator, dtype=torch.float64)
    return logits.softmax(1), torch.randint(0, 4, (500,), generator=generator)


def test_scores_against_their_definitions() -> None:
    p, y = random_predictions()
    found = metrics.scores(p, y)
    assert found.accuracy == pytest.approx((p.argmax(1) == y).sum().item() / 500)
    assert found.negative_log_likelihood == pytest.approx(log_loss(y, p, labels=range(4)))
    one_hot = torch.eye(4, dtype=torch.float64)[y]
    assert found.brier_score == pytest.approx(((p - one_hot) ** 2).sum().item() / 500)


def test_calibration_error_equals_a_loop_over_bins() -> None:
    p, y = random_predictions()
    confidence, predicted = p.max(1)
    expected = 0.0
    for index in range(15):
        inside = (confidence > index / 15) & (confidence <= (index + 1) / 15)
        if inside.any():
            accuracy = (predicted[inside] == y[inside]).double().mean()
            gap = (accuracy - confidence[inside].mean()).abs()
            expected += (inside.sum() / 500 * gap).item()
    assert metrics.calibration_error(p, y) == pytest.approx(expected)


def test_a_confidence_on_the_edge_belongs_to_the_bin_below() -> None:
    """Bins are open below and closed above, as where they were introduced (Guo et al., 2017): 0.75
    is in (0.5, 0.75], together with 0.625 and not with 1."""
    p = torch.tensor([[0.75, 0.25], [0.625, 0.375], [1.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([1, 0, 0])  # wrong, right, right
    together, alone = abs((0.75 - 0) + (0.625 - 1)), abs(1.0 - 1)
    assert metrics.calibration_error(p, y, bins=4) == pytest.approx((together + alone) / 3)


def test_a_wrong_certainty_is_costly_but_finite() -> None:
    p = torch.tensor([[1.0, 0.0]])
    assert 80 < metrics.negative_log_likelihood(p, torch.tensor([1])) < 100
    assert metrics.entropy(p).item() == 0.0
    uniform = torch.full((1, 4), 0.25)
    assert metrics.entropy(uniform).item() == pytest.approx(torch.log(torch.tensor(4.0)).item())


def test_regression_scores_are_those_of_a_mixture_of_gaussians() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(5, 20, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    found = metrics.regression_scores(drawn, y, std=0.7)
    assert found.root_mean_squared_error == pytest.approx(
        ((drawn.mean(0) - y) ** 2).mean().sqrt().item()
    )
    mixture = MixtureSameFamily(
        Categorical(torch.ones(20, 5)), Independent(Normal(drawn.transpose(0, 1), 0.7), 1)
    )
    expected = -mixture.log_prob(y).mean().item()
    assert found.negative_log_likelihood == pytest.approx(expected, rel=1e-6)
    # One output may come as a plain vector of targets.
    one = metrics.regression_scores(drawn[:, :, :1], y[:, 0], std=0.7)
    assert one == metrics.regression_scores(drawn[:, :, :1], y[:, :1], std=0.7)
