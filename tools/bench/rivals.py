"""The same network trained by other packages, for those that are installed.

Each gets what the plain epoch gets: the same data loader, batch size, Adam and threads. What they
compute differs, and each row says how. The variational ones learn a Gaussian for every weight,
with prior N(0, 1) and no elastic penalty; EVCL+, beside them, learns a second task with all its
penalties on.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module, metadata
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evclplus import EWC, Method
from tools.bench.callback import epochs_by_turns
from tools.bench.ours import RECOMMENDED, mlp_and_stream
from tools.bench.plain import BATCH, EXAMPLES, labels, loader, pixels, plain_epoch, plain_mlp

FIRST_STD = 0.03
"""Of every weight, about what EVCL+ starts with."""

Epoch = Callable[[], float]
"""Trains one epoch and returns its loss, which falls from epoch to epoch."""


@dataclass(frozen=True)
class Rival:
    """A package, what of it is measured, and our method that does the like."""

    package: str
    what: str
    build: Callable[[Sequence[int], Tensor, Tensor], Epoch]
    ours: Method


@dataclass(frozen=True)
class RivalRow:
    """Epochs as ratios against the plain epoch: the rival's and ours. Or why there are none."""

    package: str
    version: str | None
    what: str
    ours: str
    rival_ratio: float | None = None
    our_ratio: float | None = None
    seconds: dict[str, float] | None = None
    not_measured: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def rivals(rounds: int = 12) -> list[Callable[[], RivalRow]]:
    """The measurements, each ready to run."""
    return [partial(measured, rival, rounds) for rival in RIVALS]


