"""A real server process, a real browser, and what every page of the console must be."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import httpx

READY_S = 30.0
SIZES = {"desk": (1280, 800), "phone": (390, 844), "wide": (1920, 1080)}

# What sticks out of the window, or out of a box that does not scroll.
OVERFLOW = """() => {
  const found = [];
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page scrolls sideways");
  for (const element of document.querySelectorAll("body *")) {
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height || box.right <= innerWidth + 1) continue;
    let holder = element.parentElement;
    const fits = (one) => one.getBoundingClientRect().right <= innerWidth + 1;
    const keeps = (one) => getComputedStyle(one).overflowX !== "visible" && fits(one);
    while (holder && !keeps(holder)) holder = holder.parentElement;
    if (!holder) found.push(`${element.tagName}.${element.className} ends at ${box.right}`);
  }
  return found;
}"""

# Neighbours that print over each other: children of one flex or grid box, and cells of one row.
OVERLAP = """() => {
  const found = [];
  for (const box of document.querySelectorAll("body *")) {
    const display = getComputedStyle(box).display;
    if (!/flex|grid/.test(display) || box.closest("svg")) continue;
    const shown = [...box.children].filter((one) => {
      const style = getComputedStyle(one);
      const rect = one.getBoundingClientRect();
      return rect.width > 1 && rect.height > 1 && !["absolute", "fixed"].includes(style.position);
    });
    for (let i = 0; i < shown.length; i += 1)
      for (let j = i + 1; j < shown.length; j += 1) {
        const [a, b] = [shown[i].getBoundingClientRect(), shown[j].getBoundingClientRect()];
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 1) found.push([shown[i], shown[j]].map((one) => one.outerHTML.slice(0, 90)));
      }
  }
  return found;
}"""


@contextmanager
def a_browser() -> Iterator[Any]:
    """Debian's Chromium, or whatever of its kind is installed."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield made
        finally:
            made.close()


class ServerProcess:
    """`topics serve` on a free port; it may be stopped and started again on the same one."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        self._settings = {f"TOPICS_{name.upper()}": value for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> None:
        port_file = self._folder / "port"
        port_file.unlink(missing_ok=True)
        env = {
            **os.environ,
            "TOPICS_DATA_DIR": str(self._folder / "data"),
            "TOPICS_PORT": str(self.port),
            "TOPICS_PORT_FILE": str(port_file),
            "TOPICS_LOG": "error",
            **self._settings,
        }
        self._process = subprocess.Popen([sys.executable, "-m", "topics.cli", "serve"], env=env)
        wait_for(port_file.exists)
        self.port = int(port_file.read_text().rsplit(":", 1)[1])
        wait_for(lambda: httpx.get(self.url + "/readyz").is_success)  # a long recovery is overtaken by the listener

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(READY_S)
            self._process = None

    def cpu_seconds(self) -> float:
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(folder: Path, **settings: str) -> Iterator[ServerProcess]:
    server = ServerProcess(folder, **settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Api:
    """What tests prepare and look up by plain HTTP."""

    def __init__(self, server: ServerProcess, key: str | None = None) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=server.url, headers=headers, timeout=30)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        answer = self._http.request(method, path, content=content, headers={"content-type": "application/json"})
        assert answer.is_success, answer.text
        return answer.json()

    def write(self, topic: str, *records: Any) -> Any:
        wrapped = [one if isinstance(one, dict) and "data" in one else {"data": one} for one in records]
        return self.call("POST", f"/v0/topics/{topic}", {"records": wrapped})

    def records(self, topic: str) -> list[Any]:
        found: list[Any] = self.call("POST", f"/v0/topics/{topic}/diff", {"include_tags": True, "limit": 1000})[
            "records"
        ]
        return found

    def close(self) -> None:
        self._http.close()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


class Console:
    """A page of the console that keeps what the browser complained about."""

    def __init__(self, browser: Any, server: ServerProcess, size: str = "desk", **options: Any) -> None:
        width, height = SIZES[size]
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(READY_S * 1000)
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.server = server
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self._complain(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self._complain(message.text)

    def _complain(self, text: str) -> None:
        self.complaints.append(text)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.server.url, "blob:", "data:")):
            self.foreign.append(url)

    def open(self, view: str = "") -> Any:
        self.page.goto(f"{self.server.url}/console{view and '#/' + view}")
        return self.page

    def check_layout(self) -> None:
        """Nothing sticks out, nothing lies over its neighbour."""
        found = self.page.evaluate(OVERFLOW) + self.page.evaluate(OVERLAP)
        assert not found, found

    def check_quiet(self) -> None:
        """Neither an error in the browser's console nor a request to anybody else."""
        assert not self.complaints, self.complaints
        assert not self.foreign, self.foreign

    def check_accessible(self) -> None:
        """axe finds nothing serious."""
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(resources.files("axe_playwright_python").joinpath("axe.min.js").read_text())
        results = self.page.evaluate("() => axe.run({resultTypes: ['violations']})")
        serious = [one for one in results["violations"] if one["impact"] in ("serious", "critical")]
        told = [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in serious]
        assert not told, told

    def close(self) -> None:
        self.context.close()
