"""The rig: a kernel on a simulated disk and clock, live delivery over it, and clients that read as they are told.

    rig = Rig()
    rig.write("a", 1, 2)
    stream = rig.open(rig.session({"a": 0}))
    assert stream.records("a") == [1, 2]

Nothing happens by itself: `pump` carries out what is due, `advance` moves the clock in ticks of 50 ms."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from topics.api.live.batches import Bounds, Options
from topics.api.live.live import Live
from topics.api.live.outbound import SlowConsumerLimits
from topics.api.live.sessions import Session, SessionCursor
from topics.api.live.sockets import Socket
from topics.api.live.watch import WatchStream
from topics.core.reading.walk import ReadOutcome, ReadRequest
from topics.core.topic import TopicLog
from topics.engine.delivery.pressure import Tuning
from topics.model.config import patch_from, resolve_config
from topics.model.names import parse_match
from topics.net.messages import AllowanceOwner, Line
from topics.server.connections.budget import ResponseBudget, StreamBudget
from topics.testing.clock import SimClock
from topics.testing.driver import SimKernel
from topics.testing.simfs import SimFs
from topics.wire.access.keys import Key
from topics.wire.incoming.requests import (
    decode_write,
)
from topics.wire.outgoing.records import View, render
from topics.wire.outgoing.sse import decode_id

TICK_MS = 50


class Frame(NamedTuple):
    """One event of a stream."""

    event: str
    data: dict[str, Any]
    cursors: dict[str, int] | None


class Pipe:
    """The client's end of a connection: it takes what comes, or only what it is told to take."""

    def __init__(self, room: ResponseBudget) -> None:
        self._room = room
        self._share: StreamBudget | None = None
        self.reads = True
        self.closed = False
        self.was_aborted = False
        self.sent: list[bytes] = []
        self.sent_bytes = 0
        self.taken_bytes = 0
        self._above = False
        self._low_bytes = 0
        self._drained: Callable[[], None] | None = None
        self._on_close: list[Callable[[], None]] = []

    # --- Sink ---------------------------------------------------------------------------------------------------------

    def buffered_bytes(self) -> int:
        return 0 if self.closed else self.sent_bytes - self.taken_bytes

    def set_drain_callback(self, callback: Callable[[], None], *, low_bytes: int = 0) -> None:
        self._drained, self._low_bytes = callback, low_bytes

    def allowance(self, owner: AllowanceOwner) -> StreamBudget:
        self._share = StreamBudget(self._room, owner, self.buffered_bytes)
        return self._share

    def on_close(self, callback: Callable[[], None]) -> None:
        if self.closed:
            callback()
        else:
            self._on_close.append(callback)

    def abort(self) -> None:
        self.was_aborted = True
        self.cut()

    def _put(self, data: bytes) -> None:
        if self.closed:
            return
        self.sent.append(data)
        self.sent_bytes += len(data)
        if self.reads:
            self.taken_bytes = self.sent_bytes
        self._above = self.buffered_bytes() > self._low_bytes

    # --- the client ---------------------------------------------------------------------------------------------------

    def take(self, size: int | None = None) -> None:
        """Take so many bytes, or all there are."""
        left = self.sent_bytes - self.taken_bytes
        self.taken_bytes += left if size is None else min(size, left)
        if self._above and self.buffered_bytes() <= self._low_bytes and self._drained is not None:
            self._above = False
            self._drained()

    def cut(self) -> None:
        """The connection is gone."""
        if not self.closed:
            self.closed = True
            if self._share is not None:
                self._share.close()
            for callback in self._on_close:
                callback()

    @property
    def received(self) -> bytes:
        return b"".join(self.sent)[: self.taken_bytes]


