"""Pages that are made of the code: one for each method, and the reference."""

import inspect
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import evclplus
from evclplus.experiments.explain import Explanation, explain
from evclplus.methods import METHODS
from evclplus.methods.base import Method

HEADER = """---
file_format: mystnb
kernelspec:
  name: python3
---
"""
SPECIAL = re.compile(r"([\\*_\[\]<>#|{}$~^])")
SELDOM = {"__init__", "model_post_init"}


def write(folder: Path) -> None:
    """All of them, anew."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "methods").mkdir(parents=True)
    for name in METHODS:
        (folder / "methods" / f"{file_name(name)}.md").write_text(method_page(explain(name)))
    (folder / "methods.md").write_text(methods_index())
    (folder / "reference.md").write_text(reference())


def file_name(method: str) -> str:
    return method.replace("+", "-plus")


def plain(text: str) -> str:
    """Text that Markdown leaves as it is, but for what stands in backticks."""
    parts = text.split("`")
    return "`".join(
        SPECIAL.sub(r"\\\1", part) if i % 2 == 0 else part for i, part in enumerate(parts)
    )


def fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"


# Methods.


def methods_index() -> str:
    rows = [
        f"| [{name}](methods/{file_name(name)}.md) | {plain(entry.description)} | {entry.role} |"
        for name, entry in METHODS.items()
    ]
    pages = "\n".join(f"methods/{file_name(name)}" for name in METHODS)
    return "\n".join(
        [
            "# Methods",
            "",
            "Every page says what is minimised, what is kept from task to task, every option with "
            "its default, and the paper. `evclplus explain METHOD` prints the same.",
            "",
            "| method | what it is | role |",
            "|---|---|---|",
            *rows,
            "",
            f"```{{toctree}}\n:hidden:\n\n{pages}\n```",
            "",
        ]
    )


def method_page(found: Explanation) -> str:
    kind = METHODS[found.name].kind.__name__
    rows = [f"| `{one.name}` | `{one.shown}` | {plain(one.description)} |" for one in found.options]
    table = ["| option | default | what it does |", "|---|---|---|", *rows]
    options = table if rows else ["It has no options."]
    return "\n\n".join(
        [
            f"# {found.name}",
            plain(found.description),
            f"## Equation\n\n{plain(found.title)}\n\n{fenced(found.equation)}",
            f"## What it keeps\n\n{plain(found.keeps)}",
            f"## Paper\n\n{plain(found.paper)}.",
            "## Use it",
            fenced(f'learner = ec.Learner(network, "{found.name}")  # {kind}', "python"),
            fenced(f"evclplus run --method {found.name} --benchmark split-digits", "sh"),
            "## Options\n\n" + "\n".join(options),
            *(["## Notes", *map(plain, found.notes)] if found.notes else []),
            "",
        ]
    )


# The reference.


def reference() -> str:
    """Every public name but the methods, with its docstring and its example."""
    from reference_examples import EXAMPLES, SETUP

    parts = [
        "# Reference",
        "Everything that `import evclplus as ec` offers. Examples are run when this page is built. "
        "The methods themselves have [pages of their own](methods.md).",
        fenced(SETUP, "{code-cell} ipython3\n:tags: [hide-input]\n"),
    ]
    names = [name for name in evclplus.__all__ if not _is_method(getattr(evclplus, name))]
    missing = set(names) - set(EXAMPLES) - {"Method"}
    assert not missing, f"docs/reference_examples.py has no example for {sorted(missing)}"
    for name in sorted(names, key=str.lower):
        parts += _entry(name, getattr(evclplus, name))
        parts.append(fenced(EXAMPLES[name].strip(), "{code-cell} ipython3"))
    from evclplus.trackers import TensorBoard, WandB

    for one in (TensorBoard, WandB):
        parts += _entry(f"trackers.{one.__name__}", one)
    return HEADER + "\n\n".join(parts) + "\n"


def _is_method(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Method)


def _entry(name: str, value: Any) -> list[str]:
    parts = [f"## {name}"]
    if callable(value):
        parts.append(fenced(_signature(name, value), "python"))
    if not isinstance(value, dict):
        parts.append(_prose(inspect.getdoc(value) or ""))
    if inspect.isclass(value) and not issubclass(value, Exception):
        for inner, function in _own(value):
            parts.append(f"### {name}.{inner}")
            if callable(function):
                parts.append(fenced(_signature(inner, function), "python"))
            parts.append(_prose(inspect.getdoc(function) or ""))
    return parts


def _own(kind: type) -> list[tuple[str, Any]]:
    """Public functions and properties of a class that have something to say."""
    found: list[tuple[str, Any]] = []
    for name, value in vars(kind).items():
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        told = isinstance(inner, property) or inspect.isfunction(inner)
        if told and not name.startswith("_") and inspect.getdoc(inner):
            found.append((name, inner))
    return found


def _signature(name: str, function: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return name
    # How a default is made need not be seen.
    shown = re.sub(r"<(?:factory|function [^>]*|class '([^']*)')>", r"\1...", str(signature))
    shown = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", shown)
    return f"{name}{shown}" if len(shown) < 90 else f"{name}{_broken(shown)}"


def _broken(signature: str) -> str:
    """A line for each argument."""
    lines: list[str] = []
    depth, line = 0, ""
    for letter in signature:
        depth += letter in "([{"
        depth -= letter in ")]}"
        line += letter
        if (letter == "," and depth == 1) or (letter == "(" and depth == 1 and not lines):
            lines.append(line.strip())
            line = ""
    head, _, tail = line.rpartition(")") if "->" not in line else line.partition(")")
    return lines[0] + "".join(f"\n    {one}" for one in [*lines[1:], head.strip()]) + f"\n){tail}"


def _prose(docstring: str) -> str:
    """Paragraphs; what is set out in columns or indented stays as it is."""
    parts = docstring.split("\n\n")
    return "\n\n".join(fenced(part) if _is_set_out(part) else plain(part) for part in parts if part)


def _is_set_out(paragraph: str) -> bool:
    return bool(re.search(r"^ {2,}\S|^\w[\w., ]*? {2,}\S", paragraph, flags=re.MULTILINE))
