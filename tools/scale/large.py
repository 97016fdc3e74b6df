"""A large network learns two tasks: the most memory that it takes against the formula's."""

from typing import Any

import torch

import evclplus as ec
from evclplus.callbacks import Callback
from evclplus.core.network import BayesianNetwork
from tools.scale.memory import most_of_its_own, resident

INPUTS, BATCH, STEPS = 784, 32, 4

VECTORS = 15
"""As long as the weights, held while EVCL+ trains: the bar of `tools.bench`, see performance.md."""


def measure(weights: int = 10**8) -> dict[str, Any]:
    """Two tasks of a few steps. Data and activations are small against the weights."""
    width = int((-INPUTS + (INPUTS**2 + 4 * weights) ** 0.5) / 2)
    generator = torch.Generator().manual_seed(0)
    tasks = [
        ec.task(
            torch.randn(BATCH * STEPS, INPUTS, generator=generator),
            torch.arange(BATCH * STEPS) % 2,
            name=f"task {head + 1}",
            outputs=2,
            head=head,
        )
        for head in range(2)
    ]
    start = resident("RssAnon")
    learner = ec.Learner(
        ec.networks.mlp(INPUTS, [width, width]), "evcl+", epochs=1, batch_size=BATCH
    )
    learner.callback = Steps()
    rows = []
    for task in tasks:
        with most_of_its_own() as most:
            learner.learn(task)
        count = learner.q.layout.total
        rows.append(
            {
                "task": task.name,
                "weights": count,
                "most_vectors": round((most.bytes - start) / (4 * count), 2),
                "most_gigabytes": round((most.bytes - start) / 1e9, 2),
                "steps": learner.callback.seen,
                "finite": bool(torch.isfinite(learner.q.mean).all()),
            }
        )
    assert isinstance(learner.network, BayesianNetwork)
    return {
        "promised_vectors": VECTORS,
        "rows": rows,
        "forms": sorted(learner.forms),
        "after_learning_vectors": round((resident("RssAnon") - start) / (4 * count), 2),
    }


class Steps(Callback):
    """Counts them and the memory at each."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def start(self, label: str, steps: int) -> None:
        self.seen = []

    def advance(self, step: int, terms: object) -> None:
        self.seen.append(round(resident("RssAnon") / 1e9, 2))
