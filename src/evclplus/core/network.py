"""Any nn.Module becomes a network whose weights are a `MeanField`.

Parameters become Gaussian, not layers. Linear and convolution sample their pre-activations (the
local reparameterisation trick); every other floating parameter is sampled as a weight.
"""

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from evclplus.core.gaussian import Layout, MeanField
from evclplus.core.heads import Held, MultiHead
from evclplus.core.layers import LOCAL_LAYERS, NOTHING, Loaded, LocalLayer, draw_weight
from evclplus.core.noise import Noise, PredictionNoise, identities
from evclplus.errors import ConversionError

Predicate = Callable[[str], bool]


@dataclass(frozen=True)
class Weights:
    """The weights of one pass, by name: drawn with `noise`, without it at their means.

    `pairs` are means and variances side by side, (2, *shape), for those that lie so in memory.
    """

    means: dict[str, Tensor]
    variances: dict[str, Tensor] = field(default_factory=dict)
    noise: Noise | None = None
    pairs: dict[str, Tensor] = field(default_factory=dict)

    def at(self, values: dict[str, Tensor]) -> "Weights":
        """The same with some of them at given values, which are not drawn."""
        return Weights(
            {name: values.get(name, value) for name, value in self.means.items()} | values,
            {name: value for name, value in self.variances.items() if name not in values},
            self.noise,
            {name: value for name, value in self.pairs.items() if name not in values},
        )


class Lock:
    """A lock that a copy of its owner has anew."""

    def __init__(self) -> None:
        own = threading.Lock()
        self.acquire, self.release = own.acquire, own.release

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def __deepcopy__(self, memo: object) -> "Lock":
        return Lock()


class Passes:
    """Lets several threads compute with one network. The first one has it, others borrow copies,
    which share its weights and are kept for the next time."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.spares: list[BayesianNetwork] = []

    def __deepcopy__(self, memo: object) -> "Passes":
        return Passes()

    @contextmanager
    def turn(self, network: "BayesianNetwork") -> Iterator["BayesianNetwork"]:
        """The network itself if nobody else computes with it, else a copy."""
        if self.lock.acquire(blocking=False):
            try:
                yield network
            finally:
                self.lock.release()
            return
        try:
            spare = self.spares.pop()
        except IndexError:
            with self.lock:  # in the middle of a pass it cannot be copied
                spare = network.copy()
        for path in spare.local_layers.keys() - network.local_layers.keys():
            spare._sample_weights_of(path)
        yield spare
        self.spares.append(spare)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody computes with the network, and copies of how it was are gone."""
        with self.lock:
            yield
            self.spares.clear()


