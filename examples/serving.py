"""Answering one input at a time: with doubts, with a set of classes that keeps a promise, and with
a file that other runtimes read."""

import torch

import evclplus as ec

stream = ec.benchmark("split-digits")
learner = ec.Learner(ec.networks.mlp(64, [50, 50]), recognise="features", epochs=30, batch_size=32)
for task in stream:
    learner.learn(task)
learner.save("model")

# In the server, once:
learner = ec.Learner.load("model")
sets = learner.conformal(stream[0], coverage=0.95)  # calibrated on validation data of task 1


def answer(x: torch.Tensor) -> str:
    """One input, of which nobody says what task it belongs to."""
    one = x[None]
    doubt = learner.uncertainty(one)
    if float(doubt.total) > 0.5:  # nats; log 2 = 0.69 is a coin
        return "I do not know"
    return f"class {int(learner.predict(one))}, entropy {float(doubt.total):.3f}"


x = stream[0].test.inputs()
print(answer(x[0]))
print(answer(torch.rand(x[0].shape)))
print("sets of 95 %:", sets.labels(x[:3]))

# Without this package: three outputs, probability, total and data entropy, in torch's own format.
# format="onnx" for onnxruntime and others: pip install 'evclplus[export]'
path = learner.export("task-1.pt2", task=stream[0], samples=20, format="pt2")
probability, total, data = torch.export.load(path).module()(x[:2])
print("exported:", probability.tolist())
