"""How much memory training holds, in vectors as long as the weights."""

import gc

import torch
from torch import Tensor, nn

from evclplus import networks
from evclplus.callbacks import Progress
from evclplus.learner import Learner
from evclplus.methods.evcl_plus import EVCLPlus
from tools.bench.ours import stream_of
from tools.bench.plain import INPUTS

TENSORS = (Tensor, nn.Parameter)


class Held(Progress):
    """Adds up the memory of all tensors in one training step."""

    def __init__(self) -> None:
        self.numbers = 0

    def advance(self, step: int, terms: object) -> None:
        if step == 2:
            tensors = [thing for thing in gc.get_objects() if type(thing) in TENSORS]
            self.numbers = sum(dict(map(_memory, tensors)).values()) // 4


def _memory(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's memory is and how many bytes it has; transforms leave some without."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):
        return 0, 0


def memory_in_vectors(count: int) -> float:
    """Numbers held while the last of `count` tasks is trained, beyond data, per weight."""
    stream = stream_of(torch.zeros(12, INPUTS), count)
    network = networks.mlp(INPUTS, [100, 100], heads=stream.heads)
    gc.collect()  # what is no longer held must not vanish between the two counts
    before = Held()
    before.advance(2, None)  # the network and the data
    learner = Learner(network, EVCLPlus(), epochs=1, batch_size=4, compile="off")
    for task in stream.tasks[:-1]:
        learner.learn(task)
    learner.progress = held = Held()
    learner.learn(stream.tasks[-1])
    return (held.numbers - before.numbers) / len(learner.q.mean)