class BayesianNetwork:
    """A copy of a module that computes with the weights it is handed.

    The module itself is never touched. `point` names the parameters to keep as point values; a
    module may have some of its own, which its method `is_point` names.
    Parameters with requires_grad=False stay constants. The copy keeps its own buffers, so
    running statistics and dropout mean what they always mean. `device` is where it computes,
    by default where the module's weights are.
    """

    def __init__(
        self,
        module: nn.Module,
        point: Predicate = lambda name: False,
        device: torch.device | None = None,
    ) -> None:
        self.skeleton = _copy(module)
        if device is not None:
            self.skeleton.to(device)
        self.point = point
        self.has_heads = isinstance(module, MultiHead)
        self.local_layers: dict[str, LocalLayer] = {}
        self.growth: tuple[tuple[int, int, int], ...] = ()
        """What was added: (head, outputs, features), in this order."""
        self.changes_input: bool | None = None
        """Whether the module works on its input in place; None: it was not asked yet."""
        self._passes = Passes()
        self._used: dict[tuple[int, ...], list[str]] = {}
        self._names: dict[tuple[int, ...], tuple[str, ...]] = {}
        self._own: set[str] = set()
        """The layers that this network does not have from one that it is a copy of."""
        self._lends = False
        """Whether other networks may have its heads, because it was light some time."""
        self._lay_out()

    def _lay_out(self) -> None:
        every = dict(self.skeleton.named_parameters())
        parameters = {name: one for name, one in every.items() if one.requires_grad}
        if parameters or not self.has_heads:  # heads may still come
            _check(self.skeleton, parameters)
        # Stable: Gaussian ones first, in module order.
        names = sorted(parameters, key=self.is_point)
        self.layout = Layout(
            names=tuple(names),
            shapes=tuple(tuple(parameters[name].shape) for name in names),
            gaussian_names=sum(not self.is_point(name) for name in names),
        )
        self._add_layers(_make_layers_local(self.skeleton))
        self._used, self._names = {}, {}
        self.parameters: dict[str, nn.Parameter] = parameters
        """Those that are learned, with the module's own weights."""
        self.learns_all = len(parameters) == len(every)
        """Whether no parameter of the module stays as it is."""
        self._first_heads: Tensor | None = None
        self._body_layers: list[str] = []
        self._body_names: tuple[str, ...] = ()
        self.light = has_light_heads(self.skeleton, self.local_layers)
        """Whether all heads are plain layers. Nobody then looks at a head but a pass with it, so
        that a task costs the same however many there are."""
        if self.light:
            self._lends = True
            self._body_layers = [one for one in self.local_layers if self.owner(one) is None]
            self._body_names = tuple(name for name in names if self.owner(name) is None)

    def _append(self, head: int) -> bool:
        """Take in a head that just came, if it is one more light one: all else stays as it is."""
        assert isinstance(self.skeleton, MultiHead)
        path, layer = f"heads.{head}", self.skeleton.heads[head]
        own = {f"{path}.{name}": one for name, one in layer.named_parameters()}
        body = dict(self.skeleton.body.named_parameters("body"))
        known = set(map(id, self.parameters.values()))
        points = {self.is_point(name) for name in own}
        gaussian = points == {False}
        fits = (
            is_plain(layer)
            and len(points) == 1
            and self.layout.has_room_at_its_end(gaussian)
            and all(one.requires_grad and id(one) not in known for one in own.values())
            and len(known) > 0
            # A module's own way to grow may do more.
            and self.skeleton._modules.keys() == {"body", "heads"}
            and all(body.get(name) is self.parameters[name] for name in self._body_names)
            and sum(one.requires_grad for one in body.values()) == len(self._body_names)
        )
        if not fits:
            return False
        _check(self.skeleton, dict([next(iter(self.parameters.items()))]) | own)
        shapes = tuple(tuple(one.shape) for one in own.values())
        self.layout = self.layout.with_more(tuple(own), shapes, gaussian)
        # Layers of the body that showed that they cannot stay local get another try, as they do
        # whenever a network is laid out.
        again = _make_layers_local(self.skeleton.body, "body")
        self._body_layers = [*self._body_layers, *again]
        self._add_layers(again | _make_layers_local(layer, path))
        self.parameters = {**self.parameters, **own}
        if self._first_heads is not None:
            new = (one.detach().flatten() for one in own.values())
            self._first_heads = torch.cat([self._first_heads, *new])
        return True

    def _add_layers(self, made: dict[str, LocalLayer]) -> None:
        self.local_layers |= made
        self._own |= made.keys()

    def is_point(self, name: str) -> bool:
        """Whether a parameter has no variance."""
        return self.point(name) or own_points(self.skeleton)(name)

    def copy(self) -> "BayesianNetwork":
        """A network with its own running statistics; the first weights are shared."""
        copied: dict[int, Any] = {}  # by the id of what is copied, as copy.deepcopy keeps it
        for module in self.modules:
            for name, value in vars(module).items():
                # A hook that makes a weight (spectral_norm) leaves it behind with its gradient.
                if isinstance(value, Tensor) and value.grad_fn is not None:
                    vars(module)[name] = value.detach()
            copied |= {id(one): one for one in module.parameters(recurse=False)}
        if self.light:
            assert isinstance(self.skeleton, MultiHead)
            copied[id(self.skeleton.heads)] = _same_modules(self.skeleton.heads)
        paths = self._body_layers if self.light else list(self.local_layers)
        made = copy.copy(self)
        made.skeleton = copy.deepcopy(self.skeleton, copied)
        made.local_layers = dict(self.local_layers)
        for path in paths:
            layer = made.skeleton.get_submodule(path)
            assert isinstance(layer, LocalLayer)
            made.local_layers[path] = layer
        made._own = set(paths)
        made._used, made._names, made._passes = dict(self._used), dict(self._names), Passes()
        return made

    def layer(self, path: str) -> LocalLayer:
        """A local layer to compute with. A copy has its light heads from another network, and makes
        its own of those that it uses."""
        if path not in self._own:
            self._put(path, _copy_of_layer(self.local_layers[path]))
        return self.local_layers[path]

    def _put(self, path: str, layer: LocalLayer) -> None:
        """A layer of its own in the place of one that other networks have too."""
        parent, _, name = path.rpartition(".")
        self.skeleton.get_submodule(parent)._modules[name] = layer
        self.local_layers[path] = layer
        self._own.add(path)

    @torch.no_grad()
    def features(self, x: Tensor) -> int:
        """How many features the body of a `MultiHead` gives its heads, found by asking it."""
        return self(self.initial(variance=1.0), x.to(self.device), ()).shape[1]

    def grown(self, head: int, outputs: int, features: int, seed: int) -> "BayesianNetwork":
        """A copy with the head that a task needs, its first weights drawn from the seed."""
        larger = self.copy()
        module = larger.skeleton
        assert isinstance(module, MultiHead)
        before = list(module.heads._modules.values())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module.grow(head, outputs, features)
        for part in module.parts_of(head):
            part.to(self.device, self.dtype)
        larger.growth = (*self.growth, (head, outputs, features))
        one_more = list(module.heads._modules.values())[:-1] == before
        if not (self.light and one_more and larger._append(head)):
            larger.local_layers.pop(f"heads.{head}", None)  # of a head that was made anew, wider
            larger._lay_out()
        return larger

    @property
    def device(self) -> torch.device:
        return self._example.device

    @property
    def dtype(self) -> torch.dtype:
        return self._example.dtype

    @property
    def _example(self) -> Tensor:
        """Some weight; a network whose heads are still to come may have none."""
        return next(self.skeleton.parameters(), torch.empty(0))

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Running statistics and other buffers, by name."""
        if not self.light:
            return dict(self.skeleton.named_buffers())
        assert isinstance(self.skeleton, MultiHead)
        own = dict(self.skeleton.named_buffers(recurse=False))
        return own | dict(self.skeleton.body.named_buffers("body"))

    @property
    def modules(self) -> Iterator[nn.Module]:
        """All of them but light heads, which are alike."""
        if not self.light:
            return self.skeleton.modules()
        assert isinstance(self.skeleton, MultiHead)
        return chain([self.skeleton, self.skeleton.heads], self.skeleton.body.modules())

    @property
    def learns_otherwise(self) -> bool:
        """Whether it has modules that compute in another way while they learn."""
        kinds, drops = (nn.modules.batchnorm._NormBase, nn.RReLU), nn.modules.dropout._DropoutNd
        more = (nn.MultiheadAttention, nn.RNNBase)
        return any(
            isinstance(one, kinds)
            or (isinstance(one, drops) and one.p > 0)
            or (isinstance(one, more) and one.dropout > 0)
            for one in self.modules
        )

    @property
    def heads(self) -> int:
        """How many heads there are; a module that is no `MultiHead` is one."""
        return len(self.skeleton.heads) if isinstance(self.skeleton, MultiHead) else 1

    def linear_head(self, head: int) -> nn.Linear | None:
        """A head that can become wider, if it is one."""
        module = self.skeleton
        if not isinstance(module, MultiHead) or head >= len(module.heads):
            return None
        own = module.heads[head]
        return own if isinstance(own, nn.Linear) else None

    def outputs_of(self, head: int) -> int:
        """How many outputs a head has, as far as that can be seen without asking it; else 1."""
        own = self.linear_head(head)
        return 1 if own is None else own.out_features

    def owner(self, name: str) -> int | None:
        """The head that a weight belongs to; None: all tasks use it. A module of one's own says so
        with a method of that name."""
        owner: int | None = getattr(self.skeleton, "owner", lambda name: None)(name)
        return owner

    def rows_are_outputs(self, name: str) -> bool:
        """Whether a weight belongs to a head that becomes wider with its classes."""
        module = self.skeleton
        return isinstance(module, MultiHead) and module.rows_are_outputs(name)

    def shared(self) -> Tensor:
        """Marks the weights that all tasks use."""
        names = self._body_names
        if not self.light:
            names = tuple(name for name in self.layout.names if self.owner(name) is None)
        marks = torch.zeros(self.layout.total, dtype=torch.bool)
        for part in self.layout.named(marks, names).values():
            part.fill_(True)
        return marks

    def weights_of_head(self, q: MeanField, heads: Sequence[int]) -> dict[str, Tensor]:
        """The means of all weights that belong to these heads, by name."""
        if self.light:
            names = [name for head in heads for name in self._names_of_head(head)]
        else:
            names = [name for name in self.layout.names if self.owner(name) in heads]
        return self.layout.named(q.mean, names)

    def _names_of_head(self, head: int) -> list[str]:
        """The weights of a light head."""
        names = (f"heads.{head}.{name}" for name in ("weight", "bias"))
        return [name for name in names if name in self.parameters]

    def linear_heads(self, q: MeanField, heads: Sequence[int]) -> Held | None:
        """These heads' means as one weight and one bias, row by row, if all of them are linear
        and read the same features in the usual way."""
        module = self.skeleton
        if not isinstance(module, MultiHead) or type(module).forward is not MultiHead.forward:
            return None
        if module.films is not None:
            return None
        if not all(isinstance(head, nn.Linear) for head in module.heads):
            return None
        own = next(head for head in module.heads if isinstance(head, nn.Linear))
        weights, biases = [q.mean.new_empty(0, own.in_features)], [q.mean.new_empty(0)]
        named = self.weights_of_head(q, heads)
        by_head: dict[int | None, list[Tensor]] = {}
        for name, value in named.items():
            by_head.setdefault(self.owner(name), []).append(value)
        for head in heads:
            # The weight of a linear layer has two dimensions, its bias, if there is one, has one.
            rows, *rest = sorted(by_head[head], key=Tensor.dim, reverse=True)
            weights.append(rows)
            biases += rest or [rows.new_zeros(len(rows))]
        return torch.cat(weights), torch.cat(biases)

    def initial(self, variance: float) -> MeanField:
        """The module's own weights as means, with one variance for all Gaussian ones."""
        names, heads = self.layout.names, self._head_names()
        mean = self._first_of(names[: len(names) - len(heads)])
        if heads:
            if self._first_heads is None:
                self._first_heads = self._first_of(heads)
            mean = torch.cat([mean, self._first_heads])
        return MeanField(mean, mean.new_full((self.layout.gaussian_total,), variance), self.layout)

    def _head_names(self) -> tuple[str, ...]:
        """The weights of light heads where they lie after the body's. There may be thousands, so
        their first values are kept in one vector; the body's are too many to have them twice."""
        count = len(self._body_names)
        in_order = self.light and self.layout.names[:count] == self._body_names
        return self.layout.names[count:] if in_order else ()

    def _first_of(self, names: Sequence[str]) -> Tensor:
        """The module's own values of these weights, one after the other."""
        parts = [self.parameters[name].detach().flatten() for name in names]
        return torch.cat(parts) if parts else self._example.new_empty(0)

    @torch.no_grad()
    def restore(self, initial_mean: Tensor, buffers: dict[str, Tensor]) -> None:
        """Take over the first weights and the running statistics of another network."""
        for name, value in self.layout.named(initial_mean).items():
            self.parameters[name].copy_(value)
        self._first_heads = None
        for name, buffer in self.buffers.items():
            buffer.copy_(buffers[name])
        self._passes = Passes()  # copies had other buffers

    def weights(
        self, q: MeanField, noise: Noise | None = None, head: int | Sequence[int] | None = None
    ) -> Weights:
        """The weights of a pass: drawn from q, or without noise its means. With a head, of a pass
        with it and no other."""
        variances = {} if noise is None else self.named(q.variance, head)
        return Weights(self.named(q.mean, head), variances, noise)

    def named(self, vector: Tensor, head: int | Sequence[int] | None) -> dict[str, Tensor]:
        """The parts of a flat vector that a pass with these heads looks at. Only of light heads is
        it known that no other has a weight that such a pass draws."""
        if head is None or not self.light:
            return self.layout.named(vector)
        heads = (head,) if isinstance(head, int) else tuple(head)
        if heads not in self._names:
            names = (name for one in dict.fromkeys(heads) for name in self._names_of_head(one))
            self._names[heads] = (*self._body_names, *names)
        return self.layout.named(vector, self._names[heads])

    def __call__(
        self,
        weights: Weights | MeanField,
        x: Tensor,
        head: int | Sequence[int] = 0,
        *,
        held: Held | None = None,
        training: bool = False,
    ) -> Tensor:
        """The outputs under these weights; of a `MeanField`, under its means."""
        if isinstance(weights, MeanField):
            weights = self.weights(weights, head=head)
        noise, before = weights.noise, 0 if weights.noise is None else weights.noise.used
        layers = {path: self.loaded(path, weights) for path in self.layers_for(head)}
        output = self._run(layers, self._drawn(weights), x, head, held, training)
        if output is not None:
            return output
        if noise is not None:
            noise.used = before  # as if the pass that showed it had never been
        return self(weights, x, head, held=held, training=training)

    def samples(
        self,
        q: MeanField,
        x: Tensor,
        head: int,
        seeds: Tensor,
        kept: Sequence[dict[int, Tensor] | None] | None = None,
    ) -> Iterator[Tensor]:
        """Outputs under a draw from q for each of the seeds, see `new_seeds`. A row's output does
        not depend on the other rows. `kept` has drawn weights for each seed, see
        `PredictionNoise`, for whoever asks for some rows at a time.

        A linear layer that reads the data computes its output's moments once and draws from them,
        each row its own numbers. Later layers and convolutions draw weights, one draw for all
        examples: half the products, less noise to make.
        """
        layers: dict[str, Loaded] = {}
        x = x.contiguous()  # whatever its layout in memory, the same numbers are the same data
        rows = identities(x)
        for seed, found in zip(seeds, kept or [None] * len(seeds), strict=True):
            output = None
            noise = PredictionNoise(seed, rows, found)
            while output is None:
                noise.used = 0
                weights = self.weights(q, noise, head)
                layers = {
                    path: layers.get(path) or self.loaded(path, weights)
                    for path in self.layers_for(head)
                }
                for loaded in layers.values():
                    loaded.data, loaded.noise = x, noise
                    loaded.calls, loaded.read, loaded.drawn = 0, False, {}
                output = self._run(layers, self._drawn(weights), x, head, None, training=False)
            yield output

    def names_for(self, head: int) -> list[str]:
        """The weights that an answer of this head may depend on."""
        module = self.skeleton
        if not isinstance(module, MultiHead):
            return list(self.layout.names)
        if self.light:
            return self.layout.ordered([*self._body_names, *self._names_of_head(head)])
        return [name for name in self.layout.names if module.uses(head, name)]

    def layers_for(self, head: int | Sequence[int]) -> list[str]:
        """The local layers that an answer of these heads may use. There may be a thousand heads."""
        module, heads = self.skeleton, (head,) if isinstance(head, int) else tuple(head)
        if self.light:
            own = (f"heads.{one}" for one in dict.fromkeys(heads))
            return [*self._body_layers, *(path for path in own if path in self.local_layers)]
        if not isinstance(module, MultiHead) or not heads:  # the features may be anybody's
            return list(self.local_layers)
        if heads not in self._used:
            self._used[heads] = [
                path
                for path in self.local_layers
                if any(module.uses(one, f"{path}.") for one in heads)
            ]
        return self._used[heads]

    def loaded(self, path: str, weights: Weights) -> Loaded:
        """What a layer needs of the weights; frozen parameters keep their value."""
        prefix = f"{path}." if path else ""
        parameters = self.local_layers[path]._parameters
        own = {name: value for name, value in parameters.items() if value is not None}

        def of(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: named[prefix + name] for name in own if prefix + name in named}

        means = own | of(weights.means)
        return Loaded(means, of(weights.variances), of(weights.pairs), weights.noise)

    def _drawn(self, weights: Weights) -> dict[str, Tensor]:
        """Sampled weights for all parameters outside local layers."""
        return {
            name: draw_weight(mean, weights.variances.get(name), weights.noise)
            for name, mean in weights.means.items()
            if name.rpartition(".")[0] not in self.local_layers
        }

    def _run(
        self,
        layers: Mapping[str, Loaded],
        values: dict[str, Tensor],
        x: Tensor,
        head: int | Sequence[int],
        held: Held | None,
        training: bool,
    ) -> Tensor | None:
        """One forward pass, or None if it showed a layer that cannot stay local.

        A layer called more than once, or whose weights are read as well, must use the same weights
        each time, which sampled pre-activations cannot promise. From then on such a layer's
        weights are sampled.

        A module holds the weights of a pass while it computes. A pass that begins in another thread
        meanwhile is made by a copy of it.
        """
        with self._passes.turn(self) as one:
            if not layers.keys() <= one.local_layers.keys():  # another thread found one unfit
                return None
            output = one._pass(layers, values, x, head, held, training)
        unfit = [path for path, loaded in layers.items() if loaded.calls > 1 or loaded.read]
        if unfit:
            with self._passes.alone():
                for path in set(unfit) & self.local_layers.keys():
                    self._sample_weights_of(path)
        return None if unfit else output

    def _pass(
        self,
        layers: Mapping[str, Loaded],
        values: dict[str, Tensor],
        x: Tensor,
        head: int | Sequence[int],
        held: Held | None,
        training: bool,
    ) -> Tensor:
        if self.skeleton.training != training:
            self._train(training)
        for path, loaded in layers.items():
            self.layer(path).load(loaded)
        given, looks = x, self.changes_input is None and not x.is_inference()
        if x.is_floating_point():
            x = x.to(self.dtype)
        if (looks or self.changes_input) and x is given:
            x = x.clone()  # its own, whatever it does with it
        for loaded in layers.values():
            if loaded.data is given:
                loaded.data = x
        version = x._version if looks else 0
        inputs = (x, head, *(() if held is None else (held,))) if self.has_heads else (x,)
        try:
            output: Tensor = (
                functional_call(self.skeleton, values, inputs) if values else self.skeleton(*inputs)
            )
        finally:
            for path in layers:
                self.local_layers[path].load(NOTHING)
        if looks:
            self.changes_input = x._version != version
        return output

    def _train(self, training: bool) -> None:
        if not self.light:
            self.skeleton.train(training)
            return
        assert isinstance(self.skeleton, MultiHead)
        self.skeleton.training = training
        self.skeleton.body.train(training)

    def keep_local(self, paths: Sequence[str]) -> None:
        """Sample the weights of all layers but these, as another copy of this network does."""
        for path in [path for path in self.local_layers if path not in paths]:
            self._sample_weights_of(path)

    def _sample_weights_of(self, path: str) -> None:
        """Make a local layer a plain one again, whose weights are sampled."""
        if self._lends and self.owner(path) is not None:
            # Other networks may have it too. From now on all heads are looked at.
            self._put(path, _copy_of_layer(self.local_layers[path]))
            self.light = False
        layer = self.local_layers.pop(path)
        self._used, self._body_layers = {}, [one for one in self._body_layers if one != path]
        plain = {local: plain for plain, local in LOCAL_LAYERS.items()}[type(layer)]
        layer.__class__ = plain  # type: ignore[assignment]


