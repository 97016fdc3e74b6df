"""Training steps on a device that has shapes but no numbers.

Looking at a number there raises, and so does an operation on tensors of two devices. So a run of
this file shows that a step neither waits for its device nor leaves it. There is no GPU in our
tests; this is what can be known without one.
"""

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import evclplus as ec
from evclplus.core.batches import Batch
from evclplus.core.examples import Examples, View
from evclplus.core.heads import MultiHead
from evclplus.core.network import BayesianNetwork
from evclplus.core.step import LikelihoodGradient, Update, Vectors, step_rates
from evclplus.methods.base import Memory

DEVICE = "elsewhere"


class Mode(FakeTensorMode):
    """Copied tensors stay in one mode: tensors of two do not mix, and networks are copied."""

    def __deepcopy__(self, memo: object) -> "Mode":
        return self


def train(name: str) -> None:
    method = ec.method(name)
    with torch.device(DEVICE):
        body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8))
        module = MultiHead(body, [nn.Linear(8, 3), nn.Linear(8, 3)])
    network = BayesianNetwork(module, lambda _: method.is_point)
    q = network.initial(1e-3)
    memory = Memory(q.clone(), torch.rand_like(q.mean), tasks=1)
    vectors = Vectors(q)
    examples = torch.full((), 6.0, device=DEVICE)
    likelihood = LikelihoodGradient(network, vectors, at_mean=method.is_point)
    likelihood.settled.add(0)  # the trial pass has a generator of its own, once per task
    pictures = torch.zeros(6, 1, 8, 8, dtype=torch.uint8)
    data = Examples(pictures, torch.zeros(6, dtype=torch.long), 3, view=View(1 / 255))
    data = data.on(q.mean.device)
    regularised = method if method.regulariser(q, memory, examples) else None
    update = Update(vectors, regularised, memory, examples, 1.0, method.is_point)
    for rates in step_rates([1e-3, 1e-3], q.mean):
        x = data.inputs(torch.arange(6, device=DEVICE))
        # A generator of this device cannot be made; the fake operations do not ask for it.
        batch = Batch(network, torch.Generator(), x, data.labels, 0, 3, 6)
        nll = likelihood(batch)["nll"]
        update(rates)
    assert {
        nll.device.type,
        vectors.mean.device.type,
        vectors.posterior().variance.device.type,
    } == {DEVICE}
    try:
        nll.item()
    except DataDependentOutputException:
        return
    raise AssertionError("this device has numbers to look at, so the test shows nothing")


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend(DEVICE)
    with Mode():
        for name in ("evcl+", "joint", "ewc", "evcl+-random"):
            train(name)
            print(name)
