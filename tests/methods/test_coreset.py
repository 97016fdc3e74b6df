import pytest
import torch

import evclplus as ec
from evclplus.errors import DataError
from tests.helpers import Convolutional, begun, blobs, small_network


def learner_with(method: ec.Method, scenario: str = "task") -> tuple[ec.Learner, ec.Stream]:
    stream = blobs(scenario=scenario)
    network = small_network(stream.heads)
    return ec.Learner(network, method, epochs=20, batch_size=20, learning_rate=1e-2), stream


@pytest.mark.parametrize("selection", ["random", "kcenter"])
def test_a_coreset_is_taken_out_of_the_training_data(selection: str) -> None:
    method = ec.Coreset(method=ec.VCL(), selection=selection, coreset_size=7)
    learner, stream = learner_with(method)
    _, start = begun(learner, stream[0])
    stored, (trained_on,) = start.memory.stored[0], start.sources[0].examples
    assert len(stored) == 7
    assert len(trained_on) == len(stream[0].train) - 7
    rows = {tuple(row) for row in trained_on.inputs().tolist()}
    kept = {tuple(row) for row in stored.inputs().tolist()}
    assert not rows & kept
    assert rows | kept == {tuple(row) for row in stream[0].train.inputs().tolist()}


def test_a_total_budget_is_shared_by_all_tasks() -> None:
    learner, stream = learner_with(
        ec.Coreset(method=ec.FineTune(), coreset_size=10, coreset_budget="total")
    )
    learner.learn(stream[0])
    first = learner.memory.stored[0].inputs()
    learner.learn(stream[1])
    assert [len(kept) for kept in learner.memory.stored] == [5, 5]
    assert torch.equal(learner.memory.stored[0].inputs(), first[:5])


def test_fine_tuning_for_a_test_is_never_fed_back() -> None:
    learner, stream = learner_with(ec.Coreset(method=ec.VCL(), coreset_size=10))
    for task in stream:
        learner.learn(task)
    before = learner.q.mean.clone()
    recalled = learner._answers.predictor(0)[1]
    assert not torch.equal(recalled.mean, before)
    learner.evaluate(stream)
    assert torch.equal(learner.q.mean, before)


def test_running_statistics_of_fine_tuning_are_not_fed_back_either() -> None:
    stream = blobs(scenario="domain")
    method = ec.Coreset(method=ec.FineTune(), coreset_size=10)
    learner = ec.Learner(Convolutional(), method, epochs=3, batch_size=20).learn(stream[0])
    before = {name: buffer.clone() for name, buffer in learner.network.buffers.items()}
    recalled = learner._answers.predictor(0)[0].buffers
    assert not torch.equal(recalled["norm.running_mean"], before["norm.running_mean"])
    assert all(torch.equal(before[name], now) for name, now in learner.network.buffers.items())


def test_each_head_is_tuned_on_its_own_coreset() -> None:
    learner, stream = learner_with(ec.Coreset(method=ec.VCL(), coreset_size=10))
    for task in stream:
        learner.learn(task)
    q = [learner._answers.predictor(head)[1] for head in (0, 1)]
    named = [learner.network.layout.named(one.mean) for one in (learner.q, *q)]
    # Its own head moves, the other one does not.
    assert not torch.equal(named[1]["heads.0.weight"], named[0]["heads.0.weight"])
    assert torch.equal(named[1]["heads.1.weight"], named[0]["heads.1.weight"])
    assert not torch.equal(named[2]["heads.1.weight"], named[0]["heads.1.weight"])


def test_one_shared_head_is_tuned_on_all_coresets() -> None:
    learner, stream = learner_with(
        ec.Coreset(method=ec.FineTune(), coreset_size=10), scenario="class"
    )
    for task in stream:
        learner.learn(task)
    assert {kept.outputs for kept in learner.memory.stored} == {2, 4}
    assert learner.predict_proba(torch.zeros(1, 4)).shape == (1, 4)


def test_alone_learns_from_nothing_but_the_coreset() -> None:
    method = ec.Coreset(method=ec.VCL(), coreset_size=10, coreset_epochs=100, alone=True)
    learner, stream = learner_with(method)
    first = learner.q.mean.clone()
    for task in stream:
        learner.learn(task)
    assert torch.equal(learner.q.mean, first)
    assert learner.evaluate(stream).average_accuracy > 0.8


def test_it_composes_with_any_method() -> None:
    inner: ec.Method
    for inner in (
        ec.EVCLPlus(lam=10.0),
        ec.EWC(lam=10.0),
        ec.SynapticIntelligence(),
        ec.ExperienceReplay(buffer_size=10),
        ec.FineTune(),
    ):
        method = ec.Coreset(method=inner, selection="kcenter", coreset_size=10)
        learner, stream = learner_with(method)
        for task in stream:
            learner.learn(task)
        assert learner.evaluate(stream).average_accuracy > 0.8


def test_a_coreset_that_leaves_nothing_to_train_on_is_refused() -> None:
    learner, stream = learner_with(ec.Coreset(method=ec.VCL(), coreset_size=1000))
    with pytest.raises(DataError, match="leaves nothing to train on"):
        learner.learn(stream[0])
    assert not learner.learned