def measured(
    rival: Rival, rounds: int, hidden: Sequence[int] = (256, 256), examples: int = EXAMPLES
) -> RivalRow:
    """A rival's epoch, ours and the plain one in turn."""
    row = RivalRow(rival.package, _version(rival.package), rival.what, rival.ours.name)
    x = pixels(examples)
    try:
        epoch = rival.build(hidden, x, labels(examples))
        epoch()
    except ModuleNotFoundError as error:
        return replace(row, not_measured=f"{error.name} is not installed")
    except Exception as error:  # whatever a package can do wrong with a torch it does not know
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return replace(row, not_measured=f"does not work here: {reason}")
    turns = {"rival": epoch, "plain": plain_epoch(plain_mlp(hidden), x)}
    network, stream = mlp_and_stream(hidden, examples=examples)
    taken = epochs_by_turns(rival.ours, network, stream, turns, rounds=rounds)[2]
    return replace(
        row,
        rival_ratio=taken["rival"] / taken["plain"],
        our_ratio=taken["ours"] / taken["plain"],
        seconds=taken,
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def pyro_sampling(hidden: Sequence[int], x: Tensor, y: Tensor) -> Epoch:
    """Pyro by itself: PyroSample weights, AutoNormal, SVI. Each weight is drawn once a batch."""
    from pyro.infer.autoguide import AutoNormal, init_to_value

    network, first = _pyro_network(hidden)

    def model(inputs: Tensor, targets: Tensor) -> None:
        _pyro_observe(network(inputs), targets, len(x))

    guide = AutoNormal(model, init_loc_fn=init_to_value(values=first), init_scale=FIRST_STD)
    return _pyro_epoch(model, guide, x, y)


def pyro_local(hidden: Sequence[int], x: Tensor, y: Tensor) -> Epoch:
    """Pyro with the local reparameterisation trick and a closed-form KL.

    Pyro's own form of the trick, contrib.bnn.HiddenLayer, makes a tensor of batch x inputs x
    outputs for every layer, 200 MB for the first one of 2x256. So this model takes the guide's
    Gaussians and draws pre-activations from them. Pyro still draws a value for every site, which
    nobody reads; TyXe pays for that as well.
    """
    import pyro

    network = plain_mlp(hidden)
    guide = _GaussianGuide(network)
    priors = {name: _pyro_prior(value) for name, value in guide.first.items()}

    def model(inputs: Tensor, targets: Tensor) -> None:
        for name, prior in priors.items():
            pyro.sample(name, prior)
        for path, layer in network.named_children():
            inputs = local(path, inputs) if isinstance(layer, nn.Linear) else layer(inputs)
        _pyro_observe(inputs, targets, len(x))

    def local(path: str, inputs: Tensor) -> Tensor:
        weight, bias = guide.gaussians[f"{path}.weight"], guide.gaussians[f"{path}.bias"]
        mean = F.linear(inputs, weight.mean, bias.mean)
        variance = F.linear(inputs.square(), weight.variance, bias.variance)
        return torch.addcmul(mean, variance.sqrt(), torch.randn_like(mean))

    return _pyro_epoch(model, guide, x, y)


def tyxe_local(hidden: Sequence[int], x: Tensor, y: Tensor) -> Epoch:
    """Pyro under TyXe's local_reparameterization.

    The guide is not TyXe's, which calls a function that Pyro has no more, and not Pyro's
    AutoNormal, whose sites TyXe takes for constants.
    """
    from tyxe.poutine import local_reparameterization

    network, _ = _pyro_network(hidden)

    def model(inputs: Tensor, targets: Tensor) -> None:
        _pyro_observe(network(inputs), targets, len(x))

    sampling = _pyro_epoch(model, _GaussianGuide(plain_mlp(hidden)), x, y)

    def epoch() -> float:
        with local_reparameterization():
            return sampling()

    return epoch


class _GaussianGuide:
    """A Gaussian site for every weight, which AutoNormal's sites are not: its KL is exact."""

    def __init__(self, network: nn.Module) -> None:
        self.first = {name: value.detach() for name, value in network.named_parameters()}
        self.gaussians: dict[str, Any] = {}

    def __call__(self, inputs: Tensor, targets: Tensor) -> None:
        import pyro
        from pyro.distributions import Normal, constraints

        for name, value in self.first.items():
            std = partial(torch.full_like, value, FIRST_STD)
            self.gaussians[name] = Normal(
                pyro.param(f"{name}.mean", value),
                pyro.param(f"{name}.std", std, constraint=constraints.positive),
            )
            pyro.sample(name, self.gaussians[name].to_event(value.dim()))


def _pyro_network(hidden: Sequence[int]) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network with a prior for every weight, and the weights it had."""
    from pyro.nn import PyroSample
    from pyro.nn.module import to_pyro_module_

    network = plain_mlp(hidden)
    first = {name: value.detach() for name, value in network.named_parameters()}
    to_pyro_module_(network)
    for module in network.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            setattr(module, name, PyroSample(_pyro_prior(value)))
    return network, first


def _pyro_prior(value: Tensor) -> Any:
    from pyro.distributions import Normal

    return Normal(0.0, 1.0).expand(value.shape).to_event(value.dim())


def _pyro_observe(logits: Tensor, targets: Tensor, total: int) -> None:
    """The likelihood of a minibatch, scaled up to all `total` examples."""
    import pyro
    from pyro import poutine
    from pyro.distributions import Categorical

    with poutine.scale(scale=total / len(targets)), pyro.plate("batch", len(targets)):
        pyro.sample("targets", Categorical(logits=logits), obs=targets)


def _pyro_epoch(model: Any, guide: Any, x: Tensor, y: Tensor) -> Epoch:
    import pyro
    from pyro.infer import SVI, TraceMeanField_ELBO
    from pyro.optim import Adam

    pyro.clear_param_store()  # Pyro keeps parameters by name for the whole process
    inference = SVI(model, guide, Adam({"lr": 1e-3}), TraceMeanField_ELBO())
    batches = loader(x, y)

    def epoch() -> float:
        with pyro.validation_enabled(False):  # checks cost time and belong to development
            return float(sum(inference.step(inputs, targets) for inputs, targets in batches))

    return epoch


def bayesian_torch(kind: str, hidden: Sequence[int], x: Tensor, y: Tensor) -> Epoch:
    """Intel's layers by its own conversion of a plain network, the KL added to the loss."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    network = plain_mlp(hidden)
    settings = {
        "prior_mu": 0.0,
        "prior_sigma": 1.0,
        "posterior_mu_init": 0.0,
        "posterior_rho_init": -3.0,
        "type": kind,
        "moped_enable": False,
    }
    dnn_to_bnn(network, settings)
    optimiser = torch.optim.Adam(network.parameters())
    batches = loader(x, y)

    def epoch() -> float:
        total = torch.zeros(())
        for inputs, targets in batches:
            optimiser.zero_grad()
            loss = F.cross_entropy(network(inputs), targets)
            loss = loss + get_kl_loss(network) / BATCH
            loss.backward()
            optimiser.step()
            total += loss.detach()
        return total.item()

    return epoch


def posteriors_vi(hidden: Sequence[int], x: Tensor, y: Tensor) -> Epoch:
    """posteriors' diagonal variational inference with torchopt's Adam, as its README has it. The
    prior is part of the log posterior, so the KL is that of a draw."""
    import posteriors
    import torchopt

    network = plain_mlp(hidden)
    total = len(x)

    def log_posterior(weights: Any, batch: Any) -> Any:
        inputs, targets = batch
        output = torch.func.functional_call(network, weights, (inputs,))
        prior = posteriors.diag_normal_log_prob(weights) / total
        return prior - F.cross_entropy(output, targets), output

    inference = posteriors.vi.diag.build(
        log_posterior,
        torchopt.adam(lr=1e-3),
        temperature=1 / total,
        init_log_sds=math.log(FIRST_STD),
    )
    state = inference.init({name: one.detach() for name, one in network.named_parameters()})
    batches = loader(x, y)

    def epoch() -> float:
        nonlocal state
        losses = torch.zeros(())
        for batch in batches:
            state, _ = inference.update(state, batch)
            losses += state.nelbo.detach()
        return losses.item()

    return epoch


def torch_uncertainty_layers(hidden: Sequence[int], x: Tensor, y: Tensor) -> Epoch:
    """TorchUncertainty's Bayesian layers and ELBO, in a loop of one's own: its Lightning routine
    would add what Lightning takes."""
    declare_torchvision_operators()
    from torch_uncertainty.layers.bayesian import BayesLinear
    from torch_uncertainty.losses import ELBOLoss

    layers = (
        BayesLinear(one.in_features, one.out_features) if isinstance(one, nn.Linear) else one
        for one in plain_mlp(hidden).children()
    )
    network = nn.Sequential(*layers)
    criterion = ELBOLoss(network, nn.CrossEntropyLoss(), kl_weight=1 / len(x), num_samples=1)
    optimiser = torch.optim.Adam(network.parameters())
    batches = loader(x, y)

    def epoch() -> float:
        total = torch.zeros(())
        for inputs, targets in batches:
            optimiser.zero_grad()
            loss = criterion(inputs, targets)
            loss.backward()
            optimiser.step()
            total += loss.detach().sum()  # it has the shape (1,)
        return total.item()

    return epoch


_torchvision: list[torch.library.Library] = []


def declare_torchvision_operators() -> None:
    """Avalanche imports torchvision, which does not import if its compiled part is for another
    torch: two operators are missing then. Nothing here calls them, so declaring them will do."""
    try:
        import_module("torchvision")
    except ModuleNotFoundError:
        return  # Avalanche's own import says so
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _torchvision.append(library)  # what it declares goes when it goes


def avalanche_ewc(hidden: Sequence[int], x: Tensor, y: Tensor) -> Epoch:
    """Avalanche's EWC on its second experience."""
    declare_torchvision_operators()
    from avalanche.benchmarks import tensors_benchmark
    from avalanche.logging import BaseLogger
    from avalanche.training.plugins import EvaluationPlugin, EWCPlugin
    from avalanche.training.supervised import Naive

    network = plain_mlp(hidden)
    penalty = EWCPlugin(ewc_lambda=100.0)
    losses: list[Tensor] = []

    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        losses.append(F.cross_entropy(outputs, targets))
        return losses[-1]

    strategy = Naive(
        model=network,
        optimizer=torch.optim.Adam(network.parameters()),
        criterion=criterion,
        train_mb_size=BATCH,
        plugins=[penalty],
        evaluator=EvaluationPlugin(loggers=[BaseLogger()]),  # one that writes nothing
    )
    pair = (x, y)
    first, second = tensors_benchmark([pair] * 2, [pair], task_labels=[0, 0]).train_stream
    strategy.train(first)
    # Ours are epochs of training alone. Avalanche would end each with a Fisher of its own and
    # add one more penalty, so it learns no further task after the first.
    penalty.after_training_exp = lambda strategy, **_: None

    def epoch() -> float:
        losses.clear()
        strategy.train(second)
        return sum(loss.item() for loss in losses)

    return epoch


RIVALS = (
    Rival("pyro-ppl", "AutoNormal, SVI; weights drawn once a batch", pyro_sampling, RECOMMENDED),
    Rival("pyro-ppl", "SVI; local reparameterisation in the model", pyro_local, RECOMMENDED),
    Rival("tyxe", "Pyro's SVI; local_reparameterization", tyxe_local, RECOMMENDED),
    Rival(
        "bayesian-torch",
        "LinearReparameterization; weights drawn once a batch",
        partial(bayesian_torch, "Reparameterization"),
        RECOMMENDED,
    ),
    Rival(
        "bayesian-torch",
        "LinearFlipout; one draw, its signs flipped for every example",
        partial(bayesian_torch, "Flipout"),
        RECOMMENDED,
    ),
    Rival(
        "posteriors", "vi.diag, torchopt; weights drawn once a batch", posteriors_vi, RECOMMENDED
    ),
    Rival(
        "torch-uncertainty",
        "BayesLinear, ELBOLoss; weights drawn once a batch",
        torch_uncertainty_layers,
        RECOMMENDED,
    ),
    Rival("avalanche-lib", "EWC, second experience", avalanche_ewc, EWC()),
)
