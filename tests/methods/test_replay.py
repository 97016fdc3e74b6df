"""ER: the reservoir is fair, and what a step minimises is what joint training does."""

import torch
from scipy.stats import chi2
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.batches import Source, steps_of_epoch
from evclplus.core.engine import Problem, State, StepGradient, likelihood_gradient
from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork
from evclplus.methods.base import Start
from evclplus.methods.reservoir import Reservoir, reservoir
from tests.helpers import begun, blobs, small_network

ER = ec.ExperienceReplay


def numbered(first: int, count: int, head: int = 0) -> ec.Examples:
    """Examples that are their own numbers in the stream."""
    x = torch.arange(first, first + count).float()[:, None]
    return ec.Examples(x, torch.zeros(count).long(), outputs=2, head=head)


def filled(size: int, seed: int, counts: tuple[int, ...] = (5, 9, 6)) -> Reservoir:
    memory, first = Reservoir(), 0
    generator = torch.Generator().manual_seed(seed)
    for head, count in enumerate(counts):
        memory = reservoir(memory, numbered(first, count, head), size, generator)
        first += count
        assert memory.seen == first
        assert sum(map(len, memory.stored)) == min(size, first)
    return memory


def stored_numbers(memory: Reservoir) -> list[int]:
    return [int(x) for one in memory.stored for x in one.inputs()[:, 0]]


def test_every_example_is_kept_with_the_same_probability() -> None:
    size, total, runs = 4, 20, 4000
    kept = torch.zeros(total)
    for seed in range(runs):
        numbers = stored_numbers(filled(size, seed))
        assert len(set(numbers)) == size
        kept[numbers] += 1
    share = size / total
    # The counts of a draw without replacement: this is chi-square with total - 1 degrees.
    spread = (kept - runs * share).square().sum() / (runs * share * (1 - share))
    assert chi2.sf(spread.item() * (total - 1) / total, total - 1) > 0.01


def test_the_size_is_never_exceeded_and_labels_stay_with_their_inputs() -> None:
    for size in (1, 5, 6, 20, 100):
        memory = filled(size, seed=size)
        for head, one in enumerate(memory.stored):
            assert one.rows is None  # the task's store may go
            assert len(one) > 0
            assert one.head >= head
    assert stored_numbers(filled(100, seed=0)) == list(range(20))
    x = torch.arange(50).float()[:, None]
    task = ec.Examples(x, torch.arange(50) % 7, outputs=7)
    (one,) = reservoir(Reservoir(), task, 10, torch.Generator().manual_seed(0)).stored
    assert torch.equal(one.inputs()[:, 0].long() % 7, one.labels)


def sources_gradient(
    network: BayesianNetwork, q: MeanField, sources: tuple[Source, ...], seed: int
) -> Tensor:
    """The gradient of one step over the whole first source and a draw of the others."""
    problem = Problem(network, ER(), Reservoir(), torch.tensor(1.0), at_mean=True)
    state = State(q, {})
    batches = next(steps_of_epoch(sources, 1000, torch.Generator().manual_seed(seed)))
    seeds = torch.zeros(len(batches), 4, dtype=torch.int32)
    StepGradient(problem, state, likelihood_gradient)(batches, seeds)
    return state.vectors.gradient.mean.clone()


def joint_gradient(network: BayesianNetwork, q: MeanField, every: list[ec.Examples]) -> Tensor:
    """Of the mean over all examples, head by head, from nothing but autograd."""
    mean = q.mean.clone().requires_grad_()
    weights = MeanField(mean, q.variance, q.layout)
    total = torch.zeros(())
    for one in every:
        logits = network(weights, one.inputs(), one.head)
        total = total + nn.functional.cross_entropy(logits, one.labels, reduction="sum")
    (gradient,) = torch.autograd.grad(total / sum(map(len, every)), mean)
    return gradient


