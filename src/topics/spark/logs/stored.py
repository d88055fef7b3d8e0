"""StoredSegments: which segment files of a topic there are, in which tier, and how many slots of them count.

A segment that a snapshot, a checkpoint mark or a tier move names must be found in one of the tiers; what is in no tier
is reported as missing, never skipped. Files that no mark has made official (a checkpoint is at work) are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from topics.errors import ConfigError
from topics.formats import file_names as names
from topics.formats.segments import ENTRY_BYTES
from topics.spark.logs.log import Wanted
from topics.spark.logs.read_files import Files
from topics.spark.logs.replay import ReaderTopicLog
from topics.spark.planning.cut import SegmentBlock

RECOVERED = "recovered:"
"""A cold directory alone knows ids but no names; this is how salvage names such topics, too."""


@dataclass(slots=True)
class FoundSegments:
    """Blocks by ascending seq, and half-open ranges that should have one."""

    blocks: list[SegmentBlock] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)


class StoredSegments:
    """Segment files of the hot tier and, if given, of the cold one."""

    def __init__(self, hot: Files, cold: Files | None) -> None:
        self._hot = hot
        self._cold = cold

    def of_topic(self, topic: ReaderTopicLog) -> FoundSegments:
        """Segments at or above the topic's floor."""
        folder = f"{names.TOPICS_DIR}/{names.topic_dir_name(topic.id)}"
        hot = segment_stems(self._hot, folder)
        found = FoundSegments()
        for first, count in self._official(topic, hot):
            if first + count <= topic.earliest_seq:
                continue
            block = self._locate(topic, first, count, hot, folder)
            if block is None:
                found.missing.append((first, first + count))
            else:
                found.blocks.append(block)
        active = self._active(topic, hot)
        if active is not None:
            found.blocks.append(active)
        return found

    def _official(self, topic: ReaderTopicLog, hot: dict[int, str]) -> Iterator[tuple[int, int]]:
        """First seq and slot count of every sealed segment, ascending."""
        firsts = {first for first in (*hot, *topic.segments, *topic.tiers) if first <= topic.sealed_to}
        ordered = sorted(first for first in firsts if topic.tiers.get(first, ("", 0))[0] != "gone")
        for first in ordered:
            yield first, self._count(topic, first, hot)

    def _count(self, topic: ReaderTopicLog, first: int, hot: dict[int, str]) -> int:
        known = topic.segments.get(first)
        if known is not None and known.sealed:
            return known.count
        if first in topic.tiers:
            return topic.tiers[first][1]
        if first not in hot:
            return known.count if known is not None else 1
        try:
            return self._hot.size(f"{hot[first]}.idx") // ENTRY_BYTES
        except FileNotFoundError:
            return known.count if known is not None else 1

    def _locate(
        self, topic: ReaderTopicLog, first: int, count: int, hot: dict[int, str], folder: str
    ) -> SegmentBlock | None:
        known = topic.segments.get(first)
        live = known.live if known is not None and known.sealed else None
        if first in hot:
            files, stem, tier = self._hot, hot[first], "hot"
        else:
            tier = topic.tiers[first][0] if first in topic.tiers else known.tier if known is not None else "hot"
            if tier != "cold":
                return None
            files, stem = self._cold_files(topic), f"{folder}/{names.segment_name(first, 'data')[:-5]}"
        try:
            size = files.size(f"{stem}.data")
        except FileNotFoundError:
            return None
        return SegmentBlock(
            root=files.root,
            stem=stem,
            first_seq=first,
            count=count,
            bytes=size,
            is_sealed=True,
            tier=tier,
            live=live,
        )

    def _cold_files(self, topic: ReaderTopicLog) -> Files:
        if self._cold is None:
            raise ConfigError(
                f"topic {topic.name!r} has segments in the cold store: give its root as option coldPath, "
                "or set TOPICS_COLD_DIR"
            )
        return self._cold

    def _active(self, topic: ReaderTopicLog, hot: dict[int, str]) -> SegmentBlock | None:
        """The active segment as far as the newest mark or the snapshot vouches for it."""
        number, marked = topic.active
        if number < 0:
            unsealed = [segment for segment in topic.segments.values() if not segment.sealed]
            first, count, data_len = (
                (unsealed[-1].first, unsealed[-1].count, unsealed[-1].data_len)
                if unsealed
                else (
                    0,
                    0,
                    0,
                )
            )
        elif marked is None:
            return None
        else:
            first, count, data_len = marked.first, marked.count, marked.data_len
        if not count or first <= topic.sealed_to or first not in hot:
            return None
        return SegmentBlock(
            root=self._hot.root, stem=hot[first], first_seq=first, count=count, bytes=data_len, is_sealed=False
        )


def segment_stems(files: Files, folder: str) -> dict[int, str]:
    """Paths without suffix of the segments in a folder that have a `.data` file, by first seq."""
    datas = [name for name in files.list(folder) if name.endswith(".data")]

    def first_seq(name: str) -> int | None:
        parsed = names.parse_segment(name)
        return parsed.first_seq if parsed is not None else None

    chosen, _ = names.pick_canonical(datas, parse=first_seq, build=lambda first: names.segment_name(first, "data"))
    return {first: f"{folder}/{name[: -len('.data')]}" for first, name in chosen.items()}


def cold_only_topics(files: Files, wanted: Wanted) -> list[ReaderTopicLog]:
    """Topics of a directory that holds segments and nothing else: named by their id, all segments sealed."""
    topics = []
    for folder in files.list(names.TOPICS_DIR):
        topic_id = names.parse_topic_dir(folder)
        if topic_id is None or not wanted(f"{RECOVERED}{folder}"):
            continue
        stems = segment_stems(files, f"{names.TOPICS_DIR}/{folder}")
        if not stems:
            continue
        last = max(stems)
        end = last + files.size(f"{stems[last]}.idx") // ENTRY_BYTES
        first = min(stems)
        topics.append(
            ReaderTopicLog(
                topic_id, f"{RECOVERED}{folder}", 0, {}, stored_seq=end - 1, earliest_seq=first, sealed_to=last
            )
        )
    return topics
