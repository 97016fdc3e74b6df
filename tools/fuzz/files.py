"""Files that somebody damaged or made up, and who reads them."""

import hashlib
import io
import json
import random
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

import evclplus as ec
from evclplus.data.adapters import from_folder
from evclplus.data.archives import read_members
from evclplus.data.readers import read_cifar, read_idx, read_png, write_idx
from evclplus.experiments.config import load_grid
from evclplus.experiments.presets import load_preset
from evclplus.experiments.presets.best import Best, write_preset
from evclplus.experiments.record import Record
from evclplus.experiments.report.comparison import comparisons_of
from evclplus.experiments.report.tables import results_table
from evclplus.experiments.run import run
from evclplus.experiments.tune import Search
from tools.fuzz import mutate
from tools.fuzz.outcome import WrongError

UNPACKED = 2**20
MANY = 50


@dataclass(frozen=True)
class Kind:
    """A kind of file: one that is right, how it is damaged, who reads it, its part of all cases."""

    name: str
    share: float
    content: bytes
    damage: Callable[[bytes, random.Random], bytes]
    read: Callable[[bytes], object]


def kinds(folder: Path) -> Iterator[Kind]:
    raw = mutate.bytes_of
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    yield Kind("IDX", 0.24, write_idx(pixels), raw, lambda content: read_idx(content, "x"))
    records = np.random.default_rng(0).integers(0, 10, (4, 3073), dtype=np.uint8).tobytes()
    yield Kind("CIFAR", 0.2, records, raw, lambda content: read_cifar(content, "x"))
    yield Kind("PNG", 0.15, _png(pixels[0]), raw, lambda content: read_png(content, "x"))
    yield Kind("picture folder", 0.03, _png(pixels[0]), raw, _pictures(folder))
    yield Kind("tar", 0.1, _tar(packed=False), raw, _members(packed=False))
    yield Kind("tar.gz", 0.05, _tar(packed=True), raw, _members(packed=True))
    record = _record()
    yield Kind("record", 0.1, record, _json_or_bytes, _record_reader(folder))
    plan = (resources.files("evclplus.experiments") / "demo.toml").read_bytes()
    yield Kind("plan", 0.04, plan, raw, _file(folder / "plan.toml", lambda p: load_grid(p, {}, [])))
    preset = (resources.files("evclplus.experiments.presets") / "paper.toml").read_bytes()
    path = folder / "preset.toml"
    yield Kind("preset", 0.02, preset, raw, _file(path, lambda p: load_preset(str(p))))
    yield Kind("best settings", 0.02, _best(), _json_or_bytes, _preset_writer(folder))
    yield from _learners(folder)
    yield _journal(folder)


def _json_or_bytes(content: bytes, random: random.Random) -> bytes:
    if random.random() < 0.3:
        return mutate.bytes_of(content, random)
    return json.dumps(mutate.tree_of(json.loads(content), random)).encode()


