"""How many fields a JSON text has outside payloads: counted without a loop, before an object is made of each.

A body that is looked at twice is taken apart field by field, which costs a hundred times its bytes if it consists of
nothing else. Called by `second_look`, for long bodies only.
"""

from __future__ import annotations

PAYLOAD_DEPTH = 4  # body, list, record: what is deeper is inside a payload, or below a field of ours
_NOT_MARKS = bytes(code for code in range(256) if code not in b'[]{}":')
_STEPS = bytes(1 if code in b"[{" else 255 if code in b"]}" else 0 for code in range(256))  # 255 is -1 as int8
_COLON = ord(":")


def count_fields(text: bytes) -> int:
    """Of a text that is valid JSON; of any other, some number."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")  # now every quote begins or ends a string
    marks = text.translate(None, _NOT_MARKS)
    # If all quotes stand in adjacent pairs, no string holds a mark.
    if 2 * marks.count(b'""') != marks.count(b'"'):
        marks = b"".join(marks.split(b'"')[::2])
    marks = marks.replace(b'"', b"")
    import numpy as np  # rarely needed, and slow to load for a client that never decodes a request

    depth = np.frombuffer(marks.translate(_STEPS), np.int8).cumsum(dtype=np.int32)
    is_field = np.frombuffer(marks, np.uint8) == _COLON
    return int((is_field & (depth < PAYLOAD_DEPTH)).sum())
