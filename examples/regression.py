"""Numbers instead of classes: a machine's power at three sites, one after the other.

`predict` gives means, `evaluate_regression` errors in the targets' own unit.
"""

import torch

import evclplus as ec

generator = torch.Generator().manual_seed(0)


def site(angle: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Measurements of one site: what drives the power differs from site to site."""
    x = torch.rand(300, 4, generator=generator) * 2 - 1
    y = torch.sin(3 * x[:, 0] + angle) + x[:, 1] * x[:, 2]
    return x, y + 0.1 * torch.randn(300, generator=generator)


tasks = []
for index, angle in enumerate((0.0, 0.7, 1.4)):
    x, y = site(angle)
    name = f"site {index + 1}"
    tasks.append(
        ec.regression_task(x[:250], y[:250], name=name, head=index, test=(x[250:], y[250:]))
    )

# The standard deviation of the noise, where it is known; criterion="regression" takes it for 1.
learner = ec.Learner(
    ec.networks.mlp(4, [50, 50]), criterion=ec.Regression(std=0.1), epochs=60, batch_size=32
)
for task in tasks:
    learner.learn(task)
print(learner.evaluate_regression(tasks))
print("power at site 1:", learner.predict(tasks[0].test.inputs()[:3], task=0)[:, 0].tolist())
