"""Dropping whole segments and whole topics (storage.md sections 10 and 11.2).

The caller has logged what makes the drop permanent: a floor, a `tier` mark `gone`, or a TopicDelete. Everything here
can be repeated, and absent files are no error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topics.formats.names import DELETED_SUFFIX, parse_deleted_dir, parse_topic_dir, topic_dir_name
from topics.storage.fs import Fs, remove_tree
from topics.storage.segments.place import SegmentEnv
from topics.storage.segments.replace import remove_files
from topics.storage.segments.sealed import SealedSegment


def drop_segment(segment: SealedSegment) -> None:
    """Remove the hot files of a sealed segment, the sidecar too. Waits for a job that is replacing them."""
    with segment.flips.working:
        segment.flips.freeze()  # for good: there is nothing left to flag
        remove_files(segment.place, segment.first_seq)
        segment.hot_remnant = False
    segment.place.env.maps.remove(segment)
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


def list_topic_dirs(fs: Fs, topics_dir: str) -> TopicDirs:
    found = TopicDirs()
    for name in fs.listdir(topics_dir):
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
