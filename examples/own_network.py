"""A network of your own, with normalisation and dropout, saved and loaded between two tasks."""

import tempfile

import torch
from torch import nn

import evclplus as ec


def network() -> nn.Module:
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.1),
        nn.Flatten(),
    )
    return ec.MultiHead(body)  # a linear head for every task; others with new_head=


stream = ec.benchmark("split-digits", tasks=2)
torch.manual_seed(0)  # the module's first weights are yours; all else follows the learner's seed
learner = ec.Learner(network(), ec.EVCLPlus(beta=0.01), epochs=10, batch_size=32)
learner.learn(stream[0])

with tempfile.TemporaryDirectory() as folder:
    learner.save(folder)
    learner = ec.Learner.load(folder, network=network())

learner.learn(stream[1])
print(learner.evaluate(stream))

x = stream[0].test.inputs()[:3]
print("probabilities", learner.predict_proba(x, task=0, samples=50))
found = learner.uncertainty(x, task=0)
print("uncertainty: data", found.data, "weights", found.weights)
