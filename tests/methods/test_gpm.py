"""GPM: what layers do with the inputs they have seen does not change."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.engine import Gradient, Here, Step
from evclplus.core.examples import Examples
from evclplus.core.layer_gradients import received
from evclplus.core.network import BayesianNetwork
from evclplus.methods.gpm import second_moments, without_leading
from tests.helpers import begun, blobs, learned_first_task, small_network

GPM = ec.GradientProjectionMemory


def moments(rank: int = 3, size: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.tensor([3.0, 1.0, 0.3])[:rank, None]
    rows = (scales * torch.randn(rank, size, generator=generator)).double()
    return rows.T @ rows


def test_all_of_the_energy_leaves_nothing_of_what_was_received() -> None:
    first, second = moments(), moments(seed=1)
    free = without_leading(first, torch.eye(6), 1.0)
    torch.testing.assert_close(free @ free, free)
    torch.testing.assert_close(free.trace(), torch.tensor(3.0))
    torch.testing.assert_close(free.double() @ first, 0 * first, rtol=0, atol=1e-5)
    both = without_leading(second, free, 1.0)
    torch.testing.assert_close(both.double() @ (first + second), 0 * first, rtol=0, atol=1e-4)
    assert torch.equal(without_leading(first, free, 1.0), free)  # nothing new


@pytest.mark.parametrize("energy", [0.5, 0.9, 0.99])
def test_the_fewest_directions_that_have_the_energy_are_taken(energy: float) -> None:
    """Against singular values: the paper's criterion, with what is taken already counted."""
    first, second = moments(), moments(seed=1)
    free = without_leading(first, torch.eye(6), energy)
    for matrix, before in ((first, torch.eye(6)), (second, free)):
        after = without_leading(matrix, before, energy)
        inside = 1 - (after.double() @ matrix).trace() / matrix.trace()
        assert inside >= energy - 1e-9
        q = before.double()
        values = torch.linalg.eigvalsh(q @ matrix @ q).flip(0)
        taken = round((before.trace() - after.trace()).item())
        kept = (matrix - q @ matrix @ q).trace()
        assert taken == 0 or kept + values[: taken - 1].sum() < energy * matrix.trace()


def pushed(learner: ec.Learner, task: ec.Task) -> tuple[BayesianNetwork, Tensor, Tensor]:
    """A random step of all weights that a task trains, projected: before and after."""
    lesson, start = begun(learner, task)
    generator = torch.Generator().manual_seed(0)
    step = torch.randn(len(start.q.mean), generator=generator)
    for name, part in lesson.network.layout.named(step).items():
        part.mul_(name in lesson.network.names_for(task.head))
    nothing = Gradient(step, step[:0])
    here = Here(start.q, torch.tensor(40.0), nothing)
    moved = learner.method.move(Step(step, step[:0]), start.memory, here)
    return lesson.network, start.q.mean, start.q.mean + moved.mean


@pytest.mark.parametrize("scenario", ["task", "domain"])
def test_old_answers_stay_whatever_the_step(scenario: str) -> None:
    """With all energy and all examples, not to first order but exactly: every layer gives what it
    gave on inputs that it has seen."""
    stream = blobs(scenario=scenario, count=24)
    method = GPM(energy=1.0, projection_examples=2)  # fewer than there are directions
    learner = ec.Learner(ec.networks.mlp(4, [8, 8]), method, epochs=5, batch_size=20)
    learner.learn(stream[0])
    two = torch.randperm(len(stream[0].train), generator=learner_generator(learner))[:2]
    x = stream[0].train.inputs(two)
    network, before, after = pushed(learner, stream[1])
    layout = network.layout
    old, new = (ec.MeanField(one, before[:0], layout) for one in (before, after))
    torch.testing.assert_close(network(new, x, 0), network(old, x, 0), rtol=1e-4, atol=1e-4)
    others = stream[1].train.inputs()
    assert (network(new, others, 0) - network(old, others, 0)).abs().max() > 0.1


def learner_generator(learner: ec.Learner) -> torch.Generator:
    """The random numbers that chose the examples of the first task."""
    from evclplus.seeding import generator

    return generator(learner.seed, 0, "projection")


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_the_change_of_a_task_times_the_stored_subspace_is_zero(optimiser: str) -> None:
    """Of a whole task with any optimiser, also one whose steps are no multiples of gradients."""
    learner, stream = learned_first_task(GPM(energy=0.9), optimiser=optimiser, learning_rate=0.01)
    free = {layer.path: layer.free for layer in learner.memory.layers}
    before = {n: v.clone() for n, v in learner.network.layout.named(learner.q.mean).items()}
    learner.learn(stream[1])
    after = learner.network.layout.named(learner.q.mean)
    weight, bias = (
        after[f"body.1.{name}"] - before[f"body.1.{name}"] for name in ("weight", "bias")
    )
    change = torch.cat([weight, bias[:, None]], dim=1)
    used = torch.eye(5) - free["body.1"]
    assert change.norm() > 0.01
    assert used.trace() > 0.9
    assert (change @ used).norm() < 1e-5 * change.norm()


def test_moments_are_those_of_what_layers_receive() -> None:
    module = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, 2, bias=False))
    network = BayesianNetwork(module)
    q, x = network.initial(1.0), torch.randn(7, 2, 4)
    found = second_moments(network, q, Examples(x, torch.zeros(7, dtype=torch.long), 2))
    inside = module[:3](x)
    patches = torch.cat([x[:, :, i : i + 2].flatten(1) for i in range(3)])
    ones = torch.cat([patches, torch.ones(21, 1)], dim=1)
    torch.testing.assert_close(found["0"].float(), ones.T @ ones)
    torch.testing.assert_close(found["3"].float(), inside.T @ inside)
    assert set(received(network, q, x, 0)) == {"0", "3"}


def test_weights_outside_of_layers_stay_still_after_the_first_task() -> None:
    body = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU())
    stream = blobs()
    learner = ec.Learner(ec.MultiHead(body), GPM(), epochs=3, batch_size=20)
    first = learner.network.layout.named(learner.q.mean)["body.1.weight"].clone()
    learner.learn(stream[0])
    before = learner.network.layout.named(learner.q.mean)["body.1.weight"].clone()
    learner.learn(stream[1])
    assert not torch.equal(first, before)
    assert torch.equal(learner.network.layout.named(learner.q.mean)["body.1.weight"], before)


def test_the_second_task_is_forgotten_less_than_by_fine_tuning() -> None:
    def forgotten(method: ec.Method) -> float:
        learner, stream = learned_first_task(method)
        x = stream[0].test.inputs()
        before = learner.predict_proba(x, task=0)
        learner.learn(stream[1])
        return (learner.predict_proba(x, task=0) - before).abs().mean().item()

    assert forgotten(GPM()) < 0.3 * forgotten(ec.FineTune())


def test_what_is_free_only_shrinks_and_takes_the_same_room(tmp_path: Path) -> None:
    stream = blobs(tasks=3)
    learner = ec.Learner(small_network(), GPM(), epochs=2, batch_size=20)
    left = []
    for task in stream:
        learner.learn(task)
        layers = {layer.path: layer.free for layer in learner.memory.layers}
        assert layers["body.1"].shape == (5, 5)
        left.append(layers["body.1"].trace().item())
    assert left == sorted(left, reverse=True)
    again = ec.Learner.load(learner.save(tmp_path))
    for one, other in zip(learner.memory.layers, again.memory.layers, strict=True):
        assert one.path == other.path
        assert torch.equal(one.free, other.free)
