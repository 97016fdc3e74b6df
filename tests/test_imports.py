"""Imports point one way: experiments -> learner -> train -> methods -> core."""

import ast
from pathlib import Path

import pytest

import evclplus

ROOT = Path(evclplus.__file__).parent

# Each part may import the parts below it in this list, and itself.
ROOMS = [
    "__main__",
    "experiments",
    "learner",
    "checkpoint",
    "train",
    "seeding",
    "callbacks",
    "methods",
    "checks",
    "networks",
    "benchmarks",
    "data",
    "streams",
    "core",
    "files",
    "settings",
    "errors",
]


def room_of(module: str) -> str:
    return module.split(".")[1]


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "evclplus":
            rooms |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evclplus."):
            rooms.add(room_of(node.module or ""))
        elif isinstance(node, ast.Import):
            rooms |= {room_of(a.name) for a in node.names if a.name.startswith("evclplus.")}
    return rooms


@pytest.mark.parametrize(
    "name",
    sorted(str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py"),
)
def test_a_part_imports_only_parts_below_it(name: str) -> None:
    room = Path(name).parts[0].removesuffix(".py")
    below = set(ROOMS[ROOMS.index(room) :])
    assert imported_rooms(ROOT / name) <= below


def test_methods_never_import_each_other() -> None:
    shared = {"base", "variational", "elastic"}
    for path in (ROOT / "methods").glob("*.py"):
        if path.stem in {*shared, "__init__"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "evclplus.methods."
            ):
                assert (node.module or "").split(".")[2] in shared, path
