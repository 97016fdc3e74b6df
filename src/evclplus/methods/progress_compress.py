"""P&C: progress and compress (Schwarz et al., ICML 2018), with point weights.

    progress    an active column learns the task:  minimise  -log p(y|x, active).
                It reads the frozen hidden units of the knowledge base through adapters, see
                `core/columns.py`
    compress    the knowledge base learns what the active column answers:
                minimise  mean over x of KL( p(y|x, active) || p(y|x, theta) )
                        + (lambda / 2) sum_i O_i (theta_i - theta_i_prev)^2
    after it    O <- gamma O + F,  F the Fisher of the knowledge base on the task

The knowledge base is the network that predicts: unlike a progressive network it never grows. It
keeps the last weights and O, as online EWC does. The active column is made anew for every task and
dropped after it; the paper may also carry it on. Each phase has as many epochs as a task. lambda is
calibrated as EWC's is, see `calibrated.py`; `calibration = "none"` is the paper's form.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from evclplus.core.batches import Batch, Source
from evclplus.core.columns import OnColumn, linear_layers
from evclplus.core.engine import Terms
from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.core.penalties import elastic_mean
from evclplus.methods.base import Lesson, Nothing, Start
from evclplus.methods.distillation import distillation
from evclplus.methods.elastic import Anchored, ByFisher
from evclplus.methods.finetune import FineTune
from evclplus.methods.function_space import answers_of
from evclplus.methods.needs import needs_classes


class ProgressCompress(ByFisher):
    """A fresh column learns each task, then the network learns what the column answers."""

    name: ClassVar[str] = "progress-compress"
    colour: ClassVar[str] = "#CC6677"
    marker: ClassVar[str] = ","

    def network_of(self, module: nn.Module) -> nn.Module:
        linear_layers(module, "the active column of progress-compress")
        return module

    def likelihood(
        self, weights: Weights, memory: Anchored, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        output = network(weights, batch.inputs, batch.head, training=True)[:, : batch.outputs]
        if batch.answers is None:  # where a coreset is fine-tuned on
            return {"nll": batch.nll(output)}
        # As one head, at the temperature at which labels are answered.
        return {"distillation": distillation(output[:, None], batch.answers[:, None], 1.0)}

    def regulariser(self, q: MeanField, memory: Anchored, examples: Tensor) -> Terms:
        return {"penalty": elastic_mean(q.mean, memory.prior.mean, memory.fisher, self.lam)}

    def begin(self, lesson: Lesson) -> Start:
        needs_classes(self.name, lesson)
        column = self.active_column(lesson)
        trained = lesson.fit(
            *(FineTune(), column, column.initial(1.0), Nothing(), (Source((lesson.task,)),)),
            purpose="progress",
        )
        task = replace(lesson.task, answers=answers_of(column, trained.q, lesson.task, 0))
        return Start(lesson.q, lesson.memory, task, (Source((task,)),))

    def active_column(self, lesson: Lesson) -> BayesianNetwork:
        """A new column on the knowledge base as it is."""
        network = lesson.network
        body: Sequence[nn.Module] = linear_layers(network.skeleton, self.name)
        features = [one.out_features for one in body if isinstance(one, nn.Linear)][-1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(lesson.generator("active column").initial_seed())
            module = OnColumn(body, features, lesson.task.outputs)
        named = network.layout.named(lesson.q.mean)
        kept = (value for name, value in named.items() if network.owner(name) is None)
        with torch.no_grad():
            for parameter, value in zip(module.base.parameters(), kept, strict=True):
                parameter.copy_(value)
        return BayesianNetwork(module.to(network.dtype), lambda name: True, network.device)
