"""Bodies of writes, by joining texts that are JSON already. The inner loop of a producer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from topics.model.values import Event, json_text

_encode = msgspec.json.Encoder().encode


def record_piece(data: Any, *, tag: str | None = None, node: str | None = None, meta: Any = None) -> bytes:
    """One entry of `records`."""
    if tag is None and node is None and meta is None:
        return b'{"data":%b}' % json_text(data)
    pieces = [b'{"data":', json_text(data)]
    if tag is not None:
        pieces += (b',"tag":', _encode(tag))
    if node is not None:
        pieces += (b',"node":', _encode(node))
    if meta is not None:
        pieces += (b',"meta":', json_text(meta))
    pieces.append(b"}")
    return b"".join(pieces)


def piece_of(value: Any) -> bytes:
    """Anything `append_many` takes: an `Event`, or the data itself."""
    if isinstance(value, Event):
        return record_piece(value.data, tag=value.tag, node=value.node, meta=value.meta)
    return b'{"data":%b}' % json_text(value)


def write_body(pieces: Sequence[bytes], *, key: str, node: str | None = None, config: bytes | None = None) -> bytes:
    """`config` is JSON text; it counts only if this write creates the topic."""
    rest = b',"idempotency_key":' + _encode(key)
    if node is not None:
        rest += b',"node":' + _encode(node)
    if config is not None:
        rest += b',"config":' + config
    return b'{"records":[%b]%b}' % (b",".join(pieces), rest)
