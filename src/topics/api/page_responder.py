"""PageResponder: answers to a web page of a listed origin, with the fields by which its browser shows them to it."""

from __future__ import annotations

from collections.abc import Callable

from topics.net.messages import Headers, Responder, Response, StreamSink, WsSink


class PageResponder:
    """A `Responder` around the connection's own."""

    __slots__ = ("_inner", "_shown")

    def __init__(self, inner: Responder, shown: Headers) -> None:
        self._inner = inner
        self._shown = shown

    def reply(self, response: Response) -> None:
        response.headers += self._shown
        self._inner.reply(response)

    def reply_ok(self, body: bytes) -> None:
        self.reply(Response(200, body))

    def stream(self, status: int, headers: Headers) -> StreamSink:
        return self._inner.stream(status, headers + self._shown)

    def upgrade_websocket(self) -> WsSink:
        return self._inner.upgrade_websocket()

    def on_close(self, callback: Callable[[], None]) -> None:
        self._inner.on_close(callback)

    def keep_order(self) -> None:
        self._inner.keep_order()

    def has_room(self, size_bytes: int) -> bool:
        return self._inner.has_room(size_bytes)

    def when_budget(self, read: Callable[[], None], dropped: Callable[[], None], *, size_bytes: int = 0) -> None:
        self._inner.when_budget(read, dropped, size_bytes=size_bytes)

    def expect(self, size_bytes: int) -> None:
        self._inner.expect(size_bytes)
