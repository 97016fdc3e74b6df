"""Three addresses on this machine's own loopback: the page, its state, the report.

Nothing of a request but these three names is looked at, so no path leads out of the folder, and
nothing can be changed. A page elsewhere whose name was made to mean 127.0.0.1 (DNS rebinding) sends
that name as the host, and is refused.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from evclplus.errors import FileError, SettingsError
from evclplus.experiments.report.page import environment, part, script_hash
from evclplus.experiments.watch.state import Folder
from evclplus.files import read_file
from evclplus.signals import current

LOOPBACK = "127.0.0.1"
SECONDS_BETWEEN_LOOKS = 0.5

Answer = tuple[str, bytes]
"""A type of content, and content."""


class Server(ThreadingHTTPServer):
    """Serves one folder."""

    daemon_threads = True
    timeout = SECONDS_BETWEEN_LOOKS

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = Folder(folder)
        self.page = page(folder)
        super().__init__((LOOPBACK, port), Handler)

    @property
    def names(self) -> set[str]:
        """What a browser on this machine may call it."""
        return {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is none."""


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: Server
    server_version = "evclplus"
    sys_version = ""

    def do_GET(self) -> None:
        if self.headers.get_all("Host") not in [[name] for name in self.server.names]:
            self._send(403, ("text/plain", b"this page is for this machine alone"))
            return
        answers: dict[str, Callable[[], Answer]] = {
            "/": lambda: ("text/html", self.server.page.encode()),
            "/state.json": self._state,
            "/report.html": self._report,
        }
        if self.path not in answers:
            self._send(404, ("text/plain", b"there is no such page"))
            return
        try:
            self._send(200, answers[self.path]())
        except (FileError, OSError) as error:
            self._send(503, ("text/plain", str(error).encode()))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _state(self) -> Answer:
        return "application/json", json.dumps(self.server.folder.state()).encode()

    def _report(self) -> Answer:
        return "text/html", read_file(self.server.folder.path / "report.html")

    def _send(self, code: int, answer: Answer) -> None:
        kind, content = answer
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):
                self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Nobody wants a line for every look."""


def page(folder: Path) -> str:
    beside = files("evclplus.experiments.watch")
    script = beside.joinpath("page.js").read_text(encoding="utf-8")
    template = beside.joinpath("page.html").read_text(encoding="utf-8")
    return (
        environment()
        .from_string(template)
        .render(
            name=folder.absolute().name,
            style=Markup(part("page.css")),
            script=Markup(script),
            script_hash=script_hash(script),
        )
    )


def open_server(folder: Path, port: int) -> Server:
    """A server that is not answering yet."""
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}; give the --out folder of compare")
    try:
        return Server(folder, port)
    except OSError as error:
        raise SettingsError(
            f"cannot serve at port {port}: {error.strerror}; give --port another, or 0"
        ) from None


def serve(server: Server) -> None:
    """Until this process is asked to stop."""
    while True:
        server.handle_request()
        if (signals := current()) is not None:
            signals.obey()
