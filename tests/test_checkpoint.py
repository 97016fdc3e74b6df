"""A saved learner goes on as if it had never stopped, and a file from a stranger does no harm."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.likelihoods import Regression
from evclplus.errors import FileError, SettingsError
from tests.helpers import Convolutional, blobs, small_network

TRAINING: dict[str, Any] = {"epochs": 5, "batch_size": 20, "learning_rate": 1e-2}


def learned(
    method: ec.Method | str = "vcl",
    tasks: int = 1,
    network: nn.Module | None = None,
    **options: Any,
) -> ec.Learner:
    stream = blobs(tasks=4)
    learner = ec.Learner(network or small_network(), method, **TRAINING, **options)
    for task in stream.tasks[:tasks]:
        learner.learn(task)
    return learner


def assert_same(one: ec.Learner, other: ec.Learner) -> None:
    assert torch.equal(one.q.mean, other.q.mean)
    assert torch.equal(one.q.variance, other.q.variance)
    assert one.learned == other.learned


# Going on


def every_method() -> list[Any]:
    found = []
    for name in ec.METHODS:
        few = {"coreset_size": 10, "coreset_epochs": 3}
        has_coreset = "coreset_size" in ec.METHODS[name].options
        found.append(pytest.param(ec.method(name, **(few if has_coreset else {})), id=name))
    inner: tuple[ec.Method, ...] = (ec.EWC(), ec.SynapticIntelligence(), ec.ExperienceReplay())
    found += [
        pytest.param(
            ec.Coreset(method=one, coreset_size=10, coreset_epochs=3), id=f"coreset of {one.name}"
        )
        for one in inner
    ]
    twice = ec.Coreset(method=ec.Coreset(method=ec.EVCL(), coreset_size=5), coreset_size=5)
    return [*found, pytest.param(twice, id="coreset of a coreset")]


@pytest.mark.parametrize("scenario", ["task", "class"])
@pytest.mark.parametrize("method", every_method())
def test_save_load_go_on_equals_never_having_stopped(
    method: ec.Method, scenario: str, tmp_path: Path
) -> None:
    if method.needs_head_per_task and scenario != "task":
        pytest.skip("it needs a head per task, which the conformance suite tests")
    stream = blobs(tasks=4, scenario=scenario)
    straight = ec.Learner(small_network(), method, seed=3, samples=4, **TRAINING)
    for task in stream.tasks[:3]:
        straight.learn(task)
    again = ec.Learner.load(straight.save(tmp_path / "model"))
    assert again.method == method
    assert again.training == straight.training
    assert (again.seed, again.samples) == (3, 4)
    x = stream[0].test.inputs()
    assert torch.equal(again.predict_proba(x, 0), straight.predict_proba(x, 0))
    # The fourth task brings a head, or a wider one.
    for learner in (straight, again):
        learner.learn(stream[3])
    assert_same(again, straight)
    assert again.evaluate(stream) == straight.evaluate(stream)


@pytest.mark.parametrize("method", ["vcl", "finetune"])
@pytest.mark.parametrize("scenario", ["task", "class"])
def test_an_optimiser_that_is_kept_is_saved(method: str, scenario: str, tmp_path: Path) -> None:
    stream = blobs(tasks=4, scenario=scenario)
    straight = ec.Learner(small_network(), method, keep_optimiser=True, **TRAINING)
    straight.learn(stream[0]).learn(stream[1])
    again = ec.Learner.load(straight.save(tmp_path / "model"))
    forgot = ec.Learner.load(tmp_path / "model")
    forgot.moments = None
    for learner in (straight, again, forgot):
        learner.learn(stream[2])
    assert_same(again, straight)
    assert again.moments is not None
    assert again.moments.steps == 3 * 5 * 3
    assert not torch.equal(forgot.q.mean, straight.q.mean)


def two_layers(features: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 5), nn.ReLU(), nn.Linear(5, outputs))


@pytest.mark.parametrize("method", ["evcl+", "ewc", "si"])
def test_heads_of_your_own_come_again(method: str, tmp_path: Path) -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        return ec.MultiHead(body, new_head=two_layers)

    straight = learned(method, tasks=3, network=network())
    assert "heads.2.2.bias" in straight.network.layout.names
    straight.save(tmp_path)
    again = ec.Learner.load(tmp_path, network=network())
    for learner in (straight, again):
        learner.learn(blobs(tasks=4)[3])
    assert_same(again, straight)


def test_a_module_of_your_own_is_passed_again(tmp_path: Path) -> None:
    stream = blobs(scenario="domain")
    straight = ec.Learner(Convolutional(), "evcl+", **TRAINING).learn(stream[0])
    straight.save(tmp_path)
    with pytest.raises(FileError, match="network=Convolutional"):
        ec.Learner.load(tmp_path)
    again = ec.Learner.load(tmp_path, network=Convolutional())
    statistics = [learner.network.buffers["norm.running_var"] for learner in (again, straight)]
    assert torch.equal(*statistics)
    for learner in (straight, again):
        learner.learn(stream[1])
    assert_same(again, straight)
    with pytest.raises(FileError, match=r"does not match .* parameter"):
        ec.Learner.load(tmp_path, network=small_network((2,)))


class Anchor(ec.Method):
    """A method that is not registered."""

    name: ClassVar[str] = "anchor"


def absolute(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).abs().mean()


def test_a_method_of_your_own_is_passed_again(tmp_path: Path) -> None:
    learned(Anchor()).save(tmp_path)
    with pytest.raises(SettingsError, match=r"no method 'anchor' .* Learner.load\(path, method="):
        ec.Learner.load(tmp_path)
    assert ec.Learner.load(tmp_path, method=Anchor()).method == Anchor()


@pytest.mark.parametrize("criterion", ["regression", Regression(0.3), absolute])
def test_a_criterion_is_saved_or_passed_again(criterion: Any, tmp_path: Path) -> None:
    x = torch.randn(30, 4)
    learner = ec.Learner(nn.Linear(4, 1), "ewc", criterion=criterion, **TRAINING)
    learner.learn(ec.regression_task(x, x[:, 0], name="one")).save(tmp_path)
    own: dict[str, Any] = {"criterion": criterion} if criterion is absolute else {}
    if own:
        with pytest.raises(FileError, match=r"pass it again: Learner.load\(path, criterion="):
            ec.Learner.load(tmp_path, network=nn.Linear(4, 1))
    again = ec.Learner.load(tmp_path, network=nn.Linear(4, 1), **own)
    assert again.likelihood == learner.likelihood
    for one in (learner, again):
        one.learn(ec.regression_task(x, x[:, 1], name="two"))
    assert_same(again, learner)


def is_bias(name: str) -> bool:
    return name.endswith("bias")


def test_point_parameters_survive_a_save(tmp_path: Path) -> None:
    learner = learned(point=is_bias)
    learner.save(tmp_path)
    with pytest.raises(FileError, match=r"pass the choice again: Learner.load\(path, point="):
        ec.Learner.load(tmp_path)
    with pytest.raises(FileError, match="others are point values"):
        ec.Learner.load(tmp_path, point=lambda name: False)
    again = ec.Learner.load(tmp_path, point=is_bias)
    assert again.network.layout == learner.network.layout
    for one in (learner, again):
        one.learn(blobs(tasks=4)[1])
    assert 0 < len(again.q.variance) < len(again.q.mean)
    assert_same(again, learner)


def test_without_heads_to_come_the_file_knows_the_point_parameters(tmp_path: Path) -> None:
    stream = blobs(scenario="domain")
    learner = ec.Learner(Convolutional(), "vcl", point=is_bias, **TRAINING).learn(stream[0])
    again = ec.Learner.load(learner.save(tmp_path), network=Convolutional())
    for one in (learner, again):
        one.learn(stream[1])
    assert_same(again, learner)


class ReadsWeights(nn.Module):
    """Looks at the type of a layer's weights, as modules for several precisions do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.to(self.first.weight.dtype)).relu()
        out: Tensor = self.second(h)
        return out


