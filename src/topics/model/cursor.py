"""NamedCursor: a durable position of a topic under a name, as state, log and snapshot have it.

Frozen: a change makes another one. Owned by `core.reading.named_cursors`, shown by every door. `PositionCommit` and
`CursorPut` are what a door asks the engine to do with one."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from topics.errors import InvalidRequest
from topics.model.names import is_topic_name
from topics.model.ops import CursorHold
from topics.model.position import Position

CURSORS_MAX = 10_000
"""Of one topic."""
CURSOR_META_BYTES_MAX = 4096
OWNER_BYTES_MAX = 128


class NamedCursor(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`seq` is the last seq that its owner has dealt with. `meta` is JSON text of the owner. Its places are those of
    the snapshot's item."""

    name: str
    seq: int = 0
    updated_ts: int = 0
    fence: int = 0
    owner: str | None = None
    meta: bytes | None = None
    hold: CursorHold | None = None


class PositionCommit(NamedTuple):
    position: Position
    fence: int | None = None
    meta: bytes | None = None
    sync: bool = False


class CursorPut(NamedTuple):
    """`to` is "start", "end", a position, or None for where it stands; `from_ts` resets by time."""

    to: str | Position | None = None
    from_ts: int | None = None
    owner: str | None = None
    meta: bytes | None = None
    hold: CursorHold | None = None


def check_cursor_name(name: str) -> None:
    """A cursor is named by the rule of topics."""
    if not is_topic_name(name):
        shown = ascii(name if len(name) <= 64 else name[:64] + "...")
        raise InvalidRequest(f"{shown} is not a cursor name; letters, digits and ._:- are allowed")
