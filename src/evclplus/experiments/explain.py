"""What a method is, in its own words: read from the docstring of its file and from its settings.

A method's file begins with a line that names it and, in parentheses, the paper and its year; the
equation is indented; a sentence that begins with "It keeps" says what is kept. What else stands
there are notes. The command `explain` prints this, and the site has a page of it for each method.
"""

import inspect
import re
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

from evclplus.methods import Entry, entry, options_of
from evclplus.methods.base import Method
from evclplus.methods.coreset import Coreset
from evclplus.methods.function_space import FunctionSpace

PAPER = re.compile(r"\(([^()]*\b(?:19|20)\d\d\b[^()]*)\)")
KEEPS = re.compile(r"\bIt\s+keeps\b.*?(?:\.(?=\s|$)|$)", re.DOTALL)


@dataclass(frozen=True)
class Option:
    """A setting of a method, as the method comes."""

    name: str
    default: Any
    description: str

    @property
    def shown(self) -> str:
        """The default as a TOML file has it; `none` where a setting is left out."""
        return "none" if self.default is None else str(self.default).lower().replace("'", '"')


@dataclass(frozen=True)
class Explanation:
    """One method: its title, equation, memory, paper, options, and what else there is to know."""

    name: str
    description: str
    title: str
    equation: str
    keeps: str
    paper: str
    options: tuple[Option, ...]
    notes: tuple[str, ...]


def explain(name: str) -> Explanation:
    """A registered method by its name."""
    found = entry(name)
    method = found.build()
    texts = [_docstring(kind) for kind in _parts(method)]
    return Explanation(
        name=name,
        description=found.description,
        title=" ".join(_paragraphs(texts[0])[0].split()),
        equation="\n\n".join(filter(None, map(equation, texts))),
        keeps=" ".join(filter(None, map(keeps, texts))),
        paper="; ".join(dict.fromkeys(filter(None, map(paper, texts)))),
        options=_options(found, method),
        notes=tuple(note for text in texts for note in notes(text)),
    )


def _kinds(method: Method) -> list[type[Method]]:
    """A method and what wraps it, inside out."""
    if isinstance(method, Coreset):
        return [*_kinds(method.method), Coreset]
    return [type(method)]


def _parts(method: Method) -> list[type[Method]]:
    """Those whose files say what the method minimises by default: its own, and the term in
    function space where that is on."""
    kinds = _kinds(method)
    inner = method
    while isinstance(inner, Coreset):
        inner = inner.method
    held = isinstance(inner, FunctionSpace) and inner.lam_function > 0
    return [kinds[0], FunctionSpace, *kinds[1:]] if held else list(kinds)


def _docstring(kind: type[Method]) -> str:
    return inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "")


def _paragraphs(text: str) -> list[str]:
    return text.split("\n\n")


def equation(text: str) -> str:
    """What is indented, as it stands."""
    found = (part for part in _paragraphs(text) if part.startswith("    "))
    return textwrap.dedent("\n\n".join(found))


def keeps(text: str) -> str:
    """The sentence that says what is kept from task to task."""
    found = KEEPS.search(text)
    return " ".join(found[0].split()) if found else ""


def paper(text: str) -> str:
    """What stands in parentheses with a year, in the first paragraph."""
    found = PAPER.search(_paragraphs(text)[0])
    return " ".join(found[1].split()) if found else ""


def notes(text: str) -> list[str]:
    """The paragraphs after the first that are not indented, without what is said to be kept."""
    parts = (KEEPS.sub("", part) for part in _paragraphs(text)[1:] if not part.startswith("    "))
    return [" ".join(part.split()) for part in parts if part.strip()]


def _options(found: Entry, method: Method) -> tuple[Option, ...]:
    values = options_of(method)
    fields = {name: field for kind in _kinds(method) for name, field in kind.model_fields.items()}
    return tuple(
        Option(name, values[name], fields[name].description or "") for name in found.options
    )