class Stream(Pipe):
    """A client of server-sent events; `shares` is whether its transport may be written to past its sink."""

    shares = True

    def send(self, chunk: bytes) -> None:
        self._put(chunk)

    def line(self) -> Line | None:
        return Line(bytes, self.buffered_bytes, self._put) if self.shares else None

    def end(self) -> None:
        """What was sent before a proper end is still delivered."""
        self.taken_bytes = self.sent_bytes
        self.cut()

    def frames(self, *, upto: int | None = None) -> list[Frame]:
        """Every whole frame received, of the first `upto` bytes if that is given."""
        return parse_frames(self.received if upto is None else self.received[:upto])

    def events(self, topic: str | None = None) -> list[str]:
        return [frame.event for frame in self.frames() if topic is None or frame.data.get("topic") == topic]

    def records(self, topic: str) -> list[Any]:
        return [record["data"] for record in records_of(self.frames(), topic)]

    def seqs(self, topic: str) -> list[int]:
        return [record["$seq"] for record in records_of(self.frames(), topic)]


class WsClient(Pipe):
    """A client of a socket; `reading` is whether the server reads its commands."""

    def __init__(self, room: ResponseBudget) -> None:
        super().__init__(room)
        self.reading = True
        self.close_code: int | None = None
        self._inbox: list[tuple[bytes, bool]] = []
        self._deliver: Callable[[bytes, bool], None] | None = None

    def send_text(self, payload: bytes) -> None:
        self._put(payload)

    def on_message(self, callback: Callable[[bytes, bool], None]) -> None:
        self._deliver = callback

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self, code: int = 1000) -> None:
        self.close_code = code
        self.cut()

    def say(self, op: str, **fields: Any) -> None:
        self.say_raw(json.dumps({"op": op, **fields}).encode())

    def say_raw(self, payload: bytes, *, is_text: bool = True) -> None:
        self._inbox.append((payload, is_text))

    def subscription(self) -> bool:
        """Let the server read the next command, if it wants to."""
        if not self._inbox or not self.reading or self.closed:
            return False
        assert self._deliver is not None
        self._deliver(*self._inbox.pop(0))
        return True

    def messages(self) -> list[dict[str, Any]]:
        """Every whole message received."""
        whole, size = [], 0
        for payload in self.sent:
            size += len(payload)
            if size <= self.taken_bytes:
                whole.append(json.loads(payload))
        return whole

    def records(self, topic: str) -> list[Any]:
        return [record["data"] for frame in self.of("record", topic) for record in frame["records"]]

    def of(self, op: str, topic: str | None = None) -> list[dict[str, Any]]:
        return [message for message in self.messages() if message["op"] == op and topic in (None, message.get("topic"))]


