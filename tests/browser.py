"""A real browser for tests: Chromium without a window, driven through chromedriver."""

import base64
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")

needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="needs chromium and chromedriver (Debian: apt install chromium chromium-driver)",
)


class Browser:
    """One window. `run` gives what a function's body returns in the page."""

    def __init__(self, session: str) -> None:
        self.session = session

    def open(self, address: str, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        send(f"{self.session}/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        return send(f"{self.session}/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str) -> Any:
        """Until a function's body returns something true, or for half a minute."""
        body = f"""
            const done = arguments[0], end = Date.now() + 30000;
            const look = () => {{
                const found = (() => {{ {script} }})();
                if (found || Date.now() > end) done(found); else setTimeout(look, 50);
            }};
            look();"""
        found = send(f"{self.session}/execute/async", {"script": body, "args": []})
        assert found, f"never true: {script}"
        return found

    def hover(self, x: float, y: float) -> None:
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def command(self, name: str, **parameters: Any) -> Any:
        """One of Chromium's own."""
        return send(f"{self.session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def messages(self) -> list[str]:
        """What the console has complained of."""
        entries = send(f"{self.session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries]

    def picture(self, path: Path) -> None:
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    assert DRIVER is not None
    with subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            line = next(line for line in driver.stdout if "successfully on port" in line)
            address = f"http://127.0.0.1:{int(line.rstrip().rstrip('.').split()[-1])}/session"
            flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            options = {"binary": CHROMIUM, "args": [*flags, f"--user-data-dir={folder}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            made = send(address, {"capabilities": {"alwaysMatch": wanted}})
            session = f"{address}/{made['sessionId']}"
            try:
                yield Browser(session)
            finally:
                send(session, method="DELETE")
        finally:
            driver.terminate()


def send(address: str, content: dict[str, Any] | None = None, method: str = "POST") -> Any:
    request = urllib.request.Request(address, json.dumps(content or {}).encode(), method=method)
    request.add_header("Content-Type", "application/json")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=120) as answer:
        return json.load(answer)["value"]
