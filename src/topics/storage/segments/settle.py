"""Settling: putting on disk what loading decided about the open end of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.formats.idx import ENTRY_BYTES
from topics.storage.fs import install
from topics.storage.segments.open_end import OpenEnd

if TYPE_CHECKING:
    from topics.storage.segments.place import TopicDir
    from topics.storage.segments.sealed import SealedSegment


def cut_and_sync(place: TopicDir, first_seq: int, end: OpenEnd, segment: SealedSegment | None) -> None:
    """Cut both files to what stands and make it durable: a process that was killed may have left it unsynced.

    The index is cut first, so that no entry ever names bytes that are not there.
    """
    idx_path = place.file(first_seq, "idx")
    if end.reindexed:
        install(place.fs, idx_path, end.entries.tobytes())
        place.env.files.forget(idx_path)
    _cut(place, idx_path, len(end.entries) * ENTRY_BYTES)
    _cut(place, place.file(first_seq, "data"), end.data_len)
    place.fs.sync_dir(place.path)
    place.fs.sync_dir(place.env.topics_dir)
    if segment is not None:
        segment.stand_in(None)


def _cut(place: TopicDir, path: str, length: int) -> None:
    file = place.fs.open(path, "ensure")  # a segment of empty slots may have lost its empty file
    try:
        if file.size() > length:
            file.truncate(length)
        file.fsync()
    finally:
        file.close()
