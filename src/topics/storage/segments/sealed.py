"""SealedSegment: one sealed stretch of a topic's history, opened when somebody looks at it.

Start-up costs two `stat`s a segment: lengths that equal what the snapshot recorded are trusted, and the agreement
checks of storage.md section 6.3 run when the pair is first mapped, before any of its bytes is used. A pair that fails
them is healed there and then (`heal`). Frames are checked again on every read (`storage.fetch`).

Always holds: `first_seq` and `count` never change, so a slot number means the same record for ever; offsets are only
meaningful together with the `Pair` they came from. Columns may be asked for from any thread. A cold segment's index is
fetched from its store, which may wait: callers that must not wait look at `ready` first and have `load_index` run on
the cold pool. Satisfies `core.sealed.SegmentView`.
"""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from topics.errors import ColdUnavailable, CorruptSegment, StorageIo, TopicsError
from topics.formats.buffers import I64, U8, U32, U64, Bools
from topics.formats.columns import decode_columns
from topics.formats.idx import ENTRY_BYTES, Idx, idx_agrees, read_idx
from topics.formats.names import segment_name
from topics.storage.fs import install
from topics.storage.segments.findings import CORRUPT, IDX_REBUILT, Finding
from topics.storage.segments.flip_log import FlipLog
from topics.storage.segments.heal import Healed, heal, heal_without_data
from topics.storage.segments.old_flags import found_flags, sync_old_flags
from topics.storage.segments.pair import Pair
from topics.storage.segments.remnants import adopt_idx_temp
from topics.storage.segments.tags import TagIndex, TagMatchLike, load_tag_index
from topics.storage.stores import NotFound, RangeOutOfBounds

if TYPE_CHECKING:
    from topics.storage.segments.place import TopicDir

Tier = Literal["hot", "cold"]


