"""Payload blob: `{"d":<data>}` or `{"d":<data>,"m":<meta>}`, the stored form of a record's JSON texts.

`<data>` and `<meta>` are the client's bytes, never re-encoded. What always holds: a blob is valid JSON in UTF-8, except
that it may hold escapes of lone surrogates, which msgspec refuses to read; every reader here copes with those. Used by
`record` (build), wire (render), core (routers, dead letters) and the bulk readers.
"""

import json
from typing import Any

import msgspec

DATA_AT = 5  # len('{"d":')
META_MARK = b',"m":'


_TEXT = msgspec.json.Decoder(msgspec.Raw)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
# `parse_int=str`: a number of 5000 digits is fine as text but not as a Python int.
_LENIENT = json.JSONDecoder(parse_int=str, parse_float=str)


def make_blob(data: bytes, meta: bytes | None) -> bytes:
    return b'{"d":%b}' % data if meta is None else b'{"d":%b,"m":%b}' % (data, meta)


def split_blob(blob: bytes) -> tuple[bytes, bytes | None]:
    """The texts of `data` and `meta`, byte for byte."""
    at = meta_at(blob)
    if at < 0:
        return blob[DATA_AT:-1], None
    return blob[DATA_AT:at], blob[at + len(META_MARK) : -1]


def accounted_bytes(blob: bytes) -> int:
    """Bytes of the `data` text and, if there is one, of the `meta` text."""
    return len(blob) - (len('{"d":}') if meta_at(blob) < 0 else len('{"d":,"m":}'))


def meta_at(blob: bytes) -> int:
    """Where the mark between data and meta stands; -1 without meta. Raises ValueError for what is no blob.

    The mark holds bare quotes, so it lies in no string; but an object inside data or meta may have a key "m"."""
    at = blob.find(META_MARK)
    if at < 0:
        return -1
    if blob.find(META_MARK, at + 1) < 0 and _is_json(blob[at + len(META_MARK) : -1]):
        return at  # inside data, something would be left to close
    text = blob.decode()
    _, data_end = _LENIENT.raw_decode(text, DATA_AT)
    return -1 if data_end == len(text) - 1 else len(text[:data_end].encode())


def _is_json(text: bytes) -> bool:
    try:
        _TEXT.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def object_keys(text: bytes) -> int:
    """How many different keys a JSON object has; 0 for any other JSON value."""
    if not text.startswith(b"{"):
        return 0
    try:
        return len(_OBJECT.decode(text))
    except msgspec.DecodeError:
        return len(_LENIENT.decode(text.decode()))


def decode_payload(text: msgspec.Raw | bytes | msgspec.UnsetType) -> Any:
    """The Python value of a payload text; None for no text. Lone surrogates come out as Python's json has them."""
    if isinstance(text, msgspec.UnsetType):
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(bytes(text))
