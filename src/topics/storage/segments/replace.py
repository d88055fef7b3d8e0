"""Replacing the files of a sealed segment: steps W2 to W5 of a rewrite, and dropping them.

    data.tmp, idx.tmp written and synced | directory synced | data renamed | idx renamed | directory synced

A crash leaves the old pair, the new pair, or a mixed one; sizes differ, so a mixed pair cannot pass the tiling check,
and recovery finishes the second rename or rebuilds the index. Used by rewrite, repair and recovery.

Dropping whole segments and whole topics (`docs/spec/storage.md#sec-10` and `docs/spec/storage.md#sec-11-2`).

The caller has logged what makes the drop permanent: a floor, a `tier` mark `gone`, or a TopicDelete. Everything here
can be repeated, and absent files are no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topics.formats.file_names import (
    DELETED_SUFFIX,
    TMP_SUFFIX,
    SegmentPart,
    parse_deleted_dir,
    parse_topic_dir,
    topic_dir_name,
)
from topics.storage.fs import Buffer, ReadFs, names_in, remove_tree, write_all
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.topic_dir import SegmentEnv

if TYPE_CHECKING:
    from topics.storage.segments.topic_dir import TopicDir

ALL_PARTS: tuple[SegmentPart, ...] = ("data", "idx", "tags")
"""In the order in which they are unlinked."""


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


def remove_files(place: TopicDir, parts: Mapping[int, Iterable[SegmentPart]]) -> None:
    """Unlink these parts of segments, by first seq, and sync the directory once. Absent ones are no error."""
    is_gone = False
    for path in [place.file(first_seq, part) for first_seq, wanted in parts.items() for part in wanted]:
        try:
            place.fs.unlink(path)
            is_gone = True
        except FileNotFoundError:
            pass
        place.env.files.forget(path)
    if is_gone:
        place.fs.sync_dir(place.path)


def drop_segment(segment: SealedSegment) -> None:
    """Remove the hot files of a sealed segment, the sidecar too. Waits for a job that is replacing them."""
    with segment.flips.working:
        segment.flips.freeze()  # for good: there is nothing left to flag
        remove_files(segment.place, {segment.first_seq: ALL_PARTS})
        segment.hot_remnant = False
    segment.place.env.maps.remove(segment)
    segment.place.env.filters.remove(segment)
    segment.place.env.counters.dropped += 1


def drop_cold_copy(segment: SealedSegment) -> None:
    """Remove the cold files. Waits for the store."""
    if segment.place.cold is not None:
        segment.place.cold.delete(segment.first_seq)


@dataclass(slots=True)
class TopicDirs:
    """What lies in `topics/`: ids with a directory, ids waiting for removal, and names that are not ours."""

    ids: list[int] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @property
    def highest_id(self) -> int:
        """0 if there are none."""
        deleted = (parse_deleted_dir(name) or 0 for name in self.deleted)
        return max([0, *self.ids, *deleted])


def list_topic_dirs(fs: ReadFs, topics_dir: str) -> TopicDirs:
    found = TopicDirs()
    for name in names_in(fs, topics_dir):
        topic_id = parse_topic_dir(name)
        if topic_id is not None and name == topic_dir_name(topic_id):
            found.ids.append(topic_id)
        elif parse_deleted_dir(name) is not None:
            found.deleted.append(name)
        else:
            found.foreign.append(name)
    found.ids.sort()
    return found


def retire_topic_dir(env: SegmentEnv, topic_id: int) -> str | None:
    """Take a deleted topic's directory out of use; gives the name to remove later, None if there was no directory."""
    path = f"{env.topics_dir}/{topic_dir_name(topic_id)}"
    if not env.fs.is_dir(path):
        return None
    if env.fs.is_dir(path + DELETED_SUFFIX):  # an earlier removal of the same id that was interrupted
        remove_tree(env.fs, path + DELETED_SUFFIX)
    env.fs.rename(path, path + DELETED_SUFFIX)
    env.fs.sync_dir(env.topics_dir)
    return topic_dir_name(topic_id) + DELETED_SUFFIX


def remove_retired_dir(env: SegmentEnv, name: str) -> None:
    """Unlink everything below a `.deleted` directory; for the background."""
    remove_tree(env.fs, f"{env.topics_dir}/{name}")
