"""Following: a reader that waits at the head of a server's topic.

`SseReader` turns the bytes of a watch stream into frames, `Following` knows where the reader stands and what to ask
next; both do no I/O. `follow` drives them over a transport until the client is closed.

Always holds: the cursor is the reader's own, behind the last record handed out; a stream that breaks in any way is
opened again from there, so nothing is skipped and nothing comes twice. A server that gives no watch session is
long-polled.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import NamedTuple

from topics import limits
from topics.client import routes
from topics.client.routes import decode_batch, decoder_of, stamped
from topics.client.transport.connection import Connection
from topics.client.transport.http_messages import ClientCall
from topics.client.transport.retry import Attempts, RetryPolicy
from topics.client.transport.transport import Transport
from topics.client.verbs import Items, diff_request
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
from topics.model.paging import After, Gap, Gaps, Walk
from topics.model.position import Position
from topics.model.results import ReadResult, Record, WatchResult
from topics.wire.incoming.requests import (
    WatchRequest,
    checked,
)
from topics.wire.outgoing.sse import CAUGHT_UP, ERROR, RECORD, TOMBSTONE, TOPIC_DELETED, decode_id, encode_id

HEARTBEAT_MS = 5000
SILENCE_S_MAX = 3 * HEARTBEAT_MS / 1000  # three heartbeats missed: the server is gone, whatever TCP says
LONG_POLL_MS = 10_000
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


class Following:
    def __init__(self, topic: str, after: After, *, nodes: tuple[str, ...], gaps: Gaps, policy: RetryPolicy) -> None:
        self._topic = topic
        self._nodes = nodes
        self._walk = Walk(topic, after, gaps=gaps)
        self._policy = policy
        self._attempts: Attempts | None = None
        self._wid: str | None = None
        self._is_beyond = False  # the session began behind the topic's end, and nothing was heard of it yet
        self.polls = False
        """The server gives no session: long-poll."""

    # --- what to ask ----------------------------------------------------------------------------------------------

    def session_call(self) -> ClientCall[WatchResult] | None:
        """Needed before a stream can be opened; None if there is a session."""
        if self._wid is not None:
            return None
        request = checked(
            WatchRequest,
            topics={self._topic: {"from_seq": self._walk.position.given}},
            node=list(self._nodes) or None,
            limit=limits.WATCH_LIMIT.high,
            max_batch_bytes=limits.DIFF_BATCH_BYTES.default,
            heartbeat_ms=HEARTBEAT_MS,
            include_tags=True,
        )
        return routes.WATCH.call("", request)

    def session_made(self, session: WatchResult) -> None:
        self._wid = session.wid
        start = session.topics.get(self._topic)
        has_epoch = self._walk.position.epoch is not None  # then an id takes the session back
        self._is_beyond = start is not None and start.from_seq > start.head_seq and not has_epoch

    def stream_call(self) -> tuple[ClientCall[bytes], bytes]:
        """With the header that takes the session back to our cursor, should it be ahead."""
        assert self._wid is not None
        mark = encode_id({self._topic: self._walk.position})
        return routes.WATCH_STREAM.call(self._wid, None), b"Last-Event-ID: %b\r\n" % mark

    def poll_call(self) -> ClientCall[ReadResult]:
        request = diff_request(
            self._walk.position,
            limit=limits.DIFF_LIMIT.high,
            max_bytes=limits.DIFF_BATCH_BYTES.default,
            nodes=self._nodes,
            wait_ms=0 if self._walk.is_new else LONG_POLL_MS,  # first see where the log begins
        )
        return routes.DIFF.call(self._topic, request)

    # --- what came ------------------------------------------------------------------------------------------------

    def page(self, page: ReadResult) -> Iterator[Record | Gap]:
        self._attempts, self._policy = None, _FOREVER
        return self._walk.take(page)

    def frame(self, frame: Frame) -> Iterator[Record | Gap]:
        """Raises what ends the stream; passes over news of the server (`deferred`, `resumed`) and what is unknown."""
        if frame.event not in _TOLD:
            return
        self._attempts, self._policy = None, _FOREVER
        self._is_beyond = False
        if frame.event == RECORD:
            batch = decode_batch(frame.data)
            self._walk.position = end = self._place(frame, batch.to_seq)
            yield from stamped(batch.records, end.epoch)
        elif frame.event == TOMBSTONE:
            gap = _decode_gap(frame.data)
            self._walk.position = self._place(frame, gap.gap_to)
            yield from self._walk.meet(gap)
        elif frame.event == CAUGHT_UP:
            self._walk.position = self._place(frame, self._walk.cursor)  # past what is hidden from us or was deleted
        elif frame.event == TOPIC_DELETED:
            raise TopicNotFound(self._topic)
        elif frame.event == ERROR:
            raise ShuttingDown("the server ended the stream")
        self._walk.arrive()

    def _place(self, frame: Frame, otherwise: int) -> Position:
        """Where the frame's id puts us."""
        return (decode_id(frame.id) or {}).get(self._topic, Position(otherwise))

    def failed(self, error: TopicsError, *, now: float, chance: Callable[[], float]) -> float:
        """How long to wait before the next try; raises the error if there is no use in one.

        A server that was never reached is given up in time; one that was is waited for."""
        if self._is_beyond:
            # A session goes on behind what it sent, and an id behind the end cannot take it back: what was lost on the
            # way is told again by a new one only.
            self._wid, self._is_beyond = None, False
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


async def follow(
    transport: Transport, topic: str, after: After, *, nodes: tuple[str, ...], gaps: Gaps
) -> AsyncGenerator[Items, None]:
    """What comes, one page or frame at a time. Errors of the server end up here, not with the reader."""
    following = Following(topic, after, nodes=nodes, gaps=gaps, policy=transport.policy)
    while not transport.closed.is_set():
        try:
            if following.polls:
                yield list(following.page(await transport.once(following.poll_call())))
                continue
            connection, reader = await _open_stream(transport, following), SseReader()
            try:
                while (data := await connection.pieces(timeout_s=SILENCE_S_MAX)) is not None:
                    for frame in reader.feed(data):
                        yield list(following.frame(frame))
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
