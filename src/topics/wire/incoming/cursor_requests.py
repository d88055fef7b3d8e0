"""Request bodies of the named cursors (`docs/spec/readers.md#sec-1-7`); the rules are those of `requests`."""

from typing import Annotated

import msgspec

from topics.model.config import U64, check_u64
from topics.model.cursor import CURSOR_META_BYTES_MAX, OWNER_BYTES_MAX, CursorPut, PositionCommit
from topics.model.names import TopicName
from topics.model.ops import CursorHold
from topics.model.position import Position, position_of
from topics.wire.incoming.json import BodyDecoder
from topics.wire.incoming.requests import FromSeq, check_from_seq

StartText = Annotated[str, msgspec.Meta(extra_json_schema={"description": "start, end or a position"})]


class CommitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    position: FromSeq
    fence: U64 | None = None
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    sync: bool = False

    def __post_init__(self) -> None:
        check_from_seq(self.position)
        check_u64(self.fence or 0)
        meta_text(self.meta)

    def commit(self) -> PositionCommit:
        return PositionCommit(position_of(self.position), self.fence, meta_text(self.meta), self.sync)


class CommitItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: TopicName
    cursor: str
    position: FromSeq
    fence: U64 | None = None
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        check_from_seq(self.position)
        check_u64(self.fence or 0)
        meta_text(self.meta)

    def commit(self) -> PositionCommit:
        return PositionCommit(position_of(self.position), self.fence, meta_text(self.meta))


class CommitsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    commits: list[CommitItem]


class CursorTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a cursor is reset to, by seq or by time."""

    seq: U64 | None = None
    ts: U64 | None = None

    def __post_init__(self) -> None:
        if (self.seq is None) == (self.ts is None):
            raise ValueError("`to` has either a seq or a ts")
        check_u64(self.seq or 0)
        check_u64(self.ts or 0)


class HoldRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Up to how many live records or bytes a cursor holds back retention."""

    records: U64 = 0
    bytes: U64 = 0

    def __post_init__(self) -> None:
        if not self.records and not self.bytes:
            raise ValueError("a hold has a bound: records, bytes or both, above 0")
        check_u64(self.records)
        check_u64(self.bytes)


class PutCursorRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: (
        CursorTarget
        | Annotated[str, msgspec.Meta(extra_json_schema={"description": "start, end or a position"})]
        | None
    ) = None
    owner: str | None = None
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    hold: HoldRequest | msgspec.UnsetType | None = msgspec.UNSET

    def __post_init__(self) -> None:
        if isinstance(self.to, str) and self.to not in ("start", "end"):
            check_from_seq(self.to)
        if self.owner is not None and not 0 < len(self.owner.encode()) <= OWNER_BYTES_MAX:
            raise ValueError(f"an owner has 1 to {OWNER_BYTES_MAX} bytes")
        meta_text(self.meta)

    def put(self) -> CursorPut:
        to: str | Position | None
        from_ts = None
        if isinstance(self.to, CursorTarget):
            to = None if self.to.seq is None else Position(self.to.seq)
            from_ts = self.to.ts
        elif self.to in (None, "start", "end"):
            to = self.to
        else:
            to = position_of(self.to)
        hold: CursorHold | None
        if isinstance(self.hold, HoldRequest):
            hold = self.hold.records, self.hold.bytes
        else:
            hold = (0, 0) if self.hold is None else None
        return CursorPut(to=to, from_ts=from_ts, owner=self.owner, meta=meta_text(self.meta), hold=hold)


def meta_text(meta: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    """The JSON text of a cursor's meta; None if there is none. Raises ValueError."""
    text = b"" if meta is msgspec.UNSET else bytes(meta)
    if text in (b"", b"null"):
        return None
    if len(text) > CURSOR_META_BYTES_MAX:
        raise ValueError(f"the meta of a cursor has at most {CURSOR_META_BYTES_MAX} bytes")
    if not text.startswith(b"{"):
        raise ValueError("the meta of a cursor is an object")
    return text


decode_commit = BodyDecoder[CommitRequest](CommitRequest)
decode_commits = BodyDecoder[CommitsRequest](CommitsRequest)
decode_put_cursor = BodyDecoder[PutCursorRequest](PutCursorRequest)
