"""Server-sent events, from the reader's side: bytes in, frames out. A frame that is cut off is no frame."""

from __future__ import annotations

from typing import NamedTuple

from topics.errors import Unreachable
from topics.limits import MIB

FRAME_BYTES_MAX = 64 * MIB


class Frame(NamedTuple):
    event: bytes
    data: bytes
    id: bytes | None = None


class SseReader:
    """Comments and `retry` are dropped; only LF ends a line, as the contract has it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        whole, mark, self._rest = (self._rest + data).rpartition(b"\n\n")
        if len(self._rest) > FRAME_BYTES_MAX:
            raise Unreachable(f"a stream frame has more than {FRAME_BYTES_MAX} bytes", sent=True)
        if not mark:
            return []
        found = (_frame_of(block) for block in whole.split(b"\n\n"))
        return [frame for frame in found if frame is not None]


def _frame_of(block: bytes) -> Frame | None:
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b": ")
        fields[name] = value
    if b"data" not in fields:
        return None
    return Frame(fields.get(b"event", b"message"), fields[b"data"], fields.get(b"id"))
