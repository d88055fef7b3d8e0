"""Bulk endpoints: the manifest of a topic's segments, and its records as segment frames (docs/bulk-endpoints.md).

They are reads of history: no recency, no priority, and never in the way of live traffic. Records are read page by page
through the one read pipeline and framed on the read pool, one page of all requests at a time (`BulkReadQueue`); memory
is bounded by `FRAMES_BYTES_MAX` per request, and each waits for room before its first page."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from topics import limits
from topics.api.app import RequestCall
from topics.clock import Host
from topics.core.capture import dead_ranges
from topics.core.lineage import epoch_of
from topics.core.manifest import StoredBlock, stored_blocks
from topics.core.reading.walk import ReadRequest
from topics.core.slots.extent import index_of
from topics.core.slots.sealed_slots import Sealed
from topics.core.topic import TopicLog
from topics.engine.reading.reads import ReadDone
from topics.engine.ticket import Ticket, chain, resolved
from topics.errors import ColdUnavailable
from topics.formats.segments.frame import segment_frames_of
from topics.model.position import Position, token
from topics.model.results import Tombstone
from topics.model.run import RecordRun
from topics.net.messages import Response
from topics.runtime.drivers.driver import carried_out
from topics.runtime.kernel import Kernel
from topics.wire.incoming.request_head import position_param, unsigned
from topics.wire.outgoing.replies import performance

Step = Callable[[Callable[[], None]], None]
"""One page; it calls what it is given when the page is there."""

TURN_MS_MAX = 50.0
REST_RATIO = 1.5
"""Rest for each millisecond of a page, so that live traffic has the larger part of the interpreter."""
REST_MS_MAX = 50.0
PRESSURE_HIGH = 0.5


class BulkReadQueue:
    """Bulk reads take turns, page by page, and rest between pages while the server has live traffic.

    Always holds: at most one page of all bulk reads is being read and framed at a time, so however many executors ask,
    a writer or a watcher meets one page at most. A page that waits for a store (a cold one may hang) loses its turn
    after a moment and keeps nobody up. Called by the frame endpoint on the owner's thread."""

    def __init__(
        self,
        *,
        later: Callable[[float, Callable[[], None]], None],
        monotonic: Callable[[], float],
        traffic: Callable[[], int],
        pressure: Callable[[], float],
    ) -> None:
        self._later = later
        self._monotonic = monotonic
        self._traffic = traffic
        self._pressure = pressure
        self._waiting: deque[Step] = deque()
        self._number = 0
        self._is_taken = False
        self._began_s = 0.0
        self._traffic_seen = 0

    def take(self, step: Step) -> None:
        """Run `step` when it is its turn."""
        self._waiting.append(step)
        if not self._is_taken:
            self._next()

    def _next(self) -> None:
        self._is_taken = bool(self._waiting)
        if not self._is_taken:
            return
        self._number += 1
        self._began_s = self._monotonic()
        over = partial(self._over, self._number)
        self._later(TURN_MS_MAX, over)
        self._waiting.popleft()(over)

    def _over(self, number: int) -> None:
        """The page is there, or has had its time: whichever comes first ends the turn."""
        if number != self._number or not self._is_taken:
            return
        self._number += 1
        rest_ms = self._rest_ms()
        if rest_ms:
            self._later(rest_ms, self._next)
        else:
            self._next()

    def _rest_ms(self) -> float:
        """Nothing while there is nobody else; as long as the page took, and more, while writes come in."""
        seen, self._traffic_seen = self._traffic_seen, self._traffic()
        if seen == self._traffic_seen and self._pressure() < PRESSURE_HIGH:
            return 0.0
        return min((self._monotonic() - self._began_s) * 1e3 * REST_RATIO, REST_MS_MAX)


FRAMES_BYTES_MAX = 8 << 20
PAGE_RECORDS = 250
"""Small pages: while one is framed, the owner may have to wait for the interpreter."""
FRAMES = b"application/vnd.topics.frames"
_encode = msgspec.json.encode


