"""What live streams say, as the inside of a JSON object: the part that SSE and WebSocket frames share.

Compact JSON; payload texts keep their own white space. Topics named here exist or have existed, so their names are
plain ASCII. Called by `sse` and `ws`.
"""

from topics.model.results import Tombstone

DELETED_REASON = b"deleted"


def record_fields(topic: str, records: bytes, *, from_seq: int, to_seq: int, head_seq: int, epoch: int) -> bytes:
    """`records` are rendered and joined by commas; the cursor moves from `from_seq` to `to_seq`."""
    return b'"topic":"%b","from_seq":%d,"head_seq":%d,"records":[%b],"to_seq":%d,"next":"%d-e%x"' % (
        topic.encode(),
        from_seq,
        head_seq,
        records,
        to_seq,
        to_seq,
        epoch,
    )


def tombstone_fields(topic: str, tombstone: Tombstone, reason: str, *, at: int, epoch: int) -> bytes:
    """The cursor is put at `at`."""
    return b'"topic":"%b","reason":"%b","gap_from":%d,"gap_to":%d,"earliest_seq":%d,"head_seq":%d,"next":"%d-e%x"' % (
        topic.encode(),
        reason.encode(),
        tombstone.gap_from,
        tombstone.gap_to,
        tombstone.earliest_seq,
        tombstone.head_seq,
        at,
        epoch,
    )


def caught_up_fields(topic: str, *, head_seq: int, epoch: int) -> bytes:
    return b'"topic":"%b","head_seq":%d,"next":"%d-e%x"' % (topic.encode(), head_seq, head_seq, epoch)


def deferred_fields(topic: str, *, max_wait_ms: int) -> bytes:
    return b'"topic":"%b","reason":"pressure","max_wait_ms":%d' % (topic.encode(), max_wait_ms)


def resumed_fields(topic: str) -> bytes:
    return b'"topic":"%b"' % topic.encode()


def deleted_fields(topic: str) -> bytes:
    return b'"topic":"%b","head_seq":0,"reason":"%b"' % (topic.encode(), DELETED_REASON)
