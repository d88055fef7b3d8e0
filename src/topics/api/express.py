"""ExpressWrites: the short way of a write of one record, alone or with others of its turn.

Most requests repeat the head of the one before on their connection, and many bring one record and no further wish. Then
only the body needs a look: no call, no ticket, no routing. Always holds: whoever is not taken here goes the usual way
as if nothing had happened, and whoever is gets the same bytes it would have got there. Offered by `App` for heads that
allow it, called by connections."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from topics.api.call import error_response
from topics.api.inflight import InFlight
from topics.engine.engine import Engine
from topics.errors import Throttled, TopicsError
from topics.model.record import OneRecord, one_record
from topics.net.messages import RequestHead, Responder
from topics.wire.bodies import is_json
from topics.wire.keys import Key
from topics.wire.query import bool_param, parse_query
from topics.wire.replies import one_append_reply
from topics.wire.requests import WriteRequest, decode_write

BODY_BYTES_MAX = 4096
"""A larger body is rarely one record, or costs more than the way it takes."""
_DATA_KEY = b'"data"'


def admits_express(head: RequestHead) -> bool:
    """Whether requests with this head differ in nothing but their bodies, each a write without further wishes."""
    headers = head.headers
    special = head.chunked or head.expects_continue or b"content-encoding" in headers or b"idempotency-key" in headers
    return head.is_plain and head.keep_alive and not special and is_json(headers.get(b"content-type"))


class ExpressWrites:
    """The writes with one head: one topic, one key."""

    __slots__ = ("_engine", "_inflight", "_key", "_name", "monotonic", "return_seqs", "topic")

    def __init__(
        self,
        engine: Engine,
        monotonic: Callable[[], float],
        name: str,
        head: RequestHead,
        key: Key | None,
        inflight: InFlight,
    ) -> None:
        self._engine = engine
        self._name = name
        self._key = key
        self._inflight = inflight
        self.monotonic = monotonic
        self.return_seqs = bool_param(parse_query(head.query), "return_seqs", default=True)
        self.topic = name.encode()

    def take(self, body: bytes, responder: Responder) -> bool:
        """False: this request goes the usual way."""
        if len(body) > BODY_BYTES_MAX or body.count(_DATA_KEY) != 1:  # more than one record is not decoded twice
            return False
        record = _only_record(body)
        if record is None:
            return False
        if self._key is not None and not self._enter(self._key):
            return False
        if self._engine.join(self._name, record, ExpressWrite(self, responder)):
            return True
        self.leave()
        return False

    def _enter(self, key: Key) -> bool:
        try:
            self._inflight.enter(key)
        except Throttled:
            return False
        return True

    def leave(self) -> None:
        if self._key is not None:
            self._inflight.leave(self._key)


class ExpressWrite:
    """Waits for one write and answers it; a `Writer` of the engine."""

    __slots__ = ("_responder", "_started_s", "_submitted_s", "_writes")

    def __init__(self, writes: ExpressWrites, responder: Responder) -> None:
        self._writes = writes
        self._responder = responder
        self._started_s = writes.monotonic()
        self._submitted_s = perf_counter()

    def written(self, first_seq: int, count: int, *, written_s: float, sync_ms: float) -> None:
        assert count == 1, "only writes of one record come this way"
        writes = self._writes
        writes.leave()
        body = one_append_reply(
            writes.topic,
            first_seq,
            return_seqs=writes.return_seqs,
            server_total_ms=(writes.monotonic() - self._started_s) * 1e3,
            append_ms=(written_s - self._submitted_s) * 1e3,
            sync_ms=sync_ms,
        )
        self._responder.reply_ok(body)

    def fail(self, error: BaseException) -> None:
        self._writes.leave()
        self._responder.reply(error_response(error))


def _only_record(body: bytes) -> OneRecord | None:
    """The record of a write that is nothing but one record; None for any other body, bad ones included."""
    try:
        request: WriteRequest = decode_write(body)
        if len(request.records) != 1 or request.node is not None or request.idempotency_key is not None:
            return None
        if request.config is not None or request.create is not None:
            return None
        return one_record(request.records[0])
    except (TopicsError, UnicodeEncodeError):
        return None
