"""Records as JSON: bodies (`topics.model.run`) to the objects of `docs/spec/http-api.md#sec-10-6`, by splicing.

Payload texts are copied, never parsed, but for the mark between data and meta. Nodes and tags become JSON strings.

    {"$seq":8,"$ts":1755000000123,"$node":"n1","$tag":"t","data":{"n":8},"meta":{"k":1}}"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import Any, Final

from topics.formats.codec.plain_segment import meta_length

_HEAD: Final = Struct("<QQHHI")
_HAS_TAG: Final = 1
_HAS_NODE: Final = 2
_BLOB_MIN: Final = 6
_DATA_AT: Final = 5
_META_WRAP: Final = 6  # the mark in front of meta, and the brace behind it
_SHORT: Final = {0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0C: b"\\f", 0x0D: b"\\r", 0x22: b'\\"', 0x5C: b"\\\\"}
_ESCAPED: Final = re.compile(rb'[\x00-\x1f"\\]')


def render_records(
    buffer: Any, offsets: Sequence[int], flags: bytes, data: bool, tags: bool, meta: bool
) -> tuple[bytes, array[int]]:
    """The records whose bodies begin at `offsets`, joined by commas, and where each of them ends. A reader sees what it
    asked for; the node it always sees. `flags` say which record has a node and a tag, even an empty one."""
    view = memoryview(buffer).cast("B")
    if len(flags) != len(offsets):
        raise ValueError(f"{len(flags)} flags for {len(offsets)} records")
    texts = [_record(view, at, bits, data, tags, meta) for at, bits in zip(offsets, flags, strict=True)]
    ends = accumulate((len(text) + 1 for text in texts), initial=-1)
    return b",".join(texts), array("q", list(ends)[1:])


def _record(view: memoryview, at: int, flags: int, data: bool, tags: bool, meta: bool) -> bytes:
    if at < 0 or at > len(view) - _HEAD.size:
        raise ValueError("a body lies outside of its buffer")
    seq, ts, node_len, tag_len, blob_len = _HEAD.unpack_from(view, at)
    node_at = at + _HEAD.size
    tag_at = node_at + node_len
    blob_at = tag_at + tag_len
    blob = bytes(view[blob_at : blob_at + blob_len])
    if len(blob) < blob_len or blob_len < _BLOB_MIN:
        raise ValueError("a body lies outside of its buffer")
    text = b'{"$seq":%d,"$ts":%d' % (seq, ts)
    if flags & _HAS_NODE:
        text += b',"$node":' + json_text(bytes(view[node_at:tag_at]))
    if tags and flags & _HAS_TAG:
        text += b',"$tag":' + json_text(bytes(view[tag_at:blob_at]))
    meta_len = meta_length(blob)
    data_end = blob_len - 1 if meta_len < 0 else blob_len - _META_WRAP - meta_len
    if data:
        text += b',"data":' + blob[_DATA_AT:data_end]
    if meta and meta_len >= 0:
        text += b',"meta":' + blob[blob_len - 1 - meta_len : -1]
    return text + b"}"


def json_text(text: bytes) -> bytes:
    """A UTF-8 text as a JSON string."""
    return b'"%b"' % _ESCAPED.sub(lambda found: _SHORT.get(found[0][0]) or b"\\u%04x" % found[0][0], text)
