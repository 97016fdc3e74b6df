"""Several inputs in one tensor, transformers, adapters: learned, predicted with and saved as any
other network."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.examples import MOST_ROWS, rows_at_once
from evclplus.core.fisher import diagonal_fisher
from evclplus.errors import ConversionError, DataError, FileError
from evclplus.networks import SeveralInputs, TextEncoder


class Shop(nn.Module):
    """A product's code, its neighbours' codes and two prices."""

    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Embedding(10, 4)
        self.all = nn.Linear(4 + 4 + 2, 5)

    def forward(self, *, code: Tensor, others: Tensor, prices: Tensor) -> Tensor:
        near = self.code(others).flatten(1, 2).mean(1)
        return torch.tanh(self.all(torch.cat([self.code(code), near, prices], 1)))


SHAPES = {"code": (), "others": (3, 1), "prices": (2,)}


def shop_inputs(count: int) -> dict[str, Tensor]:
    return {
        "code": torch.randint(0, 10, (count,)),
        "others": torch.randint(0, 10, (count, 3, 1)),
        "prices": torch.randn(count, 2),
    }


def test_the_module_gets_what_was_packed() -> None:
    shop, inputs = Shop(), shop_inputs(7)
    packed = SeveralInputs(shop, SHAPES, whole=("code", "others"))
    x = packed.pack(**inputs)
    assert (x.shape, x.dtype) == ((7, 6), torch.float32)
    assert torch.equal(packed(x), shop(**inputs))
    flags = inputs | {"code": inputs["code"] > 4}
    assert packed.pack(**flags)[:, 0].tolist() == flags["code"].tolist()
    # The order in which they are given is not the order in which they lie.
    assert torch.equal(packed.pack(**dict(reversed(inputs.items()))), x)


def test_whole_numbers_alone_stay_whole() -> None:
    pair = SeveralInputs(nn.Identity(), {"tokens": (4,), "mask": (4,)}, whole=("tokens", "mask"))
    tokens = torch.tensor([[2**40 + 1, 5, 0, 0]])
    x = pair.pack(tokens=tokens, mask=tokens != 0)
    assert x.tolist() == [[2**40 + 1, 5, 0, 0, 1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"code": torch.zeros(7)}, r"code is torch\.float32; expected whole numbers"),
        ({"code": torch.full((7,), 2**24 + 1)}, "code goes beyond 16777216"),
        ({"prices": torch.zeros(7, 3)}, r"prices has shape \(7, 3\); expected \(7, 2\)"),
        ({"others": torch.zeros(6, 3, 1).long()}, r"others has shape \(6, 3, 1\)"),
        ({"weight": torch.zeros(7)}, r"got the inputs .* expected \['code', 'others', 'prices'\]"),
    ],
)
def test_wrong_inputs_are_one_line(changed: dict[str, Tensor], reason: str) -> None:
    packed = SeveralInputs(Shop(), SHAPES, whole=("code", "others"))
    with pytest.raises(DataError, match=reason):
        packed.pack(**(shop_inputs(7) | changed))


def test_wrong_names_and_types_are_one_line() -> None:
    with pytest.raises(ConversionError, match="whole numbers among them"):
        SeveralInputs(Shop(), SHAPES, whole=("token",))
    packed = SeveralInputs(Shop(), SHAPES, whole=("code", "others"))
    with pytest.raises(ConversionError, match="holds no whole numbers"):
        packed(torch.zeros(2, 6, dtype=torch.bfloat16))


class OneInput(nn.Module):
    """The same network for whom the row is taken apart by hand."""

    def __init__(self, shop: Shop) -> None:
        super().__init__()
        self.shop = shop

    def forward(self, x: Tensor) -> Tensor:
        code, others = x[:, 0].long(), x[:, 1:4].long()[:, :, None]
        result: Tensor = self.shop(code=code, others=others, prices=x[:, 4:])
        return result


@pytest.mark.parametrize("method", ["evcl+", "ewc", "vcl-random"])
def test_a_network_of_several_inputs_learns_as_any_other(method: str, tmp_path: Path) -> None:
    shop = Shop()
    packed = SeveralInputs(shop, SHAPES, whole=("code", "others"))
    tasks = []
    for digit in range(2):
        inputs = shop_inputs(60)
        x = packed.pack(**inputs)
        tasks.append((x, (inputs["code"] > 4 + digit).long()))
    stream = ec.tasks(tasks)
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 20}
    if method == "vcl-random":
        settings["method"] = ec.method(method, coreset_size=5)
    else:
        settings["method"] = method
    networks = (ec.MultiHead(packed), ec.MultiHead(OneInput(shop)))
    learners = [ec.Learner(network, **settings) for network in networks]
    for task in stream:
        for learner in learners:
            learner.learn(task)
    x = stream[0].test.inputs()
    answers = [learner.predict_proba(x, task=0) for learner in learners]
    assert torch.equal(*answers)
    learners[0].save(tmp_path)
    again = ec.Learner.load(tmp_path, network=ec.MultiHead(packed))
    assert torch.equal(again.predict_proba(x, task=0), answers[0])
    other = SeveralInputs(shop, SHAPES | {"others": (1, 3)}, whole=("code", "others"))
    with pytest.raises(FileError, match=r"body is SeveralInputs\(.*; pass it as it was at first"):
        ec.Learner.load(tmp_path, network=ec.MultiHead(other))


def test_few_rows_of_tokens_are_looked_at_together() -> None:
    assert rows_at_once(torch.zeros(1, 128, dtype=torch.int64)) == 64
    assert rows_at_once(torch.zeros(1, 128)) == MOST_ROWS


class Reads(nn.Module):
    """A layer that looks at its weight's type before it is used, as every layer of PEFT does."""

    def __init__(self, below: nn.Linear) -> None:
        super().__init__()
        self.below, self.down, self.up = below, nn.Linear(4, 2, False), nn.Linear(2, 6, False)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.up(self.down(x.to(self.down.weight.dtype)))
        below: Tensor = self.below(x)
        return torch.relu(below + added)


