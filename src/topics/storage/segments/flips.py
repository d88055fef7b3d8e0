"""Flips: a delete reaches the disk by one byte per record (`docs/spec/storage.md#sec-10`).

    flip    on the owner's thread, before the delete call returns: `0xD5` into each frame, hot segments only
    sync    in the background (C8): sync `.data`, then set bit 2 in `.idx`, then sync `.idx`

A flip that fails fails nothing else: the slot stays in the segment's `UnsyncedFlags`, is tried again by the next
`sync`, and until then the log frame or the snapshot's `dead` list keeps the delete alive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from topics.errors import TopicsError
from topics.formats.segments.frame import DELETED_BYTE
from topics.formats.segments.idx import ENTRY_BYTES, FLAGS_AT, IDX_DELETED, Idx
from topics.storage.fs import File, write_all

if TYPE_CHECKING:
    from topics.storage.segments.topic_dir import SegmentEnv, TopicDir


_NO_SLOTS: Final[Set[int]] = frozenset()
"""One for all: most segments never have a delete that is not safe, and there are hundreds of thousands of them."""


class UnsyncedFlags:
    """Which deletes of one segment are not yet safe in its files.

        unwritten --flag byte--> unsynced --data sync, idx bit, idx sync--> forgotten

    Every slot listed here must be in the snapshot's `dead`, or its Delete frame must stay in the log. While `frozen`,
    the segment's files are being replaced: flips are only noted. `relay` collects what dies while a copy of the files
    is made, so that the copy can be flagged too. The lock is held for single-byte writes at most; never for a sync."""

    __slots__ = ("dir_unsynced", "frozen", "lock", "relay", "retired", "unsynced", "unwritten", "working")

    def __init__(self) -> None:
        self.lock = Lock()
        self.working = Lock()  # held by the one background job that changes the segment's files
        self.unwritten: Set[int] = _NO_SLOTS
        self.unsynced: Set[int] = _NO_SLOTS
        self.relay: set[int] | None = None
        self.frozen = False
        self.dir_unsynced = False  # files were renamed into place, and syncing their directory failed
        self.retired = False  # the active segment that it began with is sealed

    def pending(self) -> list[int]:
        """Slots whose deletion the files do not prove yet."""
        with self.lock:
            return sorted(self.unwritten | self.unsynced)

    def __bool__(self) -> bool:
        return bool(self.unwritten or self.unsynced)

    # --- for a job that replaces the files; it holds `working` ------------------------------------------------------

    def watch(self) -> None:
        """From now on remember in `relay` what dies."""
        with self.lock:
            self.relay = set()

    def freeze(self) -> set[int]:
        """No more writes to the old files; gives what died since `watch`, and what they do not prove yet."""
        with self.lock:
            self.frozen = True
            died, self.relay = self.relay or set(), None
            return died.union(self.unwritten, self.unsynced)

    def thaw(self) -> None:
        """The old files stay: go on writing to them."""
        with self.lock:
            self.relay = None
            self.frozen = False

    def replaced(self, *, proven: set[int]) -> None:
        """The files are new and prove these; whatever else was only written must be written again."""
        with self.lock:
            self.unwritten = (self.unwritten | self.unsynced) - proven
            self.unsynced = _NO_SLOTS
            self.relay = None
            self.frozen = False


def _with(slots: Set[int], more: Iterable[int]) -> Set[int]:
    """In place, unless it is the empty one of all segments."""
    grown = slots if isinstance(slots, set) else set(slots)
    grown.update(more)
    return grown


def _without(slots: Set[int], done: Iterable[int]) -> Set[int]:
    if isinstance(slots, set):
        slots.difference_update(done)
    return slots


FLAG: bytes = bytes((DELETED_BYTE,))


class Flippable(Protocol):
    """An active or sealed segment."""

    @property
    def place(self) -> TopicDir: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def tier(self) -> str: ...
    @property
    def flips(self) -> UnsyncedFlags: ...
    def entries_at(self, slots: npt.NDArray[np.int64]) -> Idx: ...
    def entry_at(self, slot: int) -> tuple[int, int]: ...


class Flagged(NamedTuple):
    """Deletes that the segment's own files now prove."""

    topic_id: int
    first_seq: int
    slots: npt.NDArray[np.int64]


