"""Bayesian continual learning in PyTorch: EVCL+ and every method it is compared with."""

from evclplus import networks
from evclplus.benchmarks import (
    Stream,
    Task,
    benchmark,
    contact_sheet,
    from_dataset,
    from_folder,
    from_huggingface,
    permuted_tasks,
    rotated_tasks,
    split_tasks,
    task,
    tasks,
)
from evclplus.config import Experiment, Training
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import MultiHead
from evclplus.core.metrics import Scores
from evclplus.errors import EvclplusError
from evclplus.learner import Evaluation, Learner, Uncertainty
from evclplus.methods import METHODS, method
from evclplus.methods.base import Method
from evclplus.methods.coreset import Coreset
from evclplus.methods.evcl import EVCL
from evclplus.methods.evcl_plus import EVCLPlus
from evclplus.methods.ewc import EWC
from evclplus.methods.finetune import FineTune
from evclplus.methods.joint import Joint
from evclplus.methods.vcl import VCL

__version__ = "0.1.0"

__all__ = [
    "EVCL",
    "EWC",
    "METHODS",
    "VCL",
    "Coreset",
    "EVCLPlus",
    "Evaluation",
    "EvclplusError",
    "Examples",
    "Experiment",
    "FineTune",
    "Joint",
    "Learner",
    "MeanField",
    "Method",
    "MultiHead",
    "Scores",
    "Stream",
    "Task",
    "Training",
    "Uncertainty",
    "benchmark",
    "contact_sheet",
    "from_dataset",
    "from_folder",
    "from_huggingface",
    "method",
    "networks",
    "permuted_tasks",
    "rotated_tasks",
    "split_tasks",
    "task",
    "tasks",
]
