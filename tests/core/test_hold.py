"""The elastic term in function space against arithmetic by hand."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from evclplus.core.batches import Batch, minibatches
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import MultiHead
from evclplus.core.hold import Hold
from evclplus.core.network import BayesianNetwork

LAM = 0.6


def network_of(body: nn.Module) -> BayesianNetwork:
    return BayesianNetwork(MultiHead(body, [nn.Linear(3, 2) for _ in range(3)]).double())


def batch_of(network: BayesianNetwork, hold: Hold) -> Batch:
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    examples = Examples(x, torch.arange(5) % 2, outputs=2, head=2)
    return next(minibatches(network, [examples], 5, torch.Generator().manual_seed(2), hold=hold))


def pushed(q: MeanField) -> MeanField:
    push = torch.randn(q.mean.shape, generator=torch.Generator().manual_seed(3)).to(q.mean)
    return replace(q, mean=q.mean + 0.3 * push)


def test_the_term_is_the_equation() -> None:
    network = network_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    previous = network.initial(1e-2)
    q = pushed(previous)
    batch = batch_of(network, Hold(network.copy(), previous, (0, 1), LAM))
    now = {name: value.numpy() for name, value in network.layout.named(q.mean).items()}
    before = {name: value.numpy() for name, value in network.layout.named(previous.mean).items()}

    def answer(body: dict[str, np.ndarray], x: np.ndarray, head: int) -> np.ndarray:
        hidden = np.maximum(x @ body["body.0.weight"].T + body["body.0.bias"], 0)
        # Whatever q says of them, the heads are those of before.
        weight, bias = before[f"heads.{head}.weight"], before[f"heads.{head}.bias"]
        return np.asarray(hidden @ weight.T + bias)

    total = 0.0
    for x in batch.x.numpy():
        for head in (0, 1):
            total += ((answer(now, x, head) - answer(before, x, head)) ** 2).sum()
    expected = LAM / 2 * total / len(batch.x)
    terms = batch.terms(q, at_mean=True)
    assert expected > 0.01
    np.testing.assert_allclose(terms["function"], expected, rtol=1e-12)
    plain = replace(batch, hold=None).terms(q, at_mean=True)
    torch.testing.assert_close(terms["nll"], plain["nll"], rtol=1e-12, atol=0)


def test_answers_that_stay_cost_nothing_and_samples_cost_their_variance() -> None:
    network = network_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    previous = network.initial(1e-2)
    batch = batch_of(network, Hold(network.copy(), previous, (0, 1), LAM))
    assert batch.terms(previous, at_mean=True)["function"] == 0
    certain = replace(previous, variance=previous.variance / 400)
    assert batch.terms(previous)["function"] > 100 * batch.terms(certain)["function"] > 0


def test_what_was_answered_before_does_not_move_with_running_statistics() -> None:
    network = network_of(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    previous = network.initial(1e-2)
    hold = Hold(network.copy(), previous, (0, 1), LAM)
    batch = batch_of(network, hold)
    first = hold.term(batch.x, torch.zeros(5, 6, dtype=torch.float64))
    batch.terms(previous)  # a training pass moves the network's statistics
    assert not torch.equal(network.buffers["body.1.running_mean"], torch.zeros(3).double())
    assert hold.term(batch.x, torch.zeros(5, 6, dtype=torch.float64)) == first
