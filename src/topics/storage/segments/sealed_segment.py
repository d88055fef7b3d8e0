"""SealedSegment: one sealed stretch of a topic's history, opened when somebody looks at it.

    SegmentHealth  what is known of damage to its files, and what was reported about it
    SealedSegment  its files, its columns, and the records that are in memory

Start-up costs two `stat`s a segment: lengths that equal what the snapshot recorded are trusted, and the agreement
checks of `docs/spec/storage.md#sec-6-3` run when the files are first mapped, before any of their bytes is used. Files
that fail them are healed there and then (`open_segment`). Frames are checked again on every read.

Always holds: `first_seq` and `count` never change, so a slot number means the same record for ever; offsets are only
meaningful together with the `SegmentArrays` they came from. Columns may be asked for from any thread. To open a hot
segment reads files, and to load the index of a cold one waits for its store: callers that must not wait look at
`loaded` (or `ready`, which only tells of the store) and have `load_index` run on a pool. Satisfies `SegmentView` of
`core.slots.sealed_slots`.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import RLock
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from topics.errors import ColdUnavailable, CorruptSegment, StorageIo, TopicsError
from topics.formats.buffers import I64, U8, U32, U64, Bools
from topics.formats.file_names import segment_name
from topics.formats.segments.columns import decode_columns
from topics.formats.segments.idx import ENTRY_BYTES, Idx, read_idx
from topics.formats.segments.sidecar import TagFilter
from topics.model.run import RecordRun
from topics.storage.segments.findings import CORRUPT, Finding
from topics.storage.segments.flips import UnsyncedFlags
from topics.storage.segments.open_segment import open_anew, open_cold, open_hot
from topics.storage.segments.segment_arrays import SegmentArrays, run_of_slots
from topics.storage.segments.tags import TagIndex, TagMatchLike, load_tag_index
from topics.storage.tiers.stores import NoSuchObject, RangeOutOfBounds

if TYPE_CHECKING:
    from topics.storage.segments.topic_dir import TopicDir


_NO_SLOTS: Final[frozenset[int]] = frozenset()
_NOTHING_TOLD: Final[frozenset[str]] = frozenset()
"""One for all segments: an empty set takes 216 bytes, and a directory may have a hundred thousand segments."""


class SegmentHealth:
    """`checked`: the agreement checks of `docs/spec/storage.md#sec-6-3` have passed since the files are these.
    `lost_frames`: slots whose frames a read found damaged, so that the segment is neither moved nor rewritten. A
    finding is reported once, however often the segment is mapped. The segment's lock guards it."""

    __slots__ = ("_told", "checked", "lost_frames")

    def __init__(self) -> None:
        self.checked = False
        self.lost_frames = _NO_SLOTS
        self._told = _NOTHING_TOLD

    def files_replaced(self) -> None:
        self.checked = False
        self.lost_frames = _NO_SLOTS

    def known_bad(self, count: int) -> Bools | None:
        """The damaged ones among so many slots; None if there is none."""
        if not self.lost_frames:
            return None
        bad: Bools = np.zeros(count, np.bool_)
        bad[list(self.lost_frames)] = True
        return bad

    def add_lost(self, slots: Iterable[int]) -> list[int]:
        """Remember damaged slots; those that were not known, ascending."""
        fresh = set(slots) - self.lost_frames
        self.lost_frames |= fresh
        return sorted(fresh)

    def report(self, segment: SealedSegment, what: str, counter: str, *, error: bool = False) -> None:
        if what in self._told:
            return
        self._told |= {what}
        segment.place.env.report(
            Finding(
                topic_id=segment.place.topic_id,
                file=segment.place.file(segment.first_seq, "data"),
                message=f"segment {segment.label} of topic {segment.place.name!r}: {what}",
                counter=counter,
                severity="error" if error else "warning",
            )
        )


Tier = Literal["hot", "cold"]