def own_points(module: nn.Module) -> Predicate:
    """The parameters that a module itself wants as point values."""
    own: Predicate = getattr(module, "is_point", lambda name: False)
    return own


def _copy(module: nn.Module) -> nn.Module:
    if isinstance(module, torch.jit.ScriptModule):
        raise ConversionError(
            f"{type(module).__name__} is a scripted module, whose layers cannot be replaced; "
            "pass the plain nn.Module it was made from"
        )
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise ConversionError(f"{type(module).__name__} cannot be copied: {error}") from error


def _check(module: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    """Flat vectors need parameters that exist, are real numbers and are all of one kind."""
    if not parameters:
        raise ConversionError(
            f"{type(module).__name__} has no parameter to learn (requires_grad=True)"
        )
    first_name, first = next(iter(parameters.items()))
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            reason = "is not initialised yet; run the module once on an example input first"
        elif not parameter.is_floating_point():
            reason = f"is {parameter.dtype}; only real floating-point parameters have a Gaussian"
        elif parameter.layout is not torch.strided:
            reason = f"is stored as {parameter.layout}; only dense parameters can be converted"
        elif parameter.dtype != first.dtype or parameter.device != first.device:
            reason = (
                f"is {parameter.dtype} on {parameter.device} but {first_name} is {first.dtype} "
                f"on {first.device}; convert the module to one type and device"
            )
        else:
            continue
        raise ConversionError(f"parameter {name} {reason}")


def has_light_heads(module: nn.Module, local_layers: Mapping[str, LocalLayer]) -> bool:
    """Whether a module is a `MultiHead` that computes in the usual way, and all its heads are
    local layers that have nothing but their weights."""
    if not isinstance(module, MultiHead) or module.films is not None:
        return False
    usual = all(
        getattr(type(module), name, None) is getattr(MultiHead, name, None)
        for name in ("forward", "owner", "uses", "train", "__deepcopy__")
    )
    paths = (f"heads.{name}" for name in module.heads._modules)
    heads = zip(paths, module.heads, strict=True)
    return (
        usual
        and module._modules.keys() == {"body", "heads"}
        and all(local_layers.get(path) is head and is_plain(head) for path, head in heads)
    )


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer is a linear one or a convolution that nobody has added anything to."""
    if type(layer) not in (*LOCAL_LAYERS, *LOCAL_LAYERS.values()):
        return False
    values = {name: value for name, value in vars(layer).items() if name != "_parameters"}
    simple = (bool, int, str, tuple, list, NoneType, Loaded)
    return layer._parameters.keys() <= {"weight", "bias"} and all(
        isinstance(value, simple) or (isinstance(value, dict | set) and not value)
        for value in values.values()
    )


def _copy_of_layer(layer: LocalLayer) -> LocalLayer:
    """One with the same weights, which computes with nothing yet."""
    same = {id(one): one for one in layer.parameters()}
    made = copy.deepcopy(layer, same)
    made.load(NOTHING)
    return made


def _same_modules(modules: nn.ModuleList) -> nn.ModuleList:
    """A list of its own with the same modules."""
    made = nn.ModuleList()
    made.training = modules.training
    made._modules = dict(modules._modules)
    return made


def _make_layers_local(skeleton: nn.Module, prefix: str = "") -> dict[str, LocalLayer]:
    """Give each Linear and Conv its local form, in place, unless it shares its parameters.

    Only the exact types are taken: a subclass may read its weights itself.
    """
    uses = Counter(id(p) for _, p in skeleton.named_parameters(remove_duplicate=False))
    local_layers = {}
    for path, layer in skeleton.named_modules(prefix=prefix):
        parameters = list(layer.parameters(recurse=False))
        shared = any(uses[id(parameter)] > 1 for parameter in parameters)
        learns = any(parameter.requires_grad for parameter in parameters)
        # What normalises a weight (spectral_norm) has another parameter in its place.
        usual = {name for name, _ in layer.named_parameters(recurse=False)} <= {"weight", "bias"}
        has_weight = "weight" in layer._parameters and usual
        if type(layer) in LOCAL_LAYERS and has_weight and learns and not shared:
            layer.__class__ = LOCAL_LAYERS[type(layer)]
            assert isinstance(layer, LocalLayer)
            layer.load(NOTHING)
            local_layers[path] = layer
    return local_layers
