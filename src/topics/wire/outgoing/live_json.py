"""What live streams say, as JSON objects. Server-sent events and WebSocket messages differ only in a first field.

`op` is that field of a WebSocket message, with its comma; server-sent events have none. Compact JSON; payload texts
keep their own white space. Topics named here exist or have existed, so their names are plain ASCII.
"""

from topics.model.results import Tombstone

DELETED_REASON = b"deleted"


def record_json(
    topic: str, records: bytes, *, from_seq: int, to_seq: int, head_seq: int, epoch: int, op: bytes = b""
) -> bytes:
    """`records` are rendered and joined by commas; the cursor moves from `from_seq` to `to_seq`."""
    return b'{%b"topic":"%b","from_seq":%d,"head_seq":%d,"records":[%b],"to_seq":%d,"next":"%d-e%x"}' % (
        op,
        topic.encode(),
        from_seq,
        head_seq,
        records,
        to_seq,
        to_seq,
        epoch,
    )


def tombstone_json(topic: str, tombstone: Tombstone, reason: str, *, at: int, epoch: int, op: bytes = b"") -> bytes:
    """The cursor is put at `at`."""
    return (
        b'{%b"topic":"%b","reason":"%b","gap_from":%d,"gap_to":%d,"earliest_seq":%d,"head_seq":%d,"next":"%d-e%x"}'
        % (
            op,
            topic.encode(),
            reason.encode(),
            tombstone.gap_from,
            tombstone.gap_to,
            tombstone.earliest_seq,
            tombstone.head_seq,
            at,
            epoch,
        )
    )


def caught_up_json(topic: str, *, head_seq: int, epoch: int, op: bytes = b"") -> bytes:
    return b'{%b"topic":"%b","head_seq":%d,"next":"%d-e%x"}' % (op, topic.encode(), head_seq, head_seq, epoch)


def deferred_json(topic: str, *, max_wait_ms: int, op: bytes = b"") -> bytes:
    return b'{%b"topic":"%b","reason":"pressure","max_wait_ms":%d}' % (op, topic.encode(), max_wait_ms)


def resumed_json(topic: str, *, op: bytes = b"") -> bytes:
    return b'{%b"topic":"%b"}' % (op, topic.encode())


def deleted_json(topic: str, *, op: bytes = b"") -> bytes:
    return b'{%b"topic":"%b","head_seq":0,"reason":"%b"}' % (op, topic.encode(), DELETED_REASON)
