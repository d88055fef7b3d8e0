"""Tail: the slots of a topic that lie in no sealed segment, as typed arrays by `seq - first_seq`.

A run is contiguous and bounded; a lost range between two records starts a new run, so that a gap costs nothing. Most
topics have one run, as a checkpoint takes the front away. What always holds: runs are disjoint and ascending; the
columns of a run have equal length, 25 bytes a slot. A slot that is dead by position (below `earliest_seq`) looks alive
here: only requested removals set DELETED.

    loc   u64   file << 32 | offset; file is an index of storage's WAL table, IN_ACTIVE or RESIDENT
    len   u32   bytes of the frame there; 0: an empty slot of the active segment
    ts    u64   size u32 accounted bytes   flags u8 (`model.ops`)

Columns are `array`s because one-record appends dominate. A numpy view of an array forbids growing it, so views made
here copy the slice first, and growth survives a foreign view by moving on to a copy.

Tail tags: which tail seqs carry which tag. Sealed segments answer for themselves (`SegmentView.tag_slots`).

Appends only put the batch's tags aside; a chunk is indexed when the first match delete asks for it, so topics that are
never deleted from pay nothing. A chunk leaves whole when all its seqs have left the tail. Entries of dead seqs may stay
until then: whoever takes entries checks that they are live. What always holds: every live tagged tail seq is here once;
seqs ascend within a chunk.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import lt

import numpy as np

from topics.core.slots.slot_range import FEW, I64, U32, Bools, Slots
from topics.model.names import TagMatch
from topics.model.ops import DELETED

RUN_SLOTS_MAX = 32_768
"""A longer stretch is several runs: what leaves the tail at its front must not move all that stays."""


class TailRun(Slots):
    __slots__ = ("deleted", "first_seq", "flags", "lens", "locs", "sizes", "ts")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.deleted = 0  # slots with DELETED set: 0 lets reads skip the flags
        self.locs: array[int] = array("Q")
        self.lens: array[int] = array("I")
        self.ts: array[int] = array("Q")
        self.sizes: array[int] = array("I")
        self.flags: array[int] = array("B")

    @property
    def count(self) -> int:
        return len(self.flags)

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.flags)

    def extend(
        self, *, locs: "array[int]", lens: "array[int]", ts: "array[int]", sizes: "array[int]", flags: "array[int]"
    ) -> None:
        self.locs = _grown(self.locs, locs)
        self.lens = _grown(self.lens, lens)
        self.ts = _grown(self.ts, ts)
        self.sizes = _grown(self.sizes, sizes)
        self.flags = _grown(self.flags, flags)
        self.deleted += flags_deleted(flags)

    def push(self, loc: int, length: int, ts: int, size: int, flags: int) -> None:
        """One slot more."""
        count = len(self.flags)
        try:
            self.locs.append(loc)
            self.lens.append(length)
            self.ts.append(ts)
            self.sizes.append(size)
            self.flags.append(flags)
        except BufferError:  # as in `_grown`; some columns may have grown already
            self.locs = self.locs[:count] + array("Q", (loc,))
            self.lens = self.lens[:count] + array("I", (length,))
            self.ts = self.ts[:count] + array("Q", (ts,))
            self.sizes = self.sizes[:count] + array("I", (size,))
            self.flags = self.flags[:count] + array("B", (flags,))
        if flags & DELETED:
            self.deleted += 1

    def drop_front(self, count: int) -> None:
        if self.deleted:
            self.deleted -= flags_deleted(self.flags[:count])
        self.first_seq += count
        self.locs = self.locs[count:]
        self.lens = self.lens[count:]
        self.ts = self.ts[count:]
        self.sizes = self.sizes[count:]
        self.flags = self.flags[count:]

    def split(self, count: int) -> "TailRun":
        """Keep the first `count` slots; the rest becomes a run of its own."""
        rest = TailRun(self.first_seq + count)
        rest.extend(
            locs=self.locs[count:],
            lens=self.lens[count:],
            ts=self.ts[count:],
            sizes=self.sizes[count:],
            flags=self.flags[count:],
        )
        self.deleted -= rest.deleted
        self.locs = self.locs[:count]
        self.lens = self.lens[:count]
        self.ts = self.ts[:count]
        self.sizes = self.sizes[:count]
        self.flags = self.flags[:count]
        return rest

    def mark_deleted(self, slots: I64) -> None:
        flags = self.flags
        for slot in slots.tolist():
            flags[slot] |= DELETED
        self.deleted += len(slots)

    def took(self, count: int, size: int) -> None:
        """A run keeps no totals: it is summed when it dies, which is soon."""

    def dead(self, lo: int, hi: int) -> Bools:
        dead: Bools = (np.frombuffer(self.flags[lo:hi], np.uint8) & DELETED) != 0
        return dead

    def sizes_of(self, lo: int, hi: int) -> U32:
        return np.frombuffer(self.sizes[lo:hi], np.uint32)

    def expired(self, cutoff_ts: int) -> int:
        return bisect_left(self.ts, cutoff_ts)


class Tail:
    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: list[TailRun] = []

    def __len__(self) -> int:
        return sum(len(run.flags) for run in self.runs)

    def run_for_append(self, first_seq: int) -> TailRun:
        """The run that takes a record at `first_seq`, which must have no slot yet; a new run if it touches none."""
        runs = self.runs
        at = len(runs) if runs and runs[-1].first_seq < first_seq else bisect_right(runs, first_seq, key=_first_seq)
        if at:
            before = runs[at - 1]
            count = len(before.flags)
            if before.first_seq + count == first_seq and count < RUN_SLOTS_MAX:
                return before
        run = TailRun(first_seq)
        runs.insert(at, run)
        return run

    def find(self, seq: int) -> TailRun | None:
        """The run with a slot for `seq`."""
        runs = self.runs
        if not runs:
            return None
        run = runs[-1]
        if seq < run.first_seq:
            at = bisect_right(runs, seq, key=_first_seq)
            if at == 0:
                return None
            run = runs[at - 1]
        return run if seq < run.next_seq else None

    def runs_from(self, seq: int) -> Iterator[TailRun]:
        """Runs with a slot at or above `seq`, ascending."""
        runs = self.runs
        at = len(runs) - 1
        if at > 0 and runs[at].first_seq > seq:
            at = max(bisect_right(runs, seq, key=_first_seq) - 1, 0)
        return (run for run in runs[max(at, 0) :] if run.next_seq > seq)

    def drop_below(self, seq: int) -> None:
        """Forget every slot below `seq`."""
        kept = [run for run in self.runs if run.next_seq > seq]
        if kept and kept[0].first_seq < seq:
            kept[0].drop_front(seq - kept[0].first_seq)
        self.runs = kept

    def cut_out(self, lo: int, hi: int) -> None:
        """Forget the slots `lo..hi-1`: a sealed segment has them now."""
        if not self.runs or self.runs[0].first_seq >= lo:
            self.drop_below(hi)
            return
        kept: list[TailRun] = []
        for run in self.runs:
            if run.first_seq < lo < run.next_seq:
                rest = run.split(lo - run.first_seq)
                kept.append(run)
                run = rest
            if run.first_seq < lo or run.first_seq >= hi:
                kept.append(run)
            elif run.next_seq > hi:
                run.drop_front(hi - run.first_seq)
                kept.append(run)
        self.runs = kept


_ALIVE = bytes(flags for flags in range(256) if not flags & DELETED)


def flags_deleted(flags: "array[int]") -> int:
    """How many have DELETED set. Most batches are small, and numpy costs more than they do."""
    return len(flags.tobytes().translate(None, _ALIVE))


def locations(file: int, base: int, offs: "array[int]") -> "array[int]":
    """The `loc` column of frames at `base + offs[i]` of a file."""
    origin = file << 32 | base
    if len(offs) < FEW:
        return array("Q", [origin + off for off in offs])
    return array("Q", (np.frombuffer(offs, np.uint32).astype(np.uint64) + np.uint64(origin)).tobytes())


def _first_seq(run: TailRun) -> int:
    return run.first_seq


def _grown(column: "array[int]", more: "array[int]") -> "array[int]":
    try:
        column.extend(more)
    except BufferError:  # somebody still looks at the old memory: leave it to them
        column = column + more
    return column


KEYS_MIN = 8  # tags that a chunk is asked for at a time
CHUNK_SEQS = 4096  # tagged seqs per chunk: what may linger after its records have left, and what a Glob sorts at a time


class _Chunk:
    __slots__ = ("_index", "_keys", "_seqs", "_tags", "count", "last_seq")

    def __init__(self) -> None:
        self.count = 0
        self.last_seq = 0
        self._seqs: array[int] = array("Q")  # these two: not yet indexed
        self._tags: list[bytes] = []
        self._index: dict[bytes, list[int]] = {}
        self._keys: list[bytes] | None = None  # sorted keys of the index, while they are right

    def add(self, seqs: Iterable[int], tags: list[bytes]) -> None:
        self._seqs.extend(seqs)
        self._tags.extend(tags)
        self.count += len(tags)
        self.last_seq = self._seqs[-1]

    def take(self, match: TagMatch, wanted: bytes, below: int) -> list[int]:
        self._index_pending()
        if match.op == "Eq":
            return self._take_tag(wanted, below)
        taken: list[int] = []
        for tag in self._tags_with_prefix(wanted):
            taken += self._take_tag(tag, below)
        return taken

    def find(self, match: TagMatch, wanted: bytes, below: int) -> list[int]:
        self._index_pending()
        tags = [wanted] if match.op == "Eq" else self._tags_with_prefix(wanted)
        return [seq for tag in tags for seq in self._index.get(tag, ()) if seq < below]

    def between(self, match: TagMatch, lo: int, hi: int) -> list[int]:
        """Entries `lo..hi-1` that match, ascending. Behind what was indexed they are looked at one by one: a reader at
        the head asks for a few of them with every write, and must not have all of the chunk indexed and sorted."""
        if self._tags and self._seqs[0] <= lo:
            at, stop = bisect_left(self._seqs, lo), bisect_left(self._seqs, hi)
            return [self._seqs[i] for i in range(at, stop) if match.matches(self._tags[i])]
        self._index_pending()
        wanted = match.value.encode()
        if match.op == "Eq":
            seqs = self._index.get(wanted, ())
            return list(seqs[bisect_left(seqs, lo) : bisect_left(seqs, hi)])
        tags = self._tags_with_prefix(wanted)
        return sorted(seq for tag in tags for seq in self._index[tag] if lo <= seq < hi)

    @property
    def is_indexed(self) -> bool:
        return not self._tags and self._keys is not None

    def index(self) -> None:
        self._index_pending()
        if self._keys is None:
            self._keys = sorted(self._index)

    def keys_after(self, after: bytes | None, prefix: bytes, limit: int) -> list[bytes]:
        """Up to so many tags with this prefix behind `after`, ascending."""
        self.index()
        keys = self._keys
        assert keys is not None
        at = bisect_left(keys, prefix)
        if after is not None:
            at = max(at, bisect_right(keys, after))
        found = keys[at : at + limit]
        if found and not found[-1].startswith(prefix):
            found = [key for key in found if key.startswith(prefix)]
        return found

    def seqs_of(self, tag: bytes) -> list[int]:
        """Of a chunk that is indexed."""
        return self._index.get(tag, [])

    def keep(self, tag: bytes, live: set[int], below: int) -> None:
        """Entries of the tag below the bound stay only if they are live."""
        seqs = self._index.get(tag)
        if seqs is not None and seqs[0] < below:
            seqs = [seq for seq in seqs if seq >= below or seq in live]
            if seqs:
                self._index[tag] = seqs
            else:
                del self._index[tag]
                self._keys = None

    def _index_pending(self) -> None:
        if not self._tags:
            return
        index, known = self._index, len(self._index)
        for tag, seq in zip(self._tags, self._seqs, strict=True):
            found = index.get(tag)
            if found is None:
                index[tag] = [seq]
            else:
                found.append(seq)
        if len(index) != known:
            self._keys = None
        self._seqs = array("Q")
        self._tags = []

    def _take_tag(self, tag: bytes, below: int) -> list[int]:
        """All entries below the bound: they die now or were dead before. Empty tags vanish."""
        seqs = self._index.get(tag)
        if seqs is None:
            return []
        if seqs[-1] < below:
            del self._index[tag]
            self._keys = None
            return seqs
        taken = [seq for seq in seqs if seq < below]
        if taken:
            self._index[tag] = [seq for seq in seqs if seq >= below]
        return taken

    def _tags_with_prefix(self, prefix: bytes) -> list[bytes]:
        if self._keys is None:
            self._keys = sorted(self._index)
        keys = self._keys
        at = end = bisect_left(keys, prefix)
        while end < len(keys) and keys[end].startswith(prefix):
            end += 1
        return keys[at:end]


class TailTags:
    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []

    def __len__(self) -> int:
        """Entries kept, dead ones included."""
        return sum(chunk.count for chunk in self._chunks)

    def add(self, first_seq: int, tags: list[bytes | None]) -> None:
        """The tags of consecutive records; None where a record has none."""
        if None not in tags:
            self._chunk_for(first_seq).add(range(first_seq, first_seq + len(tags)), tags)  # type: ignore[arg-type]
            return
        given = [(seq, tag) for seq, tag in enumerate(tags, first_seq) if tag is not None]
        if given:
            self._chunk_for(first_seq).add([seq for seq, _ in given], [tag for _, tag in given])

    def _chunk_for(self, first_seq: int) -> _Chunk:
        """The open chunk; a new one when it is full, or when recovery fills in older records."""
        if self._chunks:
            chunk = self._chunks[-1]
            if chunk.count < CHUNK_SEQS and chunk.last_seq < first_seq:
                return chunk
        chunk = _Chunk()
        self._chunks.append(chunk)
        return chunk

    def take(self, match: TagMatch, *, below: int) -> list[int]:
        """Remove and return the entries below the bound that match; unordered, dead seqs perhaps among them."""
        wanted = match.value.encode()
        taken: list[int] = []
        for chunk in self._chunks:
            taken += chunk.take(match, wanted, below)
        return taken

    def find(self, match: TagMatch, *, below: int) -> list[int]:
        """What `take` would return."""
        wanted = match.value.encode()
        return [seq for chunk in self._chunks for seq in chunk.find(match, wanted, below)]

    def between(self, match: TagMatch, lo: int, hi: int) -> list[int]:
        """Seqs `lo..hi-1` whose tag matches, ascending, dead ones perhaps among them."""
        found = [seq for chunk in self._chunks if chunk.last_seq >= lo for seq in chunk.between(match, lo, hi)]
        return found if all(map(lt, found, found[1:])) else sorted(found)  # recovery may fill in older ones later

    def newest(self, match: TagMatch, lo: int, hi: int, is_live: Callable[[int], bool]) -> int:
        """The largest of the seqs `lo..hi-1` that is live and whose tag matches; 0 if there is none."""
        found = 0
        for chunk in reversed(self._chunks):
            if chunk.last_seq > found:
                matching = reversed(chunk.between(match, max(lo, found + 1), hi))
                found = next(filter(is_live, matching), found)
        return found

    def index_some(self, chunks: int) -> bool:
        """Index so many chunks that `tags_after` would have to index; False if there are more of them."""
        waiting = [chunk for chunk in self._chunks if not chunk.is_indexed]
        for chunk in waiting[:chunks]:
            chunk.index()
        return len(waiting) <= chunks

    def tags_after(
        self, after: bytes | None, prefix: bytes, limit: int, *, since: int, below: int
    ) -> tuple[list[tuple[bytes, list[int]]], bool]:
        """Some tags with this prefix behind `after`, ascending, about so many, each with all its seqs below the bound,
        ascending, dead ones perhaps among them; and whether others follow. Only tags of chunks that reach beyond
        `since` are looked for."""
        recent = [chunk for chunk in self._chunks if chunk.last_seq > since]
        share = max(2 * limit // max(len(recent), 1), KEYS_MIN)
        keys_of = {chunk: chunk.keys_after(after, prefix, share) for chunk in recent}
        cut_off = min((keys[-1] for keys in keys_of.values() if len(keys) == share), default=None)
        chosen = {key for keys in keys_of.values() for key in keys if cut_off is None or key <= cut_off}
        found: dict[bytes, list[int]] = {key: [] for key in sorted(chosen)}
        for chunk in self._chunks:
            chunk.index()
            for key in keys_of.get(chunk, found):
                more, seqs = chunk.seqs_of(key), found.get(key)
                if more and seqs is not None:
                    seqs += more if more[-1] < below else more[: bisect_left(more, below)]
        rows = [(key, seqs if all(map(lt, seqs, seqs[1:])) else sorted(seqs)) for key, seqs in found.items()]
        return rows, cut_off is not None

    def keep_live(self, tag: bytes, live: Iterable[int], *, below: int) -> None:
        """Drop the entries of a tag below the bound but those of live seqs."""
        kept = set(live)
        for chunk in self._chunks:
            chunk.keep(tag, kept, below)

    def drop_below(self, seq: int) -> None:
        """The tail has no slot below `seq` any more."""
        if any(chunk.last_seq < seq for chunk in self._chunks):
            self._chunks = [chunk for chunk in self._chunks if chunk.last_seq >= seq]
