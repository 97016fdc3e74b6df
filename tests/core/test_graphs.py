"""Compiled functions that other processes find on disk."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import evclplus as ec
from evclplus.core import graphs as graphs_module
from evclplus.core.graphs import Argument, Graph, Graphs, NamelessError
from evclplus.core.inductor import Program
from evclplus.core.likelihoods import Classification, OwnCriterion
from evclplus.core.penalties import elastic_mean

KEY = ("penalty", ec.EWC, Classification(), (1, 2.5, None, torch.float32))


def penalty(mean: Tensor, unused: Tensor, fisher: Tensor) -> tuple[Tensor]:
    return (elastic_mean(mean, torch.ones_like(mean), fisher, 3.0),)


def arguments(count: int = 5) -> list[Argument]:
    mean, fisher = torch.linspace(-1, 1, count), torch.linspace(0, 1, count)
    return [
        Argument(mean, any_size=True),
        Argument(torch.zeros(2)),
        Argument(fisher, any_size=True),
    ]


def assert_right(graph: Graph, count: int = 5) -> None:
    values = [one.tensor for one in arguments(count)]
    torch.testing.assert_close(graph(values), penalty(*values))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds one compiled graph."""
    found = tmp_path_factory.mktemp("graphs")
    assert_right(Graphs(found).find(KEY, penalty, arguments()))
    return found


def cannot_trace(*values: Tensor) -> tuple[Tensor]:
    raise AssertionError("it should have been loaded")


def test_the_next_learner_of_graphs_loads_and_serves_any_size(folder: Path) -> None:
    graph = Graphs(folder).find(KEY, cannot_trace, arguments(7))
    assert graph.used == (True, False, True)
    for count in (7, 2, 300):
        assert_right(graph, count)


def test_another_process_has_the_same_name_for_it(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import torch; torch.set_num_threads(1)\n"
        "from tests.core.test_graphs import KEY, arguments, assert_right, cannot_trace\n"
        "from evclplus.core.graphs import Graphs\n"
        "assert_right(Graphs(Path(sys.argv[1])).find(KEY, cannot_trace, arguments()))\n"
        "assert 'torch._inductor.compile_fx' not in sys.modules\n"
    )
    words = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", ["key", "form", "number of arguments", "threads"])
def test_what_was_made_from_something_else_is_not_loaded(folder: Path, what: str) -> None:
    key, given, threads = KEY, arguments(), torch.get_num_threads()
    if what == "key":
        key = (*KEY[:-1], (1, 2.0, None, torch.float32))
    if what == "form":
        given[0] = Argument(given[0].tensor.double(), any_size=True)
    if what == "number of arguments":
        given.append(given[1])
    try:
        torch.set_num_threads(threads + 1 if what == "threads" else threads)
        with pytest.raises(AssertionError, match="should have been loaded"):
            Graphs(folder).find(key, cannot_trace, given)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("damage", ["library", "description", "no library", "other description"])
def test_what_is_damaged_is_not_loaded(folder: Path, tmp_path: Path, damage: str) -> None:
    (description,) = folder.rglob("*.json")
    copy = tmp_path / description.parent.name / description.name
    copy.parent.mkdir()
    library = description.with_suffix(".so").read_bytes()
    if damage == "library":
        library = library[:1000] + bytes([library[1000] ^ 1]) + library[1001:]
    if damage != "no library":
        copy.with_suffix(".so").write_bytes(library)
    text = {"description": "{", "other description": json.dumps({"used": 3})}
    copy.write_text(text.get(damage, description.read_text()))
    with pytest.raises(AssertionError, match="should have been loaded"):
        Graphs(tmp_path).find(KEY, cannot_trace, arguments())


@pytest.mark.parametrize("who", ["group", "others"])
@pytest.mark.parametrize("depth", [0, 1])
def test_code_that_others_may_have_written_is_not_loaded(
    folder: Path, tmp_path: Path, who: str, depth: int
) -> None:
    copy = shutil.copytree(folder, tmp_path / "graphs")
    assert_right(Graphs(copy).find(KEY, cannot_trace, arguments()))
    (inner,) = copy.iterdir()
    (copy, inner)[depth].chmod(0o720 if who == "group" else 0o702)
    with pytest.raises(AssertionError, match="should have been loaded"):
        Graphs(copy).find(KEY, cannot_trace, arguments())


def test_where_nothing_can_be_written_it_is_compiled_for_this_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_right(Graphs(tmp_path / "file" / "graphs").find(KEY, penalty, arguments()))


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "MOST_KEPT", 2)
    program = Program("def call(arguments): return ()", {})
    for number in range(4):
        graphs_module._keep(
            tmp_path / "graphs" / str(number), program, b"library", [True], ["form"]
        )
    assert sorted(path.name for path in (tmp_path / "graphs").iterdir()) == ["2", "3"]


def test_a_users_own_code_has_no_name() -> None:
    """It may be another code in the next process."""

    class Own(ec.EWC):
        pass

    for value in (Own, OwnCriterion(lambda output, y: output.sum()), {1}, (1, (Own,))):
        with pytest.raises(NamelessError):
            graphs_module._name(value)
    assert Graphs(Path("somewhere"))._kept(("update", Own)) is None


def test_names_tell_apart_what_differs() -> None:
    values = [None, 1, 1.0, "1", (1,), (1, 1), ec.EWC, ec.VCL, Classification(), torch.float32]
    assert len({graphs_module._name(value) for value in values}) == len(values)