class BulkEndpoints:
    def __init__(self, kernel: Kernel, host: Host, *, monotonic: Callable[[], float]) -> None:
        self._kernel = kernel
        self._engine = kernel.engine
        self._host = host
        self.turns = BulkReadQueue(
            later=kernel.driver.later,
            monotonic=monotonic,
            traffic=lambda: sum(group.stats.batches for group in kernel.store.groups),
            pressure=lambda: kernel.engine.context.pressure.pressure,
        )

    # --- manifest -------------------------------------------------------------------------------------------------

    def segments(self, call: RequestCall) -> None:
        topic = self._engine.state.topic(call.name)
        times = chain(self._engine.floor_log.ensure_logged(topic), lambda _: self._times_known(topic))
        call.when(chain(times, lambda _: self._manifest(topic)), partial(self._send_manifest, call))

    def _times_known(self, topic: TopicLog) -> Ticket[None]:
        """After a start the times of a cold segment are in its index only, which is fetched once. Segments whose index
        cannot be had are listed without times."""
        ticket: Ticket[None] = Ticket()
        unknown = [segment for segment in topic.sealed if _ts_of(segment, "last_ts") is None]
        left = len(unknown) + 1

        def one_less(segment: Sealed | None, _: object = None) -> None:
            nonlocal left
            left -= 1
            if segment is not None:
                _ts_of(segment, "first_ts"), _ts_of(segment, "last_ts")  # remembered from now on
            if not left:
                ticket.resolve(None)

        for segment in unknown:
            fetched = self._engine.context.files.fetch(topic, index_of(segment, segment.first_seq))
            fetched.then(partial(one_less, segment), ticket.abandon)
        one_less(None)
        return ticket

    def _manifest(self, topic: TopicLog) -> Ticket[bytes]:
        """As it is now, once the floors in it are logged: whoever reads segments by it passes over what lies below."""
        self._engine.context.check_exists(topic)
        floor_log = self._engine.floor_log
        floor = topic.evict_floor
        body = _encode(
            {
                "topic": topic.name,
                "topic_id": topic.id,
                "epoch": topic.epoch,
                "ancestors": topic.ancestors,
                "head_seq": topic.head,
                "earliest_seq": topic.earliest_seq,
                "evict_floor": floor,
                "evict_reason": topic.floors.reason_since(1) if floor > 1 else None,
                "lost": [{"gap_from": lo, "gap_to": hi, "reason": reason} for lo, hi, reason in topic.lost],
                "segments": self._rows(topic),
                "files": {
                    "data_dir": os.path.abspath(self._kernel.settings.data_dir),
                    "instance": self._kernel.store.instance,
                    "boot": self._host.boot_id(),
                },
            }
        )
        sure = resolved(None) if floor_log.is_durable(topic) else floor_log.make_durable(topic)
        return chain(sure, lambda _: resolved(body))

    @staticmethod
    def _send_manifest(call: RequestCall, body: bytes) -> None:
        call.reply(200, b'%b,"performance":%b}' % (body[:-1], performance(call.elapsed_ms())))

    @staticmethod
    def _rows(topic: TopicLog) -> list[dict[str, object]]:
        dead = dead_ranges(topic)
        return [_row(block, dead) for block in stored_blocks(topic)]

    # --- frames ---------------------------------------------------------------------------------------------------

    def frames(self, call: RequestCall) -> None:
        topic = self._engine.state.topic(call.name)
        query = call.query()
        budget = min(max(unsigned(query.get("max_bytes")) or FRAMES_BYTES_MAX, 1), FRAMES_BYTES_MAX)
        to_seq = unsigned(query.get("to_seq"))
        job = _Frames(self, topic, start=position_param(query.get("from_seq")), to_seq=to_seq, budget=budget)
        call.when(job.ticket, partial(self._send, call, topic))
        call.when_budget(job.begin, size_bytes=budget)

    def _send(self, call: RequestCall, topic: TopicLog, done: Framed) -> None:
        headers = [
            (b"topics-epoch", b"%d" % topic.epoch),
            (b"topics-head-seq", b"%d" % topic.head),
            (b"topics-earliest-seq", b"%d" % self._engine.floor_log.durable_earliest(topic)),
            (b"topics-first-seq", b"%d" % done.first_seq),
            (b"topics-last-seq", b"%d" % done.last_seq),
            (b"topics-next", token(done.last_seq, epoch_of(topic, done.last_seq)).encode()),
        ]
        if done.tombstone is not None:
            headers.append((b"topics-tombstone", _encode(done.tombstone)))
        call.respond(Response(200, done.body, FRAMES, tuple(headers)))

    def read(self, topic: TopicLog, request: ReadRequest) -> Ticket[ReadDone]:
        return self._engine.reads.read(topic, request)

    def frame(self, runs: list[RecordRun]) -> Ticket[list[bytes]]:
        """Off the owner's thread: checksums of a whole page."""
        driver = self._kernel.driver
        return carried_out(driver.run_read, lambda: [frame for run in runs for frame in segment_frames_of(run)])


class Framed(msgspec.Struct, frozen=True):
    first_seq: int
    last_seq: int
    tombstone: Tombstone | None
    body: bytes