@pytest.mark.parametrize("name", ["evcl+", "ewc"])
def test_a_module_that_reads_its_weights_loads_exactly(name: str, tmp_path: Path) -> None:
    stream = blobs(scenario="domain")
    learner = ec.Learner(ReadsWeights(), name, **TRAINING).learn(stream[0])
    again = ec.Learner.load(learner.save(tmp_path), network=ReadsWeights())
    x = stream[0].test.inputs()
    assert torch.equal(again.predict_proba(x), learner.predict_proba(x))
    for one in (learner, again):
        one.learn(stream[1])
    assert_same(again, learner)


def test_the_first_weights_are_saved_for_who_starts_anew(tmp_path: Path) -> None:
    learner = learned("joint", tasks=2)
    again = ec.Learner.load(learner.save(tmp_path))
    assert torch.equal(again.network.initial(1.0).mean, learner.network.initial(1.0).mean)


# Files


def test_a_saved_learner_is_replaced_only_when_asked(tmp_path: Path) -> None:
    learned(tasks=1).save(tmp_path)
    second = learned(tasks=2)
    with pytest.raises(FileError, match="overwrite=True"):
        second.save(tmp_path)
    assert len(ec.Learner.load(tmp_path).learned) == 1
    second.save(tmp_path, overwrite=True)
    assert len(ec.Learner.load(tmp_path).learned) == 2
    assert len(list(tmp_path.iterdir())) == 2  # no leftovers


