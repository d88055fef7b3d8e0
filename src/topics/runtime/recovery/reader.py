"""A look without the lock: for readers of a directory whose server is running, stopped or gone.

Files may move while they are read: a segment may go to the cold store, or be dropped, between the log that tells where
it was and the look at its files. The log tells of that before the files go, so whatever seems to be damaged or gone is
looked at again, and is believed only if it stays. What a server keeps in memory alone (records of `ephemeral` topics,
router copies that no checkpoint has stored yet) is in no file, hence not for readers; losses that only a restart would
declare are not declared to them either (`head_in_files`). Called by Spark's directory mode, `topics verify` and
`topics inspect`."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn

import numpy as np

from topics.clock import EngineClock
from topics.config import Settings
from topics.core.delete import finish_cold_delete
from topics.core.slots.sealed_slots import Sealed
from topics.core.topic import TopicLog
from topics.errors import CorruptSegment, MetadataLost
from topics.formats.file_names import parse_segment, segment_name, topic_dir_name
from topics.formats.snapshot import Snapshot
from topics.model.ops import RESIDENT
from topics.runtime.recovery.look import Look, Looked, Wanted
from topics.storage.fs import Buffer, ReadFs, names_in, read_full
from topics.storage.tiers.stores import NoSuchObject, Part, RangeOutOfBounds

TRIES: Final = 20
BELIEVED_AFTER: Final = 3
"""Looks in a row that must find the same damage."""
PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 0.2
_MOVED: Final = (FileNotFoundError, NoSuchObject, RangeOutOfBounds, CorruptSegment, AssertionError)
"""What a look meets where files have moved; flags that are newer than the log do not add up with it, for one."""

Sleep = Callable[[float], None]


def everything(_: str) -> bool:
    return True


def look(
    fs: ReadFs,
    root: str,
    *,
    cold: tuple[ReadFs, str] | None = None,
    wanted: Wanted = everything,
    now_ms: int = 0,
    use: Callable[[Looked], None] = lambda _: None,
    sleep: Sleep = time.sleep,
) -> Looked:
    """The wanted topics of the directory at `root`. `use` is part of the look: what it concludes from files counts only
    if they stayed, else it is called again with another one. MetadataLost if they move faster than they can be read."""
    doubts: list[frozenset[object]] = []
    for attempt in range(TRIES):
        if attempt:
            sleep(min(PAUSE_S * attempt, PAUSE_MAX_S))
        looked, doubt, error = _try(start_look(fs, root, cold=cold, wanted=wanted, now_ms=now_ms), use)
        doubts.append(doubt)
        recent = doubts[-BELIEVED_AFTER:]
        if not doubt or (len(recent) == BELIEVED_AFTER and all(doubt <= earlier for earlier in recent)):
            if looked is not None:
                return looked
            assert error is not None
            if isinstance(error, CorruptSegment):
                raise error
            break
        if looked is not None:
            looked.close()
    raise MetadataLost(f"{root} changes faster than it can be read; try again") from error


def _try(look: Look, use: Callable[[Looked], None]) -> tuple[Looked | None, frozenset[object], Exception | None]:
    """One look, what makes it doubtful, and the error that it ended with."""
    looked: Looked | None = None
    try:
        looked = look.run()
        use(looked)
    except _MOVED as error:
        if looked is not None:
            looked.close()
        return None, frozenset([f"{type(error).__name__}: {error}"]), error
    except BaseException:
        if looked is not None:
            looked.close()
        raise
    ends = [(scan.key, scan.end.number, scan.end.offset) for scan in looked.scans if scan.end.set_aside]
    gone = [(topic.id, *found) for topic in looked.state.by_id.values() for found in _gone(looked, topic)]
    return looked, frozenset([*ends, *gone]), None


def start_look(
    fs: ReadFs, root: str, *, cold: tuple[ReadFs, str] | None = None, wanted: Wanted = everything, now_ms: int = 0
) -> Look:
    """One look at a directory, as it is at this moment."""
    settings = Settings(data_dir=root, recent_cache_bytes=0)
    return Look(fs, settings, clock=EngineClock(_ClockAt(now_ms)), cold=ReadCold(cold), wanted=wanted)


def missing(looked: Looked, topic: TopicLog) -> list[tuple[int, int]]:
    """Half-open ranges of seqs whose segment is not where snapshot and log say."""
    return [found for found in _gone(looked, topic) if found[1] > topic.floors.earliest_seq]


def rests_on_missing(looked: Looked, topic: TopicLog, seq: int) -> bool:
    """Whether a record lies in a segment whose files are gone: what is read of it then, its time say, is not true."""
    return any(first <= seq < end for first, end in _gone(looked, topic))


def _gone(looked: Looked, topic: TopicLog) -> list[tuple[int, int]]:
    """Segments whose files are not there, below the floor only those that were looked for."""
    loaded = looked.attach.loaded.get(topic.id)
    if loaded is None:
        return []
    floor = topic.floors.earliest_seq
    return [
        *_unrecorded(looked, topic, floor),
        *(
            (segment.first_seq, segment.next_seq)
            for segment in topic.sealed
            if (segment.first_seq in loaded.not_found and segment.next_seq > floor)
            or (segment.view.tier == "hot" and _vanished(looked, topic, segment))
        ),
    ]


def _unrecorded(looked: Looked, topic: TopicLog, floor: int) -> Iterator[tuple[int, int]]:
    """The segment that a snapshot knew as the active one, if it lies nowhere and nothing says that it was dropped. It
    was sealed since, and may have moved behind the end of the log that was read; its older records are in no log."""
    item, active = looked.item(topic.id), looked.attach.active_of(topic.id)
    for row in () if item is None else item.segments:
        if row.sealed or row.first + row.count <= floor or (active is not None and active.first_seq == row.first):
            continue
        expected = looked.attach.marks.expected(topic.id, item)
        if topic.sealed.by_first_seq(row.first) is None and row.first not in expected.gone():
            yield row.first, row.first + row.count


def _vanished(looked: Looked, topic: TopicLog, segment: Sealed) -> bool:
    """Whether its files went after they were listed; then what was read of it is not to be believed."""
    view, loaded = segment.view, looked.attach.loaded[topic.id]
    is_damaged = bool(getattr(view, "damaged", False))
    return is_damaged and not looked.env.read_fs.exists(loaded.place.file(segment.first_seq, "data"))


def head_in_files(looked: Looked, topic: TopicLog) -> int:
    """The last seq without a hole before it, as far as files go.

    Behind it lie copies that are in memory only, or seqs that a restart would declare lost: while the server runs they
    may still come, and a reader that had passed them would never see them. Behind a damaged place of the log nothing
    comes any more, so that is announced as a start would."""
    head = topic.head
    if topic.id not in looked.set_aside:
        losses = [mark for mark in looked.marks if mark.topic_id == topic.id and mark.resume_at is not None]
        head = min([head, *(lo - 1 for mark in losses for lo, _, _ in mark.lost)])
    for run in topic.tail.runs:
        in_memory = np.frombuffer(run.locs[:], np.uint64) >> np.uint64(32) == RESIDENT
        if in_memory.any():
            return min(head, run.first_seq + int(in_memory.argmax()) - 1)
    return head


def load_indexes(topic: TopicLog) -> None:
    """Fetch the indexes of cold segments that retention or a delete had to wait for, and finish those."""
    while topic.awaiting:
        for first_seq in list(topic.awaiting):
            block = topic.sealed.by_first_seq(first_seq)
            if block is not None:
                block.view.load_index()  # type: ignore[attr-defined]
                block.keep_index()
            finish_cold_delete(topic, first_seq)


class _ClockAt:
    """The time that the reader looks at."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def wall_ms(self) -> int:
        return self._now_ms

    monotonic = staticmethod(time.monotonic)


