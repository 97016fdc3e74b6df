"""Where records lie: record.json in the folder of a run, or many in one records.jsonl above.

A line of records.jsonl is what record.json was and, as `folder`, where it lay. A record.json is
always the newer one: nothing but `pack` writes records.jsonl.
"""

import json
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from evclplus.errors import FileError
from evclplus.experiments.record import RECORD, Record, read_json
from evclplus.files import read_file, write_atomically

PACKED = "records.jsonl"


def find_record(folder: Path) -> Record | None:
    """The record of the run in `folder`, which may be packed and the folder gone."""
    if _exists(folder / RECORD):
        return Record.read(folder / RECORD)
    place = folder.absolute()
    for above in (place, *place.parents):
        content = _packed(above / PACKED).get(place.relative_to(above).as_posix())
        if content is not None:
            return Record.of(content, above / PACKED)
    return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"cannot look at {str(path)[:100]}: {reason}; choose another") from None


def below(folder: Path, name: str) -> Iterator[Path]:
    """Every file of this name below a folder. A folder that cannot be entered is an error: what is
    in it would be missing without a word."""

    def refuse(error: OSError) -> None:
        if Path(error.filename) != folder:
            raise FileError(f"cannot look into {error.filename}: {error.strerror}")

    for place, _, files in os.walk(folder, onerror=refuse):
        if name in files:
            yield Path(place, name)


def find_records(folder: Path) -> list[Record]:
    """Every record below `folder`, in the order of their paths."""
    found = dict(packed_below(folder.absolute()))
    for path in below(folder, RECORD):
        found[path.parent.absolute()] = Record.read(path)
    if not found and not (_exists(folder) and folder.is_dir()):
        raise FileError(f"there is no folder {folder}; give the --out folder of run or compare")
    return [found[place] for place in sorted(found)]


def packed_below(folder: Path) -> Iterator[tuple[Path, Record]]:
    """What is packed and lay below a folder, wherever it is packed."""
    files = [above / PACKED for above in (folder, *folder.parents)]
    files += [path for path in below(folder, PACKED) if path not in files]
    for path in files:
        for name, content in _packed(path).items():
            place = path.parent / name
            if place.is_relative_to(folder):
                yield place, Record.of(content, path)


def _packed(path: Path) -> dict[str, dict[str, Any]]:
    """The contents of records in a file by their folders; nothing where there is no file."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return {}
    return _read(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=16)
def _read(path: Path, changed: int, size: int) -> dict[str, dict[str, Any]]:
    """Read a file once for each time it has changed."""
    found: dict[str, dict[str, Any]] = {}
    try:
        lines = read_file(path).decode().splitlines()
    except (FileError, ValueError):
        raise FileError(f"cannot read {path}; it is damaged or not a file of records") from None
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
            name = content.pop("folder")
        except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
            raise FileError(f"{path}, line {number}: this is no packed record") from None
        if not isinstance(name, str) or name in found:
            raise FileError(f"{path}, line {number}: {name!r} is no folder or there twice")
        found[name] = content
    return found


def pack(folder: Path, overwrite: bool = False) -> int:
    """Move every record.json below `folder` into its records.jsonl; returns how many."""
    if not (_exists(folder) and folder.is_dir()):
        raise FileError(f"there is no folder {folder}; give one with records below it")
    contents = dict(_packed(folder.absolute() / PACKED))
    paths = sorted(below(folder, RECORD))
    if not paths:
        raise FileError(f"no record.json below {folder}; there is nothing to pack")
    for path in paths:
        name = path.parent.relative_to(folder).as_posix()
        if name in contents and not overwrite:
            raise FileError(
                f"{path} is in {folder / PACKED} too; pass --overwrite to keep the one that is not "
                "packed, or remove it"
            )
        contents[name] = read_json(path)
        Record.of(contents[name], path)
    _write(folder / PACKED, contents)
    for path in paths:
        path.unlink()
        _remove_empty(path.parent, folder)
    return len(paths)


def _write(path: Path, contents: dict[str, dict[str, Any]]) -> None:
    """A line each, by benchmark, method and seed."""

    def order(name: str) -> tuple[str, str, int, str]:
        one = contents[name]
        return one["benchmark"], one["method"], one["seed"], name

    lines = [
        json.dumps({"folder": name, **contents[name]}, separators=(",", ":"))
        for name in sorted(contents, key=order)
    ]
    write_atomically(path, "\n".join(lines) + "\n")


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder and those above it, up to `top`, as far as nothing is left in them."""
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