class SealedSegment:
    __slots__ = (
        "_checked",
        "_lost_frames",
        "_override",
        "_pair",
        "_tags",
        "_told",
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
        flips: FlipLog | None = None,
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
        self.flips = FlipLog() if flips is None else flips
        self._pair: Pair | None = None
        self._tags: TagIndex | None = None
        self._checked = False
        self._lost_frames: frozenset[int] = frozenset()  # slots that a read found damaged
        self._told: frozenset[str] = frozenset()  # what was reported once is not reported again at every mapping
        self._override: Pair | None = None  # stands in for files that are damaged, or not repaired yet

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

    # --- files ----------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the columns can be had without waiting for the cold store."""
        return self.tier == "hot" or self._pair is not None

    @property
    def cold_uri(self) -> str | None:
        """The `.data` of the cold copy, if it can be named."""
        folder = getattr(self.place.cold, "uri", None) if self.tier == "cold" else None
        return None if folder is None else f"{folder}/{segment_name(self.first_seq, 'data')}"

    def load_index(self) -> None:
        """Make the columns available. May wait for the cold store, and nobody else waits meanwhile."""
        if self._pair is None:
            if self.tier == "hot":
                self._open()
            else:
                self._load_cold()
        if self._tags is None and self.tier == "cold":
            self._tags = load_tag_index(self, wait=True)

    def _load_cold(self) -> None:
        version = self.version
        try:
            pair = self._open_cold()
        except OSError as error:
            raise self._unreadable(error) from error
        except (NotFound, RangeOutOfBounds) as error:
            raise self.corrupt(0) from error
        with self.lock:
            if self.version != version:
                return
            self._pair = pair
        self.place.env.maps.admit(self)

    def pair(self) -> Pair:
        """The opened files; the same object until they change or were closed for lack of room."""
        self.recently_used = True
        pair = self._pair
        if pair is not None:
            return pair
        if self.tier == "cold":
            raise ColdUnavailable(self.label, reason="its index is not loaded yet")
        return self._open()

    def stand_in(self, pair: Pair | None) -> None:
        """Use this instead of the files; None goes back to the files."""
        with self.lock:
            self._override = pair
            if pair is not None and pair.data is not None:
                self.data_len = len(pair.data)
            self._checked = False
            self.unmap()

    def files_replaced(self, data_len: int) -> None:
        """The hot files are others now: look at them anew. The caller holds `lock` around the renames and this."""
        self.version += 1
        self.tier = "hot"
        self.data_len = data_len
        self._override = None
        self._checked = False
        self._lost_frames = frozenset()
        self.unmap()

    def moved_to_cold(self, idx: bytes) -> None:
        """T7. The index is at hand, so the columns stay ready."""
        with self.lock:
            self.version += 1
            self.tier = "cold"
            self._override = None
            self._checked = True
            self._pair = Pair(read_idx(bytearray(idx)), None)

    def unmap(self) -> None:
        """Let go of the mappings; whoever holds arrays keeps theirs."""
        self._pair = None
        self._tags = None

    def _open(self) -> Pair:
        with self.lock:
            if self._pair is not None:
                return self._pair
            if self._override is not None:
                return self._override
            if self.tier == "cold":
                raise ColdUnavailable(self.label, reason="its index is not loaded yet")
            try:
                pair = self._open_hot()
            except OSError as error:
                raise self._unreadable(error) from error
            self._pair = pair
        self.place.env.maps.admit(self)
        return pair

    def _unreadable(self, error: OSError) -> TopicsError:
        if self.tier == "cold" and self.place.cold is not None:
            return ColdUnavailable(self.place.cold.label, reason=str(error))
        return StorageIo(f"segment {self.label} of topic {self.place.name!r} cannot be read: {error}")

    def _open_hot(self) -> Pair:
        data = self._map("data")
        idx = self._map("idx")
        if data is None:
            return self._without_data(idx)
        if idx is not None and (self._checked or self._agrees(idx, data)):
            pair = Pair(read_idx(idx), data, self._known_bad())
            if not self._checked:
                sync_old_flags(self.place, self.first_seq, pair.flags, pair.lens)
                pair = found_flags(self.place, self.first_seq, pair)
            self._checked = True
            self.data_len = len(data)
            return pair
        if adopt_idx_temp(self.place, self.first_seq):
            return self._open_hot()
        return self._healed(heal(idx, data, first_seq=self.first_seq, count=self.count, data_len=self.data_len), data)

    def _map(self, part: Literal["data", "idx"]) -> memoryview | None:
        try:
            file = self.place.fs.open(self.place.file(self.first_seq, part), "r")
        except FileNotFoundError:
            return None
        try:
            return file.mmap()
        finally:
            file.close()

    def _agrees(self, idx: memoryview, data: memoryview) -> bool:
        return len(idx) == self.idx_bytes and idx_agrees(idx, len(data), data) is None

    def _open_cold(self) -> Pair:
        store = self.place.cold
        if store is None:
            raise StorageIo(f"segment {self.label} of topic {self.place.name!r} is cold and there is no cold store")
        raw = bytearray(store.read_range(self.first_seq, "idx", 0, self.idx_bytes))
        if not self._checked:
            self.data_len = store.len(self.first_seq, "data")
            if idx_agrees(raw, self.data_len) is not None:
                return self._heal_cold(memoryview(raw))
        self._checked = True
        return Pair(read_idx(raw), None, self._known_bad())

    def read_cold_data(self) -> bytes:
        """All of `.data` from the cold store. Waits for it."""
        store = self.place.cold
        assert store is not None
        return store.read_range(self.first_seq, "data", 0, store.len(self.first_seq, "data"))

    def _heal_cold(self, raw: memoryview) -> Pair:
        """A cold index that does not agree: judge it by the whole cold `.data`. The store is left as it is."""
        data = memoryview(self.read_cold_data())
        healed = heal(raw, data, first_seq=self.first_seq, count=self.count, data_len=self.data_len)
        self._report("index does not agree with its data in the cold store", CORRUPT if healed.bad is not None else "")
        return Pair(healed.entries, None, healed.bad)

    # --- repair ---------------------------------------------------------------------------------------------------

    def reindex(self) -> None:
        """A read found an entry that misdescribes its frame: build the index again from the frames."""
        with self.lock:
            data = self._map("data")
            if data is not None:
                healed = heal(None, data, first_seq=self.first_seq, count=self.count, data_len=self.data_len)
                self._pair = self._healed(healed, data)

    def _healed(self, healed: Healed, data: memoryview) -> Pair:
        self.data_len = len(data)
        if healed.bad is not None:
            self._report(f"{int(healed.bad.sum())} records are damaged ({healed.reason})", CORRUPT, error=True)
            return Pair(healed.entries, data, healed.bad)
        if healed.install:
            self._report(f"index rebuilt from its data ({healed.reason})", IDX_REBUILT)
            self.place.env.counters.idx_rebuilt += 1
            try:
                self.place.env.write_or_defer(lambda: self._install_idx(healed))
            except OSError as error:  # it serves from memory as well; the next mapping tries again
                self._report(f"rebuilt index could not be written: {error}", "")
        return Pair(healed.entries, data)

    def _install_idx(self, healed: Healed) -> None:
        with self.lock:
            path = self.place.file(self.first_seq, "idx")
            install(self.place.fs, path, healed.entries.tobytes())
            self.place.env.files.forget(path)
            self.unmap()  # from now on flags are set in the file, so look at the file

    def _without_data(self, idx: memoryview | None) -> Pair:
        healed = heal_without_data(idx, count=self.count)
        self._report("data file is missing", CORRUPT, error=True)
        return Pair(healed.entries, memoryview(b""), healed.bad)

    def _known_bad(self) -> Bools | None:
        if not self._lost_frames:
            return None
        bad: Bools = np.zeros(self.count, np.bool_)
        bad[list(self._lost_frames)] = True
        return bad

    def mark_bad(self, slots: npt.ArrayLike) -> None:
        """Remember slots whose frames failed their checks, so that the segment is neither moved nor rewritten."""
        with self.lock:
            fresh = set(np.asarray(slots, np.int64).tolist()) - self._lost_frames
            if fresh:
                self._lost_frames |= fresh
                self._report(
                    f"records {sorted(self.first_seq + slot for slot in fresh)} are damaged", CORRUPT, error=True
                )

    @property
    def damaged(self) -> bool:
        """Whether some record of it is known to be unreadable."""
        pair = self._override or self._pair
        return bool(self._lost_frames) or (pair is not None and pair.bad is not None)

    def corrupt(self, slot: int) -> CorruptSegment:
        """The error for one damaged record."""
        return CorruptSegment(self.place.name, seq=self.first_seq + slot, segment=self.label)

    def _report(self, what: str, counter: str, *, error: bool = False) -> None:
        if what in self._told:
            return
        self._told |= {what}
        self.place.env.report(
            Finding(
                topic_id=self.place.topic_id,
                file=self.place.file(self.first_seq, "data"),
                message=f"segment {self.label} of topic {self.place.name!r}: {what}",
                counter=counter,
                severity="error" if error else "warning",
            )
        )

    # --- derived --------------------------------------------------------------------------------------------------

    def tag_index(self) -> TagIndex:
        """Tags and accounted sizes, from the sidecar if it is good, else from the frames (and then written again)."""
        tags = self._tags
        if tags is None:
            with self.lock:
                tags = self._tags = load_tag_index(self, wait=False)
        return tags