def _file(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def call(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    return call


# Data.


def _png(pixels: Any) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


def _pictures(folder: Path) -> Callable[[bytes], object]:
    path = folder / "pictures" / "cat" / "one.png"
    path.parent.mkdir(parents=True)
    return _file(path, lambda _: from_folder(folder / "pictures"))


def _tar(packed: bool) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz" if packed else "w") as archive:
        for name in ("a/one", "a/two.gz"):
            member = tarfile.TarInfo(name)
            member.size = 300
            archive.addfile(member, io.BytesIO(bytes(range(100)) * 3))
    return stream.getvalue()


def _members(packed: bool) -> Callable[[bytes], object]:
    def read(content: bytes) -> object:
        found = list(read_members(io.BytesIO(content), "x", UNPACKED, packed))
        if any(path.is_absolute() or ".." in path.parts for path, _ in found):
            raise WrongError("a member that could escape")
        return found

    return read


# Experiments.


def _record() -> bytes:
    experiment = ec.Experiment(
        method="finetune",
        benchmark="split-digits",
        stream={"tasks": 2, "examples_per_task": 20},
        training=ec.Training(epochs=1),
    )
    return run(experiment).model_dump_json(by_alias=True).encode()


def _record_reader(folder: Path) -> Callable[[bytes], object]:
    def read(path: Path) -> None:
        record = Record.read(path)
        (comparison,) = comparisons_of([record])
        results_table(comparison)
        if not 0 <= record.average <= 1:
            raise WrongError("an accuracy that is none")

    return _file(folder / "record.json", read)


def _best() -> bytes:
    best = Best(
        benchmark="split-digits",
        method="ewc",
        validation_accuracy=0.9,
        settings={"training": {"epochs": 5}, "options": {"lam": 1.5}},
        trials=3,
        pruned=1,
        seeds=(100, 101),
        command="evclplus tune",
        environment={"torch": "2"},
    )
    return best.model_dump_json().encode()


def _preset_writer(folder: Path) -> Callable[[bytes], object]:
    path = folder / "found" / "split-digits" / "ewc.json"
    path.parent.mkdir(parents=True)
    return _file(path, lambda _: write_preset(folder / "made.toml", folder / "found"))


def _journal(folder: Path) -> Kind:
    search = Search("split-digits", "ewc", folder / "search", epochs_limit=1)
    search.prepare()
    content = search.journal.read_bytes()

    def damage(content: bytes, random: random.Random) -> bytes:
        lines = content.splitlines()
        at = random.randrange(len(lines))
        lines[at] = _json_or_bytes(lines[at], random).replace(b"\n", b" ")
        return b"\n".join(lines) + b"\n"

    return Kind("journal", 0.01, content, damage, _file(search.journal, lambda _: search.prepare()))


# Learners. The content is the header; the state is damaged beside it, with a checksum that fits.


def _learners(folder: Path) -> Iterator[Kind]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 4, generator=generator)
    y = torch.arange(40) % 2
    few: ec.Method = ec.Coreset(method=ec.VCL(), coreset_size=4, coreset_epochs=1)
    for name, method in (("evcl+", ec.EVCLPlus()), ("coreset", few), ("er", ec.ExperienceReplay())):
        learner = ec.Learner(ec.networks.mlp(4, [3]), method, epochs=1, samples=2)
        learner.learn(ec.task(x, y, name="one", outputs=2))
        place = learner.save(folder / f"learner-{name}")
        yield _learner(place, name, x)


def _learner(place: Path, name: str, x: torch.Tensor) -> Kind:
    header, state = place / "learner.json", next(place.glob("*.safetensors"))
    tensors = safetensors.torch.load(state.read_bytes())
    whole = state.read_bytes()

    def damage(content: bytes, random: random.Random) -> bytes:
        where = random.random()
        if where < 0.5:
            state.write_bytes(whole)
            return _json_or_bytes(content, random)
        if where < 0.6:
            state.write_bytes(mutate.bytes_of(whole, random))
        else:
            chosen = random.choice(sorted(tensors))
            changed = tensors | {chosen: mutate.tensor_of(tensors[chosen], random)}
            if random.random() < 0.1:
                del changed[chosen]
            state.write_bytes(safetensors.torch.save(changed))
        digest = hashlib.sha256(state.read_bytes()).hexdigest()
        return json.dumps(json.loads(content) | {"sha256": digest}).encode()

    def read(path: Path) -> None:
        learner = ec.Learner.load(place)
        epochs = getattr(learner.method, "coreset_epochs", None) or learner.training.epochs or 1
        if learner.learned and epochs < MANY:  # a large number is no mistake, it takes its time
            probabilities = learner.predict_proba(x[:2], task=0, samples=2)
            if not probabilities.isfinite().all():
                raise WrongError("probabilities that are not finite")

    return Kind(f"learner, {name}", 0.015, header.read_bytes(), damage, _file(header, read))
