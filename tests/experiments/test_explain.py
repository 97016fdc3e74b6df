"""Every method says what it is: equation, memory, options and paper, from one source."""

from pathlib import Path

import pytest

from evclplus.experiments.explain import equation, explain, keeps, notes, paper
from evclplus.methods import METHODS
from tests.experiments.test_cli import evclplus

TEXT = """ABC: a method (Somebody and\nAnother, ICML 2020), with point weights.

    minimise  loss + lam
        + more

    after it  O <- F

A note. It keeps O, which is 0.5 at
first. Another note.

    x = 1"""


def test_the_parts_of_a_docstring() -> None:
    assert paper(TEXT) == "Somebody and Another, ICML 2020"
    assert equation(TEXT) == "minimise  loss + lam\n    + more\n\nafter it  O <- F\n\nx = 1"
    assert keeps(TEXT) == "It keeps O, which is 0.5 at first."
    assert notes(TEXT) == ["A note. Another note."]
    assert (paper("A (b)."), equation("A."), keeps("A.")) == ("", "", "")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_all_there_is_to_know(name: str) -> None:
    found = explain(name)
    file = f"src/evclplus/methods/{METHODS[name].kind.__module__.rpartition('.')[2]}.py"
    assert found.equation, f"{file}: its docstring needs an equation, indented by four"
    assert found.keeps, f"{file}: its docstring needs a sentence that begins with 'It keeps'"
    assert found.paper, f"{file}: its first paragraph needs the paper, (authors, where year)"
    for option in found.options:
        assert option.description, f"{file}: {option.name} needs Field(..., description=...)"


def test_options_are_those_of_the_variant() -> None:
    defaults = {option.name: option.default for option in explain("vcl-tempered").options}
    assert defaults["beta"] == METHODS["vcl-tempered"].build().model_dump()["beta"] == 0.1
    wrapped = explain("evcl+-random")
    assert {"k", "coreset_size"} <= {option.name for option in wrapped.options}
    assert "Batra and Clark" in wrapped.paper
    assert "Nguyen" in wrapped.paper


def test_a_term_that_is_on_by_default_is_in_the_equation() -> None:
    term = "+ (lambda_f / 2) mean over x of [ sum_h |z_h(x; theta) - z_h(x; mu_prev)|^2"
    for name in METHODS:
        defaults = {option.name: option.default for option in explain(name).options}
        shown = term in explain(name).equation
        assert shown == (defaults.get("lam_function", 0) > 0), name


def test_the_command_prints_it(tmp_path: Path) -> None:
    done = evclplus("explain", "evcl+", folder=tmp_path, COLUMNS="70")
    assert done.returncode == 0, done.stderr
    found = explain("evcl+")
    for line in found.equation.splitlines():  # not wrapped, whatever the width
        assert line in done.stdout
    assert found.paper in done.stdout
    assert all(option.name in done.stdout for option in found.options)
    wrong = evclplus("explain", "evclplus", folder=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("evclplus: there is no method 'evclplus'; did you mean evcl?")