class Rig:
    """`busy` is the busy share that back-pressure sees; keywords beyond the named ones are settings."""

    def __init__(
        self, *, tuning: Tuning | None = None, slow_limits: SlowConsumerLimits | None = None, **settings: Any
    ) -> None:
        self.clock = SimClock()
        self.fs = SimFs()
        self.busy = 0.0
        self.sim = SimKernel.open(self.fs, clock=self.clock, **settings)
        self.live = Live(
            self.sim.kernel,
            self.sim.kernel.settings,
            keys=None,
            busy=lambda: self.busy,
            tuning=tuning,
            slow_limits=slow_limits,
        )
        self.room = ResponseBudget(self, self.clock.monotonic)  # type: ignore[arg-type]  # all it wants of a loop
        self.sockets: list[WsClient] = []

    def call_soon(self, turn: Callable[[], None]) -> None:
        self.sim.driver.soon(turn)

    # --- time ---------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        self.sim.pump()
        while any([socket.subscription() for socket in self.sockets]):  # noqa: C419 - every socket gets its turn
            self.sim.pump()

    def advance(self, elapsed_ms: int, *, tick_ms: int = TICK_MS) -> None:
        """Let time pass, tick by tick; ticks may be late."""
        while elapsed_ms > 0:
            step = min(tick_ms, elapsed_ms)
            elapsed_ms -= step
            self.clock.advance(step)
            self.sim.tick()
            self.room.tick()
            self.pump()

    # --- what is written ----------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Any:
        return self.sim.engine

    def topic(self, name: str) -> TopicLog:
        return self.sim.engine.state.topics[name]

    def put(self, name: str, **config: Any) -> None:
        patch = resolve_config(patch_from(config))
        self.sim.call(lambda engine: engine.put_topic(name, patch))

    def write(self, name: str, *data: Any, deliver: bool = True, **fields: Any) -> None:
        """Each item is the data of a record, or a dict with `data` for more. `deliver=False`: published, not pushed."""
        batch = decode_write(write_body(*data, **fields)).batch()
        ticket = self.sim.submit(lambda engine: engine.write(name, batch))
        if deliver:
            self.pump()
        else:
            while not ticket.done:
                assert self.sim.driver.turn(), "the write is never answered"
        ticket.result()

    def delete(self, name: str, *, before_seq: int | None = None, match: str | None = None) -> None:
        chosen = None if match is None else parse_match(match)
        self.sim.call(lambda engine: engine.delete_records(name, before_seq=before_seq, match=chosen))

    def drop(self, name: str) -> None:
        self.sim.call(lambda engine: engine.drop_topic(name))

    # --- who reads ----------------------------------------------------------------------------------------------------

    def session(self, starts: dict[str, int | str], *, heartbeat_ms: int = 15_000, **options: Any) -> Session:
        """`starts` maps topics to a cursor, or to "tail"."""
        places = []
        for name, start in starts.items():
            topic = self.topic(name)
            cursor = topic.head if start == "tail" else int(start)
            places.append(SessionCursor(name, cursor=cursor, epoch=topic.epoch))
        return self.live.sessions.add(places, read_options(**options), heartbeat_ms=heartbeat_ms, owner=None)

    def open(self, session: Session, *, last_id: bytes | None = None, reads: bool = True, pump: bool = True) -> Stream:
        stream = Stream(self.room)
        stream.reads = reads
        session.resume(decode_id(last_id), self.sim.engine.state.topics)
        WatchStream(self.live.services, session, stream).begin()
        if pump:
            self.pump()
        return stream

    def watch(self, starts: dict[str, int | str], *, reads: bool = True, **options: Any) -> Stream:
        return self.open(self.session(starts, **options), reads=reads)

    def socket(self, key: Key | None = None) -> WsClient:
        client = WsClient(self.room)
        Socket(self.live.services, client, key).begin()
        self.sockets.append(client)
        return client

    def diff(self, name: str, from_seq: int, *, view: View | None = None, **options: Any) -> ReadOutcome:
        chosen = read_options(**options)
        request = ReadRequest(
            from_seq=from_seq, limit=chosen.bounds.limit, budget_bytes=chosen.bounds.budget_bytes, nodes=chosen.nodes
        )
        outcome: ReadOutcome = self.sim.call(lambda engine: engine.read(name, request)).outcome
        return outcome


def read_options(
    *,
    limit: int = 256,
    budget: int = 262_144,
    strong: bool = False,
    node: str | None = None,
    view: View | None = None,
) -> Options:
    nodes = None if node is None else frozenset([node.encode()])
    return Options(Bounds(limit, budget, strong), view or View(), nodes)


def write_body(*data: Any, **fields: Any) -> bytes:
    records = [item if isinstance(item, dict) and "data" in item else {"data": item} for item in data]
    return msgspec.json.encode({"records": records, **fields})


def bodies_of(outcome: ReadOutcome, view: View | None = None) -> list[dict[str, Any]]:
    """The records of a diff, as the wire shows them."""
    return [json.loads(body) for run in outcome.runs for body in render(run, None, view or View()).each()]


def parse_frames(received: bytes) -> list[Frame]:
    *whole, _ = received.split(b"\n\n")
    frames = []
    for text in whole:
        fields = dict(line.split(b": ", 1) for line in text.split(b"\n"))
        if b"event" in fields:
            positions = decode_id(fields.get(b"id"))
            cursors = None if positions is None else {name: position.seq for name, position in positions.items()}
            frames.append(Frame(fields[b"event"].decode(), json.loads(fields[b"data"]), cursors))
    return frames


def last_id(received: bytes) -> bytes | None:
    """The last id of a whole frame, as a browser keeps it."""
    *whole, _ = received.split(b"\n\n")
    ids = [line[4:] for text in whole for line in text.split(b"\n") if line.startswith(b"id: ")]
    return ids[-1] if ids else None


def records_of(frames: list[Frame], topic: str) -> list[dict[str, Any]]:
    return [
        record
        for frame in frames
        if frame.event == "record" and frame.data["topic"] == topic
        for record in frame.data["records"]
    ]
