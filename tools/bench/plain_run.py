"""A whole run of fine-tuning as one writes it in plain PyTorch: `python -m tools.bench.plain_run`.

One body, a head per task, Adam, a DataLoader, and every seen task's test set after each task. Only
the tasks come from evclplus, which takes a third of a second to import once torch is there.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tools.bench.stream import SYNTHETIC, five_tasks


def plain_run(stream_name: str, epochs: int, examples: int) -> list[list[float]]:
    """Accuracy on every task seen so far, after each task."""
    tasks = five_tasks(stream_name, examples).tasks
    body = nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 256), nn.ReLU()), *(nn.Linear(256, 256), nn.ReLU())
    )
    heads = [nn.Linear(256, task.outputs) for task in tasks]
    accuracies = []
    for seen, (task, head) in enumerate(zip(tasks, heads, strict=True), start=1):
        data = TensorDataset(task.train.inputs(), task.train.labels)
        batches = DataLoader(data, batch_size=256, shuffle=True)
        network = nn.Sequential(body, head)
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
        for _ in range(epochs):
            for x, y in batches:
                optimiser.zero_grad()
                F.cross_entropy(network(x), y).backward()
                optimiser.step()
        with torch.no_grad():
            accuracies.append(
                [
                    (own(body(old.test.inputs())).argmax(1) == old.test.labels)
                    .float()
                    .mean()
                    .item()
                    for old, own in zip(tasks[:seen], heads, strict=False)
                ]
            )
    return accuracies


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stream", default=SYNTHETIC)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--examples", type=int, default=12_000, help="of a synthetic task")
    given = parser.parse_args()
    for row in plain_run(given.stream, given.epochs, given.examples):
        print(*(f"{accuracy:.4f}" for accuracy in row))
