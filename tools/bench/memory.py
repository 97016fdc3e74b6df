"""How much memory training holds, in vectors as long as the weights."""

import gc

import torch
from torch import Tensor, nn

import evclplus as ec
from tools.bench.callback import Callback, is_training, learner_with
from tools.bench.ours import RECOMMENDED, stream_of
from tools.bench.plain import INPUTS

TENSORS = (Tensor, nn.Parameter)


class Held(Callback):
    """Adds up the memory of all tensors in one step of a task's training; the last task's stays."""

    def __init__(self) -> None:
        self.numbers = 0
        self._counts = False

    def start(self, label: str, steps: int) -> None:
        self._counts = is_training(label)

    def advance(self, step: int, terms: object) -> None:
        if self._counts and step == 2:
            self.numbers = numbers_held()


def numbers_held() -> int:
    """In all tensors there are; two of them may share their memory."""
    tensors = [thing for thing in gc.get_objects() if type(thing) in TENSORS]
    return sum(dict(map(_memory, tensors)).values()) // 4


def _memory(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's memory is and how many bytes it has; transforms leave some without."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):
        return 0, 0


def memory_in_vectors(count: int, method: ec.Method = RECOMMENDED) -> float:
    """Numbers held while the last of `count` tasks is trained, beyond data, per weight."""
    stream = stream_of(torch.zeros(12, INPUTS), count)
    network = ec.networks.mlp(INPUTS, [100, 100], heads=stream.heads)
    gc.collect()  # what is no longer held must not vanish between the two counts
    before = numbers_held()  # the network and the data
    held = Held()
    learner = learner_with(held, network, method, epochs=1, batch_size=4)
    for task in stream.tasks:
        learner.learn(task)
    return (held.numbers - before) / sum(weights.numel() for weights in network.parameters())
