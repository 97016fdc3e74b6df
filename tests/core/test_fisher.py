import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evclplus.core.examples import Examples
from evclplus.core.fisher import Reduction, diagonal_fisher
from evclplus.core.heads import MultiHead
from evclplus.core.likelihoods import DRAWS, Classification, Labels
from evclplus.core.network import BayesianNetwork
from tests.core.modules import CalledTwice

CLASSES = 3


class Folded(nn.Module):
    """Folds time into the batch for one layer and puts the batch second for another."""

    def __init__(self) -> None:
        super().__init__()
        self.folded = nn.Linear(3, 4)
        self.swapped = nn.Linear(4, 4)
        self.output = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.folded(x.flatten(0, 1)).tanh().unflatten(0, x.shape[:2])
        h = self.swapped(h.transpose(0, 1)).tanh().transpose(0, 1)
        out: Tensor = self.output(h.mean(1))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(3, 4, batch_first=True)
        self.output = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.recurrent(x)[0][:, -1])
        return out


class Conv(nn.Module):
    def __init__(self, layer: nn.Module, dimensions: int) -> None:
        super().__init__()
        self.layer = layer
        self.output = nn.Linear(4, CLASSES)
        self.dimensions = tuple(range(2, 2 + dimensions))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.layer(x).tanh().mean(self.dimensions))
        return out


def batch_norm() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    norm.running_mean = torch.tensor([0.3, -0.2, 0.1, 0.4])
    return nn.Sequential(nn.Linear(4, 4), norm, nn.ReLU(), nn.Linear(4, CLASSES))


MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES)), (4,)),
    "no bias": (nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3)), (4,)),
    "sequence": (nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(10, 3)), (5, 4)),
    "conv1d": (Conv(nn.Conv1d(4, 4, 3, stride=2, padding=1, groups=2), 1), (4, 9)),
    "conv2d": (Conv(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), 2), (2, 5, 6)),
    "conv2d dilated": (Conv(nn.Conv2d(2, 4, (2, 3), dilation=2, padding="same"), 2), (2, 6, 7)),
    "conv3d": (Conv(nn.Conv3d(1, 4, 2, stride=(1, 2, 1)), 3), (1, 3, 4, 3)),
    "layer norm": (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)), (4,)),
    "group norm": (nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3)), (4,)),
    "batch norm": (batch_norm(), (4,)),
    "folded": (Folded(), (5, 3)),
    "twice": (CalledTwice(), (4,)),
    "recurrent": (Recurrent(), (5, 3)),
    "attention": (
        nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten(), nn.Linear(12, 3)
        ),
        (3, 4),
    ),
    "embedding": (nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(20, CLASSES)), (5,)),
}


def loop(
    module: nn.Module, x: Tensor, y: Tensor, labels: Labels, classes: int = CLASSES
) -> dict[str, Tensor]:
    """The definition, one example and one label at a time, by autograd."""
    module.eval()
    total = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    for example, label in zip(x, y, strict=True):
        log_probabilities = F.log_softmax(module(example[None]), dim=1)[0]
        chosen = range(classes) if labels == "exact" else [int(label)]
        if labels == "predicted":
            chosen = [int(log_probabilities.argmax())]
        for c in chosen:
            weight = log_probabilities[c].exp().item() if labels == "exact" else 1.0
            gradients = torch.autograd.grad(
                log_probabilities[c], list(module.parameters()), retain_graph=True
            )
            for name, gradient in zip(total, gradients, strict=True):
                total[name] += weight * gradient.square() / len(x)
    return total


