"""Every file name of a data directory, built and parsed in one place (`docs/spec/storage.md#sec-2-2`).

Writers pad to the minimum width and use more digits when the number needs them. Readers parse the number and sort
numerically; `None` means the name is not ours, so the file is ignored and never deleted. When two names carry the
same number, the canonically padded one counts (`pick_canonical`). User-supplied names never reach a path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from topics.formats.buffers import xxh3

LOCK: Final = ".topics.lock"
IDENTITY: Final = "identity"
IDENTITY_PLACE: Final = "identity.place"
META_DIR: Final = "meta"
WAL_DIR: Final = "wal"
TOPICS_DIR: Final = "topics"
CURRENT: Final = "CURRENT"
OWNER: Final = "OWNER"
PREALLOC: Final = "prealloc.tmp"
QUARANTINE_DIR: Final = "quarantine"
TMP_SUFFIX: Final = ".tmp"
DELETED_SUFFIX: Final = ".deleted"
DUP_SUFFIX: Final = ".dup"

FLAT_GROUP: Final = ""
"""Group key of the flat layout; every other key is its directory name."""

SegmentPart: TypeAlias = Literal["data", "idx", "tags"]

_U64_MAX: Final = 2**64 - 1
_SNAPSHOT: Final = re.compile(r"snapshot\.([0-9]+)\.bin")
_WAL: Final = re.compile(r"wal-([0-9]+)\.log")
_SHARD: Final = re.compile(r"shard-([0-9]+)")
_TOPIC: Final = re.compile(r"([0-9A-F]+)")
_DELETED: Final = re.compile(r"([0-9A-F]+)\.deleted")
_SEGMENT: Final = re.compile(r"seg-([0-9]+)\.(data|idx|tags)")


class SegmentName(NamedTuple):
    """What a segment file name says."""

    first_seq: int
    part: SegmentPart


def snapshot_name(number: int) -> str:
    """`snapshot.0007.bin`."""
    return f"snapshot.{number:04d}.bin"


def wal_name(first_frame: int) -> str:
    """`wal-0000000000000001.log`, named by the group-local number of its first frame."""
    return f"wal-{first_frame:016d}.log"


def shard_name(shard: int) -> str:
    """`shard-00`: the directory and group key of one shard of a sharded layout."""
    return f"shard-{shard:02d}"


def group_keys(shards: int) -> list[str]:
    """Group keys of a layout, by shard index: the flat group when there is only one shard."""
    return [FLAT_GROUP] if shards == 1 else [shard_name(shard) for shard in range(shards)]


def topic_dir_name(topic_id: int) -> str:
    """`0000000A`."""
    return f"{topic_id:08X}"


def segment_name(first_seq: int, part: SegmentPart) -> str:
    """`seg-0000000000000001.data`, `.idx` or `.tags`."""
    return f"seg-{first_seq:016d}.{part}"


def quarantine_group_name(key: str) -> str:
    """Directory below `wal/quarantine/` for the bytes cut off from one group."""
    return key or "flat"


def quarantine_file_name(wal: str, offset: int) -> str:
    """Bytes of WAL file `wal` from `offset` on."""
    return f"{wal}.at-{offset}"


def parse_snapshot(name: str) -> int | None:
    """Number of a snapshot file."""
    return _number(_SNAPSHOT.fullmatch(name), base=10, low=1)


def parse_wal(name: str) -> int | None:
    """Number of a WAL file."""
    return _number(_WAL.fullmatch(name), base=10, low=1)


def parse_shard(name: str) -> int | None:
    """Index of a shard directory."""
    return _number(_SHARD.fullmatch(name), base=10, low=0)


def parse_topic_dir(name: str) -> int | None:
    """Topic id of a topic directory; lower-case hex is not ours."""
    return _number(_TOPIC.fullmatch(name), base=16, low=1)


def parse_deleted_dir(name: str) -> int | None:
    """Topic id of a `.deleted` directory."""
    return _number(_DELETED.fullmatch(name), base=16, low=1)


def parse_segment(name: str) -> SegmentName | None:
    """First seq and part of a segment file."""
    found = _SEGMENT.fullmatch(name)
    first = _number(found, base=10, low=1)
    if found is None or first is None:
        return None
    part: SegmentPart = "data" if found[2] == "data" else "idx" if found[2] == "idx" else "tags"
    return SegmentName(first, part)


def parse_tmp(name: str) -> str | None:
    """The final name of an unfinished install, or None when `name` is not a temp file."""
    return name[: -len(TMP_SUFFIX)] if name.endswith(TMP_SUFFIX) and name != TMP_SUFFIX else None


def parse_dup(name: str) -> str | None:
    """The original name of a segment file that was set aside."""
    return name[: -len(DUP_SUFFIX)] if name.endswith(DUP_SUFFIX) and name != DUP_SUFFIX else None


def parse_current(text: bytes) -> int | None:
    """Number of the WAL file that a `CURRENT` names; None for anything but one whole line."""
    line = text.decode("ascii", "replace")
    return parse_wal(line[:-1]) if line.endswith("\n") else None


def current_text(first_frame: int) -> bytes:
    """Content of `CURRENT`."""
    return wal_name(first_frame).encode("ascii") + b"\n"


def pick_canonical(
    names: Iterable[str], *, parse: Callable[[str], int | None], build: Callable[[int], str]
) -> tuple[dict[int, str], list[str]]:
    """Our files by number, ascending, and the doubles that are ignored and reported.

    Of two names with one number the canonically padded one counts; without it the shortest, then the first by text.
    """
    by_number: dict[int, list[str]] = {}
    for name in names:
        number = parse(name)
        if number is not None:
            by_number.setdefault(number, []).append(name)
    chosen: dict[int, str] = {}
    ignored: list[str] = []
    for number in sorted(by_number):
        ranked = sorted(by_number[number], key=lambda name: (name != build(number), len(name), name))
        chosen[number] = ranked[0]
        ignored.extend(ranked[1:])
    return chosen, ignored


@lru_cache(maxsize=65536)
def shard_of(topic_id: int, shards: int) -> int:
    """The shard of a topic; frames of no topic (id 0) are always in shard 0."""
    return xxh3(topic_id.to_bytes(8, "little")) % shards if topic_id else 0


def _number(found: re.Match[str] | None, *, base: int, low: int) -> int | None:
    if found is None:
        return None
    number = int(found[1], base)
    return number if low <= number <= _U64_MAX else None