def adapted() -> ec.MultiHead:
    torch.manual_seed(3)
    return ec.MultiHead(Reads(nn.Linear(4, 6).requires_grad_(False)))


def halves(count: int = 2) -> Any:
    generator = torch.Generator().manual_seed(5)
    tasks = []
    for feature in range(count):
        x = torch.randn(40, 4, generator=generator)
        tasks.append((x, (x[:, feature] > 0).long()))
    return ec.tasks(tasks)


def test_a_module_that_reads_a_weight_is_saved_exactly(tmp_path: Path) -> None:
    stream, x = halves(), torch.randn(9, 4)
    never_stopped = ec.Learner(adapted(), epochs=3, batch_size=10)
    never_stopped.learn(stream[0])
    never_stopped.save(tmp_path / "one")
    again = ec.Learner.load(tmp_path / "one", network=adapted())
    assert torch.equal(again.predict_proba(x, task=0), never_stopped.predict_proba(x, task=0))
    for learner in (never_stopped, again):
        learner.learn(stream[1])
    assert torch.equal(again.q.mean, never_stopped.q.mean)
    assert torch.equal(again.q.variance, never_stopped.q.variance)
    assert torch.equal(again.predict_proba(x, task=1), never_stopped.predict_proba(x, task=1))


def test_training_does_not_go_on_over_another_base(tmp_path: Path, caplog: Any) -> None:
    """Frozen weights are not in a checkpoint, but what they were is."""
    stream, x = halves(1), torch.randn(9, 4)
    ec.Learner(adapted(), epochs=2, batch_size=10).learn(stream[0], checkpoint=tmp_path)
    other = adapted()
    with torch.no_grad():
        other.body.below.weight.mul_(2.0)  # type: ignore[union-attr, operator]
    fresh = ec.Learner(other, epochs=2, batch_size=10).learn(stream[0])
    with pytest.raises(FileError, match="frozen"):
        ec.Learner(other, epochs=2, batch_size=10).learn(stream[0], checkpoint=tmp_path)
    assert fresh.predict_proba(x, task=0).shape == (9, 2)


# A transformer of transformers with LoRA of peft: slow to import, so with the slow tests.


def plain_bert(seed: int = 0, heads: int = 2) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=heads,
        intermediate_size=8,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(seed)
    return transformers.BertModel(config)


def bert(seed: int = 0, heads: int = 2) -> Any:
    peft = pytest.importorskip("peft")
    model = plain_bert(seed, heads)
    lora = peft.LoraConfig(r=2, target_modules=["query", "value"])
    return peft.inject_adapter_in_model(lora, model)