@pytest.mark.parametrize("header", ["whole", "damaged"])
def test_only_the_state_that_is_replaced_goes(header: str, tmp_path: Path) -> None:
    own = ["state-best.safetensors", f"state-{'0' * 16}.safetensors", "notes.txt"]
    learned(tasks=1).save(tmp_path)
    old = next(tmp_path.glob("*.safetensors")).name
    for name in own:
        (tmp_path / name).write_text("mine")
    if header == "damaged":
        (tmp_path / "learner.json").write_text("{}")
    learned(tasks=2).save(tmp_path, overwrite=True)
    assert all((tmp_path / name).read_text() == "mine" for name in own)
    # A header that cannot be read names no state, so nothing is deleted.
    assert (tmp_path / old).exists() == (header == "damaged")


def test_saving_the_same_again_keeps_the_state(tmp_path: Path) -> None:
    learner = learned()
    learner.save(tmp_path)
    learner.save(tmp_path, overwrite=True)
    assert_same(ec.Learner.load(tmp_path), learner)


def corrupt(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    def fresh(name: str) -> Path:
        return learned().save(tmp_path / name)

    folder = fresh("bit flip")
    corrupt(next(folder.glob("*.safetensors")), -1)
    with pytest.raises(FileError, match="checksum"):
        ec.Learner.load(folder)
    folder = fresh("truncated")
    state = next(folder.glob("*.safetensors"))
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(FileError, match="checksum"):
        ec.Learner.load(folder)
    folder = fresh("no state")
    next(folder.glob("*.safetensors")).unlink()
    with pytest.raises(FileError, match="cannot read"):
        ec.Learner.load(folder)
    with pytest.raises(FileError, match="no saved learner"):
        ec.Learner.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not json",
        "[]",
        "{}",
        '{"schema": 99}',
        '{"schema": 3}',
        '{"schema": 3, "state": "../../secret.safetensors"}',
        "[" * 100_000,
    ],
)
def test_hostile_headers_are_refused_in_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "learner.json").write_text(content)
    with pytest.raises(FileError) as caught:
        ec.Learner.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("schema", [1, 2])
def test_an_older_schema_is_refused_in_one_line(schema: int, tmp_path: Path) -> None:
    header = learned().save(tmp_path) / "learner.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"schema": schema}))
    with pytest.raises(FileError, match=r"not a learner saved by this version \(schema 3\)"):
        ec.Learner.load(tmp_path)


