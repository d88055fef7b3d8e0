"""A live server with a toy application, on a thread of its own, so that tests can be plain blocking code."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import uvloop
from tests.server.raw_http import RawClient

from topics.clock import Clock, SystemClock
from topics.config.environment import BindAddress
from topics.errors import InvalidRequest
from topics.net.messages import JSON, Request, Responder, Response, StreamSink, WsSink, error_response
from topics.net.transport_limits import CONNECTIONS_MAX
from topics.net.websocket import handshake_problem
from topics.server.connections.hub import Hub, TransportSettings
from topics.server.listen import bound_address, open_listeners
from topics.server.server import Server
from topics.wire.outgoing import sse

T = TypeVar("T")
WAIT_S = 10.0
PAGE_BYTES = 1_000_000


class ToyApp:
    """Answers by path. What a test wants to look at or to time is kept in lists, touched only on the loop."""

    def __init__(self) -> None:
        self.heads: list[Request] = []
        self.handled: list[Request] = []
        self.abandoned: list[Request] = []
        self.waiting: list[tuple[Request, Responder]] = []
        self.gone: list[str] = []
        self.streams: list[StreamSink] = []
        self.sockets: list[WsSink] = []
        self.messages: list[tuple[bytes, bool]] = []
        self.pages: list[str] = []
        self.dropped: list[str] = []
        self.drained = 0
        self.was_shut_down = False

    def head(self, request: Request) -> Response | None:
        self.heads.append(request)
        if request.raw_path.startswith(b"/refuse"):
            return Response(401, b'{"error":{"code":"unauthorized","message":"no"}}')
        if request.raw_path == b"/bad-head":
            raise RuntimeError("a bug in head")
        return None

    def handle(self, request: Request, responder: Responder) -> None:
        self.handled.append(request)
        name = request.raw_path.strip(b"/*").split(b"/")[0].decode("latin-1")
        getattr(self, f"do_{name}", self.do_echo)(request, responder)

    def abandon(self, request: Request) -> None:
        self.abandoned.append(request)

    def shutdown(self) -> None:
        self.was_shut_down = True
        for stream in self.streams:
            stream.send(b"event: error\ndata: bye\n\n")
            stream.end()
        for ws in self.sockets:
            ws.send_text(b"bye")
            ws.close(1001)

    # --- endpoints ----------------------------------------------------------------------------------------------------

    def do_echo(self, request: Request, responder: Responder) -> None:
        if request.body_fault is not None:
            responder.reply(Response(400, request.body_fault.value.encode()))
        else:
            responder.reply(Response(200, request.body or b"", JSON, ((b"X-Path", request.raw_path),)))

    def do_later(self, request: Request, responder: Responder) -> None:
        responder.on_close(lambda: self.gone.append(request.raw_path.decode()))
        self.waiting.append((request, responder))

    def do_large(self, request: Request, responder: Responder) -> None:
        responder.reply(Response(200, b"x" * int(request.query)))

    def do_page(self, request: Request, responder: Responder) -> None:
        """A large answer that is made when there is room."""
        name = request.query.decode()
        responder.when_budget(
            lambda: self._make_page(name, responder), lambda: self.dropped.append(name), size_bytes=PAGE_BYTES
        )

    def _make_page(self, name: str, responder: Responder) -> None:
        self.pages.append(name)
        responder.expect(PAGE_BYTES)
        page = Response(200, name.encode().ljust(PAGE_BYTES))
        asyncio.get_running_loop().call_soon(lambda: responder.reply(page))

    def do_boom(self, request: Request, responder: Responder) -> None:
        raise RuntimeError("a bug in handle")

    def do_raise(self, request: Request, responder: Responder) -> None:
        raise InvalidRequest("not like this")

    def do_split(self, request: Request, responder: Responder) -> None:
        headers = ((b"X", b"a\r\nSet-Cookie: b"),)
        if request.raw_path == b"/split/stream":
            responder.stream(200, headers)
        else:
            responder.reply(Response(200, b"", headers=headers))

    def do_stream(self, request: Request, responder: Responder) -> None:
        stream = responder.stream(200, sse.STREAM_HEADERS)
        stream.on_close(lambda: self.gone.append("stream"))
        stream.set_drain_callback(self._count_drained)
        stream.send(sse.RETRY)
        self.streams.append(stream)

    def do_sized(self, request: Request, responder: Responder) -> None:
        stream = responder.stream(200, ((b"Content-Type", b"x/y"), (b"Content-Length", b"10")))
        stream.send(b"01234")
        stream.send(b"56789")
        stream.end()

    def do_ws(self, request: Request, responder: Responder) -> None:
        problem = handshake_problem(request)
        if problem is not None:
            responder.reply(error_response(InvalidRequest(problem)))
            return
        ws = responder.upgrade_websocket()
        ws.on_close(lambda: self.gone.append("ws"))
        ws.on_message(lambda payload, is_text: self._message(ws, payload, is_text))
        self.sockets.append(ws)

    def _message(self, ws: WsSink, payload: bytes, is_text: bool) -> None:
        self.messages.append((payload, is_text))
        if payload.startswith(b"echo"):
            ws.send_text(payload)
        elif payload == b"fail":
            raise RuntimeError("a bug in a message handler")

    def _count_drained(self) -> None:
        self.drained += 1


class Live:
    """A running server, seen from the test's thread."""

    def __init__(
        self,
        settings: TransportSettings,
        *,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
        loop_kind: str = "uvloop",
        drain_ms: int = 10_000,
    ) -> None:
        self.app = ToyApp()
        self.clock = clock
        self._loop = uvloop.new_event_loop() if loop_kind == "uvloop" else asyncio.new_event_loop()
        self._server = Server(self.app, settings, clock=clock, drain_ms=drain_ms)
        self._clients: list[RawClient] = []
        self.failures: list[dict[str, Any]] = []
        self._loop.set_exception_handler(lambda _, context: self.failures.append(context))
        sockets = open_listeners(BindAddress("127.0.0.1", 0))
        self.port = bound_address(sockets[0]).port
        self._thread = threading.Thread(target=self._run, args=(sockets, tls), daemon=True)
        self._started = threading.Event()
        self._thread.start()
        assert self._started.wait(WAIT_S)

    def _run(self, sockets: list[socket.socket], tls: ssl.SSLContext | None) -> None:
        async def main() -> None:
            await self._server.start(sockets, tls=tls)
            self._asked_to_stop = asyncio.Event()
            self._started.set()
            await self._asked_to_stop.wait()
            await self._server.stop()

        self._loop.run_until_complete(main())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    @property
    def hub(self) -> Hub:
        assert self._server.hub is not None
        return self._server.hub

    def call(self, function: Callable[[], T]) -> T:
        """Run on the loop and wait."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(WAIT_S)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that happens on the loop; fails after ten seconds rather than never."""
        event = threading.Event()
        for _ in range(int(WAIT_S / 0.005)):
            if self.call(condition):
                return
            event.wait(0.005)
        raise AssertionError("it did not happen")

    def pass_time(self, seconds: float) -> None:
        """Move the simulated clock on, second by second, and let every deadline on the way come due."""
        advance = self.clock.advance  # type: ignore[attr-defined]

        def step() -> None:
            advance(1000)
            self.hub.wheel.advance(self.clock.monotonic())
            while self.hub.wheel.ask(1):
                pass

        for _ in range(int(seconds)):
            self.call(step)

    def client(self, tls: ssl.SSLContext | None = None) -> RawClient:
        client = RawClient(self.port, tls=tls)
        self._clients.append(client)
        return client

    def ask_to_stop(self) -> None:
        self._loop.call_soon_threadsafe(self._asked_to_stop.set)

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self.ask_to_stop()
        self._thread.join(WAIT_S + 5)
        assert not self._thread.is_alive()

    def wait_for_the_end(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


StartServer = Callable[..., Live]


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    servers: list[Live] = []

    def start(
        *,
        clock: Clock | None = None,
        max_body_bytes: int = 1 << 26,
        gzip_min_bytes: int = 0,
        connections_max: int = CONNECTIONS_MAX,
        **how: Any,
    ) -> Live:
        settings = TransportSettings(
            max_body_bytes=max_body_bytes, gzip_min_bytes=gzip_min_bytes, connections_max=connections_max
        )
        live = Live(settings, clock=clock or SystemClock(), **how)
        servers.append(live)
        return live

    yield start
    for live in servers:
        live.stop()
        assert live.failures == []


@pytest.fixture
def live(start_server: StartServer) -> Live:
    return start_server()
