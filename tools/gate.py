"""What the variance term does to variances: how much of the Fisher's mass lies in weights whose
variance has grown during a task, and how far the variances of important weights have moved.

    python -m tools.gate split-digits
    python -m tools.gate split-notmnist
"""

import sys
from statistics import fmean

import torch

import evclplus as ec
from evclplus.benchmarks.registry import BENCHMARKS

FORMS = {
    "gate (k s where grown)": ec.EVCLPlus(),
    "no variance term": ec.EVCLPlus(k=0.0),
    "always on, k = 1": ec.EVCLPlus(variance_penalty="always", k=1.0),
    "always on, k = 5": ec.EVCLPlus(variance_penalty="always", k=5.0),
}


def measured(name: str, method: ec.EVCLPlus) -> tuple[float, float, float]:
    """Means over tasks, from the second on: the share of the Fisher's mass where variances have
    grown, the change of variances weighted by the Fisher, and the accuracy at the end."""
    stream = ec.benchmark(name)
    learner = ec.Learner(ec.networks.mlp(stream.input_size, BENCHMARKS[name].hidden), method)
    shares, changes = [], []
    for task in stream:
        before, fisher = learner.q, learner.memory.fisher
        learner.learn(task)
        if fisher.any():  # not before the first task
            old, new = before.variance, learner.q.layout.named(learner.q.variance)
            pairs = before.layout.named(old).items()  # a new head has no variance before
            ratio = torch.cat([(new[name] / value).flatten() for name, value in pairs])
            mass = before.gaussian(fisher)
            shares.append(float(mass[ratio > 1].sum() / mass.sum()))
            changes.append(float((mass * ratio.log()).sum() / mass.sum()))
    accuracy = learner.evaluate(stream, on="validation").average_accuracy
    return fmean(shares), fmean(changes), accuracy


def main() -> None:
    for name in sys.argv[1:]:
        for form, method in FORMS.items():
            share, change, accuracy = measured(name, method)
            print(
                f"{name}, {form}: {share:.1%} of the Fisher's mass in grown variances, "
                f"log variance {change:+.3f} a task, accuracy {accuracy:.2%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
