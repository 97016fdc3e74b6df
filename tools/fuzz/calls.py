"""Calls with arguments of every wrong kind."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import evclplus as ec
from evclplus.core.examples import Examples

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(30) % 2


def values() -> list[Any]:
    stream = ec.tasks([(X, Y)])
    numbers = [None, True, 0, 1, 2, -1, 1.5, float("nan"), float("inf"), 2**70, 10**9, 1 + 2j]
    texts = ["", "x", "task", "class", "\ud800", "a\0b", "\x1b[31m", "a" * 5000, b"x", "0"]
    things = [object(), int, len, lambda *_: None, Path("nowhere"), ec.EVCLPlus, ec.EWC()]
    groups = [[], {}, (), set(), [1], [0, 1], [[0, 1]], [[1, 2], [3]], {"a": 1}, (X, Y), range(3)]
    arrays = [
        *(X.numpy(), X.numpy()[::-1], X.numpy().astype(">f8"), np.asfortranarray(X.numpy())),
        *(np.array(1.0), np.zeros((0, 4)), np.zeros((3, 0)), np.array(["a"]), np.array([None])),
        *(np.full((3, 4), np.nan), np.zeros((3, 4), np.uint8), np.zeros((3, 4), complex)),
        *(np.zeros(30, np.int32), np.zeros(30, bool), np.ones((30, 4), np.float16)),
        *(np.full((3, 4), 200, np.uint8), np.arange(30) % 3, np.datetime64("2020-01-01")),
    ]
    tensors = [
        *(X, Y, X.to_sparse(), X.to("meta"), X.to(torch.complex64), torch.tensor(3), X[:0]),
        *(X.clone().requires_grad_(), X.bool(), X.bfloat16(), X.double(), X.t(), Y.float()),
        *(torch.zeros(2, 3, 4, 5), torch.full((3, 4), 1e38), torch.zeros(30, 1)),
    ]
    own = [stream, stream[0], stream[0].train, iter([stream[0]]), nn.Linear(4, 2), nn.Identity()]
    return [*numbers, *texts, *things, *groups, *arrays, *tensors, *own]


def _learner(method: str) -> ec.Learner:
    learner = ec.Learner(ec.networks.mlp(4, [3]), method, epochs=1, samples=2)
    return learner.learn(ec.task(X, Y, name="one", outputs=2, test=(X, Y)))


def calls(folder: Path) -> dict[str, tuple[Callable[..., object], dict[str, Any]]]:
    """Functions with arguments that are right; of these, some are replaced."""
    task = ec.task(X, Y, name="two", outputs=2, test=(X, Y))
    network, ready = ec.networks.mlp(4, [3]), [_learner(name) for name in ("vcl", "ewc")]
    pictures = {"folder": folder / "pictures", "size": None, "colour": "rgb", "classes": None}
    split = {"x": X, "y": Y, "classes_per_task": 2, "test": None, "scenario": "task"}
    split |= {"groups": None, "class_order": None, "examples_per_task": None, "scaling": None}
    split |= {"class_names": None, "seed": 0, "test_fraction": 0.2, "permutation_seed": None}
    training = {"seed": 0, "samples": 2, "criterion": "classification", "epochs": 1}
    training |= {"batch_size": 10, "learning_rate": 0.01, "clip_norm": None, "device": None}
    training |= {"schedule": "cosine", "compile": "off", "point": lambda name: False}
    found: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
        "Learner": (ec.Learner, {"network": network, "method": "ewc", **training}),
        "learn": (lambda **one: _learns(network, **one), {"task": task, **training}),
        "task": (ec.task, {"x": X, "y": Y, "name": "a", "outputs": 2, "head": 0, "test": None}),
        "regression": (ec.regression_task, {"x": X, "y": X[:, 0], "name": "a", "test": None}),
        "tasks": (ec.tasks, {"pairs": [(X, Y)], "test": None, "names": None, "scenario": "task"}),
        "split_tasks": (ec.split_tasks, split),
        "permuted_tasks": (ec.permuted_tasks, {"x": X, "y": Y, "tasks": 2, "seed": 0}),
        "rotated_tasks": (ec.rotated_tasks, {"x": X.view(30, 2, 2), "y": Y, "tasks": 2}),
        "mlp": (ec.networks.mlp, {"inputs": 4, "hidden": [3], "heads": (), "seed": 0}),
        "convnet": (ec.networks.convnet, {"input_shape": (1, 8, 8), "channels": (2,), "seed": 0}),
        "MultiHead": (ec.MultiHead, {"body": nn.Linear(4, 4), "heads": ()}),
        "Examples": (Examples, {"store": X, "labels": Y, "outputs": 2, "head": 0}),
        "benchmark": (ec.benchmark, {"name": "split-digits", "seed": 0, "tasks": 2, "scale": None}),
        "method": (ec.method, {"name": "evcl+", "lam": 1.0, "beta": 1.0, "start": "random"}),
        "Training": (ec.Training, {"epochs": 1, "batch_size": 1, "learning_rate": 1.0}),
        "from_dataset": (ec.from_dataset, {"dataset": [(X[0], 0), (X[1], 1)]}),
        "from_folder": (ec.from_folder, pictures),
        "load": (ec.Learner.load, {"path": folder / "learner-er", "network": None, "method": None}),
        "save": (ready[0].save, {"path": folder / "saved", "overwrite": True}),
    }
    for one in ready:
        name = one.method.name
        asked = {"x": X, "task": None, "samples": None}
        for verb in (one.predict, one.predict_proba, one.uncertainty):
            found[f"{name} {verb.__name__}"] = (verb, asked)
        found[f"{name} evaluate"] = (one.evaluate, {"tasks": [], "on": "test"})
        found[f"{name} classes"] = (one.classes, {"task": None})
    return found


def _learns(network: nn.Module, task: Any, **training: Any) -> object:
    training["epochs"] = 1  # a large number is no mistake, it takes its time
    return ec.Learner(network, "vcl", **training).learn(task)


def cases(
    folder: Path, count: int, random: random.Random
) -> "list[tuple[str, Callable[[], object]]]":
    """So many calls, each with one to three arguments replaced."""
    every, hostile = calls(folder), values()
    made: list[tuple[str, Callable[[], object]]] = []
    for _ in range(count):
        name = random.choice(list(every))
        function, right = every[name]
        wrong = random.sample(list(right), min(len(right), random.choice((1, 1, 2, 3))))
        given = {**right, **{one: random.choice(hostile) for one in wrong}}
        title = f"{name}({', '.join(f'{one}={given[one]!r:.80}' for one in wrong)})"
        made.append((title, lambda function=function, given=given: function(**given)))  # type: ignore[misc]
    return made