def test_a_header_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    folder = learned().save(tmp_path / "model")
    header = folder / "learner.json"
    state = next(folder.glob("*.safetensors"))
    state.rename(tmp_path / state.name)
    header.write_text(header.read_text().replace(state.name, f"../{state.name}"))
    with pytest.raises(FileError, match="state"):
        ec.Learner.load(folder)


# The network that is passed again, or made again


def changed(change: Callable[[ec.networks.ReadyNetwork], object]) -> ec.networks.ReadyNetwork:
    network = small_network()
    change(network)
    return network


def with_tanh(network: ec.networks.ReadyNetwork) -> None:
    network.body[2] = nn.Tanh()  # type: ignore[operator]


def with_leak(network: ec.networks.ReadyNetwork) -> None:
    network.body[2] = nn.LeakyReLU(0.3)  # type: ignore[operator]


def with_norm(network: ec.networks.ReadyNetwork) -> None:
    network.body.append(nn.BatchNorm1d(8, affine=False))  # type: ignore[operator]


def with_hook(network: ec.networks.ReadyNetwork) -> None:
    network.body.register_forward_hook(lambda module, x, y: 2 * y)


@pytest.mark.parametrize("change", [with_tanh, with_leak, with_norm, with_hook])
def test_a_ready_made_network_that_was_changed_is_passed_again(
    change: Callable[[ec.networks.ReadyNetwork], object], tmp_path: Path
) -> None:
    straight = learned("ewc", network=changed(change))
    straight.save(tmp_path)
    with pytest.raises(
        FileError, match=r"does not match .* Learner.load\(path, network="
    ) as caught:
        ec.Learner.load(tmp_path)
    assert "\n" not in str(caught.value)
    again = ec.Learner.load(tmp_path, network=changed(change))
    x = blobs()[0].test.inputs()
    assert torch.equal(again.predict_proba(x), straight.predict_proba(x))


def test_a_slope_is_part_of_a_network(tmp_path: Path) -> None:
    learned("ewc", network=changed(with_leak)).save(tmp_path)
    other = changed(with_leak)
    other.body[2].negative_slope = 0.2  # type: ignore[index]
    with pytest.raises(FileError, match=r"body.2 is LeakyReLU\(negative_slope=0.3\) in the file"):
        ec.Learner.load(tmp_path, network=other)


def test_parameters_that_are_not_learned_are_compared(tmp_path: Path) -> None:
    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        module[0].requires_grad_(False)
        return module

    straight = learned("ewc", network=network(0))
    straight.save(tmp_path)
    with pytest.raises(FileError, match=r"parameter 0.(weight|bias), which is not learned"):
        ec.Learner.load(tmp_path, network=network(1))
    x = blobs()[0].test.inputs()
    again = ec.Learner.load(tmp_path, network=network(0))
    assert torch.equal(again.predict_proba(x), straight.predict_proba(x))


@pytest.mark.parametrize("affine", [True, False])
def test_buffers_on_one_side_only_are_refused(affine: bool, tmp_path: Path) -> None:
    def network(norm: bool) -> nn.Module:
        middle = nn.BatchNorm1d(8, affine=False) if norm else nn.Identity()
        return nn.Sequential(nn.Linear(4, 8), middle, nn.Linear(8, 2))

    learned("ewc", network=network(affine)).save(tmp_path)
    with pytest.raises(FileError, match="does not match the saved learner"):
        ec.Learner.load(tmp_path, network=network(not affine))


def test_another_method_cannot_take_over(tmp_path: Path) -> None:
    learned("vcl").save(tmp_path)
    for other in (ec.EWC(), ec.EVCL(), ec.FineTune()):
        with pytest.raises(FileError, match="saved with the method vcl, not"):
            ec.Learner.load(tmp_path, method=other)
    assert ec.Learner.load(tmp_path, method=ec.VCL(beta=0.1)).method == ec.VCL(beta=0.1)


# Two at once