def _row(block: StoredBlock, dead: list[tuple[int, int]]) -> dict[str, object]:
    first, last = block.first_seq, block.last_seq
    row: dict[str, object] = {"first_seq": first, "last_seq": last, "count": block.live}
    if not isinstance(block.source, Sealed):
        runs = block.source
        size = sum(sum(run.lens) for run in runs)
        times = {"min_ts": runs[0].ts[0], "max_ts": runs[-1].ts[-1]}
        return row | times | {"bytes": size, "tier": "hot", "state": "active", "dead": []}
    segment, view = block.source, block.source.view
    row |= {
        "min_ts": _ts_of(segment, "first_ts"),
        "max_ts": _ts_of(segment, "last_ts"),
        "bytes": view.data_len,
        "tier": view.tier,
        "state": "sealed",
        "dead": [[max(lo, first), min(hi, last)] for lo, hi in dead if lo <= last and hi >= first],
    }
    uri = getattr(view, "cold_uri", None) if view.tier == "cold" else None
    return row if uri is None else row | {"uri": uri}


def _ts_of(segment: Sealed, which: Literal["first_ts", "last_ts"]) -> int | None:
    """None as long as the index of a cold segment was not fetched."""
    try:
        return int(getattr(segment, which))
    except ColdUnavailable:
        return None


class _Frames:
    """One answer being put together, page by page."""

    def __init__(
        self, bulk: BulkEndpoints, topic: TopicLog, *, start: Position, to_seq: int | None, budget: int
    ) -> None:
        self._bulk = bulk
        self._topic = topic
        self._cursor = start.seq
        self._epoch = start.epoch  # of the cursor; the topic's own once something was read
        self._last_wanted = to_seq
        self._budget = budget
        self._size = 0
        self._pieces: list[bytes] = []
        self._first: int | None = None
        self._tombstone: Tombstone | None = None
        self._over: Callable[[], None] = lambda: None
        self.ticket: Ticket[Framed] = Ticket()

    def begin(self) -> None:
        self._bulk.turns.take(self._page)

    def _page(self, over: Callable[[], None]) -> None:
        self._over = over
        request = ReadRequest(
            from_seq=self._cursor,
            epoch=self._epoch if self._first is None else self._topic.epoch,
            limit=PAGE_RECORDS,
            budget_bytes=limits.DIFF_BATCH_BYTES.high,
            head_limit=self._last_wanted if self._first is not None or self._in_reach() else None,
            touch=False,
        )
        self._bulk.read(self._topic, request).then(self._read, self._broken)

    def _in_reach(self) -> bool:
        return self._last_wanted is not None and self._cursor <= self._last_wanted

    def _read(self, done: Ticket[ReadDone]) -> None:
        if done.error is not None:
            self._end_turn()
            self._give_up(done.error)
            return
        outcome = done.result().outcome
        if outcome.tombstone is not None:
            if self._first is not None:
                self._end_turn()
                self._finish()  # a second gap belongs to the next answer
                return
            self._tombstone = outcome.tombstone
        if self._first is None:
            self._first = self._start_of(outcome.tombstone)
            if self._ends_before_its_start(outcome.tombstone):
                self._end_turn()
                self._finish()
                return
        framed = partial(self._framed, outcome.next_from_seq, outcome.caught_up)
        self._bulk.frame(outcome.runs).then(framed, self._broken)

    def _ends_before_its_start(self, tombstone: Tombstone | None) -> bool:
        """Nothing is wanted, but the read had to see whether the cursor belongs to this topic."""
        is_recreated = tombstone is not None and tombstone.reason == "recreated"
        return self._last_wanted is not None and not self._in_reach() and not is_recreated

    def _start_of(self, tombstone: Tombstone | None) -> int:
        if tombstone is None:
            return self._cursor + 1
        if tombstone.reason == "recreated":
            return self._topic.earliest_seq
        return tombstone.gap_to + 1

    def _framed(self, cursor: int, caught_up: bool, done: Ticket[list[bytes]]) -> None:
        self._end_turn()
        if done.error is not None:
            self._give_up(done.error)
            return
        for frame in done.result():
            if self._pieces and self._size + len(frame) > self._budget:
                self._cursor = seq_of(frame) - 1
                self._finish()
                return
            self._pieces.append(frame)
            self._size += len(frame)
        self._cursor = cursor
        if caught_up or self._size >= self._budget or (self._last_wanted is not None and cursor >= self._last_wanted):
            self._finish()
        else:
            self.begin()

    def _end_turn(self) -> None:
        over, self._over = self._over, lambda: None
        over()

    def _broken(self, error: BaseException) -> None:
        self._end_turn()
        self.ticket.abandon(error)

    def _give_up(self, error: BaseException) -> None:
        """What came before the failure is an answer; a failure of the first page is the caller's."""
        if self._pieces:
            self._finish()
        else:
            self.ticket.fail(error)

    def _finish(self) -> None:
        first = self._first if self._first is not None else self._cursor + 1
        last = max(self._cursor, first - 1)
        self.ticket.resolve(Framed(first, last, self._tombstone, b"".join(self._pieces)))


def seq_of(frame: bytes) -> int:
    return int.from_bytes(frame[5:13], "little")
