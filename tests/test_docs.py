"""What the site is made of. The site itself is built by `make docs`, which .ci/run calls."""

import sys
from pathlib import Path

import pytest

import evclplus
from evclplus.experiments.explain import explain
from evclplus.methods import METHODS

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    for name in ("generate", "links", "reference_examples"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_page_for_every_method_and_an_entry_for_every_name(tmp_path: Path) -> None:
    import generate

    generate.write(tmp_path / "made")
    for name in METHODS:
        page = (tmp_path / "made" / "methods" / f"{generate.file_name(name)}.md").read_text()
        assert explain(name).equation in page
    reference = (tmp_path / "made" / "reference.md").read_text()
    for name in evclplus.__all__:
        value = getattr(evclplus, name)
        method = isinstance(value, type) and issubclass(value, evclplus.Method)
        assert method or f"\n## {name}\n" in reference


def test_text_stays_text() -> None:
    import generate

    assert generate.plain("a_i * b < c `x_i * y`") == r"a\_i \* b \< c `x_i * y`"


def test_dead_links_are_found(tmp_path: Path) -> None:
    import links

    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="#top"></a><a href="b.html#x"></a>')
    (tmp_path / "b.html").write_text('<a href="a.html#top"></a><a href="c.html"></a><img src="d">')
    assert sorted(links.dead_links(tmp_path)) == ["a.html: b.html#x", "b.html: c.html", "b.html: d"]


def test_every_page_is_in_the_contents() -> None:
    listed = (DOCS / "index.md").read_text() + (DOCS / "how-to" / "index.md").read_text()
    for page in (*DOCS.glob("*.md"), *DOCS.glob("how-to/*.md")):
        if page.name != "index.md":
            assert f"\n{page.stem}\n" in listed, page