SAVE = """
import sys
import evclplus as ec
from pathlib import Path
learner = ec.Learner.load(sys.argv[1])
print("ready", flush=True)
input()
done = 0
for _ in range(int(sys.argv[3])):
    try:
        learner.save(sys.argv[2], overwrite=sys.argv[4] == "yes")
        done += 1
    except ec.EvclplusError as error:
        assert "overwrite=True" in str(error), error
print(done)
"""


def savers(first: Path, second: Path, target: Path, times: int, overwrite: str) -> Any:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SAVE, str(one), str(target), str(times), overwrite],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for one in (first, second)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return started


def test_of_two_savers_one_is_refused(tmp_path: Path) -> None:
    first, second = (learned(tasks=count).save(tmp_path / str(count)) for count in (1, 2))
    started = savers(first, second, tmp_path / "both", 1, "no")
    outputs = [int(process.communicate()[0]) for process in started]
    assert sorted(outputs) == [0, 1]
    assert len(ec.Learner.load(tmp_path / "both").learned) == 1 + outputs.index(1)


@pytest.mark.slow
def test_who_reads_while_two_write_reads_one_of_them(tmp_path: Path) -> None:
    first, second = (learned(tasks=count).save(tmp_path / str(count)) for count in (1, 2))
    target = learned().save(tmp_path / "both")
    started = savers(first, second, target, 60, "yes")
    while any(process.poll() is None for process in started):
        assert len(ec.Learner.load(target).learned) in (1, 2)
    assert [int(process.communicate()[0]) for process in started] == [60, 60]
    assert len(ec.Learner.load(target).learned) in (1, 2)
    assert len(list(target.iterdir())) == 2  # no state is left behind


# Content that a stranger wrote, with checksums that fit

Tensors = dict[str, Tensor]
Change = Callable[[dict[str, Any], Tensors], object]


def rewritten(folder: Path, change: Change) -> Path:
    """A saved learner with another header or other tensors, and a checksum that fits them."""
    path, state = folder / "learner.json", next(folder.glob("*.safetensors"))
    header, tensors = json.loads(path.read_text()), safetensors.torch.load(state.read_bytes())
    change(header, tensors)
    state.write_bytes(safetensors.torch.save(tensors))
    digest = hashlib.sha256(state.read_bytes()).hexdigest()
    path.write_text(json.dumps(header | {"sha256": digest}))
    return folder


