"""One run of an idea on a stream, on validation data."""

import time
from dataclasses import asdict, dataclass

import torch

import evclplus as ec
from tools.develop.ideas import IDEAS
from tools.develop.streams import CASES


@dataclass(frozen=True)
class Run:
    """What an idea reached on a stream: average accuracy at the end and just after each task."""

    idea: str
    case: str
    seed: int
    settings: dict[str, object]
    final: float
    learning: float
    strengths: list[float]
    seconds: float
    commit: str


def run(idea: str, case: str, seed: int, commit: str) -> Run:
    torch.set_num_threads(1)  # two runs share two cores
    chosen, begun = IDEAS[idea], time.perf_counter()
    stream = CASES[case].stream()
    network = CASES[case].network(stream, seed)
    method = ec.method(chosen.method, **chosen.options)
    learner = ec.Learner(network, method, seed=seed, **chosen.training)
    learned = []
    for task in stream:
        learner.learn(task)
        learned.append(learner.evaluate(task, on="validation").average_accuracy)
    settings = {key: value for key, value in asdict(chosen).items() if key != "about"}
    return Run(
        idea,
        case,
        seed,
        settings,
        final=learner.evaluate(stream, on="validation").average_accuracy,
        learning=sum(learned) / len(learned),
        strengths=[task.calibrated.get("strength", 0.0) for task in learner.learned],
        seconds=round(time.perf_counter() - begun, 1),
        commit=commit,
    )
