"""A saved learner on disk: learner.json, which names and checksums one safetensors file.

Writing learner.json is the last step and atomic, so a folder holds the old learner or the new
one, never a mixture. Reading trusts nothing: both files may come from a stranger.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from evclplus.core.examples import Examples
from evclplus.core.gaussian import Layout, MeanField
from evclplus.errors import FileError
from evclplus.files import make_folder, write_atomically
from evclplus.methods.base import Memory
from evclplus.networks import Architecture

HEADER = "learner.json"


class SavedLayout(BaseModel):
    model_config = ConfigDict(extra="forbid")

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    gaussian_names: int

    @property
    def point_names(self) -> tuple[str, ...]:
        return self.names[self.gaussian_names :]


class SavedTask(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    head: int = Field(ge=0)
    outputs: int = Field(ge=1)


class SavedExamples(BaseModel):
    model_config = ConfigDict(extra="forbid")

    head: int = Field(ge=0)
    outputs: int = Field(ge=1)


class Header(BaseModel):
    """The content of learner.json."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    schema_version: Literal[1, 2] = Field(2, alias="schema")
    """2: variances are stored; in 1 their log-stds were."""
    method: str
    options: dict[str, Any]
    training: dict[str, Any]
    seed: int
    samples: int
    architecture: Architecture | None
    network: str
    layout: SavedLayout
    learned: list[SavedTask]
    tasks: int = Field(ge=0)
    stored: list[SavedExamples]
    state: str = Field(pattern=r"^state-[0-9a-f]{16}\.safetensors$")
    sha256: str

    def own_architecture(self) -> Architecture:
        if self.architecture is None:
            raise FileError(
                f"this learner has a network of its own kind, {self.network}; pass it again: "
                f"Learner.load(path, network={self.network}(...))"
            )
        return self.architecture

    def check_layout(self, found: Layout) -> None:
        """The network handed to load must have the saved parameters, name by name."""
        saved = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        given = dict(zip(found.names, found.shapes, strict=True))
        for name in saved.keys() | given.keys():
            if saved.get(name) != given.get(name):
                raise FileError(
                    f"the network does not match the saved learner: parameter {name} is "
                    f"{saved.get(name, 'absent')} in the file and {given.get(name, 'absent')} in "
                    f"the network; build {self.network} as it was when it was saved"
                )


def state_tensors(
    q: MeanField, start: Tensor, memory: Memory, buffers: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Everything that survives, by name."""
    tensors = {
        "q.mean": q.mean,
        "q.variance": q.variance,
        "start": start,
        "prior.mean": memory.prior.mean,
        "prior.variance": memory.prior.variance,
    }
    if memory.fisher is not None:
        tensors["fisher"] = memory.fisher
    for index, kept in enumerate(memory.stored):
        tensors[f"stored.{index}.x"] = kept.inputs()
        tensors[f"stored.{index}.y"] = kept.labels
    for name, buffer in buffers.items():
        tensors[f"buffer.{name}"] = buffer
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}


def state_of(
    header: Header, tensors: dict[str, Tensor], device: torch.device
) -> tuple[MeanField, Tensor, Memory, dict[str, Tensor]]:
    """The inverse of `state_tensors`; stored examples stay where they are, as all data does."""
    saved = header.layout
    layout = Layout(saved.names, saved.shapes, saved.gaussian_names)
    try:
        for name in ("q.mean", "start", "prior.mean"):
            if tensors[name].shape != (layout.total,):
                raise FileError(f"the saved {name} does not fit the saved layout")
        for name in ("q.variance", "prior.variance"):
            if tensors[name].shape != (layout.gaussian_total,) or not (tensors[name] > 0).all():
                raise FileError(f"the saved {name} does not fit the saved layout, or is not > 0")
        stored = tuple(
            Examples(tensors[f"stored.{i}.x"], tensors[f"stored.{i}.y"], kept.outputs, kept.head)
            for i, kept in enumerate(header.stored)
        )
        q, prior = (
            MeanField(
                tensors[f"{name}.mean"].to(device), tensors[f"{name}.variance"].to(device), layout
            )
            for name in ("q", "prior")
        )
        fisher = tensors["fisher"].to(device) if "fisher" in tensors else None
        memory = Memory(prior, fisher, stored, header.tasks)
    except KeyError as missing:
        raise FileError(f"the saved state has no {missing.args[0]}; it is damaged") from None
    prefix = "buffer."
    buffers = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    return q, tensors["start"], memory, buffers


def write(
    folder: Path, header: dict[str, Any], tensors: dict[str, Tensor], overwrite: bool
) -> Path:
    """Write a learner into `folder`."""
    if (folder / HEADER).exists() and not overwrite:
        raise FileError(f"{folder} holds a saved learner already; pass overwrite=True to replace")
    make_folder(folder)
    state = save_tensors(tensors)
    digest = hashlib.sha256(state).hexdigest()
    name = f"state-{digest[:16]}.safetensors"
    content = Header(**header, state=name, sha256=digest)
    write_atomically(folder / name, state)
    write_atomically(folder / HEADER, content.model_dump_json(by_alias=True, indent=1) + "\n")
    for other in folder.glob("state-*.safetensors"):
        if other.name != name:
            other.unlink()
    return folder


def read(folder: Path) -> tuple[Header, dict[str, Tensor]]:
    """Read a learner that anyone may have written; nothing in it is ever executed."""
    path = folder / HEADER
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise FileError(f"{folder} holds no saved learner: {HEADER} cannot be read") from None
    except (ValueError, RecursionError):
        raise FileError(f"{path} is not JSON; it is damaged or not a saved learner") from None
    if not isinstance(content, dict) or content.get("schema") not in (1, 2):
        raise FileError(f"{path} is not a learner saved by this version (schema 1 or 2)")
    try:
        header = Header.model_validate(content)
    except (ValidationError, ValueError) as error:
        problem = error.errors()[0] if isinstance(error, ValidationError) else None
        reason = f"{problem['loc'][0]}: {problem['msg']}" if problem else str(error)
        raise FileError(f"{path} is not a valid learner: {reason}") from None
    try:
        state = (folder / header.state).read_bytes()
        if hashlib.sha256(state).hexdigest() != header.sha256:
            raise FileError(f"{folder / header.state} is damaged: its checksum does not match")
        tensors = load_tensors(state)
    except OSError as error:
        raise FileError(f"cannot read {folder / header.state}: {error.strerror}") from None
    except SafetensorError as error:
        raise FileError(f"{folder / header.state} is not a safetensors file: {error}") from None
    if header.schema_version == 1:
        for owner in ("q", "prior"):
            if f"{owner}.log_std" in tensors:
                tensors[f"{owner}.variance"] = (2 * tensors.pop(f"{owner}.log_std")).exp()
    return header, tensors