class SealedSegment:
    __slots__ = (
        "_filter",
        "_override",
        "_pair",
        "_tags",
        "condition",
        "count",
        "data_len",
        "first_seq",
        "flips",
        "hot_remnant",
        "lock",
        "place",
        "recently_used",
        "tier",
        "version",
    )

    def __init__(
        self,
        place: TopicDir,
        *,
        first_seq: int,
        count: int,
        data_len: int,
        tier: Tier = "hot",
        flips: UnsyncedFlags | None = None,
    ) -> None:
        self.place = place
        self.first_seq = first_seq
        self.count = count
        self.data_len = data_len
        self.tier: Tier = tier
        self.version = 0  # grows when the files are others: offsets of an older index mean nothing then
        self.hot_remnant = False  # moved to cold, but the hot files could not be removed yet
        self.recently_used = False
        self.lock = RLock()
        self.flips = UnsyncedFlags() if flips is None else flips
        self._pair: SegmentArrays | None = None
        self._tags: TagIndex | None = None
        self._filter: TagFilter | None = None  # stays when the sidecar is unmapped
        self.condition = SegmentHealth()
        self._override: SegmentArrays | None = None  # stands in for files that are damaged, or not repaired yet

    # --- identity -------------------------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    @property
    def idx_bytes(self) -> int:
        return self.count * ENTRY_BYTES

    @property
    def label(self) -> str:
        """The segment as errors name it."""
        return segment_name(self.first_seq, "data").removesuffix(".data")

    def __repr__(self) -> str:
        return f"SealedSegment({self.place.topic_id}, {self.first_seq}..{self.last_seq}, {self.tier})"

    # --- columns --------------------------------------------------------------------------------------------------

    @property
    def ts(self) -> U64:
        return self.pair().ts

    @property
    def flags(self) -> U8:
        """Presence bits, and bit 2 for what is flagged deleted on disk."""
        return self.pair().flags

    @property
    def lens(self) -> U32:
        return self.pair().lens

    def sizes(self, lo: int, hi: int) -> U32:
        """Accounted bytes of the slots `lo..hi-1`; 0 where there is no frame."""
        return self.tag_index().sizes[lo:hi]

    def tag_slots(self, match: TagMatchLike) -> I64:
        """Slots whose tag matches, ascending, deleted ones included."""
        return self.tag_index().slots(match)

    def lacks(self, tag: bytes) -> bool:
        """Whether it is known, without reading a file, that no slot has this tag. False: perhaps one has."""
        kept = self._filter
        return kept is not None and not kept.may_have(tag)

    def tags_after(self, after: bytes | None, prefix: bytes, limit: int) -> list[tuple[bytes, I64]]:
        """Up to so many tags with this prefix behind `after`, ascending, and the slots of each, deleted ones
        included."""
        return self.tag_index().tags_after(after, prefix, limit)

    @property
    def first_ts(self) -> int:
        return int(self.pair().ts[0])

    @property
    def last_ts(self) -> int:
        return int(self.pair().ts[-1])

    def checked_ts(self, slot: int) -> int:
        """The record's time from its checksummed frame; that of the index where there is no good frame."""
        pair = self.pair()
        if pair.data is None:
            return int(pair.ts[slot])
        found = decode_columns(
            pair.data, pair.entries, first_seq=self.first_seq, slots=[slot], want=("node",), include_dead=True
        )
        if any(bad.reason == "idx" for bad in found.bad):
            self.reindex()
        return int(self.pair().ts[slot])

    def entries_at(self, slots: I64) -> Idx:
        """Index entries of some slots."""
        return self.pair().entries[slots]

    def entry_at(self, slot: int) -> tuple[int, int]:
        """Offset and length of one frame; length 0 for an empty slot."""
        offset, length, *_ = self.pair().entries[slot].item()
        return offset, length

    def live_slots(self, dead: Bools | None = None) -> Bools:
        """Which slots are live: not flagged in the index, nor in `dead`."""
        live: Bools = (self.flags & 4) == 0
        return live if dead is None else live & ~dead

    def totals(self, dead: Bools | None = None) -> tuple[int, int]:
        """Live records and their accounted bytes, counted anew."""
        live = self.live_slots(dead)
        count = int(np.count_nonzero(live))
        return count, int(self.sizes(0, self.count)[live].sum(dtype=np.int64)) if count else 0

    def resident_run(self, slots: range | I64) -> RecordRun | None:
        """The records of these slots, ascending and live, if they can be read without waiting for the disk. None: they
        have to be fetched, which also tells what is wrong with them."""
        pair = self._pair
        if pair is None or not pair.is_resident(int(slots[0]), int(slots[-1])):
            return None
        self.recently_used = True
        run = run_of_slots(pair, slots, self.first_seq)
        return run if run is not None and len(run) == len(slots) else None

    # --- files ----------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the columns can be had without waiting for the cold store."""
        return self.tier == "hot" or self._pair is not None

    @property
    def loaded(self) -> bool:
        """Whether the columns can be had without reading a file."""
        return self._tags is not None and (self._pair is not None or self._override is not None)

    @property
    def cold_uri(self) -> str | None:
        """The `.data` of the cold copy, if it can be named."""
        folder = getattr(self.place.cold, "uri", None) if self.tier == "cold" else None
        if folder is None:
            return None
        place, mark, options = folder.partition("?")
        return f"{place}/{segment_name(self.first_seq, 'data')}{mark}{options}"

    def load_index(self) -> None:
        """Make the columns available. Reads files; may wait for the cold store, and nobody else waits meanwhile."""
        if self.tier == "hot":
            self.pair()
            self.tag_index()
            return
        if self._pair is None:
            self._load_cold()
        if self._tags is None:
            self._keep_tags(load_tag_index(self, wait=True))

    def _load_cold(self) -> None:
        version = self.version
        try:
            pair = open_cold(self)
        except OSError as error:
            raise self._unreadable(error) from error
        except (NoSuchObject, RangeOutOfBounds) as error:
            raise self.corrupt(0) from error
        with self.lock:
            if self.version != version:
                return
            self._pair = pair
        self.place.env.maps.admit(self)

    def pair(self) -> SegmentArrays:
        """The opened files; the same object until they change or were closed for lack of room."""
        self.recently_used = True
        pair = self._pair
        if pair is not None:
            return pair
        if self.tier == "cold":
            raise ColdUnavailable(self.label, reason="its index is not loaded yet")
        return self._open()

    def stand_in(self, pair: SegmentArrays | None) -> None:
        """Use this instead of the files; None goes back to the files."""
        with self.lock:
            self._override = pair
            if pair is not None and pair.data is not None:
                self.data_len = len(pair.data)
            self.condition.checked = False
            self._other_files()

    def files_replaced(self, data_len: int) -> None:
        """The hot files are others now: look at them anew. The caller holds `lock` around the renames and this."""
        self.version += 1
        self.tier = "hot"
        self.data_len = data_len
        self._override = None
        self.condition.files_replaced()
        self._other_files()

    def moved_to_cold(self, idx: bytes) -> None:
        """T7. The index is at hand, so the columns stay ready."""
        with self.lock:
            self.version += 1
            self.tier = "cold"
            self._override = None
            self.condition.checked = True
            self._pair = SegmentArrays(read_idx(bytearray(idx)), None)

    def _other_files(self) -> None:
        self.unmap()
        self.forget_filter()
        self.place.env.filters.remove(self)

    def unmap(self) -> None:
        """Let go of the mappings; whoever holds arrays keeps theirs."""
        self._pair = None
        self._tags = None

    def _open(self) -> SegmentArrays:
        with self.lock:
            if self._pair is not None:
                return self._pair
            if self._override is not None:
                return self._override
            if self.tier == "cold":
                raise ColdUnavailable(self.label, reason="its index is not loaded yet")
            try:
                pair = open_hot(self)
            except OSError as error:
                raise self._unreadable(error) from error
            self._pair = pair
        self.place.env.maps.admit(self)
        return pair

    def _unreadable(self, error: OSError) -> TopicsError:
        if self.tier == "cold" and self.place.cold is not None:
            return ColdUnavailable(self.place.cold.label, reason=str(error))
        return StorageIo(f"segment {self.label} of topic {self.place.name!r} cannot be read: {error}")

    def read_cold_data(self) -> bytes:
        """All of `.data` from the cold store. Waits for it."""
        store = self.place.cold
        assert store is not None
        return store.read_range(self.first_seq, "data", 0, store.len(self.first_seq, "data"))

    # --- repair ---------------------------------------------------------------------------------------------------

    def reindex(self) -> None:
        """A read found an entry that misdescribes its frame: build the index again from the frames."""
        with self.lock:
            self._pair = open_anew(self) or self._pair

    def mark_bad(self, slots: npt.ArrayLike) -> None:
        """Remember slots whose frames failed their checks, so that the segment is neither moved nor rewritten."""
        with self.lock:
            fresh = self.condition.add_lost(np.asarray(slots, np.int64).tolist())
            if fresh:
                what = f"records {[self.first_seq + slot for slot in fresh]} are damaged"
                self.condition.report(self, what, CORRUPT, error=True)

    @property
    def damaged(self) -> bool:
        """Whether some record of it is known to be unreadable."""
        pair = self._override or self._pair
        return bool(self.condition.lost_frames) or (pair is not None and pair.bad is not None)

    def corrupt(self, slot: int) -> CorruptSegment:
        """The error for one damaged record."""
        return CorruptSegment(self.place.name, seq=self.first_seq + slot, segment=self.label)

    # --- derived --------------------------------------------------------------------------------------------------

    def tag_index(self) -> TagIndex:
        """Tags and accounted sizes, from the sidecar if it is good, else from the frames (and then written again)."""
        tags = self._tags
        if tags is None:
            with self.lock:
                tags = self._keep_tags(load_tag_index(self, wait=False))
        return tags

    def _keep_tags(self, tags: TagIndex) -> TagIndex:
        self._tags = tags
        if self._filter is None:
            self._filter = tags.filter.copy()
            self.place.env.filters.admit(self, self._filter.nbytes)
        return tags

    def forget_filter(self) -> None:
        """Its memory is wanted for others; the next look at the sidecar brings it back."""
        self._filter = None