def kept(header: dict[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = header["kept"]["parts"]
    return parts


def other_type(header: dict[str, Any], tensors: Tensors) -> None:
    kept(header)["prior"] = {"type": "Popen", "parts": {"args": "echo"}}


def type_of_another_method(header: dict[str, Any], tensors: Tensors) -> None:
    header["kept"] = {"type": "Reservoir", "parts": {}}


def wrong_field(header: dict[str, Any], tensors: Tensors) -> None:
    kept(header)["surprise"] = 1


def a_list(header: dict[str, Any], tensors: Tensors) -> None:
    kept(header)["prior"] = [1, 2]


def missing_tensor(header: dict[str, Any], tensors: Tensors) -> None:
    del tensors["memory.fisher"]


def missing_weights(header: dict[str, Any], tensors: Tensors) -> None:
    del tensors["q.mean"]


def short_fisher(header: dict[str, Any], tensors: Tensors) -> None:
    tensors["memory.fisher"] = tensors["memory.fisher"][1:].clone()


def short_prior(header: dict[str, Any], tensors: Tensors) -> None:
    tensors["memory.prior.mean"] = tensors["memory.prior.mean"][1:].clone()


def number_for_a_tensor(header: dict[str, Any], tensors: Tensors) -> None:
    kept(header)["fisher"] = 3


def number_for_a_gaussian(header: dict[str, Any], tensors: Tensors) -> None:
    kept(header)["prior"] = 3


def nan_weights(header: dict[str, Any], tensors: Tensors) -> None:
    tensors["q.mean"][0] = torch.nan


def nan_prior(header: dict[str, Any], tensors: Tensors) -> None:
    tensors["memory.prior.variance"][0] = torch.nan


def nan_fisher(header: dict[str, Any], tensors: Tensors) -> None:
    tensors["memory.fisher"][0] = torch.nan


def nan_start(header: dict[str, Any], tensors: Tensors) -> None:
    tensors["start"][0] = torch.inf


def negative_variance(header: dict[str, Any], tensors: Tensors) -> None:
    tensors["q.variance"].neg_()


def other_layout(header: dict[str, Any], tensors: Tensors) -> None:
    header["layout"]["shapes"][0] = [1, 1]


def short_layout(header: dict[str, Any], tensors: Tensors) -> None:
    header["layout"]["names"].pop()


def unknown_method(header: dict[str, Any], tensors: Tensors) -> None:
    header["method"] = {"kind": "os.system"}


def other_settings(header: dict[str, Any], tensors: Tensors) -> None:
    header["training"]["epochs"] = -1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_type, "the saved memory.prior is a Popen, which its method does not keep"),
        (type_of_another_method, "the saved memory is a Reservoir, which its method does not keep"),
        (wrong_field, "the saved memory is no Anchored"),
        (a_list, "the saved memory.prior is damaged"),
        (missing_tensor, "the saved state has no memory.fisher"),
        (missing_weights, "the saved state has no q.mean"),
        (short_fisher, "the saved memory.fisher does not fit"),
        (short_prior, "the saved memory.prior does not fit"),
        (number_for_a_tensor, "the saved memory.fisher"),
        (number_for_a_gaussian, "the saved memory.prior"),
        (nan_weights, "the saved q does not fit the saved layout, is not finite"),
        (nan_prior, r"the saved memory.prior does not fit the saved layout, is not finite"),
        (nan_fisher, r"the saved memory.fisher"),
        (nan_start, "the saved start"),
        (negative_variance, "a variance that is not > 0"),
        (other_layout, "the saved layout has 27 weights but the saved state 58"),
        (short_layout, "names and shapes differ in number"),
        (unknown_method, "there is no method 'os.system' here"),
        (other_settings, "epochs = -1 is wrong"),
    ],
)
def test_what_a_stranger_wrote_is_checked(change: Change, message: str, tmp_path: Path) -> None:
    folder = rewritten(learned("evcl+").save(tmp_path), change)
    with pytest.raises((FileError, SettingsError), match=message) as caught:
        ec.Learner.load(folder)
    assert "\n" not in str(caught.value)


def huge(header: dict[str, Any], tensors: Tensors) -> None:
    header["architecture"]["hidden"] = [60_000, 60_000]


def huge_layout(header: dict[str, Any], tensors: Tensors) -> None:
    huge(header, tensors)
    header["layout"]["shapes"][0] = [60_000, 60_000]


def huge_head(header: dict[str, Any], tensors: Tensors) -> None:
    header["growth"] = [[0, 10**6, 10**6]]


def deep(header: dict[str, Any], tensors: Tensors) -> None:
    header["architecture"]["hidden"] = [1] * 100_000


def no_width(header: dict[str, Any], tensors: Tensors) -> None:
    header["architecture"]["hidden"] = [-1]


def overflowing(header: dict[str, Any], tensors: Tensors) -> None:
    tensors["q.variance"][:] = 1e38


def list_for_a_method(header: dict[str, Any], tensors: Tensors) -> None:
    header["method"]["kind"] = []


def number_for_all(header: dict[str, Any], tensors: Tensors) -> None:
    header["kept"] = 1.5


def list_for_a_type(header: dict[str, Any], tensors: Tensors) -> None:
    kept(header)["prior"]["type"] = []


def whole_weights(header: dict[str, Any], tensors: Tensors) -> None:
    tensors["q.mean"] = tensors["q.mean"].long()


def complex_fisher(header: dict[str, Any], tensors: Tensors) -> None:
    tensors["memory.fisher"] = tensors["memory.fisher"].to(torch.complex64)


def other_head(header: dict[str, Any], tensors: Tensors) -> None:
    header["learned"][0]["head"] = 3


def more_outputs(header: dict[str, Any], tensors: Tensors) -> None:
    header["learned"][0] |= {"outputs": 3, "classes": [0, 1, 2]}


