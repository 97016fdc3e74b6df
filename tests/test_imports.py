"""Imports point one way, experiments -> learner -> train -> methods -> core, and load little."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import evclplus

ROOT = Path(evclplus.__file__).parent

# Each part may import the parts below it in this list, and itself.
PARTS = [
    "__main__",
    "experiments",
    "trackers",
    "testing",
    "estimators",
    "learner",
    "saving",
    "checkpoint",
    "front_door",
    "export",
    "conformal",
    "answers",
    "recognition",
    "learned",
    "train",
    "progress",
    "ranks",
    "signals",
    "seeding",
    "callbacks",
    "methods",
    "checks",
    "networks",
    "benchmarks",
    "data",
    "streams",
    "core",
    "locks",
    "processes",
    "files",
    "processor",
    "settings",
    "errors",
]

# What `import evclplus` may load besides itself and the standard library.
ALLOWED = {"numpy", "pydantic", "safetensors", "torch"}

# What a learner alone never needs.
NOT_THE_LIBRARY = {
    "evclplus.benchmarks",
    "evclplus.data",
    "evclplus.estimators",
    "evclplus.experiments",
}


def part_of(module: str) -> str:
    return module.split(".")[1]


def imported_parts(path: Path) -> set[str]:
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "evclplus":
            parts |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evclplus."):
            parts.add(part_of(node.module or ""))
        elif isinstance(node, ast.Import):
            parts |= {part_of(a.name) for a in node.names if a.name.startswith("evclplus.")}
    return parts


@pytest.mark.parametrize(
    "name",
    sorted(str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py"),
)
def test_a_part_imports_only_parts_below_it(name: str) -> None:
    part = Path(name).parts[0].removesuffix(".py")
    below = set(PARTS[PARTS.index(part) :])
    assert imported_parts(ROOT / name) <= below


def test_methods_never_import_each_other() -> None:
    shared = {
        "base",
        "space",
        "calibrated",
        "importance",
        "function_space",
        "distillation",
        "reservoir",
        "laplace",
        "needs",
        "finetune",
        "variational",
        "elastic",
    }
    for path in (ROOT / "methods").glob("*.py"):
        if path.stem in {*shared, "__init__"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "evclplus.methods."
            ):
                assert (node.module or "").split(".")[2] in shared, path


def modules_after(statement: str) -> set[str]:
    """Every module a fresh interpreter has loaded after the statement."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return set(json.loads(done.stdout))


def packages(modules: set[str]) -> set[str]:
    """The packages that are not Python's own, whose private modules differ between machines."""
    names = {module.partition(".")[0] for module in modules if not module.startswith("_")}
    return names - sys.stdlib_module_names


def test_the_library_loads_nothing_else_of_weight() -> None:
    # Their own packages may load more; safetensors.torch is what a checkpoint is written with.
    allowed = packages(modules_after(f"import {', '.join(sorted(ALLOWED))}, safetensors.torch"))
    loaded = modules_after("import evclplus; evclplus.Learner; evclplus.networks")
    # pydantic loads annotated_types, one small file, when a field has bounds.
    assert packages(loaded) - allowed <= {"evclplus", "annotated_types"}
    assert not loaded & NOT_THE_LIBRARY


def test_what_is_not_the_library_is_loaded_when_asked_for() -> None:
    loaded = modules_after("import evclplus; assert evclplus.benchmark('split-digits').heads")
    assert {"evclplus.benchmarks.registry", "sklearn.datasets"} <= loaded
    for name in evclplus.__all__:
        assert getattr(evclplus, name) is not None
    assert set(evclplus.__all__) <= set(dir(evclplus))
    with pytest.raises(AttributeError, match="has no attribute 'benchmrk'"):
        _ = evclplus.benchmrk  # type: ignore[attr-defined]