def data(name: str, shape: tuple[int, ...], count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    if name == "embedding":
        x = torch.randint(0, 7, (count, *shape), generator=generator)
    return x, torch.randint(0, CLASSES, (count,), generator=generator)


@pytest.mark.parametrize("labels", ["exact", "predicted", "true"])
@pytest.mark.parametrize("name", MODULES)
def test_fisher_equals_a_loop_over_examples(name: str, labels: Labels) -> None:
    module, shape = MODULES[name]
    module = module.double()
    network = BayesianNetwork(module)
    x, y = data(name, shape)
    fisher = diagonal_fisher(
        network, network.initial(1.0), Examples(x, y, CLASSES), torch.Generator(), labels
    )
    expected = loop(module, x, y, labels)
    for parameter, value in network.layout.named(fisher).items():
        assert torch.count_nonzero(value) > 0, parameter
        torch.testing.assert_close(value, expected[parameter], rtol=1e-9, atol=1e-14)


def test_two_classes_take_one_gradient_and_give_the_same() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 2)).double()
    x, y = data("linear", (4,))
    network = BayesianNetwork(module)
    fisher = diagonal_fisher(
        network, network.initial(1.0), Examples(x, y % 2, 2), torch.Generator()
    )
    expected = loop(module, x, y % 2, "exact", classes=2)
    for parameter, value in network.layout.named(fisher).items():
        torch.testing.assert_close(value, expected[parameter], rtol=1e-9, atol=1e-14)


def test_fisher_of_logistic_regression_in_closed_form() -> None:
    """For p = sigmoid(w x + b) as a two-way softmax: F_w = E[p (1 - p) x^2], F_b = E[p (1 - p)]."""
    layer = nn.Linear(4, 2).double()
    x, y = data("linear", (4,), count=50)
    network = BayesianNetwork(layer)
    fisher = network.layout.named(
        diagonal_fisher(network, network.initial(1.0), Examples(x, y % 2, 2), torch.Generator())
    )
    p = torch.softmax(layer(x), dim=1)[:, :1]
    variance = (p * (1 - p)).detach()
    for row in range(2):
        torch.testing.assert_close(fisher["weight"][row], (variance * x.square()).mean(0))
        torch.testing.assert_close(fisher["bias"][row], variance.mean())


def test_sampled_labels_average_to_the_exact_fisher() -> None:
    module, shape = MODULES["linear"]
    network = BayesianNetwork(module.double())
    x, y = data("linear", shape, count=4)
    many = Examples(x.repeat(4000, 1), y.repeat(4000), CLASSES)
    q, generator = network.initial(1.0), torch.Generator().manual_seed(0)
    sampled = diagonal_fisher(network, q, many, generator, "sampled", maximum=len(many))
    exact = diagonal_fisher(network, q, Examples(x, y, CLASSES), generator, "exact")
    torch.testing.assert_close(sampled, exact, rtol=0.15, atol=0.02 * exact.max().item())


@pytest.mark.parametrize(("reduction", "factor"), [("mean", 1), ("sum", 6 * 300)])
def test_repeated_data(reduction: Reduction, factor: int) -> None:
    """The mean does not care how often an example comes; the sum counts each time."""
    module, shape = MODULES["linear"]
    network = BayesianNetwork(module.double())
    x, y = data("linear", shape)
    q, generator = network.initial(1.0), torch.Generator()
    once = diagonal_fisher(network, q, Examples(x, y, CLASSES), generator)
    often = Examples(x.repeat(300, 1), y.repeat(300), CLASSES)
    found = diagonal_fisher(network, q, often, generator, reduction=reduction)
    torch.testing.assert_close(found, factor * once)


def test_no_more_examples_than_asked_for() -> None:
    module, shape = MODULES["linear"]
    network = BayesianNetwork(module.double())
    x, y = data("linear", shape, count=50)
    examples = Examples(x, y, CLASSES)
    q = network.initial(1.0)

    def total(maximum: int, seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        fisher = diagonal_fisher(
            network, q, examples, generator, "true", reduction="sum", maximum=maximum
        )
        return fisher.sum().item()

    assert total(10, 0) < total(50, 0) / 3
    assert total(10, 0) != total(10, 1)
    assert total(50, 0) == total(50, 1)


def test_only_the_head_and_outputs_in_use_count() -> None:
    module = MultiHead(nn.Linear(4, 5), [nn.Linear(5, 4), nn.Linear(5, 4)]).double()
    network = BayesianNetwork(module)
    x, y = data("linear", (4,))
    examples = Examples(x, y % 2, outputs=2, head=1)
    fisher = network.layout.named(
        diagonal_fisher(network, network.initial(1.0), examples, torch.Generator())
    )
    assert torch.count_nonzero(fisher["heads.0.weight"]) == 0
    assert torch.count_nonzero(fisher["heads.1.weight"][:2]) == 10
    assert torch.count_nonzero(fisher["heads.1.weight"][2:]) == 0
    assert torch.count_nonzero(fisher["body.weight"]) == 20


def test_a_module_may_ask_other_heads_too() -> None:
    class Both(MultiHead):
        def forward(self, x: Tensor, head: object = 0, held: object = None) -> Tensor:
            return super().forward(x, 0) + super().forward(x, 1)

    heads = [nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3)) for _ in range(2)]
    network = BayesianNetwork(Both(nn.Linear(4, 5), heads).double())
    examples = Examples(*data("linear", (4,)), outputs=3, head=0)
    fisher = diagonal_fisher(network, network.initial(1.0), examples, torch.Generator())
    assert torch.count_nonzero(network.layout.named(fisher)["heads.1.0.weight"]) == 5