def fewer_classes(header: dict[str, Any], tensors: Tensors) -> None:
    header["learned"][0]["classes"] = [0]


def many_samples(header: dict[str, Any], tensors: Tensors) -> None:
    header["samples"] = 2**64


def seed_in_training(header: dict[str, Any], tensors: Tensors) -> None:
    header["training"] = {"seed": 1}


@pytest.mark.parametrize(
    "change",
    [
        *(huge, huge_layout, huge_head, deep, no_width, whole_weights, complex_fisher, other_head),
        *(
            overflowing,
            list_for_a_type,
            list_for_a_method,
            more_outputs,
            fewer_classes,
            many_samples,
            seed_in_training,
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_made(
    change: Change, tmp_path: Path
) -> None:
    folder = rewritten(learned("evcl+").save(tmp_path), change)
    with pytest.raises((FileError, SettingsError)) as caught:
        ec.Learner.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.parametrize("name", ["learner.json", "state"])
def test_a_pipe_or_a_device_is_not_waited_for(name: str, tmp_path: Path) -> None:
    folder = learned().save(tmp_path)
    path = folder / name if name != "state" else next(folder.glob("*.safetensors"))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileError, match="it is no plain file"):
        ec.Learner.load(folder)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(FileError, match="it is no plain file"):
        ec.Learner.load(folder)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("store", torch.tensor(1.0), "at least 2 dimensions"),
        ("store", torch.zeros(10, 7), "cannot take the saved examples"),
        ("store", torch.zeros(10, 4, dtype=torch.complex64), "complex"),
        ("labels", torch.zeros(10, dtype=torch.int32), "expected int64"),
        ("labels", torch.zeros(10), "labels that are no classes"),
        ("labels", torch.full((10,), 7), "labels outside its 2 outputs"),
        ("labels", torch.full((10,), -1), "labels outside its 2 outputs"),
        ("labels", torch.zeros(9, dtype=torch.int64), "10 inputs but 9 labels"),
        ("store", torch.full((10, 4), torch.nan), "not finite"),
    ],
)
def test_stored_examples_are_checked(
    name: str, value: Tensor, message: str, tmp_path: Path
) -> None:
    def change(header: dict[str, Any], tensors: Tensors) -> None:
        tensors[f"memory.stored.0.{name}"] = value

    folder = learned(ec.ExperienceReplay(buffer_size=10)).save(tmp_path)
    with pytest.raises(FileError, match=message) as caught:
        ec.Learner.load(rewritten(folder, change))
    assert "\n" not in str(caught.value)


# Files from before a setting came


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_learner_from_before_calibration_goes_on_without(wrapped: bool, tmp_path: Path) -> None:
    """Where a default is another than what was done before there was the setting."""

    def change(header: dict[str, Any], tensors: Tensors) -> None:
        method = header["method"]["method"] if wrapped else header["method"]
        for option in ("calibration", "variance_penalty", "lam_function"):
            del method[option]
        del header["training"]["std_rate"]
        for task in header["learned"]:
            del task["calibrated"]

    old: ec.Method = ec.EVCLPlus(calibration="none", lam=7.0, lam_function=0.0, kl_scale="examples")
    if wrapped:
        old = ec.Coreset(method=old, coreset_size=5, coreset_epochs=1)
    straight = learned(old, std_rate=1.0)
    again = ec.Learner.load(rewritten(straight.save(tmp_path), change))
    assert again.method == old
    assert again.training.std_rate == 1.0
    assert again.training == straight.training
    assert again.learned[0].calibrated == {}
    for learner in (straight, again):
        learner.learn(blobs(tasks=4)[1])
    assert_same(again, straight)


def test_strengths_that_were_found_are_saved(tmp_path: Path) -> None:
    straight = learned("ewc", tasks=2)
    assert all(task.calibrated["strength"] > 0 for task in straight.learned)
    assert ec.Learner.load(straight.save(tmp_path)).learned == straight.learned
