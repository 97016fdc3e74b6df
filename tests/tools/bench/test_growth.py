"""The growth curves have the points they promise; how steep they are is not tested."""

import io
import json

import pytest
from PIL import Image

from tools.bench.figure import PANELS, growth_figure
from tools.bench.growth import FULL, Point, Sizes, growth

pytestmark = pytest.mark.slow

TINY = Sizes(
    parameters=(9_000, 20_000),
    batch_size=(16, 32),
    tasks=(1, 2),
    examples=(256, 512),
    hidden=(8,),
    steps=1,
    epochs=4,
    compile="off",
)


@pytest.fixture(scope="module")
def curves() -> dict[str, list[Point]]:
    """Measured without a compiler: what is timed is not the matter here."""
    found: dict[str, list[Point]] = {}
    for name, point in growth(rounds=1, sizes=TINY):
        found.setdefault(name, []).append(point)
    return found


def test_every_curve_has_its_points_and_its_series(curves: dict[str, list[Point]]) -> None:
    steps = {"evcl_plus", "plain"}
    assert {name: set(points[0]) - {name} for name, points in curves.items()} == {
        "parameters": {"width", *steps},
        "batch_size": steps,
        "tasks": {"vectors", *steps},
        "examples": steps,
    }
    assert [point["batch_size"] for point in curves["batch_size"]] == [16, 32]
    assert [point["tasks"] for point in curves["tasks"]] == [1, 2]
    assert [point["examples"] for point in curves["examples"]] == [256, 512]
    assert all(value > 0 for points in curves.values() for p in points for value in p.values())
    assert json.loads(json.dumps(curves)) == curves


def test_parameters_are_about_what_was_asked(curves: dict[str, list[Point]]) -> None:
    for asked, point in zip(TINY.parameters, curves["parameters"], strict=True):
        assert abs(point["parameters"] / asked - 1) < 0.1


def test_memory_stays_with_more_tasks(curves: dict[str, list[Point]]) -> None:
    vectors = [point["vectors"] for point in curves["tasks"]]
    assert max(vectors) - min(vectors) < 0.2


def test_the_full_curves_reach_far_enough() -> None:
    assert (FULL.parameters[0], FULL.parameters[-1]) == (10**4, 10**7)
    assert (FULL.batch_size[0], FULL.batch_size[-1]) == (16, 2048)
    assert FULL.tasks[-1] == 20
    assert (FULL.examples[0], FULL.examples[-1]) == (1_024, 51_200)


def test_the_figure_has_four_panels_and_names_every_curve(
    curves: dict[str, list[Point]],
) -> None:
    image = growth_figure(curves)
    assert image.svg == growth_figure(curves).svg
    picture = Image.open(io.BytesIO(image.png))
    assert picture.size == (1376, 1056)
    text = image.svg.decode()
    assert all(f"<!-- {label} -->" in text for label in PANELS.values())
    assert "<!-- plain PyTorch -->" in text
