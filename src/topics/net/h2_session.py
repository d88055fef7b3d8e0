"""H2Session: the server's end of one HTTP/2 connection, bytes in and bytes out, on top of the `h2` library.

`receive` gives events, which name nothing that only HTTP/2 knows about. Output waits in two places: what flow control
holds back waits per stream (`pending_bytes`), everything else in the output that `take_output` empties. Streams with
something to send take turns, frame by frame, so that no large answer keeps the others waiting. Work that a peer can
cause without asking for anything is bounded by token buckets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from h2.config import H2Configuration
from h2.connection import H2Connection as H2Library
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error, ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import Decoder, HeaderTuple
from hyperframe.frame import GoAwayFrame

from topics.errors import InvalidRequest
from topics.limits import H2_CONNECTION_WINDOW_BYTES, H2_STREAM_WINDOW_BYTES
from topics.net.h2_head import Malformed, checked, request_head
from topics.net.messages import Headers, RequestHead
from topics.net.transport_limits import (
    H2_CONTROL_BURST,
    H2_CONTROL_PER_S_MAX,
    H2_RESETS_BURST,
    H2_RESETS_PER_S_MAX,
    H2_STREAMS_MAX,
    H2_TABLE_BYTES_MAX,
    HEAD_BYTES_MAX,
)

# --- events ---------------------------------------------------------------------------------------------------------


class H2Request(NamedTuple):
    stream_id: int
    head: RequestHead
    content_length: int | None


class H2BadRequest(NamedTuple):
    """A request that cannot be understood but whose stream can still be answered."""

    stream_id: int
    reason: str
    is_malformed: bool  # so that its stream has to end with an error


class H2Body(NamedTuple):
    stream_id: int
    data: bytes
    credit: int  # what `H2Session.acknowledge` gives back; padding counts


class H2BodyEnd(NamedTuple):
    stream_id: int


class H2Reset(NamedTuple):
    """The peer gave up one stream."""

    stream_id: int


class H2Window(NamedTuple):
    """More may be sent: on one stream, or on all if `stream_id` is 0."""

    stream_id: int


class H2Over(NamedTuple):
    """The connection must end; what remains to be said is in the output."""

    reason: str


H2Event = H2Request | H2BadRequest | H2Body | H2BodyEnd | H2Reset | H2Window | H2Over


# --- parts of a session -----------------------------------------------------------------------------------------------


class Bucket:
    """A token bucket: how often a peer may do something that costs us work.

    Fills by `per_s` tokens a second up to `burst`; time comes in as an argument and may stand still."""

    __slots__ = ("_burst", "_per_s", "_since_s", "_tokens")

    def __init__(self, *, per_s: float, burst: float, now_s: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._since_s = now_s

    def take(self, count: int, now_s: float) -> bool:
        """False once more was taken than the bucket held."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._since_s) * self._per_s) - count
        self._since_s = now_s
        return self._tokens >= 0


class Outgoing:
    """What one stream still has to send, held back by the peer's flow control."""

    __slots__ = ("_chunks", "_taken_bytes", "ended", "size_bytes")

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._taken_bytes = 0  # of the first chunk
        self.size_bytes = 0
        self.ended = False  # nothing will be added

    def add(self, data: bytes) -> None:
        if data:
            self._chunks.append(data)
            self.size_bytes += len(data)

    def take(self, max_bytes: int) -> bytes:
        """Up to `max_bytes` from the front; small chunks are joined, a large one is taken piece by piece."""
        parts: list[bytes] = []
        room = max_bytes
        while self._chunks and room:
            chunk, start = self._chunks[0], self._taken_bytes
            part = chunk[start : start + room]
            parts.append(part)
            room -= len(part)
            self._taken_bytes += len(part)
            if self._taken_bytes == len(chunk):
                self._chunks.popleft()
                self._taken_bytes = 0
        taken = parts[0] if len(parts) == 1 else b"".join(parts)
        self.size_bytes -= len(taken)
        return taken


KNOWN_MAX = 16
"""Different heads of one connection that are remembered."""
_INDEXED = 0x80  # of a field's first byte, and of the whole field for the first 126 indices


class RepeatingDecoder(Decoder):
    """Does not decode an HPACK block again that came before.

    A client that repeats a request sends a block of nothing but indices, the same bytes each time. Such a block changes
    no table, and its meaning stays true until another kind of block comes, which is always decoded."""

    def __init__(self, max_header_list_size: int) -> None:
        super().__init__(max_header_list_size)
        self._known: dict[bytes, list[HeaderTuple]] = {}

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        has_right_table = self.header_table_size <= self.max_allowed_table_size
        if not (raw and data and min(data) >= _INDEXED and has_right_table):
            self._known.clear()
            return self._decode(data, raw)
        fields = self._known.get(data)
        if fields is None:
            fields = self._decode(data, raw)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[bytes(data)] = fields
        return list(fields)

    def _decode(self, data: bytes, raw: bool) -> list[HeaderTuple]:
        return list(super().decode(data, raw))


