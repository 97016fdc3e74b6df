"""MAS against autograd of every example by itself."""

import torch
from torch import nn
from torch.func import functional_call

import evclplus as ec
from evclplus.core.fisher import output_sensitivity
from evclplus.core.network import BayesianNetwork
from tests.helpers import blobs, learned_first_task, moved, small_network


def by_hand(module: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The mean over single inputs of |d |f(x)|^2 / d theta|, one backward pass each."""
    sums = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    for one in x:
        module.zero_grad()
        functional_call(module, {}, one[None]).square().sum().backward()
        for name, value in module.named_parameters():
            assert value.grad is not None
            sums[name] += value.grad.abs() / len(x)
    return sums


def test_the_importance_is_the_mean_of_absolute_gradients_of_single_examples() -> None:
    torch.manual_seed(0)
    examples = blobs()[0].train
    linear = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    folded = nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.Flatten(), nn.Linear(9, 2)
    )
    for module in (linear, folded):
        network = BayesianNetwork(module)
        q = network.initial(1.0)
        found = output_sensitivity(network, q, examples, torch.Generator())
        expected = by_hand(module, examples.inputs())
        for name, value in network.layout.named(found).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)


def test_importances_of_tasks_add_up_and_need_no_labels() -> None:
    learner, stream = learned_first_task(ec.MemoryAwareSynapses())
    first = learner.memory.omega
    assert first.max() > 0
    learner.learn(stream[1])
    new = output_sensitivity(learner.network, learner.q, stream[1].train, torch.Generator())
    torch.testing.assert_close(learner.memory.omega, first + new)


def test_the_penalty_by_hand() -> None:
    learner, _ = learned_first_task(ec.MemoryAwareSynapses(lam=3.0))
    q = moved(learner.q)
    penalty = learner.method.regulariser(q, learner.memory, torch.tensor(40.0))["penalty"]
    change = (q.mean - learner.memory.prior.mean).square()
    torch.testing.assert_close(penalty, 3.0 * (learner.memory.omega * change).sum())


def test_it_forgets_less_than_fine_tuning() -> None:
    stream = blobs()

    def drift(method: ec.Method) -> float:
        learner = ec.Learner(small_network(stream.heads), method, epochs=15, batch_size=20)
        learner.learn(stream[0])
        before = learner.q.mean.clone()
        learner.learn(stream[1])
        shared = learner.network.shared()
        return float((learner.q.mean - before)[shared].norm())

    assert drift(ec.MemoryAwareSynapses(lam=100.0)) < 0.5 * drift(ec.FineTune())