def sentences(count: int = 2) -> Any:
    """Whether a word of the task's own is there; texts of any length."""
    generator = torch.Generator().manual_seed(1)
    tasks = []
    for word in range(count):
        y = torch.arange(24) % 2
        x = torch.randint(8, 20, (24, 6), generator=generator)
        x[:, 0] = torch.where(y == 1, 2 + word, 5 + word)
        x[:, 3:][torch.rand(24, 3, generator=generator) > 0.5] = 0
        tasks.append((x, y))
    return ec.tasks(tasks)


@pytest.mark.slow
def test_padding_changes_no_feature() -> None:
    encoder = TextEncoder(bert()).eval()
    tokens = torch.randint(1, 20, (3, 5))
    padded = torch.cat([tokens, torch.zeros(3, 2, dtype=torch.int64)], 1)
    assert torch.allclose(encoder(padded), encoder(tokens), atol=1e-6)
    hidden = encoder.model(input_ids=tokens).last_hidden_state
    assert torch.allclose(encoder(tokens), hidden.mean(1), atol=1e-6)


@pytest.mark.slow
def test_lora_is_learned_and_its_base_is_not(tmp_path: Path) -> None:
    base, stream = bert(), sentences()
    before = {name: value.clone() for name, value in base.state_dict().items()}
    learner = ec.Learner(ec.MultiHead(TextEncoder(base)), epochs=2, batch_size=8)
    learner.learn(stream[0])
    learner.save(tmp_path)
    kept = load_file(next(tmp_path.glob("*.safetensors")))
    learned = 2 * 2 * (8 * 2) + 2 * 8 + 2  # two adapters of rank 2 in one layer, and a head
    assert kept["q.mean"].numel() == learned
    assert all(value.numel() <= learned for value in kept.values())
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())

    again = ec.Learner.load(tmp_path, network=ec.MultiHead(TextEncoder(bert())))
    for one in (learner, again):
        one.learn(stream[1])
    x = stream[0].test.inputs()
    assert torch.equal(again.q.mean, learner.q.mean)
    for task in range(2):
        answers = (one.predict_proba(x, task=task) for one in (learner, again))
        assert torch.equal(*answers)


@pytest.mark.slow
def test_another_base_is_refused_in_one_line(tmp_path: Path) -> None:
    learner = ec.Learner(ec.MultiHead(TextEncoder(bert())), "finetune", epochs=1)
    learner.learn(sentences(1)[0])
    learner.save(tmp_path)
    with pytest.raises(FileError, match="which is not learned, has other values") as caught:
        ec.Learner.load(tmp_path, network=ec.MultiHead(TextEncoder(bert(seed=1))))
    assert "\n" not in str(caught.value)
    with pytest.raises(FileError, match="num_attention_heads=2"):
        ec.Learner.load(tmp_path, network=ec.MultiHead(TextEncoder(bert(heads=4))))


@pytest.mark.slow
def test_the_fisher_of_lora_is_that_of_single_examples() -> None:
    """Against a loop over examples and labels with torch's autograd and the plain module."""
    stream = sentences(1)
    learner = ec.Learner(ec.MultiHead(TextEncoder(bert())), "ewc", epochs=1, batch_size=8)
    learner.learn(stream[0])
    examples = stream[0].train.take(torch.arange(4))
    found = learner.network.layout.named(
        diagonal_fisher(learner.network, learner.q, examples, torch.Generator())
    )
    plain = ec.MultiHead(TextEncoder(bert()), [nn.Linear(8, 2)]).eval()
    parameters = dict(plain.named_parameters())
    with torch.no_grad():
        for name, value in learner.network.layout.named(learner.q.mean).items():
            parameters[name].copy_(value)
    expected = {name: torch.zeros_like(parameters[name]) for name in found}
    for row in examples.inputs():
        log_probabilities = plain(row[None])[0].log_softmax(0)
        for log_probability in log_probabilities:
            values = [parameters[name] for name in found]
            gradients = torch.autograd.grad(log_probability, values, retain_graph=True)
            for name, gradient in zip(found, gradients, strict=True):
                expected[name] += log_probability.exp().detach() * gradient.square() / 4
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-3, atol=1e-8), name
