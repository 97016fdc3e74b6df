"""The study with LoRA on a transformer and texts of its own kind, but small."""

import json
from pathlib import Path

import pytest
import torch

from evclplus.data.texts import Texts
from tests.core.test_inputs import plain_bert
from tools.lora_newsgroups import adapted, finished, one_run, stream_of, work

SETTINGS = {"tasks": 2, "train": 4, "test": 2, "tokens": 4, "epochs": 1}


@pytest.mark.slow
def test_texts_become_a_stream_that_adapters_learn(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("peft")
    words = {"[UNK]": 1, **{name: index for index, name in enumerate("abcdefgh", 2)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    labels = torch.arange(6).repeat(5)
    said = [" ".join("abcdef"[label] * (1 + row // 6)) for row, label in enumerate(labels.tolist())]
    found = Texts("small", (said, labels), (said, labels), dict(enumerate("uvwxyz")))
    stream = stream_of(found, tokenizer, SETTINGS)
    assert [task.name for task in stream] == ["u/v", "w/x"]
    assert [(len(task.train), len(task.test)) for task in stream] == [(8, 4), (8, 4)]
    assert stream[1].train.inputs().tolist()[0] == [4, 0, 0, 0]
    run = one_run(stream, adapted(plain_bert(), rank=2), "finetune", SETTINGS)
    assert (len(run["learned"]), len(run["final"])) == (2, 2)
    # What is finished is not run again, nor is a model asked for.
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(run) + "\n")
    assert work(path, SETTINGS, ["finetune"]) == finished(path) == [run]
