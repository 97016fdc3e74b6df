"""The benchmarks by name. A new one is a builder and one entry here."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evclplus.benchmarks import digits, pretrained, published
from evclplus.core.metrics import ACCURACY, ERROR, Metric
from evclplus.data.features import Pair, of_cifar10, of_newsgroups
from evclplus.errors import SettingsError
from evclplus.settings import nearest, whole
from evclplus.streams.permuted import PermutedSettings
from evclplus.streams.rotated import RotatedSettings
from evclplus.streams.settings import StreamSettings
from evclplus.streams.split import SplitSettings
from evclplus.streams.task import Stream


@dataclass(frozen=True)
class Benchmark:
    """A named stream: what it is, what can be set and the network it is usually run with.

    `dataset` is None when the data needs no fetching; `model` is the pretrained network whose
    features are the inputs, and `features` finds them; `examples` and `shape` are of the whole
    dataset, before anything is held out.
    """

    name: str
    description: str
    settings: type[StreamSettings]
    build: Callable[[str, Any, int, Path | str | None], Stream]
    hidden: tuple[int, ...]
    dataset: str | None
    examples: tuple[int, int]
    shape: tuple[int, ...]
    classes_per_task: int
    tasks: int = 5
    model: str | None = None
    features: Callable[[Path | str | None], Pair] | None = None
    metric: Metric = ACCURACY

    @property
    def answers(self) -> str:
        """What the outputs of a task stand for."""
        return "classes" if self.metric is ACCURACY else "number to predict"

    @property
    def dimensions(self) -> str:
        """Tasks, classes, scenario, input and sizes in one line, as they are by default."""
        train, test = self.examples
        needed = " and ".join(name for name in (self.dataset, self.model) if name)
        return (
            f"{self.tasks} tasks of {self.classes_per_task} {self.answers}, "
            f"{self.settings().scenario}-incremental; {'x'.join(map(str, self.shape))}; "
            f"{train:,} examples, {f'{test:,} for testing' if test else 'a fifth held out'}; "
            f"data: {needed or 'embedded'}"
        )


def benchmark(
    name: str, *, seed: int = 0, data_dir: Path | str | None = None, **settings: Any
) -> Stream:
    """The stream `name`, built with `settings`; what is left out has the published value.

    The data is looked for in `data_dir`, in EVCLPLUS_DATA and in the cache.
    """
    found = find_benchmark(name)
    return found.build(name, found.settings(**settings), whole("seed", seed, 0), data_dir)


def find_benchmark(name: str) -> Benchmark:
    """The benchmark called `name`."""
    found = BENCHMARKS.get(name) if isinstance(name, str) else None
    if found is None:
        raise SettingsError(f"there is no benchmark {name!r:.60}; {nearest(name, BENCHMARKS)}")
    return found


_ALL = (
    Benchmark(
        "permuted-mnist",
        "MNIST digits, a pixel permutation per task",
        PermutedSettings,
        published.permuted_mnist,
        hidden=(100, 100),
        dataset="mnist",
        examples=(60_000, 10_000),
        shape=(1, 28, 28),
        classes_per_task=10,
    ),
    Benchmark(
        "split-mnist",
        "MNIST digits in pairs 0/1 to 8/9",
        SplitSettings,
        published.split_mnist,
        hidden=(256, 256),
        dataset="mnist",
        examples=(60_000, 10_000),
        shape=(1, 28, 28),
        classes_per_task=2,
    ),
    Benchmark(
        "split-mnist-class",
        "MNIST digits in pairs 0/1 to 8/9, all of them told apart",
        published.ClassSettings,
        published.split_mnist,
        hidden=(256, 256),
        dataset="mnist",
        examples=(60_000, 10_000),
        shape=(1, 28, 28),
        classes_per_task=2,
    ),
    Benchmark(
        "split-notmnist",
        "notMNIST letters in pairs A/F B/G C/H D/I E/J",
        published.NotMnistSettings,
        published.split_notmnist,
        hidden=(150, 150, 150, 150),
        dataset="notmnist",
        examples=(18_724, 0),
        shape=(1, 28, 28),
        classes_per_task=2,
    ),
    Benchmark(
        "split-fashion-mnist",
        "Fashion-MNIST clothes in consecutive pairs of classes",
        SplitSettings,
        published.split_fashion_mnist,
        hidden=(150, 150, 150, 150),
        dataset="fashion-mnist",
        examples=(60_000, 10_000),
        shape=(1, 28, 28),
        classes_per_task=2,
    ),
    Benchmark(
        "split-cifar10",
        "CIFAR-10 photographs in consecutive pairs of classes, grey 28x28 or colour 32x32",
        published.CifarSettings,
        published.split_cifar10,
        hidden=(150, 150, 150, 150),
        dataset="cifar10",
        examples=(50_000, 10_000),
        shape=(1, 28, 28),
        classes_per_task=2,
    ),
    Benchmark(
        "rotated-mnist",
        "MNIST digits, turned by an angle per task",
        RotatedSettings,
        published.rotated_mnist,
        hidden=(100, 100),
        dataset="mnist",
        examples=(60_000, 10_000),
        shape=(1, 28, 28),
        classes_per_task=10,
    ),
    Benchmark(
        "split-digits",
        "scikit-learn's 8x8 digits in pairs 0/1 to 8/9, offline",
        SplitSettings,
        digits.split_digits,
        hidden=(100, 100),
        dataset=None,
        examples=(1_797, 0),
        shape=(1, 8, 8),
        classes_per_task=2,
    ),
    Benchmark(
        "permuted-digits",
        "scikit-learn's 8x8 digits, a pixel permutation per task, offline",
        PermutedSettings,
        digits.permuted_digits,
        hidden=(100, 100),
        dataset=None,
        examples=(1_797, 0),
        shape=(1, 8, 8),
        classes_per_task=10,
    ),
    Benchmark(
        "rotated-digits-angle",
        "scikit-learn's 8x8 digits in pairs: by how much each is turned, offline",
        digits.AngleSettings,
        digits.rotated_digits_angle,
        hidden=(100, 100),
        dataset=None,
        examples=(7_188, 0),
        shape=(1, 8, 8),
        classes_per_task=1,
        metric=ERROR,
    ),
    Benchmark(
        "split-newsgroups",
        "20 Newsgroups in pairs, as vectors of the sentence transformer MiniLM",
        pretrained.NewsgroupsSettings,
        pretrained.split_newsgroups,
        hidden=(100, 100),
        dataset="newsgroups",
        examples=(11_293, 7_528),
        shape=(384,),
        classes_per_task=2,
        tasks=10,
        model="minilm",
        features=of_newsgroups,
    ),
    Benchmark(
        "split-cifar10-features",
        "CIFAR-10 in colour in consecutive pairs of classes, as features of EfficientNet-lite0",
        SplitSettings,
        pretrained.split_cifar10_features,
        hidden=(100, 100),
        dataset="cifar10",
        examples=(50_000, 10_000),
        shape=(1280,),
        classes_per_task=2,
        model="efficientnet",
        features=of_cifar10,
    ),
    Benchmark(
        "split-letter",
        "sixteen measurements of letters, in pairs A/B to Y/Z",
        pretrained.LetterSettings,
        pretrained.split_letter,
        hidden=(100, 100),
        dataset="letter",
        examples=(20_000, 0),
        shape=(16,),
        classes_per_task=2,
        tasks=13,
    ),
)

BENCHMARKS = {entry.name: entry for entry in _ALL}
