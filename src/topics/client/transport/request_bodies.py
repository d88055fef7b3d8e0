"""Bodies of writes: a record is encoded once, into its entry; a body is a join. The inner loop of a producer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from topics.errors import InvalidRequest
from topics.model.values import Event, Json, json_text

_encode = msgspec.json.Encoder().encode
_decode_pieces = msgspec.json.Decoder(list[msgspec.Raw]).decode


def record_piece(data: Any, *, tag: str | None = None, node: str | None = None, meta: Any = None) -> bytes:
    """One entry of `records`."""
    entry = {"data": json_text(data) if type(data) is Json else data}
    if tag is not None:
        entry["tag"] = _string(tag)
    if node is not None:
        entry["node"] = _string(node)
    if meta is not None:
        entry["meta"] = json_text(meta)
    return _entry(entry, data)


def piece_of(value: Any) -> bytes:
    """Anything `append_many` takes: an `Event`, or the data itself."""
    if type(value) is Event:
        return record_piece(value.data, tag=value.tag, node=value.node, meta=value.meta)
    return _entry({"data": json_text(value) if type(value) is Json else value}, value)


def _string(text: str) -> str:
    """The encoder would make base64 of bytes, and the record would carry something else than was given."""
    if not isinstance(text, str):
        raise InvalidRequest("a tag, node or idempotency key is not a string")
    return text


def _entry(entry: dict[str, Any], data: Any) -> bytes:
    try:
        piece = _encode(entry)
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"the value is not JSON: {error}") from None
    # NaN and the infinities come out as null; a null is rare enough to be looked at twice.
    if b"null" in piece:
        json_text(data)
    return piece


def whole(pieces: list[bytes]) -> list[bytes]:
    """Each piece is one record: a `Json` inside a value is put in as it is, and must not make more of it."""
    try:
        count = len(_decode_pieces(b"[%b]" % b",".join(pieces)))
    except msgspec.DecodeError:
        return pieces  # the server knows more of JSON, lone surrogates for one, and says what is wrong
    if count != len(pieces):
        raise InvalidRequest("the value is not JSON: a text inside it ends it early")
    return pieces


def write_body(pieces: Sequence[bytes], *, key: str, node: str | None = None, config: bytes | None = None) -> bytes:
    """`config` is JSON text; it counts only if this write creates the topic."""
    rest = b',"idempotency_key":' + _encode(_string(key))
    if node is not None:
        rest += b',"node":' + _encode(_string(node))
    if config is not None:
        rest += b',"config":' + config
    return b'{"records":[%b]%b}' % (b",".join(pieces), rest)
