from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.core.noise import new_noise, new_seeds
from evclplus.errors import ConversionError


def posterior(network: BayesianNetwork, std: float = 0.3) -> MeanField:
    """The module's weights as means, with a different std for every weight."""
    q = network.initial(1.0)
    generator = torch.Generator().manual_seed(5)
    spread = std * torch.rand(q.variance.shape, generator=generator) + 0.05
    return MeanField(q.mean, spread.square(), q.layout)


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(network: BayesianNetwork, q: MeanField, seed: int = 0) -> Weights:
    return network.weights(q, new_noise(draws(seed)))


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 4), (6,)),
    "linear without bias": (nn.Linear(6, 4, bias=False), (6,)),
    "linear over a sequence": (nn.Linear(6, 4), (3, 6)),
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (4, 9)),
    "conv2d": (nn.Conv2d(2, 4, 3, padding="same", padding_mode="circular"), (2, 5, 5)),
    "conv2d dilated": (nn.Conv2d(2, 4, (2, 3), dilation=(1, 2), padding=(1, 0)), (2, 5, 6)),
    "conv3d": (nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_local_reparameterisation_has_the_moments_of_sampled_weights(name: str) -> None:
    layer, shape = LAYERS[name]
    network = BayesianNetwork(layer)
    q = posterior(network)
    x = torch.randn(2, *shape, generator=draws(1))
    means, stds = network.layout.named(q.mean), network.layout.named(q.variance.sqrt())
    count, generator = 2000, draws(2)

    def with_sampled_weights() -> Tensor:
        weights = {
            name: mean + stds[name] * torch.randn(mean.shape, generator=generator)
            for name, mean in means.items()
        }
        output: Tensor = functional_call(layer, weights, (x,))
        return output

    local = torch.stack([network(drawn(network, q, seed), x) for seed in range(count)])
    sampled = torch.stack([with_sampled_weights() for _ in range(count)])
    standard_error = sampled.std(0) * (2 / count) ** 0.5
    assert ((local.mean(0) - sampled.mean(0)).abs() < 5 * standard_error).all()
    torch.testing.assert_close(local.std(0), sampled.std(0), rtol=0.12, atol=0)
    torch.testing.assert_close(network(q, x), layer(x))  # and the mean network is exact


class Everything(nn.Module):
    """One of each kind of parameter: embedding, attention, convolution, norms, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.convolution = nn.Conv1d(8, 6, 3, padding=1)
        self.batch_norm = nn.BatchNorm1d(6)
        self.group_norm = nn.GroupNorm(2, 6)
        self.layer_norm = nn.LayerNorm(6)
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.attention(self.embedding(x)).transpose(1, 2)
        h = self.group_norm(self.batch_norm(self.convolution(h)))
        out: Tensor = self.linear(self.layer_norm(h.mean(-1)))
        return out


def test_a_network_with_every_kind_of_parameter() -> None:
    torch.manual_seed(0)
    module = Everything()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network = BayesianNetwork(module)
    assert set(network.layout.names) == {name for name, _ in module.named_parameters()}
    x = torch.randint(0, 10, (4, 5), generator=draws())
    q = posterior(network)
    q.mean.requires_grad_()
    q.variance.requires_grad_()
    network(drawn(network, q), x, training=True).square().sum().backward()
    # Every mean and every std takes part: none is silently left out of the Gaussian.
    for vector in (q.mean, q.variance):
        assert vector.grad is not None
        for name, gradient in network.layout.named(vector.grad).items():
            assert torch.count_nonzero(gradient) > 0, name
    after = module.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert type(module.linear) is nn.Linear


def test_prediction_without_gradients_samples_every_weight_too() -> None:
    """torch's fused encoder reads its layers' weights directly when gradients are off."""
    torch.manual_seed(0)
    network = BayesianNetwork(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    q, x = posterior(network), torch.randn(3, 4, 8, generator=draws())
    with torch.no_grad():
        fused = torch.stack([network(drawn(network, q, seed), x) for seed in range(400)])
    called = torch.stack([network(drawn(network, q, seed), x).detach() for seed in range(400)])
    torch.testing.assert_close(fused.std(0).mean(), called.std(0).mean(), rtol=0.1, atol=0)


@pytest.mark.parametrize("name", ["mlp", "conv", pytest.param("attention", marks=pytest.mark.slow)])
def test_many_samples_have_the_moments_of_single_passes(name: str) -> None:
    """Sharing products and weights among samples must not change their distribution."""
    torch.manual_seed(0)
    module, shape = {
        "mlp": (nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), (2, 3)),
        "conv": (
            nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 2)),
            (2, 3),
        ),
        "attention": (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (3, 4)),
    }[name]
    network = BayesianNetwork(module)
    q, x, count = posterior(network), torch.randn(3, *shape, generator=draws(1)), 4000
    with torch.no_grad():
        together = torch.stack(list(network.samples(q, x, 0, new_seeds(draws(2), count))))
        singly = torch.stack([network(drawn(network, q, seed), x) for seed in range(count)])
    standard_error = singly.std(0) * (2 / count) ** 0.5
    assert ((together.mean(0) - singly.mean(0)).abs() < 5 * standard_error).all()
    torch.testing.assert_close(together.std(0), singly.std(0), rtol=0.1, atol=0)
    assert not torch.equal(together[0], together[1])


def test_many_samples_of_a_layer_that_is_called_twice() -> None:
    network = BayesianNetwork(Twice())
    found = list(network.samples(posterior(network), torch.ones(2, 4), 0, new_seeds(draws(), 3)))
    assert len(found) == 3
    assert all(torch.equal(first, second) for first, second in found)


def test_the_user_module_draws_nothing_from_the_global_state() -> None:
    torch.manual_seed(0)
    network = BayesianNetwork(nn.Linear(3, 2))
    state = torch.get_rng_state()
    network(drawn(network, posterior(network)), torch.ones(2, 3))
    assert torch.equal(state, torch.get_rng_state())


def test_same_generator_same_output() -> None:
    network = BayesianNetwork(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)))
    q, x = posterior(network), torch.ones(2, 3)
    assert torch.equal(network(drawn(network, q, 3), x), network(drawn(network, q, 3), x))
    assert not torch.equal(network(drawn(network, q, 3), x), network(drawn(network, q, 4), x))


def test_running_statistics_move_in_training_only_and_in_the_copy_only() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    network = BayesianNetwork(module)
    q, x = posterior(network), torch.randn(8, 3, generator=draws())
    network(drawn(network, q), x)
    assert network.buffers["1.num_batches_tracked"] == 0
    other = network.copy()
    network(drawn(network, q), x, training=True)
    assert network.buffers["1.num_batches_tracked"] == 1
    assert torch.count_nonzero(network.buffers["1.running_mean"]) == 4
    assert other.buffers["1.num_batches_tracked"] == 0
    assert torch.count_nonzero(module[1].running_mean) == 0  # type: ignore[arg-type]


def test_dropout_drops_in_training_only() -> None:
    network = BayesianNetwork(nn.Sequential(nn.Linear(3, 200), nn.Dropout(0.5)))
    q, x = posterior(network), torch.ones(1, 3)
    assert torch.count_nonzero(network(q, x)) == 200
    assert 60 < torch.count_nonzero(network(q, x, training=True)) < 140


def test_point_values_are_not_sampled() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    network = BayesianNetwork(module, point=lambda name: not name.startswith("2."))
    assert network.layout.names[: network.layout.gaussian_names] == ("2.weight", "2.bias")
    q, x = posterior(network), torch.ones(2, 3)
    assert len(q.variance) == 4 * 2 + 2
    assert not torch.equal(network(drawn(network, q, 0), x), network(drawn(network, q, 1), x))
    all_point = BayesianNetwork(module, point=lambda name: True)
    q = all_point.initial(1.0)
    assert torch.equal(all_point(drawn(all_point, q), x), module(x))


def test_a_gaussian_weight_with_a_point_bias_and_the_reverse() -> None:
    for kept in ("weight", "bias"):
        network = BayesianNetwork(nn.Linear(3, 4), point=kept.__eq__)
        q, x = posterior(network), torch.ones(3000, 3)
        q.variance.requires_grad_()
        output = network(drawn(network, q), x)
        stds = network.layout.named(q.variance.sqrt())
        std = stds["weight"].square().sum(1).sqrt() if kept == "bias" else stds["bias"]
        torch.testing.assert_close(output.std(0), std, rtol=0.06, atol=0)


def test_an_input_of_zeros_gives_finite_gradients_without_a_bias() -> None:
    network = BayesianNetwork(nn.Linear(3, 4, bias=False))
    q = posterior(network)
    q.variance.requires_grad_()
    network(drawn(network, q), torch.zeros(2, 3)).sum().backward()
    assert q.variance.grad is not None
    assert torch.isfinite(q.variance.grad).all()


def test_frozen_parameters_stay_constants() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    network = BayesianNetwork(module)
    assert "0.weight" not in network.layout.names
    torch.testing.assert_close(
        network(network.initial(1.0), torch.ones(2, 3)), module(torch.ones(2, 3))
    )


class Tied(nn.Module):
    """One matrix used as an embedding and, through a Linear, as the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 5)
        self.output = nn.Linear(5, 5, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        # The same sample on both sides makes this matrix symmetric.
        out: Tensor = self.output(self.embedding(x))
        return out


def test_tied_parameters_share_one_sample() -> None:
    network = BayesianNetwork(Tied())
    assert network.layout.names == ("embedding.weight",)
    gram = network(drawn(network, posterior(network)), torch.arange(5))
    torch.testing.assert_close(gram, gram.T)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first: Tensor = self.layer(x)
        second: Tensor = self.layer(x)
        return torch.stack([first, second])


def test_a_layer_called_twice_uses_the_same_weights_both_times() -> None:
    network = BayesianNetwork(Twice())
    first, second = network(drawn(network, posterior(network)), torch.ones(2, 4))
    assert torch.equal(first, second)
    assert not network.local_layers


def test_recurrent_layers_are_sampled() -> None:
    network = BayesianNetwork(nn.LSTM(3, 4, batch_first=True))
    q, x = posterior(network), torch.ones(2, 5, 3)
    outputs: list[Any] = [network(drawn(network, q, seed), x)[0] for seed in (0, 0, 1)]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def scripted() -> nn.Module:
    with pytest.warns(DeprecationWarning, match="deprecated"):
        return torch.jit.script(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()),
            "parameter 1.weight is torch.float64",
        ),
        (lambda: nn.LazyLinear(3), "parameter weight is not initialised"),
        (nn.ReLU, "ReLU has no parameter to learn"),
        (scripted, "scripted module"),
        (
            lambda: nn.ParameterList([nn.Parameter(torch.zeros(2, dtype=torch.complex64))]),
            "parameter 0 is torch.complex64",
        ),
    ],
    ids=["mixed types", "lazy", "empty", "scripted", "complex"],
)
def test_what_cannot_be_converted_says_which_parameter_and_why(
    make: Callable[[], nn.Module], message: str
) -> None:
    module = make()
    with pytest.raises(ConversionError, match=message) as caught:
        BayesianNetwork(module)
    assert "\n" not in str(caught.value)


def test_many_samples_of_a_convolution_draw_its_weights_and_not_every_output() -> None:
    """So equal positions of a picture have equal outputs under each draw."""
    network = BayesianNetwork(nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten()))
    x = torch.full((2, 1, 3, 3), 0.5)
    first, second = network.samples(posterior(network), x, 0, new_seeds(draws(), 2))
    for output in (first, second):
        positions = output.view(2, 2, 9)
        torch.testing.assert_close(positions, positions[:1, :, :1].expand_as(positions))
    assert not torch.allclose(first, second)
