"""The sending half of an HTTP/1 connection: `H1Exchange` answers one request, `H1Output` keeps the answers in order.

Answers leave in the order of the requests, whenever they come: an exchange that is not the first of its connection
keeps its bytes (`held`) until it is, and a stream keeps what its peer is slow to take. What one turn of the loop
answers leaves in one write. The reading half is `H1Connection`, which has one output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from topics.errors import InvalidRequest
from topics.limits import KIB
from topics.net.h1_renderer import CONTINUE, LAST_CHUNK, chunk, connection_field
from topics.net.messages import Headers, Line, Request, RequestHead, Response, StreamSink, WsSink
from topics.server.connections.answer_stream import AnswerStream
from topics.server.connections.budget import ConnectionBudget
from topics.server.connections.callbacks import CloseCallbacks, failure_response, guarded
from topics.server.connections.content import encode_response

if TYPE_CHECKING:
    from topics.server.connections.h1_connection import H1Connection

SPLIT_BYTES = 256 * KIB  # a body or a chunk of this size is handed over in parts rather than copied into one
JOIN_BYTES_MAX = 32 * KIB  # an answer of this size is not kept back to be joined with others

_SAFE = frozenset(("GET", "HEAD"))


class H1Exchange:
    """One request and its answer: the responder that the application gets.

    `head` is None if it could not be read; `request` is None then, and while the fast append path has the request."""

    __slots__ = (
        "_answered",
        "_callbacks",
        "_conn",
        "closes",
        "finished",
        "head",
        "held",
        "held_bytes",
        "is_chunked",
        "keeps_order",
        "request",
        "stream_sink",
    )
    is_chunked: bool  # set by `stream`, which alone frames chunks

    def __init__(self, conn: H1Connection, head: RequestHead | None, request: Request | None, closes: bool) -> None:
        self._conn = conn
        self._answered = False
        self._callbacks: CloseCallbacks | None = None
        self.head = head
        self.request = request
        self.closes = closes  # the connection ends with this answer
        self.finished = False  # its last byte was handed to the output
        self.held: deque[bytes] | None = None  # what waits for its turn, or for the transport
        self.held_bytes = 0
        self.keeps_order = False  # no later request may overtake it
        self.stream_sink: AnswerStream[H1Exchange] | None = None

    # --- Responder ---------------------------------------------------------------------------------------------------

    def reply(self, response: Response) -> None:
        if self._answered:
            return
        self._answered = True
        hub, head = self._conn.hub, self.head
        gzip_min_bytes = hub.settings.gzip_min_bytes
        if gzip_min_bytes and len(response.body) >= gzip_min_bytes and head is not None:
            encode_response(hub, head, response, self._send)
        elif head is None or self.closes or hub.draining or response.headers or not head.is_plain:
            self._send(response)
        else:  # nearly every answer
            self._conn.output.finish_plain(self, hub.renderer.response(response))

    def reply_ok(self, body: bytes) -> None:
        hub, head = self._conn.hub, self.head
        special = self._answered or self.closes or hub.draining or hub.settings.gzip_min_bytes
        if special or head is None or not head.is_plain:
            self.reply(Response(200, body))
            return
        self._answered = True
        if len(body) < SPLIT_BYTES:
            self._conn.output.finish_plain(self, hub.renderer.ok(body))
        else:  # not copied: that would stop the loop for a while
            self._conn.output.send(self, hub.renderer.ok_head(len(body)))
            self._conn.output.finish(self, body)

    def reply_ok_all(self, responders: Sequence[H1Exchange], bodies: Sequence[bytes]) -> None:
        hub = self._conn.hub
        if hub.draining or hub.settings.gzip_min_bytes:
            for exchange, body in zip(responders, bodies, strict=True):
                exchange.reply_ok(body)
            return
        for exchange, body, data in zip(responders, bodies, hub.renderer.ok_all(bodies), strict=True):
            if exchange._answered or exchange.closes:
                exchange.reply_ok(body)
            else:
                exchange._answered = True
                exchange._conn.output.finish_plain(exchange, data)

    def decline(self, body: bytes) -> None:
        self._conn.take_back(self, body)

    def _send(self, response: Response) -> None:
        try:
            data = self._render(response)
        except ValueError as error:
            data = self._render(failure_response(error))
        self._conn.output.finish(self, data)

    def _render(self, response: Response) -> bytes:
        with_body = self.head is None or self.head.method != "HEAD"
        return self._conn.hub.renderer.response(response, self._connection_field(), with_body=with_body)

    def stream(self, status: int, headers: Headers) -> StreamSink:
        assert not self._answered, "a request is answered once"
        assert self.head is not None, "only a request that was read is answered by a stream"
        has_length = any(name.lower() == b"content-length" for name, _ in headers)
        self.is_chunked = not has_length and self.head.version == "1.1"
        if not has_length and not self.is_chunked:
            self.closes = True
        hub, output = self._conn.hub, self._conn.output
        head = hub.renderer.stream_head(status, headers, self._connection_field(), chunked=self.is_chunked)
        sink = AnswerStream(self, output, hub.budget)
        self._answered = True
        if self.head.method == "HEAD":
            sink.over()
            output.finish(self, head)
        else:
            self.stream_sink = sink
            self._conn.begin_stream(self, head)
        return sink

    def upgrade_websocket(self) -> WsSink:
        assert not self._answered, "a request is answered once"
        if not self._conn.may_upgrade(self):
            raise InvalidRequest("a WebSocket handshake may not be pipelined behind another request")
        self._answered = True
        return self._conn.upgrade(self)

    def on_close(self, callback: Callable[[], None]) -> None:
        if self._callbacks is None:
            self._callbacks = CloseCallbacks()
            if self._conn.output.is_gone:
                self._callbacks.fire()
        self._callbacks.add(callback)

    def keep_order(self) -> None:
        self.keeps_order = True

    def has_budget(self, size_bytes: int) -> bool:
        return self._conn.output.budget().admits(size_bytes)

    def when_budget(self, read: Callable[[], None], dropped: Callable[[], None], *, size_bytes: int = 0) -> None:
        if self._conn.output.is_gone:
            guarded(dropped)
        else:
            self._conn.output.budget().when_budget(self, size_bytes, read, dropped)

    def expect(self, size_bytes: int) -> None:
        if not self._conn.output.is_gone:
            self._conn.output.budget().expect(self, size_bytes)

    # --- the connection's side ----------------------------------------------------------------------------------------

    def hold(self, data: bytes) -> None:
        if self.held is None:
            self.held = deque()
        self.held.append(data)
        self.held_bytes += len(data)

    def may_overlap(self, head: RequestHead) -> bool:
        """May a request with `head`, the next one on the connection, be carried out before this one is answered?

        It may if neither changes anything (RFC 9112 section 9.3.2), or if both have one head: equal requests keep their
        order by themselves, unless the fast append path has this one, or this one waits for others."""
        if self.request is None or self.head is None or self.keeps_order:
            return False
        return self.head is head or (self.head.method in _SAFE and head.method in _SAFE)

    def _connection_field(self) -> bytes:
        keep_alive = not (self.head is None or self.closes or self._conn.hub.draining)
        return connection_field(keep_alive=keep_alive, version=self.head.version if self.head is not None else "1.1")

    def end_wait(self) -> None:
        """The peer sends no more, and most that do so have gone: whoever waits for something answers now."""
        if self._callbacks is not None and not self.finished:
            self._callbacks.fire()

    def lost(self) -> None:
        """The peer has gone."""
        if self.stream_sink is not None:
            self.stream_sink.over()
        self.end_wait()


class H1Output:
    """The answers of one connection, from its exchanges to its transport."""

    __slots__ = ("_budget", "_conn", "exchanges", "is_corked", "is_ending", "is_gone", "is_paused", "unwritten")

    def __init__(self, conn: H1Connection) -> None:
        self._conn = conn
        self._budget: ConnectionBudget[H1Exchange] | None = None  # once a request asked for it
        self.exchanges: deque[H1Exchange] = deque()  # not finished, or after one that is not
        self.is_corked = False  # the connection reads requests, and flushes when it has read them
        self.is_ending = False  # the last answer is in `unwritten` or gone
        self.is_paused = False  # the transport has enough to write
        self.is_gone = False  # the transport is lost, or belongs to another protocol
        self.unwritten: list[bytes] = []  # goes to the transport at the end of this turn

    @property
    def is_empty(self) -> bool:
        """Every request was answered, and every answer taken."""
        return not self.exchanges and not self.unwritten and not self._conn.transport.get_write_buffer_size()

    # --- the budget ---------------------------------------------------------------------------------------------------

    def budget(self) -> ConnectionBudget[H1Exchange]:
        budget = self._budget
        if budget is None:
            budget = self._budget = ConnectionBudget(self, self._conn.hub.budget)
        return budget

    def unsent_bytes(self) -> int:
        """Of plain answers: what is held for a stream, or lies in the transport while one is sent, counts in the
        stream's own budget."""
        exchanges = self.exchanges
        held_bytes = sum([exchange.held_bytes for exchange in exchanges if exchange.stream_sink is None])
        if exchanges and exchanges[0].stream_sink is not None:
            return held_bytes
        return self._conn.transport.get_write_buffer_size() + sum(map(len, self.unwritten)) + held_bytes

    def sendable_bytes(self) -> int:
        return self._conn.transport.get_write_buffer_size()

    def blocks_others(self, exchange: H1Exchange) -> bool:
        if self.is_paused or self.exchanges[0] is not exchange:
            return False
        return any(later.held_bytes for later in self.exchanges)

    def pick_over_budget(
        self, waiting: Collection[H1Exchange], *, held_bytes: int, making_bytes: int
    ) -> H1Exchange | None:
        """The answer that all others wait for. Not while the peer is slow to take the one before it."""
        first = self.exchanges[0] if self.exchanges else None
        return first if first in waiting and not self.is_paused else None

    def cut(self) -> None:
        self._conn.cut()

    # --- answers, in order --------------------------------------------------------------------------------------------

    def finish_plain(self, exchange: H1Exchange, data: bytes) -> None:
        """`finish` for an answer that comes whole and leaves the connection open: nearly every one."""
        if self.is_corked or len(self.exchanges) != 1 or self.unwritten:
            self.finish(exchange, data)
            return
        conn = self._conn
        if conn.is_read_paused or conn.deadlines.head_is_partial:
            self.finish(exchange, data)
            return
        exchange.finished = True
        self.exchanges.popleft()
        conn.deadlines.since_s = conn.hub.wheel.now_s
        conn.transport.write(data)
        if self._budget is not None:
            self._budget.answered(exchange)

    def finish(self, exchange: H1Exchange, data: bytes) -> None:
        """The last bytes of an answer."""
        exchange.finished = True
        if self.is_gone:
            return
        exchanges = self.exchanges
        if exchanges[0] is not exchange:
            exchange.hold(data)
        else:
            out = self.unwritten
            has_output = bool(out)
            if exchange.held is not None:
                out.extend(exchange.held)
            exchanges.popleft()
            out.append(data)
            self._conn.answered(exchange)
            if exchanges:
                self._release_held()
            if self.is_corked:
                if len(data) >= JOIN_BYTES_MAX:
                    self._write()
            elif not exchanges:
                self.flush()
            elif not has_output:
                self._conn.hub.flush_soon(self)
        if self._budget is not None:
            self._budget.answered(exchange)

    def send(self, exchange: H1Exchange, data: bytes) -> None:
        """Some bytes of an answer that is not complete.

        They go to the transport at once if it is their turn, unless the transport has enough to do: it takes a write
        whole, and reports it as taken only when it is taken whole."""
        if self.is_gone:
            return
        if self.is_paused or exchange.held is not None or self.exchanges[0] is not exchange:
            exchange.hold(data)
        elif self.is_corked or self.unwritten:
            self.unwritten.append(data)
        else:
            self._conn.transport.write(data)

    def _release_held(self) -> None:
        """The first exchange is another one now: send what it and the next ones hold, as far as they are finished."""
        exchanges = self.exchanges
        while exchanges:
            first = exchanges[0]
            if first.held is not None:
                self.unwritten.extend(first.held)
                first.held = None
                first.held_bytes = 0
            if not first.finished:
                self.send_continue(first)
                return
            exchanges.popleft()
            self._conn.answered(first)

    def send_continue(self, exchange: H1Exchange) -> None:
        """Ask for the body of the first request, if its client waits for that."""
        if self.exchanges[0] is exchange and self._conn.awaits_continue(exchange):
            self.unwritten.append(CONTINUE)

    # --- StreamOutput -------------------------------------------------------------------------------------------------

    def send_chunk(self, exchange: H1Exchange, data: bytes) -> None:
        if not exchange.is_chunked:
            self.send(exchange, data)
        elif len(data) < SPLIT_BYTES:
            self.send(exchange, b"%x\r\n%b\r\n" % (len(data), data))
        else:  # not copied: many streams may be sent the same
            for part in (b"%x\r\n" % len(data), data, b"\r\n"):
                self.send(exchange, part)

    def buffered_bytes(self, exchange: H1Exchange) -> int:
        return 0 if self.is_gone else self._conn.transport.get_write_buffer_size() + exchange.held_bytes

    def line(self, exchange: H1Exchange) -> Line | None:
        """Only while bytes of this stream go straight to the transport, with none of ours before them. Input waits
        while a stream is sent, so that stays true until the stream ends or the transport has enough."""
        if self.is_gone or self.is_paused or self.is_corked or self.unwritten:
            return None
        if exchange.held is not None or self.exchanges[0] is not exchange:
            return None
        transport = self._conn.transport
        framed = chunk if exchange.is_chunked else _unframed
        return Line(framed, transport.get_write_buffer_size, transport.write)

    def end_stream(self, exchange: H1Exchange) -> None:
        self.finish(exchange, LAST_CHUNK if exchange.is_chunked else b"")

    def abort_stream(self, exchange: H1Exchange) -> None:
        self._conn.cut()

    # --- to the transport ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        if not self.is_gone:
            self._write()
            if self.is_ending:
                self.is_ending = False
                self._conn.half_close()

    def write_last(self, data: bytes) -> None:
        """Write what there is and `data`; what follows on the transport is another protocol."""
        self.unwritten.append(data)
        self._write()
        self.exchanges.clear()
        self._close()

    def _write(self) -> None:
        out = self.unwritten
        if not out:
            return
        write = self._conn.transport.write
        if sum(map(len, out)) < JOIN_BYTES_MAX:
            write(out[0] if len(out) == 1 else b"".join(out))
        else:
            for part in out:
                write(part)
        out.clear()

    def pause(self) -> None:
        """The transport has enough. Answers that asked for no budget, as those to writes, count from here on."""
        self.is_paused = True
        if not self.is_gone:
            self.budget().measure()

    def resume(self) -> None:
        """The transport takes more: send what the stream at the front holds."""
        self.is_paused = False
        first = self.exchanges[0] if self.exchanges else None
        if first is None or first.stream_sink is None:
            return
        self._write()
        while first.held and not self.is_paused:
            data = first.held.popleft()
            first.held_bytes -= len(data)
            self._conn.transport.write(data)
        if not first.held:
            first.held = None
        first.stream_sink.taken()

    def admit_waiting(self) -> None:
        if self._budget is not None:
            self._budget.admit_waiting()

    def lost(self) -> None:
        """The peer has gone, and wants no answer."""
        self.unwritten.clear()
        exchanges, self.exchanges = self.exchanges, deque()
        for exchange in exchanges:
            exchange.lost()
        self._close()

    def _close(self) -> None:
        self.is_gone = True
        if self._budget is not None:
            self._budget.close()


def _unframed(data: bytes) -> bytes:
    return data
