"""H1Output: the sending half of an HTTP/1 connection.

Answers leave in the order of the requests, whenever they come. What one turn of the loop answers leaves in one write.
The reading half is `H1Connection`, which extends this class.

`_mode` says what happens to input:

    READING    requests are read from it
    SKIPPING   the rest of a body is thrown away whose request is answered already; then READING
    WAITING    it is kept, within a bound: a stream is being sent, or a body is being decoded on a thread; then READING
    DEAF       it is thrown away: the connection ends with the answers that are still to be sent
    GONE       there is none: the transport is lost or belongs to another protocol
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from topics.limits import KIB
from topics.net.h1_reader import H1Reader
from topics.net.h1_renderer import CONTINUE
from topics.net.messages import RequestHead
from topics.net.transport_limits import KEEP_BYTES_MAX, LINGER_S, PIPELINE_MAX
from topics.server.budget import ConnectionBudget
from topics.server.h1.exchange import H1Exchange
from topics.server.hub import Hub
from topics.server.peer import Peer

READING, SKIPPING, WAITING, DEAF, GONE = range(5)
LARGE_BYTES = 32 * KIB  # an answer of this size is not kept back to be joined with others


class H1Output(Peer):
    __slots__ = (
        "_blocked",
        "_current",
        "_discard_left_bytes",
        "_ending",
        "_eof",
        "_exchanges",
        "_feeding",
        "_linger_s",
        "_mode",
        "_out",
        "_partial",
        "_paused",
        "_reader",
        "_share",
        "_since_s",
        "_stalled",
    )

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._reader = H1Reader(hub.settings.max_body_bytes)
        self._exchanges: deque[H1Exchange] = deque()  # not finished, or waiting behind one that is not
        self._current: H1Exchange | None = None  # the last of them, while its body is incomplete
        self._out: list[bytes] = []  # goes to the transport at the end of this turn
        self._mode = READING
        self._feeding = False  # `_out` is flushed when the input at hand is done with
        self._blocked = False  # reading is paused
        self._paused = False  # the transport has enough to write
        self._partial = False  # a head is incomplete
        self._ending = False  # the last answer is in `_out` or gone
        self._eof = False  # the peer will send no more
        self._since_s = hub.wheel.now_s  # start of the wait that `on_timer` looks at
        self._stalled: RequestHead | None = None  # its request waits until all before it are answered
        self._discard_left_bytes = 0  # of input, while DEAF
        self._linger_s = LINGER_S
        self._share: ConnectionBudget[H1Exchange] | None = None  # once a request asked for room

    @property
    def is_idle(self) -> bool:
        """Between two requests, with every answer taken."""
        if self._mode != READING or self._exchanges or self._partial or self._out:
            return False
        return not self._reader.waiting_bytes() and not self.transport.get_write_buffer_size()

    @property
    def gone(self) -> bool:
        return self._mode == GONE

    # --- room for answers ---------------------------------------------------------------------------------------------

    def share(self) -> ConnectionBudget[H1Exchange]:
        share = self._share
        if share is None:
            share = self._share = ConnectionBudget(self, self.hub.room)
        return share

    def unsent_bytes(self) -> int:
        """Of plain answers: what is held for a stream, or lies in the transport while one is sent, its share counts."""
        exchanges = self._exchanges
        held_bytes = sum([exchange.held_bytes for exchange in exchanges if exchange.stream_sink is None])
        if exchanges and exchanges[0].stream_sink is not None:
            return held_bytes
        return self.transport.get_write_buffer_size() + sum(map(len, self._out)) + held_bytes

    def offered_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def is_in_the_way(self, exchange: H1Exchange) -> bool:
        if self._paused or self._exchanges[0] is not exchange:
            return False
        return any(behind.held_bytes for behind in self._exchanges)

    def next_ahead(self, waiting: Collection[H1Exchange], *, held_bytes: int, making_bytes: int) -> H1Exchange | None:
        """The answer that all others wait for. Not while the peer is slow to take the one before it."""
        front = self._exchanges[0] if self._exchanges else None
        return front if front in waiting and not self._paused else None

    # --- in order -----------------------------------------------------------------------------------------------------

    def finish_plain(self, exchange: H1Exchange, data: bytes) -> None:
        """`finish` for an answer that comes whole and leaves the connection open: nearly every one."""
        if len(self._exchanges) != 1 or self._feeding or self._out or self._partial or self._blocked:
            self.finish(exchange, data)
            return
        exchange.finished = True
        self._exchanges.popleft()
        self._since_s = self.hub.wheel.now_s
        self.transport.write(data)
        if self._share is not None:
            self._share.answered(exchange)

    def finish(self, exchange: H1Exchange, data: bytes) -> None:
        """The last bytes of an answer."""
        exchange.finished = True
        if self._mode == GONE:
            return
        exchanges = self._exchanges
        if exchanges[0] is not exchange:
            exchange.hold(data)
            if self._share is not None:
                self._share.answered(exchange)
            return
        out = self._out
        waiting = bool(out)
        if exchange.held is not None:
            out.extend(exchange.held)
        exchanges.popleft()
        out.append(data)
        self._after(exchange)
        if exchanges:
            self._release()
        if self._feeding:
            if len(data) >= LARGE_BYTES:
                self._write()
        elif not exchanges:
            self.flush()
        elif not waiting:
            self.hub.flush_soon(self)
        if self._share is not None:
            self._share.answered(exchange)

    def send(self, exchange: H1Exchange, data: bytes) -> None:
        """Some bytes of an answer that is not complete.

        They go to the transport at once if it is their turn, unless that has enough to do: its writes are not cut, so
        what it was given whole it reports as taken only when it is taken whole."""
        if self._mode == GONE:
            return
        if self._paused or exchange.held is not None or self._exchanges[0] is not exchange:
            exchange.hold(data)
        elif self._feeding or self._out:
            self._out.append(data)
        else:
            self.transport.write(data)

    def is_clear_for(self, exchange: H1Exchange) -> bool:
        """Do bytes of this stream go straight to the transport, with nothing of ours before them? Input waits while a
        stream is sent, so this stays true until the stream ends or the transport has enough."""
        if self._mode == GONE or self._paused or self._feeding or self._out:
            return False
        return exchange.held is None and self._exchanges[0] is exchange

    def _send_held(self, exchange: H1Exchange) -> None:
        """The transport has room again."""
        self._write()
        while exchange.held and not self._paused:
            data = exchange.held.popleft()
            exchange.held_bytes -= len(data)
            self.transport.write(data)
        if not exchange.held:
            exchange.held = None

    def _release(self) -> None:
        """The exchange at the front has changed: let the next ones go as far as they are."""
        exchanges = self._exchanges
        while exchanges:
            front = exchanges[0]
            if front.held is not None:
                self._out.extend(front.held)
                front.held = None
                front.held_bytes = 0
            if not front.finished:
                if front is self._current and front.head is not None and front.head.expects_continue:
                    self._send_continue()
                return
            exchanges.popleft()
            self._after(front)

    def _after(self, exchange: H1Exchange) -> None:
        """An answer is complete and in its place."""
        if exchange.stream_sink is not None:
            self._end_stream(exchange)
        if exchange.closes or (self.hub.draining and not self._exchanges):
            self._ending = True
        elif not self._partial:
            self._since_s = self.hub.wheel.now_s
        waiting_max = PIPELINE_MAX // 2 if self._stalled is None else 0
        if self._blocked and len(self._exchanges) <= waiting_max:
            self.hub.loop.call_soon(self._unblock)

    def _send_continue(self) -> None:
        """Ask for the body, unless some of it is here already (RFC 9110 section 10.1.1)."""
        if not self._reader.waiting_bytes() and self._reader.bytes_to_come() != 0:
            self._out.append(CONTINUE)

    # --- to the transport ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        if self._mode != GONE:
            self._write()
            if self._ending:
                self._half_close()

    def _write(self) -> None:
        out = self._out
        if not out:
            return
        if sum(map(len, out)) < LARGE_BYTES:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
        else:
            for part in out:
                self.transport.write(part)
        out.clear()

    def _half_close(self) -> None:
        """All is said. Wait for the peer's end before closing: closing on unread input would reset the answer away."""
        self._ending = False
        if self._mode != DEAF:
            self._go_deaf()
        can_half_close = self.transport.can_write_eof()
        if self._eof or not (can_half_close or self._linger_s > LINGER_S):
            self._mode = GONE
            if self.hub.draining:
                self.close_idle()
            else:
                self.transport.close()
            return
        if can_half_close:
            self.transport.write_eof()
        self._since_s = self.hub.wheel.now_s
        self.hub.wheel.arm(self, self._since_s + self._linger_s)

    def _go_deaf(self) -> None:
        self._mode = DEAF
        self._discard_left_bytes = KEEP_BYTES_MAX
        self._reader.take_rest()

    def buffered_bytes(self) -> int:
        return 0 if self._mode == GONE else self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        """Answers that asked for no room, as those to writes, count from here on."""
        self._paused = True
        if self._mode != GONE:
            self.share().measure()

    def resume_writing(self) -> None:
        self._paused = False
        front = self._exchanges[0] if self._exchanges else None
        if front is not None and front.stream_sink is not None:
            self._send_held(front)
            front.stream_sink.moved()
        if self._blocked:
            self._unblock()
        if self._share is not None:
            self._share.look()

    # --- streams ------------------------------------------------------------------------------------------------------

    def begin_stream(self, exchange: H1Exchange, head: bytes) -> None:
        if self._mode == GONE:
            exchange.lost()
            return
        if self._mode == READING:
            self._mode = WAITING
        self._reader.forget_template()
        self.send(exchange, head)

    def _end_stream(self, exchange: H1Exchange) -> None:
        if self._mode == WAITING:
            self._mode = READING
            if self._reader.waiting_bytes() and not exchange.closes:
                self.hub.loop.call_soon(self._read_on)

    # --- the reading half's part --------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        raise NotImplementedError

    def _unblock(self) -> None:
        raise NotImplementedError