def learned_two_of_three() -> tuple[ec.Learner, ec.Stream, Start]:
    """All of the first two tasks are in the buffer, and a step draws as many as there are."""
    stream = blobs(tasks=3)
    past = len(stream[0].train) + len(stream[1].train)
    learner = ec.Learner(
        small_network(stream.heads),
        ER(buffer_size=1000, replay_batch=past),
        epochs=3,
        batch_size=20,
    )
    learner.learn(stream[0]).learn(stream[1])
    return learner, stream, begun(learner, stream[2])[1]


def test_with_the_whole_past_the_expected_gradient_is_that_of_joint_training() -> None:
    learner, stream, start = learned_two_of_three()
    found = torch.stack(
        [sources_gradient(learner.network, start.q, start.sources, seed) for seed in range(400)]
    )
    expected = joint_gradient(learner.network, start.q, [task.train for task in stream])
    error = found.mean(0) - expected
    noise = found.std(0) / len(found) ** 0.5
    assert (error.abs() < 4.5 * noise + 1e-6).all()
    assert error.norm() < 0.05 * expected.norm()
    # A step without the past is far from it.
    alone = sources_gradient(learner.network, start.q, start.sources[:1], 0)
    assert (alone - expected).norm() > 0.5 * expected.norm()


def test_the_batches_of_several_heads_add_up_by_their_share() -> None:
    learner, _, start = learned_two_of_three()
    batches = next(steps_of_epoch(start.sources, 1000, torch.Generator().manual_seed(0)))
    assert [batch.head for batch in batches] == [2, 0, 1]
    examples = sum(len(batch.y) for batch in batches)
    assert [batch.share for batch in batches] == [len(batch.y) / examples for batch in batches]
    drawn = [ec.Examples(one.inputs, one.y, one.outputs, one.head) for one in batches]
    expected = joint_gradient(learner.network, start.q, drawn)
    found = sources_gradient(learner.network, start.q, start.sources, 0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    heads = learner.network.layout.named(found)
    assert all(heads[f"heads.{head}.weight"].any() for head in range(3))


def test_in_a_head_that_grows_old_examples_compete_with_the_new_classes() -> None:
    stream = blobs(tasks=2, scenario="class")
    learner = ec.Learner(small_network(), ER(buffer_size=10), epochs=3, batch_size=20)
    learner.learn(stream[0])
    assert {one.outputs for one in learner.memory.stored} == {2}
    lesson, start = begun(learner, stream[1])
    (old,) = start.sources[1].examples
    assert old.outputs == 4
    found = sources_gradient(lesson.network, start.q, (Source((old,)),), 0)
    assert lesson.network.layout.named(found)["heads.0.bias"][2:].min() > 0  # pushed down


def test_heads_of_their_own_keep_their_outputs() -> None:
    pairs = [(torch.randn(60, 4), torch.arange(60) % classes) for classes in (2, 3)]
    stream = ec.tasks(pairs)
    learner = ec.Learner(small_network(), ER(), epochs=1).learn(stream[0])
    _, start = begun(learner, stream[1])
    assert [one.outputs for one in start.sources[1].examples] == [2]


def test_on_the_first_task_it_is_fine_tuning() -> None:
    stream = blobs()
    found = [
        ec.Learner(small_network(), name, epochs=3, batch_size=20).learn(stream[0]).q.mean
        for name in ("er", "finetune")
    ]
    assert torch.equal(*found)


def test_class_incremental_digits_are_remembered() -> None:
    stream = ec.benchmark("split-digits", scenario="class")

    def accuracy(method: ec.Method) -> float:
        learner = ec.Learner(
            ec.networks.mlp(64, [32]), method, epochs=8, batch_size=32, learning_rate=3e-3
        )
        for task in stream:
            learner.learn(task)
        return learner.evaluate(stream).average_accuracy

    assert accuracy(ER(buffer_size=200, replay_batch=64)) > accuracy(ec.FineTune()) + 0.4
