"""A transformer that learns with LoRA: pretrained weights stay as they are, adapters are Gaussian.
Needs the extra: pip install 'evclplus[pretrained]'."""

import tempfile

import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import BertConfig, BertModel

import evclplus as ec


def transformer() -> torch.nn.Module:
    """Here a small one with random weights; yours is AutoModel.from_pretrained(...)."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = BertModel(BertConfig(vocab_size=100, intermediate_size=64, **shape))
    lora = LoraConfig(r=4, target_modules=["query", "value"])
    adapted: torch.nn.Module = inject_adapter_in_model(lora, model)
    return adapted


def sentences(word: int, count: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of eight tokens, 0 where a text has ended: is it about the word or about its rival?"""
    y = torch.arange(count) % 2
    x = torch.randint(20, 100, (count, 8))
    x[:, ::2] = word + y[:, None]
    x[torch.arange(8) >= torch.randint(3, 9, (count, 1))] = 0
    return x, y


network = ec.MultiHead(ec.networks.TextEncoder(transformer(), padding=0))
learner = ec.Learner(network, epochs=5, batch_size=20, learning_rate=1e-2)
weights = sum(parameter.numel() for parameter in network.parameters())
print(f"{learner.network.layout.total} of {weights} weights are learned")

stream = ec.tasks([sentences(word) for word in (2, 4, 6)])
for task in stream:
    learner.learn(task)
    print(learner.evaluate(stream.seen(task)))

with tempfile.TemporaryDirectory() as folder:
    learner.save(folder, overwrite=True)  # adapters and heads, and a checksum of each frozen weight
    again = ec.Learner.load(folder, network=ec.MultiHead(ec.networks.TextEncoder(transformer())))
x = stream[0].test.inputs()[:3]
print(
    "the same after loading:", torch.equal(again.predict_proba(x, 0), learner.predict_proba(x, 0))
)
