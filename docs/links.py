"""Every link within the built site leads somewhere: `python docs/links.py build/site`."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the places in it that a link may mean."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.places.add(value)


def dead_links(site: Path) -> list[str]:
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            found = urlsplit(link)
            if found.scheme or found.netloc:
                continue
            target = (path.parent / unquote(found.path)).resolve() if found.path else path
            place = unquote(found.fragment)
            missing = place and target in pages and place not in pages[target].places
            if not target.exists() or missing:
                dead.append(f"{path.relative_to(site.resolve())}: {link}")
    return dead


if __name__ == "__main__":
    found = dead_links(Path(sys.argv[1]))
    print("\n".join(found) or "no dead links")
    sys.exit(bool(found))
