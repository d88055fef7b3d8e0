"""Which groups and files of the log there are: names and first frames only (recovery step 3).

Reads and never writes. A failed listing or read is raised, never taken for "no such file". What is not ours (unknown
names, doubles of one number, files of another group) is left alone and reported in `notices`.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from topics.formats import names
from topics.formats.bodies import OpenMark
from topics.formats.frame import FRAME_LEN_MAX, LEN_BYTES
from topics.formats.wal import scan_wal
from topics.storage.fs import File, Fs, read_file, read_full
from topics.storage.layout import DataDir

_HEAD_READ = 4096


class GroupListing(msgspec.Struct, frozen=True, kw_only=True):
    """A group's directory: file names by number, ascending, and the number that `CURRENT` names, if it can be read."""

    key: str
    dir: str
    names: dict[int, str]
    current: int | None
    has_current: bool
    notices: list[str]


class OpenFrame(NamedTuple):
    """The `open` frame of a file and its length."""

    mark: OpenMark
    size: int


def discover(fs: Fs, data: DataDir) -> list[GroupListing]:
    """Every group on disk, the flat one first; directories of shards count even when they are empty."""
    if not fs.is_dir(data.wal):
        return []
    found = fs.listdir(data.wal)
    flat = list_group(fs, names.FLAT_GROUP, data.wal, found)
    groups = [flat] if flat.names or flat.has_current else []
    shards, doubles = names.pick_canonical(found, parse=names.parse_shard, build=names.shard_name)
    for name in shards.values():
        path = f"{data.wal}/{name}"
        if fs.is_dir(path):
            groups.append(list_group(fs, name, path, fs.listdir(path)))
    notices = [f"{data.wal}/{name} is ignored: the same shard has its canonical directory" for name in doubles]
    if groups and notices:
        groups[0].notices.extend(notices)
    return groups


def list_group(fs: Fs, key: str, dir: str, found: list[str]) -> GroupListing:
    """What `found`, the names in `dir`, says about a group."""
    chosen, doubles = names.pick_canonical(found, parse=names.parse_wal, build=names.wal_name)
    has_current = names.CURRENT in found
    return GroupListing(
        key=key,
        dir=dir,
        names=chosen,
        current=names.parse_current(read_file(fs, f"{dir}/{names.CURRENT}")) if has_current else None,
        has_current=has_current,
        notices=[f"{dir}/{name} is ignored: its number has a canonical file" for name in doubles],
    )


def read_open_frame(file: File) -> OpenFrame | None:
    """The first frame of a file if it is a valid `open` mark."""
    head = read_full(file, 0, _HEAD_READ)
    frame_len = int.from_bytes(head[:LEN_BYTES], "little")
    if frame_len > _HEAD_READ - LEN_BYTES and frame_len <= FRAME_LEN_MAX:
        head = read_full(file, 0, LEN_BYTES + frame_len)
    columns = scan_wal(head, 0, LEN_BYTES + frame_len)
    mark = columns.bodies.get(0)
    return OpenFrame(mark, columns.end) if isinstance(mark, OpenMark) else None
