"""Server-sent events: their lines, the `data` that only they have, and resume ids (`docs/spec/http-api.md#sec-17-5`).

Lines end in one LF and a payload never breaks a line. What streams have in common with sockets is in `live_json`.

An id is base64url of `{"<topic>":"<position>","<topic>":<cursor>, ...}` over all topics of a session, after the frame
it stands on. A JSON reader keeps the last of two equal keys, so it sees the plain map of cursors that an id always was;
the position beside it tells us the epoch. Decoding is lenient and takes ids without positions: what is not such a map
is no id at all. Used by the streams of api, and by clients that follow them.
"""

import json
from collections.abc import Mapping

import msgspec

from topics import limits
from topics.model.position import Position, parse_token
from topics.model.results import Tombstone
from topics.wire.outgoing.live_json import tombstone_json
from topics.wire.page_tokens import decode_base64url, encode_base64url

HEARTBEAT = b": hb\n\n"
RETRY = b"retry: %d\n\n" % limits.SSE_RETRY_MS
CONTENT_TYPE = b"text/event-stream"
STREAM_HEADERS = (
    (b"Content-Type", CONTENT_TYPE),
    (b"Cache-Control", b"no-store"),
    (b"X-Accel-Buffering", b"no"),
)

_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def one_line(text: bytes) -> bytes:
    """The text with every CR and LF as one space each: JSON white space may be any of them, a frame's line may not."""
    if b"\n" in text or b"\r" in text:
        return text.translate(_LINE_BREAKS)
    return text


def frame(id: bytes | None, event: bytes, data: bytes) -> bytes:
    """One frame; `id` and `event` are our own words and hold no line break."""
    data = one_line(data)
    if id is None:
        return b"event: %b\ndata: %b\n\n" % (event, data)
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id, event, data)


RECORD = b"record"
TOMBSTONE = b"tombstone"
CAUGHT_UP = b"caught-up"
TOPIC_DELETED = b"topic-deleted"
DEFERRED = b"deferred"
RESUMED = b"resumed"
JOB = b"job"
ERROR = b"error"

FIRST_READ_REASONS = frozenset(("cap", "ttl", "mixed"))
TOO_OLD = "from_seq_too_old"
SHUTTING_DOWN = "server_shutting_down"


def tombstone_data(topic: str, tombstone: Tombstone, *, is_first_read: bool, at: int, epoch: int) -> bytes:
    """The first read of a topic in a connection calls retention's gaps `from_seq_too_old`; later ones tell why."""
    too_old = is_first_read and tombstone.reason in FIRST_READ_REASONS
    return tombstone_json(topic, tombstone, TOO_OLD if too_old else tombstone.reason, at=at, epoch=epoch)


def shutdown_data() -> bytes:
    """Last words of a watch stream."""
    return error_data(SHUTTING_DOWN, "the server is shutting down")


def error_data(code: str, message: str) -> bytes:
    """Something went wrong with a stream; whether it goes on is the code's business."""
    return msgspec.json.encode({"code": code, "message": message})


def job_data(topic: str, job: bytes) -> bytes:
    """A rendered entry of `claimed`, with its topic."""
    return b'{"topic":"%b",%b' % (topic.encode(), job[1:])


def work_error_data(topic: str, *, code: int | str, error: str) -> bytes:
    """Last words of a work stream."""
    return msgspec.json.encode({"code": code, "error": error, "topic": topic})


def encode_id(positions: Mapping[str, Position | int]) -> bytes:
    parts = [
        id_part(msgspec.json.encode(topic), Position(given) if isinstance(given, int) else given)
        for topic, given in positions.items()
    ]
    return encode_base64url(b"{%b}" % b",".join(parts))


def id_part(name: bytes, position: Position) -> bytes:
    """One topic's part of an id; `name` is a JSON text."""
    cursor = b"%b:%d" % (name, position.seq)
    return cursor if position.epoch is None else b'%b:"%b",%b' % (name, str(position).encode(), cursor)


def decode_id(header: bytes | None) -> dict[str, Position] | None:
    """A `Last-Event-ID`, or None if it is none of ours."""
    raw = None if not header else decode_base64url(header.strip())
    if raw is None or not raw.startswith(b"{"):
        return None
    found: dict[str, Position] = {}
    try:
        for topic, value in json.loads(raw, object_pairs_hook=list):
            position = Position(value) if _is_number(value) else parse_token(value)
            known = found.get(topic)
            found[topic] = known if known is not None and known.seq == position.seq else position
    except (ValueError, TypeError, RecursionError):
        return None
    return found


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= limits.U64_MAX