class DeleteFlags:
    """All pending flips of a data directory."""

    def __init__(self, env: SegmentEnv) -> None:
        self._env = env
        self._dirty: dict[UnsyncedFlags, Flippable] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._dirty)

    def flip(self, segment: Flippable, slots: npt.NDArray[np.int64] | Sequence[int]) -> None:
        """Write the flag bytes of deleted slots, as far as that can be done now. Never raises, never syncs."""
        wanted = sorted(set(slots.tolist() if isinstance(slots, np.ndarray) else slots))
        if not wanted:
            return
        with self._lock:
            self._dirty[segment.flips] = segment
        log = segment.flips
        with log.lock:
            if log.relay is not None:
                log.relay.update(wanted)
            if log.frozen or segment.tier != "hot":
                log.unwritten = _with(log.unwritten, wanted)
            else:
                self._write_hot(segment, wanted)

    def _write_hot(self, segment: Flippable, slots: list[int]) -> None:
        log, counters = segment.flips, self._env.counters
        try:
            framed, places = _flag_places(segment, slots)
            write_flags(segment, places)
        except (OSError, TopicsError):
            counters.flip_failures += len(slots)
            log.unwritten = _with(log.unwritten, slots)
            return
        counters.flips += len(framed)
        log.unwritten = _without(log.unwritten, slots)
        log.unsynced = _with(log.unsynced, framed)

    def owner_changed(self, segment: Flippable) -> None:
        """The same files are now described by another object (the next checkpoint's, or the sealed segment)."""
        with self._lock:
            if segment.flips in self._dirty:
                self._dirty[segment.flips] = segment

    def cold(self) -> list[Flippable]:
        """Cold segments with deletes that their files do not prove; the cold pool has to flag them."""
        with self._lock:
            return [segment for log, segment in self._dirty.items() if log and segment.tier == "cold"]

    def forget(self, segment: Flippable) -> None:
        """The segment is gone, and with it what was to be flagged."""
        with self._lock:
            self._dirty.pop(segment.flips, None)

    def forget_topic(self, topic_id: int) -> None:
        """The topic is gone, with all its segments."""
        with self._lock:
            for log in [log for log, segment in self._dirty.items() if segment.place.topic_id == topic_id]:
                del self._dirty[log]

    def sync(self, segments: Iterable[Flippable] | None = None) -> list[Flagged]:
        """Make hot flips durable in `.data` and `.idx`; says which are. What fails stays pending for the next call."""
        if segments is None:
            with self._lock:
                segments = list(self._dirty.values())
        flagged = [done for segment in segments if (done := self._sync_one(segment)) is not None]
        with self._lock:
            for log in [log for log in self._dirty if not log]:
                del self._dirty[log]
        return flagged

    def _sync_one(self, segment: Flippable) -> Flagged | None:
        log = segment.flips
        if segment.tier != "hot" or not log.working.acquire(blocking=False):
            return None  # its files are being replaced: that job takes care of the flags, or the next sync does
        try:
            slots = self._written(segment)
            return _sync_files(segment, slots) if len(slots) else None
        except (OSError, TopicsError):
            self._env.counters.flip_failures += 1
            with log.lock:  # the pages may be lost: write these flags again next time
                log.unwritten = _with(log.unwritten, log.unsynced)
                log.unsynced = _NO_SLOTS
            return None
        finally:
            log.working.release()

    def _written(self, segment: Flippable) -> npt.NDArray[np.int64]:
        log = segment.flips
        with log.lock:
            if log.unwritten and not log.frozen:
                self._write_hot(segment, sorted(log.unwritten))
            return np.array(sorted(log.unsynced), np.int64)


def _sync_files(segment: Flippable, slots: npt.NDArray[np.int64]) -> Flagged:
    place, files = segment.place, segment.place.env.files
    if segment.flips.dir_unsynced:  # without this a power cut could bring the replaced files back
        place.fs.sync_dir(place.path)
        segment.flips.dir_unsynced = False
    with files.borrow_writable(place.file(segment.first_seq, "data")) as data:
        data.datasync()
    with files.borrow_writable(place.file(segment.first_seq, "idx")) as idx:
        write_idx_bits(idx, slots, segment.entries_at(slots))
        idx.datasync()
    with segment.flips.lock:
        segment.flips.unsynced = _without(segment.flips.unsynced, slots.tolist())
    return Flagged(place.topic_id, segment.first_seq, slots)


def _flag_places(segment: Flippable, slots: list[int]) -> tuple[list[int], list[int]]:
    """The slots that have a frame, and where their flag bytes lie."""
    if len(slots) == 1:  # acks come one by one
        offset, length = segment.entry_at(slots[0])
        return (slots, [offset + length - 1]) if length else ([], [])
    chosen = np.array(slots, np.int64)
    entries = segment.entries_at(chosen)
    framed = entries["len"] > 0
    places = entries["offset"][framed].astype(np.int64) + entries["len"][framed] - 1
    return chosen[framed].tolist(), places.tolist()


def write_flags(segment: Flippable, places: list[int]) -> None:
    """A flag byte at each of these places of `.data`."""
    if places:
        with segment.place.env.files.borrow_writable(segment.place.file(segment.first_seq, "data")) as file:
            for at in places:
                write_all(file, at, FLAG)


def write_idx_bits(file: File, slots: npt.NDArray[np.int64], entries: Idx) -> None:
    """Bit 2 in the entry of each slot."""
    flags = (entries["flags"] | IDX_DELETED).tolist()
    for slot, value in zip(slots.tolist(), flags, strict=True):
        write_all(file, slot * ENTRY_BYTES + FLAGS_AT, _BYTES[value])


_BYTES = [bytes((value,)) for value in range(256)]