class CheckingDecoder(RepeatingDecoder):
    """Gives blocks as the `h2` library may see them; those that are known are checked already."""

    def _decode(self, data: bytes, raw: bool) -> list[HeaderTuple]:
        return checked(super()._decode(data, raw))


_DEFAULT_WINDOW_BYTES = 65_535
_CLOSED_SPARE = 16  # closed streams that a connection may keep, however few are open
_CONFIG = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_inbound_headers=False,  # `h2_head.checked` does
    validate_outbound_headers=False,  # they are ours, and written in lower case below
    normalize_outbound_headers=False,
)


class _Library(H2Library):
    """The `h2` library counts its streams for each request, and forgets closed ones while it does. With a thousand open
    streams that is most of the work, so here it happens only when there are twice as many as were open before."""

    _count_from = 0

    @property
    def open_inbound_streams(self) -> int:
        """At least as many as are open, and too many only if they are."""
        known = len(self.streams)
        if known < self._count_from:
            return known
        opened: int = super().open_inbound_streams
        self._count_from = min(2 * opened + _CLOSED_SPARE, H2_STREAMS_MAX)
        return opened


class H2Session:
    def __init__(self, now_s: float) -> None:
        self._conn = _Library(_CONFIG)
        self._conn.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: H2_STREAMS_MAX,
                SettingCodes.INITIAL_WINDOW_SIZE: H2_STREAM_WINDOW_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: HEAD_BYTES_MAX,
            },
        )
        self._conn.decoder = CheckingDecoder(HEAD_BYTES_MAX)
        self._conn.initiate_connection()
        self._conn.increment_flow_control_window(H2_CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
        self._resets = Bucket(per_s=H2_RESETS_PER_S_MAX, burst=H2_RESETS_BURST, now_s=now_s)
        self._control = Bucket(per_s=H2_CONTROL_PER_S_MAX, burst=H2_CONTROL_BURST, now_s=now_s)
        self._outgoing: dict[int, Outgoing] = {}
        self._last_fields: object = None  # of the last request, and what they mean
        self._last_head: tuple[RequestHead, int | None] | None = None
        self._farewell = b""
        self._over = False
        self.unsent_bytes = 0  # of answers that are complete; endless ones are bounded by those who send them

    # --- input --------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now_s: float) -> list[H2Event]:
        if self._over:
            return []
        try:
            happened = self._conn.receive_data(data)
        except ProtocolError as error:
            return [self._end(str(error))]
        events: list[H2Event] = []
        resets = idle_work = 0
        priority: Event | None = None  # that came in the frame of a request
        for event in happened:
            if isinstance(event, RequestReceived):
                priority = event.priority_updated
            take = _TAKE.get(type(event))
            taken = take(self, event) if take is not None else None
            if taken is not None:
                events.append(taken)
                resets += type(taken) is H2Reset
            elif event is not priority and not isinstance(event, TrailersReceived):
                idle_work += 1
        if not self._resets.take(resets, now_s) or not self._control.take(idle_work, now_s):
            self._conn.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            events.append(self._end("the peer causes work without asking for anything"))
        return events

    def _end(self, reason: str) -> H2Over:
        self._over = True
        return H2Over(reason)

    def _request(self, event: RequestReceived) -> H2Event:
        """A head that repeats the last one is the last one: the application finds what it derived from it."""
        known = self._last_head
        if known is None or event.headers != self._last_fields:
            try:
                known = self._last_head = request_head(event.headers)
            except InvalidRequest as error:
                return H2BadRequest(event.stream_id, error.message, is_malformed=isinstance(error, Malformed))
            self._last_fields = event.headers
        head, content_length = known
        return H2Request(event.stream_id, head, content_length)

    def _data(self, event: DataReceived) -> H2Event | None:
        if not event.flow_controlled_length:
            return None
        return H2Body(event.stream_id, bytes(event.data), event.flow_controlled_length)

    def _trailer(self, event: TrailersReceived) -> H2Event | None:
        """Dropped, but for what makes the request malformed."""
        if any(name[:1] == b":" for name, _ in event.headers):
            return H2BadRequest(event.stream_id, "the trailer of the body is malformed", is_malformed=True)
        return None

    def _ended(self, event: StreamEnded) -> H2Event:
        return H2BodyEnd(event.stream_id)

    def _reset(self, event: StreamReset) -> H2Event:
        self._forget(event.stream_id)
        return H2Reset(event.stream_id)

    def _window(self, event: WindowUpdated) -> H2Event:
        return H2Window(event.stream_id)

    def _settings(self, event: RemoteSettingsChanged) -> None:
        """The peer may offer more for our heads to be remembered in than we want to search."""
        if self._conn.encoder.header_table_size > H2_TABLE_BYTES_MAX:
            self._conn.encoder.header_table_size = H2_TABLE_BYTES_MAX

    def _terminated(self, event: ConnectionTerminated) -> H2Event | None:
        """GOAWAY: no new streams will come. An error ends the rest as well."""
        return self._end("the peer ended the connection") if event.error_code else None

    def acknowledge(self, stream_id: int, credit: int) -> None:
        """A part of a body was dealt with: the peer may send as much again."""
        self._try(lambda: self._conn.acknowledge_received_data(credit, stream_id))

    # --- output -------------------------------------------------------------------------------------------------------

    def send_head(self, stream_id: int, status: int, headers: Headers, *, end: bool) -> None:
        fields = [(b":status", b"%d" % status), *((name.lower(), value) for name, value in headers)]
        self._try(lambda: self._conn.send_headers(stream_id, fields, end_stream=end))

    def send(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Add to the body of an answer; `pump` moves it on."""
        outgoing = self._outgoing.get(stream_id)
        if outgoing is None:
            outgoing = self._outgoing[stream_id] = Outgoing()
        outgoing.add(data)
        if outgoing.ended:
            self.unsent_bytes += len(data)
        elif end:
            outgoing.ended = True
            self.unsent_bytes += outgoing.size_bytes

    def pending_bytes(self, stream_id: int) -> int:
        outgoing = self._outgoing.get(stream_id)
        return outgoing.size_bytes if outgoing is not None else 0

    def is_open(self, stream_id: int) -> bool:
        """Does flow control admit some bytes of this stream now?"""
        try:
            return self._conn.local_flow_control_window(stream_id) > 0
        except H2Error:
            return False

    def flowing_bytes(self) -> int:
        """What part of `unsent_bytes` the peer lets us send, sooner or later, without another word about its stream."""
        return sum([each.size_bytes for at, each in self._outgoing.items() if each.ended and self.is_open(at)])

    def reset_untaken(self) -> list[int]:
        """Give up all complete answers that wait; returns their streams."""
        untaken = [stream_id for stream_id, outgoing in self._outgoing.items() if outgoing.ended]
        for stream_id in untaken:
            self.reset(stream_id)
        return untaken

    @property
    def waiting(self) -> bool:
        """Part of some answer is held back by flow control."""
        return bool(self._outgoing)

    def pump(self, room_bytes: int) -> int:
        """Turn what waits into frames, one frame per stream and turn, as far as the windows and `room_bytes` allow."""
        streams = list(self._outgoing)
        start_bytes = room_bytes
        while streams and room_bytes > 0:
            still: list[int] = []
            for stream_id in streams:
                sent = self.pump_stream(stream_id, room_bytes)
                room_bytes -= sent
                if sent and stream_id in self._outgoing:
                    still.append(stream_id)
            streams = still
        return start_bytes - room_bytes

    def pump_stream(self, stream_id: int, room_bytes: int) -> int:
        """Send one frame of a stream if it may; returns the payload bytes sent."""
        outgoing = self._outgoing.get(stream_id)
        if outgoing is None or room_bytes <= 0:
            return 0
        try:
            window = self._conn.local_flow_control_window(stream_id)
            data = outgoing.take(min(window, self._conn.max_outbound_frame_size, room_bytes)) if window > 0 else b""
            self.unsent_bytes -= len(data) if outgoing.ended else 0
            last = outgoing.ended and not outgoing.size_bytes
            if data or last:
                self._conn.send_data(stream_id, data, end_stream=last)
        except H2Error:  # the stream has gone meanwhile
            self._forget(stream_id)
            return 0
        if not outgoing.size_bytes:
            del self._outgoing[stream_id]
        return len(data)

    def _forget(self, stream_id: int) -> None:
        outgoing = self._outgoing.pop(stream_id, None)
        if outgoing is not None and outgoing.ended:
            self.unsent_bytes -= outgoing.size_bytes

    def reset(self, stream_id: int, *, refused: bool = False, malformed: bool = False) -> None:
        self._forget(stream_id)
        code = ErrorCodes.REFUSED_STREAM if refused else ErrorCodes.CANCEL
        if malformed:
            code = ErrorCodes.PROTOCOL_ERROR
        self._try(lambda: self._conn.reset_stream(stream_id, code))

    def ping(self) -> None:
        self._try(lambda: self._conn.ping(b"\0" * 8))

    def say_goodbye(self) -> None:
        """No further stream will be taken; those that run go on."""
        frame = GoAwayFrame(0, last_stream_id=self._conn.highest_inbound_stream_id, error_code=0)
        self._farewell = frame.serialize()

    def take_output(self) -> bytes:
        output = self._conn.data_to_send()
        if self._farewell:
            output, self._farewell = output + self._farewell, b""
        return output

    def _try(self, call: Callable[[], None]) -> None:
        """A stream or the connection may have ended since the application began its answer; then nothing is sent."""
        try:
            call()
        except H2Error:
            pass


_TAKE: dict[type[Event], Callable[..., H2Event | None]] = {
    RequestReceived: H2Session._request,
    DataReceived: H2Session._data,
    TrailersReceived: H2Session._trailer,
    StreamEnded: H2Session._ended,
    StreamReset: H2Session._reset,
    WindowUpdated: H2Session._window,
    RemoteSettingsChanged: H2Session._settings,
    ConnectionTerminated: H2Session._terminated,
}
