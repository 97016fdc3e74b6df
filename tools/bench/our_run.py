"""A whole run of ours on synthetic tasks, which the command line does not have:
`python -m tools.bench.our_run`."""

import argparse

import torch

import evclplus as ec
from tools.bench.ours import RECOMMENDED
from tools.bench.stream import SYNTHETIC, five_tasks


def our_run(epochs: int, examples: int) -> list[list[float]]:
    """Accuracy on every task seen so far, after each task."""
    stream = five_tasks(SYNTHETIC, examples)
    network = ec.networks.mlp(784, [256, 256], heads=stream.heads)
    learner = ec.Learner(network, RECOMMENDED, epochs=epochs)
    accuracies = []
    for seen, task in enumerate(stream.tasks, start=1):
        found = learner.learn(task).evaluate(stream.tasks[:seen])
        accuracies.append([scores.accuracy for scores in found.scores])
    return accuracies


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--examples", type=int, default=12_000)
    given = parser.parse_args()
    torch.set_flush_denormal(True)  # as the command line does
    for row in our_run(given.epochs, given.examples):
        print(*(f"{accuracy:.4f}" for accuracy in row))
