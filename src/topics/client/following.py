"""Following: a reader that waits at the head of one or several topics of a server.

`SseReader` turns the bytes of a watch stream into frames, `Following` knows where the reader stands in each topic and
what to ask next; both do no I/O. `follow` drives them over a transport until the client is closed.

Always holds: the positions are the reader's own, behind the last record handed out; a stream that breaks in any way is
opened again from there, so nothing is skipped and nothing comes twice. A server that gives no watch session is
long-polled, topic by topic.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import NamedTuple

import msgspec

from topics import limits
from topics.client import routes
from topics.client.readers import Reading, Stretch, Stretches
from topics.client.routes import decode_batch, decoder_of, stamped
from topics.client.transport.connection import Connection
from topics.client.transport.http_messages import ClientCall
from topics.client.transport.retry import Attempts, RetryPolicy
from topics.client.transport.transport import Transport
from topics.errors import (
    MethodNotAllowed,
    NotFound,
    ShuttingDown,
    Throttled,
    TopicNotFound,
    TopicsError,
    Unauthorized,
    Unreachable,
)
from topics.limits import MIB
from topics.model.paging import Gap, Gaps
from topics.model.position import Position
from topics.model.results import ReadResult, WatchResult
from topics.wire.incoming.requests import (
    WatchRequest,
    checked,
)
from topics.wire.outgoing.sse import CAUGHT_UP, ERROR, RECORD, TOMBSTONE, TOPIC_DELETED, decode_id, encode_id

HEARTBEAT_MS = 5000
SILENCE_S_MAX = 3 * HEARTBEAT_MS / 1000  # three heartbeats missed: the server is gone, whatever TCP says
LONG_POLL_MS = 10_000
POLL_IN_TURN_MS = 200  # of each of several topics
FRAME_BYTES_MAX = 64 * MIB
_FOREVER = RetryPolicy(total_s=float("inf"))

_TOLD = frozenset((RECORD, TOMBSTONE, CAUGHT_UP, TOPIC_DELETED, ERROR))
_decode_gap = decoder_of(Gap)


class Frame(NamedTuple):
    """One server-sent event."""

    event: bytes
    data: bytes
    id: bytes | None = None


class SseReader:
    """Bytes in, frames out; a frame that is cut off is no frame. Comments and `retry` are dropped; only LF ends a
    line, as the contract has it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        whole, mark, self._rest = (self._rest + data).rpartition(b"\n\n")
        if len(self._rest) > FRAME_BYTES_MAX:
            raise Unreachable(f"a stream frame has more than {FRAME_BYTES_MAX} bytes", sent=True)
        if not mark:
            return []
        found = (_frame_of(block) for block in whole.split(b"\n\n"))
        return [frame for frame in found if frame is not None]


def _frame_of(block: bytes) -> Frame | None:
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b": ")
        fields[name] = value
    if b"data" not in fields:
        return None
    return Frame(fields.get(b"event", b"message"), fields[b"data"], fields.get(b"id"))


class _Named(msgspec.Struct, frozen=True):
    """What every frame about a topic has."""

    topic: str


_decode_name = decoder_of(_Named)


