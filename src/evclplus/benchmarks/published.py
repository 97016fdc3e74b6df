"""The benchmarks of the papers: their settings and how their data becomes splits."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from evclplus.data.loading import Input, dataset
from evclplus.streams.arrays import labelled
from evclplus.streams.holdout import Splits, hold_out
from evclplus.streams.permuted import PermutedSettings, permuted_stream
from evclplus.streams.rotated import RotatedSettings, rotated_stream
from evclplus.streams.scaling import Scaling
from evclplus.streams.settings import StreamSettings
from evclplus.streams.shuffle import Purpose
from evclplus.streams.split import Groups, SplitSettings, split_stream
from evclplus.streams.task import Scenario, Stream

Folder = Path | str | None

LEAK = (
    "protocol=published tests on the very images it trains on, as the published code does;"
    " its accuracies say nothing about new images"
)


class NotMnistSettings(SplitSettings):
    """split-notmnist. The pairs are those of the VCL paper."""

    groups: Groups | None = Field(
        ((0, 5), (1, 6), (2, 7), (3, 8), (4, 9)), description="the classes of each task"
    )
    protocol: Literal["honest", "published"] = Field(
        "honest", description="published: test equals train, as in the published code; it leaks"
    )
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="share held out as test; there is no official one"
    )


class ClassSettings(SplitSettings):
    """split-mnist-class: one head that grows, and nobody says which task an example is of."""

    scenario: Scenario = Field("class", description="task, domain or class")


class CifarSettings(SplitSettings):
    """split-cifar10. Photographs have no black background: in [0, 1] their common brightness would
    be most of what a first layer sees."""

    scaling: Scaling | None = Field(
        "symmetric", description="unit, centred, symmetric, standard or raw"
    )
    input: Input = Field("gray28", description="gray28: luma, 28x28; rgb32: as stored")


def split_mnist(name: str, settings: SplitSettings, seed: int, data_dir: Folder) -> Stream:
    return split_stream(name, _with_official_test("mnist", settings, data_dir), settings, seed)


def permuted_mnist(name: str, settings: PermutedSettings, seed: int, data_dir: Folder) -> Stream:
    return permuted_stream(name, _with_official_test("mnist", settings, data_dir), settings, seed)


def rotated_mnist(name: str, settings: RotatedSettings, seed: int, data_dir: Folder) -> Stream:
    return rotated_stream(name, _with_official_test("mnist", settings, data_dir), settings, seed)


def split_fashion_mnist(name: str, settings: SplitSettings, seed: int, data_dir: Folder) -> Stream:
    data = _with_official_test("fashion-mnist", settings, data_dir)
    return split_stream(name, data, settings, seed)


def split_cifar10(name: str, settings: CifarSettings, seed: int, data_dir: Folder) -> Stream:
    data = _with_official_test("cifar10", settings, data_dir, settings.input)
    return split_stream(name, data, settings, seed)


def split_notmnist(name: str, settings: NotMnistSettings, seed: int, data_dir: Folder) -> Stream:
    arrays = dataset("notmnist", data_dir=data_dir)
    everything = labelled(arrays.train, arrays.name)
    if settings.protocol == "published":
        train, validation = hold_out(
            everything, settings.validation_fraction, Purpose.VALIDATION, settings.holdout_seed
        )
        data = Splits(train, validation, train, arrays.class_names)
        return split_stream(name, data, settings, seed, (LEAK,))
    rest, test = hold_out(everything, settings.test_fraction, Purpose.TEST, settings.holdout_seed)
    train, validation = hold_out(
        rest, settings.validation_fraction, Purpose.VALIDATION, settings.holdout_seed
    )
    return split_stream(name, Splits(train, validation, test, arrays.class_names), settings, seed)


def _with_official_test(
    name: str, settings: StreamSettings, data_dir: Folder, input: Input | None = None
) -> Splits:
    arrays = dataset(name, data_dir=data_dir, input=input)
    train, validation = hold_out(
        labelled(arrays.train, name),
        settings.validation_fraction,
        Purpose.VALIDATION,
        settings.holdout_seed,
    )
    assert arrays.test is not None, f"{name} has no official test split"
    return Splits(train, validation, labelled(arrays.test, name), arrays.class_names)
