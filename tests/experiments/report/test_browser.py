"""The page in a real browser: what people see and do."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from evclplus.experiments.report.folder import report
from tests.browser import Browser, browser, needs_browser
from tests.experiments.report.record_factory import full_comparison, make_record, write_records
from tests.experiments.report.test_report import HOSTILE

pytestmark = [pytest.mark.slow, needs_browser]

NAMES = "return [...document.querySelectorAll('.first tbody th')].map(e => e.textContent.trim())"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = report(write_records(tmp_path_factory.mktemp("one"), full_comparison()))
    return made.page.as_uri()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_fits(width: int, dark: bool, one: str, window: Browser) -> None:
    window.open(one, width, 800, dark)
    assert window.messages() == []
    wide = window.run("return document.documentElement.scrollWidth")
    assert wide <= width, "the page must not scroll sideways"
    end = window.run("return document.querySelector('.screen').getBoundingClientRect().bottom")
    if width == 1280:
        assert end <= 800, "all but the details is on one screen"
    shown = "return getComputedStyle(document.querySelector('svg.%s')).display"
    narrow = window.run(shown % "narrow"), window.run(shown % "wide")
    assert narrow == (("none", "block") if width == 1280 else ("block", "none"))
    back = window.run("return getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(20, 22, 26)" if dark else "rgb(251, 251, 252)")


@pytest.mark.parametrize("dark", [False, True])
def test_every_line_can_be_seen(dark: bool, one: str, window: Browser) -> None:
    window.open(one, dark=dark)
    # A canvas says what a colour is in red, green and blue, however it is written.
    contrasts = window.run("""
        const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
        const light = (colour) => {
            pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
            const part = (v) => v <= 10 ? v / 3295 : ((v / 255 + 0.055) / 1.055) ** 2.4;
            const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map(part);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const back = light(getComputedStyle(document.querySelector('.chart')).backgroundColor);
        return [...document.querySelectorAll('svg.wide polyline')].map((line) => {
            const front = light(getComputedStyle(line).stroke);
            return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
        });""")
    assert len(contrasts) == 10
    assert min(contrasts) > 2


def test_a_heading_sorts_and_sorts_back(one: str, window: Browser) -> None:
    window.open(one)
    first = window.run(NAMES)
    assert first[0].startswith("joint")
    click = "document.querySelectorAll('.first thead button')[arguments[0]].click();" + NAMES
    falling = window.run(click, 2)
    assert falling[0] == "finetune"
    assert window.run(click, 2) == falling[::-1]
    by_name = window.run(click, 0)
    assert by_name == sorted(first)
    sorted_by = window.run("return document.querySelector('[aria-sort]').textContent")
    assert sorted_by == "Method"


def test_curves_answer_the_pointer(one: str, window: Browser) -> None:
    window.open(one)
    box = window.run("""
        const box = document.querySelector('svg.wide').getBoundingClientRect();
        return [box.left, box.top, box.width, box.height]""")
    window.hover(box[0] + 0.97 * box[2], box[1] + 0.5 * box[3])
    text = window.wait("const tip = document.querySelector('.tip:not([hidden])');"
                       "return tip && tip.innerText")  # fmt: skip
    lines = text.split("\n")
    assert lines[0] == "after task 5: 8/9"
    assert lines[1] == "joint"
    finals = window.run("return [...document.querySelectorAll('.first tbody tr')]"
                        ".map(e => e.cells[1].firstChild.textContent)")  # fmt: skip
    assert lines[2] == finals[0]
    assert lines[-1] == finals[-1]
    window.hover(5, 5)
    window.wait("return document.querySelector('.tip').hidden")


def test_one_benchmark_at_a_time_and_all_on_paper(tmp_path: Path, window: Browser) -> None:
    records = [make_record("ewc", benchmark=name) for name in ("split-digits", "split-mnist")]
    address = report(write_records(tmp_path, records)).page.as_uri()
    shown = "return [...document.querySelectorAll('section')].filter(e => e.offsetHeight)" \
            ".map(e => e.querySelector('h2').textContent)"  # fmt: skip
    window.open(address)
    assert window.run(shown) == ["split-digits"]
    window.run("document.querySelectorAll('nav a')[1].click()")
    window.wait("return document.querySelector('#benchmark-2').offsetHeight")
    assert window.run(shown) == ["split-mnist"]
    window.command("Emulation.setEmulatedMedia", media="print")
    window.run("dispatchEvent(new Event('beforeprint'))")
    assert window.run(shown) == ["split-digits", "split-mnist"]
    assert not window.run("return document.querySelectorAll('details.part:not([open])').length")
    window.command("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("width", [1280, 400])
def test_uncertainty_is_drawn_and_a_row_shows_its_lines_alone(
    width: int, one: str, window: Browser
) -> None:
    window.open(one, width)
    shown = """return [...document.querySelectorAll('.plots svg')].map(e => {
        const box = e.getBoundingClientRect();
        return [box.width > 250 && box.height > 150, e.querySelectorAll('polyline').length]})"""
    assert window.run(shown) == [[True, 10]] * 2
    window.run("""document.querySelector('.plots').closest('details')
        .querySelector('tr[data-label="ewc"]').dispatchEvent(new PointerEvent('pointerenter'))""")
    seen = "return [...document.querySelectorAll('.plots g:not(.dim)')].map(e => e.dataset.label)"
    assert window.run(seen) == ["ewc", "ewc"]
    if width == 1280:
        table = """return [...document.querySelectorAll('.plots ~ .scroll')]
            .map(e => e.scrollWidth - e.clientWidth)"""
        assert window.run(table) == [0], "no column is hidden"


def test_hostile_names_stay_text(tmp_path: Path, window: Browser) -> None:
    record = make_record(HOSTILE, benchmark=HOSTILE, tasks=[HOSTILE, HOSTILE], notes=[HOSTILE])
    window.open(report(write_records(tmp_path, [record])).page.as_uri())
    window.run("document.querySelector('svg.wide').dispatchEvent(new PointerEvent('pointermove'))")
    assert "<script>alert(1)</script>" in window.run(
        "return document.querySelector('.tip').innerText"
    )
    assert window.run("return document.querySelectorAll('img, script').length") == 1
    assert window.messages() == []
