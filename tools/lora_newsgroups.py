"""LoRA on MiniLM: 20 Newsgroups as texts, the transformer itself learns through adapters.

    python -m tools.lora_newsgroups                  # what is not there yet
    python -m tools.lora_newsgroups --tasks 10 --train 100 --epochs 20

A transformer takes a hundred times longer than features that are kept, so by default the run is
short: 5 of the 10 tasks, the first 20 texts of each class to learn from and 40 to be tested on, 32
tokens of each, 10 epochs. Adapters of rank 4 in query and value of all layers; training is the same
for all methods, nothing tuned. A finished run is a line of results/pretrained/lora.jsonl and is not
run again. Needs the extra `pretrained`, and `evclplus data fetch` of newsgroups and minilm.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.data.minilm import minilm, tokens
from evclplus.data.texts import Texts, texts
from evclplus.experiments.environment import environment
from evclplus.files import make_folder, write_atomically

RESULTS = Path("results/pretrained/lora.jsonl")
METHODS = ("evcl+", "ewc", "finetune")
TRAINING: dict[str, Any] = {"batch_size": 20, "learning_rate": 3e-3}

Run = dict[str, Any]


def adapted(model: nn.Module, rank: int = 4) -> ec.MultiHead:
    """The transformer with adapters, and a head for every task. Without dropout: of so few weights
    none has to be dropped, and answers that are held are the same in learning and in predicting."""
    from peft import LoraConfig, inject_adapter_in_model

    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    torch.manual_seed(0)  # of the adapters' first weights
    lora = LoraConfig(r=rank, target_modules=["query", "value"])
    return ec.MultiHead(ec.networks.TextEncoder(inject_adapter_in_model(lora, model)))


def stream_of(found: Texts, tokenizer: Any, settings: Run) -> ec.Stream:
    """Pairs of classes as rows of tokens, the first texts of each class."""

    def part(split: tuple[list[str], Tensor], count: int) -> tuple[Tensor, Tensor]:
        labels = split[1]
        classes = range(2 * settings["tasks"])
        rows = torch.cat([(labels == one).nonzero()[:count, 0] for one in classes])
        chosen = [split[0][row] for row in rows.tolist()]
        return tokens(tokenizer, chosen, settings["tokens"]), labels[rows]

    x, y = part(found.train, settings["train"])
    test = part(found.test, settings["test"])
    names = found.class_names
    return ec.split_tasks(x, y, test=test, validation_fraction=0.0, class_names=names)


def one_run(stream: ec.Stream, network: nn.Module, method: str, settings: Run) -> Run:
    """Accuracies on each task when it was learned and after the last."""
    learner = ec.Learner(network, method, epochs=settings["epochs"], **TRAINING)
    learned = []
    for task in stream:
        learner.learn(task)
        learned.append(learner.evaluate(task).average_accuracy)
    final = [score.accuracy for score in learner.evaluate(stream).scores]
    return {
        "method": method,
        "seed": 0,
        **settings,
        "weights": learner.network.layout.total,
        "learned": learned,
        "final": final,
        "environment": environment(),
    }


def finished(path: Path) -> list[Run]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def work(path: Path, settings: Run, methods: Sequence[str]) -> list[Run]:
    """Run what is not there yet; each finished run is kept at once."""
    make_folder(path.parent)
    done = finished(path)
    known = [{key: run[key] for key in (*settings, "method")} for run in done]
    left = [name for name in methods if settings | {"method": name} not in known]
    if left:
        tokenizer, _ = minilm()
        stream = stream_of(texts(), tokenizer, settings)
    for method in left:
        done.append(one_run(stream, adapted(minilm()[1]), method, settings))
        write_atomically(path, "".join(json.dumps(run) + "\n" for run in done))
    return done


def main() -> None:
    shown = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    sizes = {"tasks": 5, "train": 20, "test": 40, "tokens": 32, "epochs": 10}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--methods", default=",".join(METHODS))
    chosen = vars(parser.parse_args())
    methods = chosen.pop("methods").split(",")
    for run in work(RESULTS, chosen, methods):
        accuracies = (100 * sum(run[key]) / len(run[key]) for key in ("learned", "final"))
        print(run["method"], *(f"{value:.1f}" for value in accuracies))


if __name__ == "__main__":
    main()
