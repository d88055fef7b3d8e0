"""Replacing the files of a sealed segment: steps W2 to W5 of a rewrite, and dropping them.

    data.tmp, idx.tmp written and synced | directory synced | data renamed | idx renamed | directory synced

A crash leaves the old pair, the new pair, or a mixed one; sizes differ, so a mixed pair cannot pass the tiling check,
and recovery finishes the second rename or rebuilds the index. Used by rewrite, repair and recovery.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from topics.formats.names import TMP_SUFFIX, SegmentPart
from topics.storage.fs import Buffer, write_all

if TYPE_CHECKING:
    from topics.storage.segments.place import TopicDir

ALL_PARTS: tuple[SegmentPart, ...] = ("data", "idx", "tags")


def write_temps(place: TopicDir, first_seq: int, *, data: Iterable[Buffer], idx: Buffer) -> None:
    """W2 and W3."""
    _write_synced(place, place.file(first_seq, "data") + TMP_SUFFIX, data)
    _write_synced(place, place.file(first_seq, "idx") + TMP_SUFFIX, (idx,))
    place.fs.sync_dir(place.path)


def _write_synced(place: TopicDir, path: str, pieces: Iterable[Buffer]) -> None:
    file = place.fs.open(path, "create")
    try:
        at = 0
        for piece in pieces:
            write_all(file, at, piece)
            at += len(piece)
        file.fsync()
    finally:
        file.close()


def rename_temps(place: TopicDir, first_seq: int) -> None:
    """The two renames of W5. The caller syncs the directory."""
    for part in ("data", "idx"):
        path = place.file(first_seq, part)
        place.fs.rename(path + TMP_SUFFIX, path)
        place.env.files.forget(path)


def remove_temps(place: TopicDir, first_seq: int) -> None:
    """Give a replacement up. Failing is allowed: recovery removes temps too."""
    for part in ("data", "idx"):
        try:
            place.fs.unlink(place.file(first_seq, part) + TMP_SUFFIX)
        except OSError:
            pass


def remove_files(place: TopicDir, first_seq: int, parts: Iterable[SegmentPart] = ALL_PARTS) -> None:
    """Unlink the files of a segment, `.data` first, and sync the directory. Absent ones are no error."""
    gone = False
    for part in parts:
        path = place.file(first_seq, part)
        try:
            place.fs.unlink(path)
            gone = True
        except FileNotFoundError:
            pass
        place.env.files.forget(path)
    if gone:
        place.fs.sync_dir(place.path)
