"""Bayesian continual learning in PyTorch: EVCL+ and every method it is compared with."""

from importlib import import_module
from typing import TYPE_CHECKING

from evclplus import networks
from evclplus.answers import Evaluation, RegressionEvaluation, Uncertainty
from evclplus.conformal import Conformal
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import MultiHead
from evclplus.core.likelihoods import Regression
from evclplus.core.metrics import RegressionScores, Scores
from evclplus.errors import EvclplusError
from evclplus.learner import Learner
from evclplus.methods import METHODS, method
from evclplus.methods.agem import AGEM
from evclplus.methods.base import Method
from evclplus.methods.coreset import Coreset
from evclplus.methods.der import DarkExperienceReplay
from evclplus.methods.dgr import GenerativeReplay
from evclplus.methods.evcl import EVCL
from evclplus.methods.evcl_plus import EVCLPlus
from evclplus.methods.ewc import EWC
from evclplus.methods.finetune import FineTune
from evclplus.methods.fromp import FROMP
from evclplus.methods.generative import GenerativeClassifier
from evclplus.methods.gpm import GradientProjectionMemory
from evclplus.methods.gvcl import GVCL
from evclplus.methods.hat import HAT
from evclplus.methods.joint import Joint
from evclplus.methods.kfac import KroneckerLaplace
from evclplus.methods.lwf import LearningWithoutForgetting
from evclplus.methods.mas import MemoryAwareSynapses
from evclplus.methods.natural import NaturalVCL
from evclplus.methods.ncl import NaturalContinualLearning
from evclplus.methods.ogd import OrthogonalGradientDescent
from evclplus.methods.progress_compress import ProgressCompress
from evclplus.methods.progressive import Progressive
from evclplus.methods.replay import ExperienceReplay
from evclplus.methods.rwalk import RiemannianWalk
from evclplus.methods.sfsvi import FunctionSpaceVI
from evclplus.methods.synaptic import SynapticIntelligence
from evclplus.methods.td_vcl import TDVCL
from evclplus.methods.ucb import UCB
from evclplus.methods.ucl import UCL
from evclplus.methods.vcl import VCL
from evclplus.processor import use_wide_vectors
from evclplus.progress import Checkpoints
from evclplus.settings import Training
from evclplus.streams.permuted import permuted_tasks
from evclplus.streams.rotated import rotated_tasks
from evclplus.streams.sequence import regression_task, task, tasks
from evclplus.streams.split import split_tasks
from evclplus.streams.task import Stream, Task

if TYPE_CHECKING:
    from evclplus.benchmarks.registry import benchmark
    from evclplus.data.adapters import from_dataset, from_folder, from_huggingface
    from evclplus.estimators import ContinualClassifier, ContinualRegressor
    from evclplus.experiments.config import Experiment
    from evclplus.streams.contact_sheet import contact_sheet

__version__ = "0.6.0"

use_wide_vectors()  # before the first product, or it is too late

__all__ = [
    "AGEM",
    "EVCL",
    "EWC",
    "FROMP",
    "GVCL",
    "HAT",
    "METHODS",
    "TDVCL",
    "UCB",
    "UCL",
    "VCL",
    "Checkpoints",
    "Conformal",
    "ContinualClassifier",
    "ContinualRegressor",
    "Coreset",
    "DarkExperienceReplay",
    "EVCLPlus",
    "Evaluation",
    "EvclplusError",
    "Examples",
    "ExperienceReplay",
    "Experiment",
    "FineTune",
    "FunctionSpaceVI",
    "GenerativeClassifier",
    "GenerativeReplay",
    "GradientProjectionMemory",
    "Joint",
    "KroneckerLaplace",
    "Learner",
    "LearningWithoutForgetting",
    "MeanField",
    "MemoryAwareSynapses",
    "Method",
    "MultiHead",
    "NaturalContinualLearning",
    "NaturalVCL",
    "OrthogonalGradientDescent",
    "ProgressCompress",
    "Progressive",
    "Regression",
    "RegressionEvaluation",
    "RegressionScores",
    "RiemannianWalk",
    "Scores",
    "Stream",
    "SynapticIntelligence",
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
    "regression_task",
    "rotated_tasks",
    "split_tasks",
    "task",
    "tasks",
]

# Imported when first asked for: a learner in somebody's program needs no datasets, pictures or
# experiments.
_LAZY = {
    "ContinualClassifier": "evclplus.estimators",
    "ContinualRegressor": "evclplus.estimators",
    "Experiment": "evclplus.experiments.config",
    "benchmark": "evclplus.benchmarks.registry",
    "contact_sheet": "evclplus.streams.contact_sheet",
    "from_dataset": "evclplus.data.adapters",
    "from_folder": "evclplus.data.adapters",
    "from_huggingface": "evclplus.data.adapters",
}

if not TYPE_CHECKING:  # a type checker that saw this would let every misspelt name pass

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
