"""What uncertainty is good for, against definitions written as loops and against scikit-learn."""

from math import ceil

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from evclplus.core import metrics
from evclplus.core import uncertainty as u


def scores(count: int, seed: int, ties: bool) -> Tensor:
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * drawn).round() if ties else drawn


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_is_the_share_of_ordered_pairs(ties: bool) -> None:
    own, foreign = scores(40, 0, ties), scores(30, 1, ties) + 1
    pairs = foreign[:, None] - own[None]
    expected = ((pairs > 0).double() + 0.5 * (pairs == 0)).mean().item()
    assert u.auroc(own, foreign) == pytest.approx(expected)
    labels = [0] * 40 + [1] * 30
    assert u.auroc(own, foreign) == pytest.approx(
        roc_auc_score(labels, torch.cat([own, foreign]).numpy())
    )
    assert u.auroc(own, own) == pytest.approx(0.5)
    assert u.auroc(own, own + 100) == 1.0


@pytest.mark.parametrize("ties", [False, True])
def test_false_accepts_by_trying_every_threshold(ties: bool) -> None:
    own, foreign = scores(40, 2, ties), scores(30, 3, ties) + 1
    enough = [t for t in own if (own <= t).double().mean() >= 0.95]
    assert u.false_accepts(own, foreign) == pytest.approx(
        (foreign <= min(enough)).double().mean().item()
    )
    assert u.false_accepts(own, own + 100) == 0.0
    assert u.false_accepts(own, own - 100) == 1.0


def test_selective_risk_by_hand() -> None:
    confidence = torch.tensor([0.6, 0.9, 0.8, 0.7])
    correct = torch.tensor([False, True, False, True])
    risk = u.selective_risk(confidence, correct)
    assert risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 2 / 4])
    assert u.risk_at(risk, 1.0) == pytest.approx(0.5)
    assert u.risk_at(risk, 0.5) == pytest.approx(0.5)
    assert u.risk_at(risk, 0.01) == 0.0


def test_equally_confident_answers_count_as_in_a_random_order() -> None:
    confidence = torch.tensor([0.9, 0.7, 0.7, 0.7, 0.5])
    correct = torch.tensor([True, False, True, True, False])
    found = u.selective_risk(confidence, correct)
    orders = []
    generator = torch.Generator().manual_seed(0)
    for _ in range(4000):
        middle = 1 + torch.randperm(3, generator=generator)
        order = torch.cat([torch.tensor([0]), middle, torch.tensor([4])])
        errors = (~correct)[order].double()
        orders.append(errors.cumsum(0) / torch.arange(1, 6))
    torch.testing.assert_close(found, torch.stack(orders).mean(0), atol=0.01, rtol=0)
    # The order in which they were given does not matter.
    turned = u.selective_risk(confidence.flip(0), correct.flip(0))
    torch.testing.assert_close(found, turned)


def test_reliability_makes_the_calibration_error() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(300, 4, generator=generator, dtype=torch.float64).softmax(1)
    y = torch.randint(0, 4, (300,), generator=generator)
    confidence, predicted = p.max(1)
    found = u.reliability(confidence, predicted == y)
    assert int(found.counts.sum()) == 300
    gaps = (found.accuracy - found.confidence).abs() * found.counts / 300
    assert gaps.sum().item() == pytest.approx(metrics.calibration_error(p, y))
    inside = (confidence > 6 / 15) & (confidence <= 7 / 15)
    assert found.accuracy[6].item() == pytest.approx((predicted == y)[inside].double().mean())


def test_the_threshold_is_the_corrected_quantile() -> None:
    p = torch.tensor([[0.1 * k, 1 - 0.1 * k] for k in range(1, 10)], dtype=torch.float64)
    y = torch.zeros(9, dtype=torch.int64)
    # Ten places for a new example among nine: 0.9 of them are the nine with p >= 0.1.
    assert u.conformal_threshold(p, y, 0.9) == pytest.approx(0.1)
    assert u.conformal_threshold(p, y, 0.5) == pytest.approx(0.5)
    assert u.conformal_threshold(p, y, 0.95) == 0.0  # nine examples cannot promise it
    sets = u.conformal_sets(p, 0.35)
    assert sets[0].tolist() == [False, True]
    assert sets[5].tolist() == [True, True]
    assert u.covered(sets, y) == pytest.approx(6 / 9)


def test_coverage_is_what_was_promised_however_wrong_the_model_is() -> None:
    """Over many calibration sets the mean coverage is ceil((n + 1) c) / (n + 1)."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(40_000, 5, generator=generator)
    labels = torch.randint(0, 5, (40_000,), generator=generator)  # nothing to do with the logits
    p = logits.softmax(1)
    n, wanted, found = 29, 0.8, []
    for part in torch.arange(40_000).split(200):
        threshold = u.conformal_threshold(p[part[:n]], labels[part[:n]], wanted)
        found.append(u.covered(u.conformal_sets(p[part[n:]], threshold), labels[part[n:]]))
    expected = ceil((n + 1) * wanted) / (n + 1)
    assert sum(found) / len(found) == pytest.approx(expected, abs=0.02)
