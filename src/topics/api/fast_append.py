"""Fast appends: the short way of small writes, for all that come in one turn.

Most requests repeat the head of the one before on their connection, and most bring records and nothing else. Then only
the body has to be looked at: no call, no ticket, no routing. They are kept until the turn ends and then given to the
engine together; their connections carry out nothing else meanwhile. Always holds: a request that is not taken here goes
the usual way as if nothing had happened, and one that is taken gets the same bytes it would have got there. Offered by
`App` for heads that allow it, called by connections."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from topics.api.app import InFlight, error_response
from topics.api.metrics.request_stats import RequestStats
from topics.engine.engine import Engine
from topics.engine.ticket import Ticket, guarded
from topics.engine.writing.coalesced_write import BYTES_MAX
from topics.engine.writing.writes import RECORDS_EACH_MAX
from topics.errors import InvalidRequest, RecordTooLarge, Throttled, TopicsError
from topics.limits import KIB, RECORDS_PER_WRITE_MAX
from topics.model.record import WriteBatch, build_batch, build_plain_batch
from topics.model.results import Appended
from topics.net.messages import FastAppendResponder, RequestHead
from topics.wire.access.keys import Key, KeyRing
from topics.wire.incoming.request_head import bool_param, is_json, parse_query
from topics.wire.incoming.requests import (
    decode_datas,
    decode_keyed,
    decode_records,
)
from topics.wire.outgoing.replies import append_performance, append_replies, append_reply

BODY_BYTES_MAX = 32 * KIB
"""Of a larger body, decoding costs so much more than the way through the api that the short way gains nothing."""
KEPT_RECORDS_MAX = 4096
KEPT_BYTES_MAX = 192 * KIB
"""What exceeds one of these is submitted before the turn ends."""
HEADS_MAX = 4096
assert KEPT_RECORDS_MAX + RECORDS_EACH_MAX <= RECORDS_PER_WRITE_MAX
assert KEPT_BYTES_MAX + BODY_BYTES_MAX <= BYTES_MAX


class FastAppends:
    """The short way of one server: which heads have taken writes in this turn."""

    def __init__(
        self,
        engine: Engine,
        *,
        keys: KeyRing | None,
        monotonic: Callable[[], float],
        inflight: InFlight,
        requests: RequestStats,
    ) -> None:
        self.engine = engine
        self.keys = keys
        self.monotonic = monotonic
        self.inflight = inflight
        self.requests = requests
        self._heads: dict[tuple[str, bool, Key | None], FastAppendHead] = {}
        self._dirty: dict[FastAppendHead, None] = {}
        self._usual = 0  # writes that a turn may bring, as the last ones did
        self._kept_before = 0  # when the sockets were last looked at in this turn

    def offer(self, head: RequestHead, topic: str, key: Key | None) -> None:
        """Take requests that repeat this head, if they differ in nothing but their bodies, each a write without further
        wishes. Heads that mean the same share one object, so that what they bring can go together."""
        headers = head.headers
        if head.chunked or head.expects_continue or b"content-encoding" in headers or b"idempotency-key" in headers:
            return
        if not (head.is_plain and head.keep_alive and is_json(headers.get(b"content-type"))):
            return
        return_seqs = bool_param(parse_query(head.query), "return_seqs", default=True)
        meaning = (topic, return_seqs, key)
        shared = self._heads.get(meaning)
        if shared is None:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()  # connections keep theirs
            shared = self._heads[meaning] = FastAppendHead(self, topic, key, return_seqs=return_seqs)
        head.fast_append = shared.take

    def mark_dirty(self, head: FastAppendHead) -> None:
        """It has taken a write, to be submitted when the turn ends."""
        if not self._dirty:
            self.engine.context.commit.wake()
        self._dirty[head] = None

    def end_turn(self) -> bool:
        """Submit what was taken. But if fewer writes came than in the last turns, say True and wait for one more look
        at the sockets, as long as each look brings some: a turn costs more than many looks, and clients who were
        answered together ask again nearly together."""
        if not self._dirty:
            return False
        kept = sum([len(head) for head in self._dirty])
        if self._kept_before < kept < self._usual:
            self._kept_before = kept
            return True
        self._kept_before = 0
        self._usual = max(kept, self._usual - 1)
        dirty, self._dirty = self._dirty, {}
        for head in dirty:
            head.submit()
        return False


class FastAppendHead:
    """The writes with one head: one topic, one key."""

    __slots__ = (
        "_bodies",
        "_bytes",
        "_fast_appends",
        "_is_plain",
        "_records",
        "_responders",
        "_runs",
        "_started_s",
        "key",
        "monotonic",
        "name",
        "requests",
        "return_seqs",
        "topic",
    )

    def __init__(self, fast_appends: FastAppends, name: str, key: Key | None, *, return_seqs: bool) -> None:
        self._fast_appends = fast_appends
        self.name = name
        self.key = key
        self._bodies: list[bytes] = []
        self._records: list[Any] = []  # `RecordIn`; if all are plain, payloads
        self._is_plain = False
        self._runs: list[int] = []  # records of each
        self._responders: list[FastAppendResponder] = []
        self._bytes = 0
        self._started_s = 0.0
        self.monotonic = fast_appends.monotonic
        self.requests = fast_appends.requests
        self.return_seqs = return_seqs
        self.topic = name.encode()

    def __len__(self) -> int:
        """Taken and not submitted."""
        return len(self._responders)

    def take(self, body: bytes, responder: FastAppendResponder) -> bool:
        """False: this request goes the usual way."""
        if len(body) > BODY_BYTES_MAX:
            return False
        datas = decode_datas(body)
        records = decode_records(body) if datas is None else datas
        if records is None:
            return self._take_keyed(body, responder)
        if not records or len(records) > RECORDS_EACH_MAX or (self.key is not None and not self._enter(self.key)):
            return False
        if self._is_plain != (datas is not None):
            self.submit()
            self._is_plain = datas is not None
        if not self._responders:
            self._started_s = self.monotonic()
            self._fast_appends.mark_dirty(self)
        self._records += records
        self._runs.append(len(records))
        self._bodies.append(body)
        self._responders.append(responder)
        self._bytes += len(body)
        if self._bytes >= KEPT_BYTES_MAX or len(self._records) >= KEPT_RECORDS_MAX:
            self.submit()
        return True

    def _take_keyed(self, body: bytes, responder: FastAppendResponder) -> bool:
        """A write with an idempotency key has its own place in the log, so it is given to the engine at once."""
        keyed = decode_keyed(body)
        if keyed is None or (self.key is not None and not self._enter(self.key)):
            return False
        records, key = keyed
        waiting = _KeyedWaiting(self, responder)
        try:
            ticket = self._fast_appends.engine.write_now(self.name, build_batch(records, idempotency_key=key))
        except TopicsError:  # nothing has happened: the usual way refuses it again, and says so where it is to be said
            ticket = None
        if ticket is None:
            self.leave(1)
            return False
        ticket.then(waiting)
        return True

    def submit(self) -> None:
        """Give the engine what was taken."""
        bodies, records, runs, responders = self._bodies, self._records, self._runs, self._responders
        if not responders:
            return
        self._bodies, self._records, self._runs, self._responders, self._bytes = [], [], [], [], 0
        batch = _batch(records, is_plain=self._is_plain)
        if batch is not None:
            self._give(batch, runs, bodies, responders)
            return
        end = 0
        for body, run, responder in zip(bodies, runs, responders, strict=True):  # find the one that breaks a rule
            begin, end = end, end + run
            self._give(_batch(records[begin:end], is_plain=self._is_plain), [run], [body], [responder])

    def _give(
        self, batch: WriteBatch | None, runs: list[int], bodies: list[bytes], responders: list[FastAppendResponder]
    ) -> None:
        """Whoever breaks a rule, or has to be looked at more closely by the engine, goes the usual way."""
        waiting = _Waiting(self, runs, responders, self._started_s)
        try:
            is_taken = batch is not None and self._fast_appends.engine.join(self.name, batch, waiting, runs=runs)
        except Exception as error:
            waiting.fail(error)
            return
        if not is_taken:
            self.leave(len(responders))
            for responder, body in zip(responders, bodies, strict=True):
                responder.decline(body)

    def _enter(self, key: Key) -> bool:
        keys = self._fast_appends.keys
        if keys is None or not keys.is_current(key):  # it has ended: the usual way refuses it
            return False
        try:
            self._fast_appends.inflight.enter(key)
        except Throttled:
            return False
        return True

    def leave(self, count: int) -> None:
        if self.key is not None:
            for _ in range(count):
                self._fast_appends.inflight.leave(self.key)


class _Waiting:
    """Waits for writes that were submitted together and answers them; an `AppendWaiter` of the engine."""

    __slots__ = ("_responders", "_runs", "_started_s", "_submitted_s", "_writes")

    def __init__(
        self, writes: FastAppendHead, runs: list[int], responders: list[FastAppendResponder], started_s: float
    ) -> None:
        self._writes = writes
        self._runs = runs
        self._responders = responders
        self._started_s = started_s
        self._submitted_s = perf_counter()

    def written(self, first_seq: int, count: int, *, epoch: int, written_s: float, sync_ms: float) -> None:
        writes, responders = self._writes, self._responders
        assert count == sum(self._runs), "all of them go together"
        took_s = writes.monotonic() - self._started_s
        bodies = append_replies(
            writes.topic,
            first_seq,
            self._runs,
            epoch=epoch,
            return_seqs=writes.return_seqs,
            server_total_ms=took_s * 1e3,
            append_ms=(written_s - self._submitted_s) * 1e3,
            sync_ms=sync_ms,
        )
        self._responders = []
        if writes.key is not None:
            writes.leave(len(responders))
        writes.requests.answered("write", 200, took_s, len(responders))
        responders[0].reply_ok_all(responders, bodies)

    def fail(self, error: BaseException) -> None:
        responders, self._responders = self._responders, []
        self._writes.leave(len(responders))
        refusal = error_response(error, self._writes.key)
        took_s = self._writes.monotonic() - self._started_s
        self._writes.requests.answered("write", refusal.status, took_s, len(responders))
        for responder in responders:
            guarded(responder.reply, error_response(error, self._writes.key))

    abandon = fail


class _KeyedWaiting:
    """Waits for one write with a key and answers it."""

    __slots__ = ("_responder", "_started_s", "_writes")

    def __init__(self, writes: FastAppendHead, responder: FastAppendResponder) -> None:
        self._writes = writes
        self._responder = responder
        self._started_s = writes.monotonic()

    def __call__(self, ticket: Ticket[Appended]) -> None:
        if ticket.error is not None:
            self.fail(ticket.error)
            return
        done: Appended = ticket.value  # type: ignore[assignment]
        writes = self._writes
        took_s = writes.monotonic() - self._started_s
        spent = append_performance(took_s * 1e3, done, throttle_wait_ms=0.0)
        body = append_reply(writes.name, done, return_seqs=writes.return_seqs, performance=spent)
        writes.leave(1)
        writes.requests.answered("write", 200, took_s, 1)
        self._responder.reply_ok(body)

    def fail(self, error: BaseException) -> None:
        writes = self._writes
        writes.leave(1)
        refusal = error_response(error, writes.key)
        writes.requests.answered("write", refusal.status, writes.monotonic() - self._started_s, 1)
        self._responder.reply(refusal)


def _batch(records: list[Any], *, is_plain: bool) -> WriteBatch | None:
    """None if some record breaks a rule."""
    try:
        return build_plain_batch(records) if is_plain else build_batch(records)
    except (InvalidRequest, RecordTooLarge):
        return None
