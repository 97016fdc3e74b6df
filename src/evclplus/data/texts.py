"""A dataset of texts: documents and the class of each."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evclplus.data.datasets import DataFile, find_dataset
from evclplus.data.local import Folder, contents_of
from evclplus.data.readers import read_texts
from evclplus.errors import SettingsError


@dataclass(frozen=True)
class Texts:
    """Texts and labels for training and for testing."""

    name: str
    train: tuple[list[str], Tensor]
    test: tuple[list[str], Tensor]
    class_names: Mapping[int, str]


def texts(name: str = "newsgroups", *, data_dir: Folder = None) -> Texts:
    """The texts of a dataset, for networks of your own."""
    wanted = find_dataset(name)
    if wanted.kind != "texts":
        raise SettingsError(f"the dataset {name} holds no texts; evclplus.dataset reads it")
    contents = contents_of(wanted, data_dir)

    def read(file: DataFile) -> tuple[list[str], Tensor]:
        found, labels = read_texts(contents[file], wanted.class_names, file.name)
        return found, torch.from_numpy(labels)

    (train,), (test,) = wanted.train, wanted.test
    return Texts(name, read(train), read(test), dict(enumerate(wanted.class_names)))
