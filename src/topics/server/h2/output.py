"""H2Output: the sending half of an HTTP/2 connection.

Answers leave when they come, as far as the peer's windows and the transport have room. What one turn of the loop frames
leaves in one write. The reading half is `H2Connection`, which extends this class.
"""

from __future__ import annotations

from collections.abc import Collection

from topics.net.h2_session import H2Session
from topics.net.messages import Headers
from topics.net.transport_limits import H2_BACKLOG_BYTES_MAX, H2_UNSENT_BYTES_MAX, UNSENT_BYTES_MAX, WRITE_HIGH_BYTES
from topics.server.budget import ConnectionBudget
from topics.server.h2.exchange import H2Exchange
from topics.server.hub import Hub
from topics.server.peer import Peer


class H2Output(Peer):
    __slots__ = (
        "_feeding",
        "_flush_scheduled",
        "_goodbye",
        "_over",
        "_paused",
        "_session",
        "_share",
        "_since_s",
        "_streams",
        "_unflushed_bytes",
    )

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._session = H2Session(hub.monotonic())
        self._streams: dict[int, H2Exchange] = {}
        self._feeding = False  # what is framed leaves when the input at hand is done with
        self._flush_scheduled = False
        self._paused = False  # the transport has enough to write
        self._goodbye = False  # no further stream is taken
        self._over = False
        self._unflushed_bytes = 0  # framed since the last flush
        self._since_s = hub.wheel.now_s  # when the last stream ended
        self._share: ConnectionBudget[H2Exchange] | None = None  # once a request asked for room

    @property
    def is_idle(self) -> bool:
        return not self._streams and not self._session.waiting

    # --- room for answers ---------------------------------------------------------------------------------------------

    def share(self) -> ConnectionBudget[H2Exchange]:
        share = self._share
        if share is None:
            share = self._share = ConnectionBudget(self, self.hub.room)
        return share

    def unsent_bytes(self) -> int:
        return self._session.unsent_bytes + self.transport.get_write_buffer_size()

    def offered_bytes(self) -> int:
        return self.unsent_bytes()

    def is_in_the_way(self, exchange: H2Exchange) -> bool:
        return False

    def next_ahead(self, waiting: Collection[H2Exchange], *, held_bytes: int, making_bytes: int) -> H2Exchange | None:
        """A stream that the peer keeps open must not wait for others that it does not take from."""
        if held_bytes >= H2_UNSENT_BYTES_MAX or making_bytes + self._session.flowing_bytes() >= UNSENT_BYTES_MAX:
            return None
        return next((exchange for exchange in waiting if self._session.is_open(exchange.stream_id)), None)

    # --- output -------------------------------------------------------------------------------------------------------

    def begin_answer(self, exchange: H2Exchange, status: int, headers: Headers, *, end: bool) -> None:
        if not exchange.finished:
            self._session.send_head(exchange.stream_id, status, ((b"date", self.hub.date), *headers), end=end)
            self._flush_soon()

    def send(self, exchange: H2Exchange, data: bytes, *, end: bool = False) -> None:
        if not exchange.finished:
            self._session.send(exchange.stream_id, data, end=end)
            self._pump_one(exchange.stream_id)
            self._flush_soon()

    def pending_bytes(self, exchange: H2Exchange) -> int:
        return self._session.pending_bytes(exchange.stream_id)

    def finish(self, exchange: H2Exchange) -> None:
        """The answer is complete, although part of it may still wait for the peer's window."""
        exchange.finished = True
        self._forget_finished(exchange)
        if self._share is not None:
            self._share.answered(exchange)

    def _forget_finished(self, exchange: H2Exchange) -> None:
        """Forget a stream once both sides are done with it."""
        if exchange.finished and exchange.parts is None:
            self._streams.pop(exchange.stream_id, None)
            self._since_s = self.hub.wheel.now_s
            self._flush_soon()

    def cancel(self, exchange: H2Exchange) -> None:
        self._session.reset(exchange.stream_id)
        self._drop(exchange)
        self._flush_soon()

    def _drop(self, exchange: H2Exchange) -> None:
        """A stream ended before its time."""
        self._streams.pop(exchange.stream_id, None)
        self._since_s = self.hub.wheel.now_s
        unread = exchange.parts is not None and not exchange.discarding
        if unread:
            self.hub.account_body(-exchange.body_bytes)
            exchange.parts = None
            self.hub.abandon(exchange.request)
        exchange.lost()
        if self._share is not None:
            self._share.forget(exchange)

    def _room_bytes(self) -> int:
        """What may be framed now: no more than the transport should hold."""
        if self._paused:
            return 0
        return WRITE_HIGH_BYTES - self.transport.get_write_buffer_size() - self._unflushed_bytes

    def _pump_one(self, stream_id: int) -> None:
        room = self._room_bytes()
        while sent := self._session.pump_stream(stream_id, room):
            room -= sent
            self._unflushed_bytes += sent

    def _pump(self) -> None:
        if not self._over:
            self._unflushed_bytes += self._session.pump(self._room_bytes())
            for exchange in list(self._streams.values()):
                self._moved(exchange)
            self._flush_soon()

    def _moved(self, exchange: H2Exchange) -> None:
        if exchange.stream_sink is not None:
            exchange.stream_sink.moved()

    def _flush_soon(self) -> None:
        if not self._feeding and not self._flush_scheduled:
            self._flush_scheduled = True
            self.hub.flush_soon(self)

    def flush(self) -> None:
        self._flush_scheduled = False
        if self.transport.is_closing():
            return
        done = self._goodbye and not self._streams and not self._session.waiting
        if done and not self._over:
            self._session.say_goodbye()
        output = self._session.take_output()
        if output:
            self.transport.write(output)
        framed_bytes, self._unflushed_bytes = self._unflushed_bytes, 0
        if framed_bytes and self._session.waiting and not self._paused:
            self.hub.loop.call_soon(self._pump)  # the transport took it all: go on where the room ended
        if self._over or done:
            self._over = True
            self.close_idle()
            self.lost()
        elif self.transport.get_write_buffer_size() > WRITE_HIGH_BYTES + H2_BACKLOG_BYTES_MAX:
            self.cut()
        elif self._share is not None:
            self._share.look()

    def pause_writing(self) -> None:
        self._paused = True
        if not self._over:
            self.share().measure()

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()
