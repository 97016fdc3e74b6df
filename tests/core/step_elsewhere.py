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
from evclplus.core.engine import Problem, State, StepGradient, likelihood_gradient, update
from evclplus.core.examples import Examples, View
from evclplus.core.heads import MultiHead
from evclplus.core.network import BayesianNetwork
from tests.core.modules import memory_for

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
    state = State(q, method.trace(q))
    problem = Problem(
        network,
        method,
        memory_for(method, q),
        torch.full((), 6.0, device=DEVICE),
        at_mean=method.is_point,
        clip_norm=1.0,
    )
    gradient = StepGradient(problem, state, likelihood_gradient)
    pictures = torch.zeros(6, 1, 8, 8, dtype=torch.uint8)
    data = Examples(pictures, torch.zeros(6, dtype=torch.long), 3, view=View(1 / 255))
    data = data.on(q.mean.device)
    for _ in range(2):
        x = data.stored(torch.arange(6, device=DEVICE))
        batch = Batch(x, data.labels, 0, 3, data.view.conversion)
        nll = gradient([batch], torch.zeros(1, 4, dtype=torch.int32))["nll"]
        update(problem, state.vectors, q.mean.new_zeros(3), q.layout)
    found = (nll, state.vectors.mean, state.posterior().variance)
    assert {one.device.type for one in found} == {DEVICE}
    try:
        nll.item()
    except DataDependentOutputException:
        return
    raise AssertionError("this device has numbers to look at, so the test shows nothing")


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend(DEVICE)
    with Mode():
        for name in ("evcl+", "joint", "ewc", "si"):
            train(name)
            print(name)