class ReadCold:
    """The cold tier of a reader, or None; see `look.ColdStores`. A store that is not given counts as one that does not
    answer: its segments are taken as they were recorded."""

    def __init__(self, root: tuple[ReadFs, str] | None) -> None:
        self._root = root

    def begin(self, snapshot: Snapshot | None, *, recorded: int) -> None:
        """Nothing: which store it is was for the reader to say."""

    def store(self, topic_id: int) -> ReadStore:
        if self._root is None:
            return ReadStore(None, "no cold store was given")
        fs, root = self._root
        return ReadStore(fs, f"{root}/topics/{topic_dir_name(topic_id)}")


class ReadStore:
    """The segments of a topic in a folder that is only read (`SegmentStore`)."""

    in_place = True

    def __init__(self, fs: ReadFs | None, path: str) -> None:
        self._fs = fs
        self.path = self.label = path

    def _file(self, id: int, part: Part) -> tuple[ReadFs, str]:
        if self._fs is None:
            raise OSError(self.label)
        return self._fs, f"{self.path}/{segment_name(id, part)}"

    def read_range(self, id: int, part: Part, offset: int, length: int) -> bytes:
        fs, path = self._file(id, part)
        try:
            file = fs.open(path)
        except FileNotFoundError as error:
            raise NoSuchObject(path) from error
        try:
            found = read_full(file, offset, length)
        finally:
            file.close()
        if len(found) != length:
            raise RangeOutOfBounds(f"{path}: {offset}+{length}")
        return found

    def list(self) -> builtins.list[int]:
        fs, _ = self._file(1, "data")
        found = [parsed.first_seq for parsed in map(parse_segment, names_in(fs, self.path)) if parsed is not None]
        return sorted({first for first in found if found.count(first) > 1})

    def list_any(self) -> builtins.list[int]:
        raise OSError("a reader looks for nothing that nobody needs")

    def exists(self, id: int, part: Part) -> bool:
        fs, path = self._file(id, part)
        return fs.exists(path)

    def len(self, id: int, part: Part) -> int:
        fs, path = self._file(id, part)
        try:
            return fs.stat_len(path)
        except FileNotFoundError as error:
            raise NoSuchObject(path) from error

    def _refuse(self) -> NoReturn:
        raise AssertionError("a reader writes nothing")

    def put(self, id: int, data: Buffer, idx: Buffer) -> None:
        self._refuse()

    def delete(self, id: int) -> None:
        self._refuse()

    def mark_deleted(self, id: int, offsets: Sequence[int], *, slots: Sequence[int] = ()) -> None:
        self._refuse()
