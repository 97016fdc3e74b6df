"""Progress and compress: the active column, what is distilled, and what holds the network."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import evclplus as ec
from evclplus.core.batches import steps_of_epoch
from evclplus.core.fisher import diagonal_fisher
from evclplus.errors import ConversionError, SettingsError
from tests.helpers import begun, blobs, moved

SMALL: dict[str, Any] = {"epochs": 10, "batch_size": 20, "learning_rate": 1e-2}
EXAMPLES = torch.tensor(40.0)


def after_first(method: ec.Method, **settings: Any) -> tuple[ec.Learner, ec.Stream]:
    stream = blobs(tasks=2)
    learner = ec.Learner(ec.networks.mlp(4, [8, 6]), method, **(SMALL | settings))
    return learner.learn(stream[0]), stream


def test_what_is_minimised_is_the_kl_between_answers() -> None:
    method = ec.ProgressCompress()
    learner, stream = after_first(method)
    lesson, start = begun(learner, stream[1])
    ((batch,), *_) = steps_of_epoch(start.sources, 20, torch.Generator().manual_seed(0))
    assert batch.answers is not None
    output = lesson.network(start.q, batch.inputs, 1)
    weights = lesson.network.weights(start.q)
    found = method.likelihood(weights, start.memory, batch, lesson.network)
    expected = F.kl_div(
        output.log_softmax(1), batch.answers.log_softmax(1), log_target=True, reduction="batchmean"
    )
    torch.testing.assert_close(found["distillation"], expected)
    assert expected > 0.01


def test_without_a_penalty_the_network_comes_to_answer_as_the_active_column_does() -> None:
    torch.manual_seed(0)
    # Labels that nobody can be sure of: probabilities are learned, and not labels.
    pairs = [(x, (x[:, 0] + torch.randn(60) > 0).long()) for x in torch.randn(2, 60, 4)]
    stream = ec.tasks(pairs)
    method = ec.ProgressCompress(lam=0.0)
    learner = ec.Learner(ec.networks.mlp(4, [40]), method, **SMALL).learn(stream[0])
    lesson, start = begun(learner, stream[1])
    assert start.task.answers is not None
    wanted = start.task.answers.softmax(1)[:, 0]
    trained = lesson.fit(
        *(method, lesson.network, start.q, start.memory, start.sources),
        purpose="train",
        epochs=500,
    )
    found = lesson.network(trained.q, start.task.inputs(), 1).softmax(1)[:, 0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.03)
    assert (start.task.labels - (1 - wanted)).abs().mean() > 0.2


def test_labels_are_seen_in_the_first_phase_only() -> None:
    learner, stream = after_first(ec.ProgressCompress())
    _, start = begun(learner, stream[1])
    (source,) = start.sources
    assert source.examples[0].answers is not None
    accuracy = (start.task.answers.argmax(1) == start.task.labels).float().mean()  # type: ignore[union-attr]
    assert accuracy > 0.9


def test_the_active_column_reads_the_knowledge_base_as_it_is_and_leaves_it() -> None:
    method = ec.ProgressCompress()
    learner, stream = after_first(method)
    lesson, _ = begun(learner, stream[1])
    column = method.active_column(lesson)
    assert not any(name.startswith("base.") for name in column.layout.names)
    weights = dict(column.skeleton.named_parameters())
    body = {n: v for n, v in lesson.q.layout.named(lesson.q.mean).items() if n[:5] == "body."}
    assert len(body) == 4
    for name, value in body.items():
        assert torch.equal(weights[f"base.layers.{name[5:]}"], value)
    x, q = stream[1].test.inputs(), column.initial(1.0)

    def linear(h: Tensor, path: str) -> Tensor:
        return h @ weights[f"{path}.weight"].T + weights.get(f"{path}.bias", torch.zeros(()))

    def adapter(h: Tensor, place: int) -> Tensor:
        path = f"column.adapters.{place}"
        reduced = linear(weights[f"{path}.scale"] * h, f"{path}.reduce").relu()
        return linear(reduced, f"{path}.expand")

    base = linear(x, "base.layers.1").relu()
    features = linear(base, "base.layers.3").relu()
    h = linear(x, "column.layers.1").relu()
    h = (linear(h, "column.layers.3") + adapter(base, 0)).relu()
    torch.testing.assert_close(column(q, x), linear(h, "head") + adapter(features, 1))


def test_the_penalty_is_that_of_online_ewc_around_the_last_network() -> None:
    method = ec.ProgressCompress(lam=3.0, fisher_decay=0.5, calibration="none")
    learner, stream = after_first(method)
    first = learner.memory.fisher
    learner.learn(stream[1])
    generator = torch.Generator().manual_seed(0)
    own = diagonal_fisher(learner.network, learner.q, stream[1].train, generator)
    old = learner.q.layout.named(learner.memory.fisher)["body.1.weight"]
    before = ec.networks.mlp(4, [8, 6], heads=[2])
    assert first.shape[0] == sum(p.numel() for p in before.parameters())
    expected = 0.5 * first[: 4 * 8].view(8, 4) + learner.q.layout.named(own)["body.1.weight"]
    torch.testing.assert_close(old, expected)
    q = moved(learner.q)
    found = method.regulariser(q, learner.memory, EXAMPLES)["penalty"]
    by_hand = 1.5 * (learner.memory.fisher * (q.mean - learner.q.mean).square()).sum()
    torch.testing.assert_close(found, by_hand)


def test_lambda_holds_the_network() -> None:
    drift = []
    for lam in (0.0, 1e5):
        learner, stream = after_first(ec.ProgressCompress(lam=lam, calibration="none"))
        before = learner.q.mean[: 4 * 8].clone()
        drift.append((learner.learn(stream[1]).q.mean[: 4 * 8] - before).norm())
    assert drift[1] < 0.5 * drift[0]


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    with pytest.raises(ConversionError, match=r"networks\.mlp") as caught:
        ec.Learner(nn.Linear(4, 2), "progress-compress")
    assert "\n" not in str(caught.value)
    task = ec.regression_task(torch.randn(20, 4), torch.randn(20), name="numbers")
    learner = ec.Learner(
        ec.networks.mlp(4, [3]), "progress-compress", criterion="regression", **SMALL
    )
    with pytest.raises(SettingsError, match="another criterion") as refused:
        learner.learn(task)
    assert "\n" not in str(refused.value)