def test_squaring_the_mean_gradient_would_be_far_smaller() -> None:
    """The mistake this project exists to avoid, shown not to be what we compute."""
    module, shape = MODULES["linear"]
    network = BayesianNetwork(module.double())
    x, y = data("linear", shape, count=200)
    fisher = diagonal_fisher(
        network, network.initial(1.0), Examples(x, y, CLASSES), torch.Generator(), "true"
    )
    module.zero_grad()
    F.cross_entropy(module(x), y).backward()
    gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    assert fisher.sum() > 10 * torch.cat(gradients).square().sum()


class Softened(nn.Module):
    def __init__(self, module: nn.Module, temperature: float) -> None:
        super().__init__()
        self.module, self.temperature = module, temperature

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x) / self.temperature
        return out


@pytest.mark.parametrize("classes", [2, CLASSES])
@pytest.mark.parametrize("name", ["linear", "layer norm"])
def test_temperature_is_that_of_a_network_with_divided_logits(name: str, classes: int) -> None:
    body = MODULES[name][0][:-1]  # type: ignore[index]
    module = nn.Sequential(*body, nn.Linear(6 if name == "linear" else 4, classes)).double()
    x, y = data(name, (4,))
    network = BayesianNetwork(module)
    q, examples = network.initial(1.0), Examples(x, y % classes, classes)
    found = diagonal_fisher(network, q, examples, torch.Generator(), temperature=2.5)
    expected = loop(Softened(module, 2.5), x, y % classes, "exact", classes)
    for part, wanted in zip(network.layout.named(found).values(), expected.values(), strict=True):
        torch.testing.assert_close(part, wanted, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("labels", ["exact", "sampled"])
def test_drawn_labels_have_the_exact_fisher_as_their_expectation(
    labels: Labels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many classes the exact Fisher is drawn: its mean over many seeds is what the loop over all
    classes gives, and each draw is near."""
    network = BayesianNetwork(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 6)))
    q = network.initial(variance=1.0)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=generator)
    examples = Examples(x, torch.zeros(20, dtype=torch.int64), 6)
    exact = diagonal_fisher(network, q, examples, generator, "exact")
    monkeypatch.setattr("evclplus.core.likelihoods.MOST_EXACT", 5)
    drawn = torch.stack(
        [
            diagonal_fisher(network, q, examples, torch.Generator().manual_seed(seed), labels)
            for seed in range(60)
        ]
    )
    assert not torch.equal(drawn[0], drawn[1])
    error = drawn.std(0) / 60**0.5
    assert ((drawn.mean(0) - exact).abs() <= 5 * error + 1e-7).all()


def test_a_head_of_ten_thousand_classes_takes_few_passes() -> None:
    """One backward pass for each draw and not for each class."""
    output = torch.zeros(3, 10_000)
    y = torch.zeros(3, dtype=torch.int64)
    found = list(Classification().directions(output, y, "exact", torch.Generator().manual_seed(0)))
    assert len(found) == DRAWS
    direction, weight = found[0]
    assert weight.sum().item() * DRAWS == pytest.approx(3)
    assert direction.max(1).values.tolist() == pytest.approx([1 - 1e-4] * 3)
    assert direction.sum(1).tolist() == pytest.approx([0.0] * 3, abs=1e-3)