class Following:
    def __init__(self, readings: Mapping[str, Reading], *, gaps: Gaps, policy: RetryPolicy) -> None:
        self._readings = dict(readings)
        self._walks = {topic: wanted.walk(topic, gaps=gaps) for topic, wanted in readings.items()}
        self._wanted = next(iter(self._readings.values()))  # the nodes and tags of all of them
        self._turns = cycle(self._readings)
        self._polled = ""
        self._policy = policy
        self._attempts: Attempts | None = None
        self._wid: str | None = None
        self._beyond: set[str] = set()  # topics behind whose end the session began, and nothing was heard of them yet
        self.polls = False
        """The server gives no session: long-poll."""

    # --- what to ask ----------------------------------------------------------------------------------------------

    def session_call(self) -> ClientCall[WatchResult] | None:
        """Needed before a stream can be opened; None if there is a session."""
        if self._wid is not None:
            return None
        request = checked(
            WatchRequest,
            topics={topic: {"from_seq": walk.position.given} for topic, walk in self._walks.items()},
            node=list(self._wanted.nodes) or None,
            tag=self._wanted.tag,
            limit=limits.WATCH_LIMIT.high,
            max_batch_bytes=limits.DIFF_BATCH_BYTES.default,
            heartbeat_ms=HEARTBEAT_MS,
            include_tags=True,
        )
        return routes.WATCH.call("", request)

    def session_made(self, session: WatchResult) -> None:
        self._wid = session.wid
        self._beyond = {
            topic
            for topic, start in session.topics.items()
            if start.from_seq > start.head_seq
            and self._walks[topic].position.epoch is None  # otherwise an id takes the session back
        }

    def stream_call(self) -> tuple[ClientCall[bytes], bytes]:
        """With the header that takes the session back to our positions, should it be ahead."""
        assert self._wid is not None
        mark = encode_id({topic: walk.position for topic, walk in self._walks.items()})
        return routes.WATCH_STREAM.call(self._wid, None), b"Last-Event-ID: %b\r\n" % mark

    def poll_call(self) -> ClientCall[ReadResult]:
        self._polled = topic = next(self._turns)
        walk = self._walks[topic]
        waits_ms = LONG_POLL_MS if len(self._walks) == 1 else POLL_IN_TURN_MS
        request = (
            self._readings[topic]
            .at(walk.position)
            .request(
                limit=limits.DIFF_LIMIT.high,
                wait_ms=0 if walk.is_new else waits_ms,  # first see where the log begins
            )
        )
        return routes.DIFF.call(topic, request)

    # --- what came ------------------------------------------------------------------------------------------------

    def page(self, page: ReadResult) -> Stretch:
        self._attempts, self._policy = None, _FOREVER
        walk = self._walks[self._polled]
        items = list(walk.take(page))
        return Stretch(self._polled, items, walk.position)

    def frame(self, frame: Frame) -> Stretch | None:
        """Raises what ends the stream; passes over news of the server (`deferred`, `resumed`) and what is unknown."""
        if frame.event not in _TOLD:
            return None
        self._attempts, self._policy = None, _FOREVER
        if frame.event == ERROR:
            self._beyond.clear()
            raise ShuttingDown("the server ended the stream")
        if frame.event == RECORD:
            batch = decode_batch(frame.data)
            end = self._move(batch.topic, frame, batch.to_seq)
            return self._arrived(Stretch(batch.topic, stamped(batch.records, end.epoch), end))
        if frame.event == TOMBSTONE:
            gap = _decode_gap(frame.data)
            end = self._move(gap.topic, frame, gap.gap_to)
            return self._arrived(Stretch(gap.topic, list(self._walks[gap.topic].meet(gap)), end))
        topic = _decode_name(frame.data).topic
        if frame.event == TOPIC_DELETED:
            raise TopicNotFound(topic)
        end = self._move(topic, frame, self._walks[topic].cursor)  # past what is hidden from us or was deleted
        return self._arrived(Stretch(topic, (), end))

    def _move(self, topic: str, frame: Frame, otherwise: int) -> Position:
        """To where the frame's id puts us."""
        self._beyond.discard(topic)
        walk = self._walks[topic]
        walk.position = (decode_id(frame.id) or {}).get(topic, Position(otherwise))
        return walk.position

    def _arrived(self, stretch: Stretch) -> Stretch:
        self._walks[stretch.topic].arrive()
        return stretch

    def failed(self, error: TopicsError, *, now: float, chance: Callable[[], float]) -> float:
        """How long to wait before the next try; raises the error if there is no use in one.

        A server that was never reached is given up in time; one that was is waited for."""
        if self._beyond:
            # A session goes on behind what it sent, and an id behind the end cannot take it back: what was lost on the
            # way is told again by a new one only.
            self._wid = None
            self._beyond.clear()
        if isinstance(error, NotFound | Unauthorized) and self._wid is not None:
            self._wid = None  # the session is gone, as after a restart
            return 0.0
        if self._wid is None and not self.polls and isinstance(error, NotFound | MethodNotAllowed | Throttled):
            self.polls = True
            return 0.0
        self._attempts = self._attempts or Attempts(self._policy, now=now)
        pause_s = self._attempts.pause_s(error, repeatable=True, now=now, chance=chance)
        if pause_s is None:
            raise error
        self._attempts.tell(error, now=now)
        return pause_s


async def follow(transport: Transport, readings: Mapping[str, Reading], *, gaps: Gaps) -> Stretches:
    """What comes, one page or frame at a time. Errors of the server end up here, not with the reader."""
    following = Following(readings, gaps=gaps, policy=transport.policy)
    while not transport.closed.is_set():
        try:
            if following.polls:
                yield following.page(await transport.once(following.poll_call()))
                continue
            connection, reader = await _open_stream(transport, following), SseReader()
            try:
                while (data := await connection.pieces(timeout_s=SILENCE_S_MAX)) is not None:
                    for frame in reader.feed(data):
                        stretch = following.frame(frame)
                        if stretch is not None:
                            yield stretch
            finally:
                transport.end_stream(connection)
            raise Unreachable("the stream came to its end", sent=True)
        except TopicsError as error:
            if transport.closed.is_set():
                return
            await transport.pause(following.failed(error, now=time.monotonic(), chance=random.random))


async def _open_stream(transport: Transport, following: Following) -> Connection:
    session = following.session_call()
    if session is not None:
        following.session_made(await transport.once(session))
    call, mark = following.stream_call()
    return await transport.open_stream(call, extra=mark)
