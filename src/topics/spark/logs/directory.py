"""DirectoryLog: topics read from the files of a data directory, a cold directory, or a copy of either.

Needs no lock and writes nothing, so the server may be running, stopped or gone (`docs/spec/storage.md#sec-12`).
Metadata is the newest valid snapshot plus the log behind it. Where two looks disagree because the server moved files in
between, it looks again. Records of `ephemeral` topics and router copies that no checkpoint has stored yet are in no
file, hence in no cut.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Literal

from topics.errors import ConfigError, Corruption, MetadataLost, UnsupportedVersion
from topics.formats import file_names
from topics.formats.snapshot import Snapshot, decode_snapshot
from topics.spark.logs.log import LogAddress, Wanted
from topics.spark.logs.read_files import Files, open_files
from topics.spark.logs.replay import ReaderReplay, ReaderTopicLog
from topics.spark.logs.slots import SlotLookup
from topics.spark.logs.stored import StoredSegments, cold_only_topics
from topics.spark.logs.topic_cut import CutBuilder
from topics.spark.logs.wal_tail import LogTail
from topics.spark.planning.cut import TopicCut

_TRIES: Final = 5
_PAUSE_S: Final = 0.05


class LeftOutWarning(UserWarning):
    """A topic that matches a pattern is not in the table."""


class DirectoryLog:
    """The log in a directory; see `Log`."""

    def __init__(self, address: LogAddress) -> None:
        assert address.path is not None
        self._address = address
        self._files = open_files(address.path)
        self._tail = LogTail(self._files)
        self._slots = SlotLookup()
        self._left_out: set[int] = set()

    def close(self) -> None:
        """Files are opened for one look each."""

    def cuts(self, *, names: Iterable[str] | None, prefix: str | None, now_ms: int) -> dict[str, TopicCut]:
        wanted = frozenset(names) if names is not None else None
        chosen: Wanted = wanted.__contains__ if wanted is not None else lambda name: name.startswith(prefix or "")
        for attempt in range(_TRIES):
            with readable(self._address.shown):
                cuts = self._try_cuts(chosen, now_ms, named=wanted is not None)
            if cuts is not None and (attempt + 1 == _TRIES or not any(cut.missing for cut in cuts.values())):
                return cuts
            time.sleep(_PAUSE_S * attempt)
        raise MetadataLost(f"{self._address.shown} changes faster than it can be read; try again")

    def names(self) -> list[str]:
        if layout(self._files) == "cold":
            return sorted(topic.name for topic in cold_only_topics(self._files, lambda _: True))
        snapshot = newest_snapshot(self._files)
        replay = ReaderReplay(snapshot, lambda _: True)
        replay.apply(self._tail.stretches(snapshot))
        return sorted(replay.by_name())

    def _try_cuts(self, wanted: Wanted, now_ms: int, *, named: bool) -> dict[str, TopicCut] | None:
        """None when a file vanished under the reader."""
        if layout(self._files) == "cold":
            return self._cold_only(wanted)
        snapshot = newest_snapshot(self._files)
        replay = ReaderReplay(snapshot, wanted)
        try:
            replay.apply(self._tail.stretches(snapshot))
        except FileNotFoundError:
            return None
        replay.announce(self._tail.holes)
        cold = open_files(self._address.cold_path) if self._address.cold_path else None
        stored = StoredSegments(self._files, cold)
        try:
            found = replay.by_name().items()
            return {
                name: self._cut(topic, stored, replay, now_ms) for name, topic in found if self._is_stored(topic, named)
            }
        except FileNotFoundError:
            return None

    def _is_stored(self, topic: ReaderTopicLog, named: bool) -> bool:
        """A topic that is in no file cannot be read here: an error if it was asked for by name, else a warning."""
        if topic.config.get("durability") != "ephemeral":
            return True
        sentence = f"topic {topic.name!r} is ephemeral: its records are only in the server's memory; read it with url"
        if named:
            raise ConfigError(sentence)
        if topic.id not in self._left_out:
            self._left_out.add(topic.id)
            warnings.warn(sentence, LeftOutWarning, stacklevel=2)
        return False

    def _cut(self, topic: ReaderTopicLog, stored: StoredSegments, replay: ReaderReplay, now_ms: int) -> TopicCut:
        now = max(now_ms, replay.clock_ms, topic.last_ts)
        return replace(CutBuilder(topic, stored, self._slots).build(now), instance=replay.instance)

    def _cold_only(self, wanted: Wanted) -> dict[str, TopicCut]:
        found = cold_only_topics(self._files, wanted)
        stored = StoredSegments(self._files, None)
        return {topic.name: CutBuilder(topic, stored, self._slots).build(0) for topic in found}

    def seq_at(self, cut: TopicCut, ts_ms: int) -> int:
        return self._slots.seq_at(cut, ts_ms)

    def bytes_end(self, cut: TopicCut, lo: int, bytes_max: int) -> int:
        return self._slots.bytes_end(cut, lo, bytes_max)

    def first_live(self, cut: TopicCut, lo: int) -> int:
        return self._slots.first_live(cut, lo)


@contextmanager
def readable(path: str) -> Iterator[None]:
    """What the operating system or a store has against a path, as one sentence. An absent file is the caller's."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"path {path} cannot be read: {error.strerror or error}") from None


def layout(files: Files) -> Literal["data", "cold"]:
    """Which kind of directory this is, by what lies in it."""
    with readable(files.shown()):
        listed = set(files.list(""))
    if file_names.META_DIR in listed or file_names.WAL_DIR in listed:
        return "data"
    if file_names.TOPICS_DIR in listed:
        return "cold"
    why = "it holds neither meta/ and wal/ nor topics/" if listed else "it is empty or does not exist"
    raise ConfigError(f"path {files.shown()} is no data directory: {why}")


def newest_snapshot(files: Files) -> Snapshot | None:
    """The newest valid snapshot; None if there is none and the log may hold everything."""
    found, _ = file_names.pick_canonical(
        files.list(file_names.META_DIR), parse=file_names.parse_snapshot, build=file_names.snapshot_name
    )
    unknown: UnsupportedVersion | None = None
    for number in sorted(found, reverse=True):
        path = f"{file_names.META_DIR}/{found[number]}"
        try:
            return decode_snapshot(files.read(path), file=path)
        except FileNotFoundError:
            continue  # pruned since it was listed: a newer one is there, and the caller looks again if it must
        except Corruption:
            continue
        except UnsupportedVersion as error:
            unknown = error
    if unknown is not None:
        raise unknown
    if found and not _log_from_first(files):
        raise MetadataLost(f"{files.shown()} holds no snapshot that is valid")
    return None


def _log_from_first(files: Files) -> bool:
    """Whether a log begins with its first frame, so that it may tell everything by itself."""
    listed = files.list(file_names.WAL_DIR)
    folders = ["", *(f"/{name}" for name in listed if file_names.parse_shard(name) is not None)]
    numbers = [file_names.parse_wal(name) for folder in folders for name in files.list(f"{file_names.WAL_DIR}{folder}")]
    return 1 in numbers
