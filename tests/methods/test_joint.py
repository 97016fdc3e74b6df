import torch

import evclplus as ec
from tests.helpers import begun, blobs, small_network

RATE = 1e-2


def test_every_task_starts_anew_from_the_first_weights() -> None:
    stream = blobs(tasks=3, scenario="domain")
    learner = ec.Learner(small_network(), ec.Joint(), epochs=1, batch_size=1000, learning_rate=RATE)
    for task in stream:
        learner.learn(task)
    first = learner.network.initial(1.0).mean
    drift = (learner.q.mean - first).abs().max()
    # Each task is one step of Adam, as long as the learning rate: three of them went farther.
    assert 0.9 * RATE < drift < 1.1 * RATE


def test_it_trains_on_every_example_of_every_task() -> None:
    stream = blobs(tasks=3)
    learner = ec.Learner(small_network(), ec.Joint(), epochs=1, batch_size=20)
    learner.learn(stream[0]).learn(stream[1])
    _, start = begun(learner, stream[2])
    (source,) = start.sources
    assert len(source) == sum(len(task.train) for task in stream)
    for task, examples in zip(stream, source.examples, strict=True):
        assert examples.head == task.head
        assert torch.equal(examples.inputs(), task.train.inputs())
        assert torch.equal(examples.labels, task.train.labels)


def test_it_forgets_nothing_where_fine_tuning_forgets() -> None:
    def accuracy(name: str) -> float:
        stream = blobs(tasks=2, scenario="class")
        learner = ec.Learner(small_network(), name, epochs=30, batch_size=20, learning_rate=RATE)
        for task in stream:
            learner.learn(task)
        return learner.evaluate(stream[0]).average_accuracy

    assert accuracy("joint") > 0.6
    assert accuracy("finetune") < 0.2
