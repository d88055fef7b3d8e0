"""A real browser: EventSource and WebSocket survive a restart of the server without loss or repeat."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.api.client import Client
from tests.console.pages import ServerProcess, a_browser, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.slow]

READY_S = 30.0

# Both scripts keep what they saw in `seen` and their position in `at`; both come back by themselves after an error.
SSE_PAGE = """
const base = location.origin, seen = [], opened = [];
let at = 0, sessions = 0;
async function watch() {
  try {
    const made = await fetch(base + "/v0/watch", {
      method: "POST", headers: {"content-type": "application/json"},
      body: JSON.stringify({topics: {news: {from_seq: at}}}),
    });
    if (!made.ok) throw new Error(made.status);
    sessions += 1;
    const source = new EventSource(base + (await made.json()).stream_url);
    source.onopen = () => opened.push(at);
    source.addEventListener("record", (event) => {
      const data = JSON.parse(event.data);
      for (const record of data.records) seen.push(record.data);
      at = data.to_seq;
    });
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) setTimeout(watch, 100);   // the session died with the server
    };
  } catch (problem) { setTimeout(watch, 100); }
}
watch();
"""
WS_PAGE = """
const seen = [], opened = [];
let at = 0, socket;
function connect() {
  socket = new WebSocket(location.origin.replace("http", "ws") + "/v0/ws");
  socket.onopen = () => {
    opened.push(at);
    socket.send(JSON.stringify({op: "subscribe", topic: "news", from_seq: at}));
  };
  socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    if (message.op !== "record") return;
    for (const record of message.records) seen.push(record.data);
    at = message.to_seq;
  };
  socket.onclose = () => setTimeout(connect, 100);
}
connect();
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(tmp_path)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with a_browser() as made:
        yield made


def open_page(browser: Any, port: int, script: str) -> Any:
    """A page of the server's own origin, so that no other origin has to be allowed."""
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{port}/healthz")
    page.add_script_tag(content=script)
    return page


def write(process: ServerProcess, *numbers: int) -> None:
    client = Client(process.port, http2=False)
    client.write("news", *numbers)
    client.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("script", [SSE_PAGE, WS_PAGE], ids=["eventsource", "websocket"])
def test_a_page_resumes_after_a_restart_without_loss_or_repeat(
    process: ServerProcess, browser: Any, script: str, how: signal.Signals
) -> None:
    client = Client(process.port, http2=False)
    client.write("news", 0, status=201)
    client.close()
    page = open_page(browser, process.port, script)
    wait_for(lambda: page.evaluate("seen.length") == 1)
    for number in range(1, 20):
        write(process, number)
    wait_for(lambda: page.evaluate("seen.length") == 20)
    process.stop(how)
    process.start()
    write(process, *range(20, 25))
    wait_for(lambda: page.evaluate("seen.length") >= 25)
    write(process, *range(25, 30))
    wait_for(lambda: page.evaluate("seen.length") >= 30)
    assert page.evaluate("seen") == list(range(30))
    assert page.evaluate("opened.length") >= 2
    page.close()


def _has_seen_more_than(page: Any, number: int) -> bool:
    return bool(page.evaluate("seen.length") > number)


class Wire:
    """A stretch of network between browser and server that can be cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        try:
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._ends += (near, far)
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()
        except OSError:
            return  # closed

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # cut

    def cut(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()


@pytest.mark.timeout(120)
def test_an_eventsource_that_loses_its_connection_goes_on_by_itself(process: ServerProcess, browser: Any) -> None:
    """The session is still there: the browser comes back with its last id and misses nothing."""
    client = Client(process.port, http2=False)
    client.write("news", 0, status=201)
    wire = Wire(process.port)
    page = open_page(browser, wire.port, SSE_PAGE)
    wait_for(lambda: page.evaluate("seen.length") == 1)
    for number in (1, 2, 3):
        wire.cut()
        client.write("news", number)
        wait_for(partial(_has_seen_more_than, page, number))
    assert page.evaluate("seen") == [0, 1, 2, 3]
    assert page.evaluate("opened.length") == 4
    assert page.evaluate("sessions") == 1
    client.close()
    page.close()
    wire.close()
