"""OrderMonitor: which bytes and names are durable, and the rules about what may happen before they are.

    a temp is renamed            only after its fsync, with nothing written since
    an .idx entry is written     only when the .data bytes it names are synced; bit 2 only after their flag byte is
    a log takes an append        only behind a synced truncation where old bytes stood, and behind a synced wipe
                                 where a write failed
    an fsync-class ack           only when all bytes below it, and the names leading to them, are durable
    a hot segment goes           only after its tier mark is synced and its cold copy is durable
    a copied file goes           only when its copy is durable
    a snapshot goes              only when every other snapshot is durable

`OrderFs` tells it of every call; tests tell it of acks and copies. A broken rule raises `OrderViolation` and stays in
`violations`, because the engine may take the exception for a failed call. A failed sync leaves its bytes undurable for
ever, unless they are written anew. Safe to use from several threads.
"""

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from posixpath import normpath
from threading import RLock
from typing import NamedTuple

import numpy as np

from topics.formats.file_names import parse_segment, parse_snapshot, parse_topic_dir, parse_wal
from topics.formats.segments.idx import ENTRY_BYTES, IDX_DELETED, read_idx
from topics.formats.wal.bodies import CkptMark, TierMark, decode_body
from topics.formats.wal.frame import HEAD_BYTES, LEN_BYTES, MORE, FrameType
from topics.model.ops import Delete, Evict
from topics.storage.fs import File, Fs, parent

END = 1 << 62  # behind every file


class Span(NamedTuple):
    """Bytes `lo..hi` changed at `stamp`."""

    lo: int
    hi: int
    stamp: int


def minus(spans: Iterable[Span], lo: int, hi: int) -> list[Span]:
    return [part for span in spans for part in _outside(span, lo, hi)]


def _outside(span: Span, lo: int, hi: int) -> Iterator[Span]:
    if span.lo < min(span.hi, lo):
        yield span._replace(hi=min(span.hi, lo))
    if max(span.lo, hi) < span.hi:
        yield span._replace(lo=max(span.lo, hi))


class Tracked:
    """What is known of one file, under whatever name it has now."""

    def __init__(self, path: str, *, is_new: bool) -> None:
        self.path = path
        self.reset(is_new=is_new)

    def reset(self, *, is_new: bool) -> None:
        self.unsynced: list[Span] = []
        self.doubtful: list[Span] = []  # part of a sync that failed
        self.unwiped: list[Span] = []  # where a write failed
        self.wipe_stamp = 0  # the last zeros written over `unwiped`; 0 when there is nothing to wipe
        self.cut_stamp = 0
        self.fsynced = False
        self.appendable = is_new  # a log may be appended to
        self.read_to = 0  # marks are known up to here

    def clean(self) -> bool:
        return not self.unsynced and not self.doubtful

    def durable_to(self) -> int:
        return min((span.lo for span in (*self.unsynced, *self.doubtful)), default=END)


_HEAD = struct.Struct("<IBBQQQHHI")
_READ = frozenset({FrameType.DELETE, FrameType.EVICT_WATERMARK, FrameType.CHECKPOINT_MARK})
assert _HEAD.size == HEAD_BYTES


class TierMoved(NamedTuple):
    topic_id: int
    first_seq: int
    tier: str


class FloorMoved(NamedTuple):
    """No seq below `floor` is needed any more."""

    topic_id: int
    floor: int


Mark = TierMoved | FloorMoved


def read_marks(log: bytes) -> tuple[list[Mark], int]:
    """The marks of the whole submissions at the start of `log`, and where the last of these ends."""
    marks: list[Mark] = []
    held: list[Mark] = []
    at = end = 0
    while at + HEAD_BYTES <= len(log):
        frame_len, kind, flags, topic_id, _, _, node_len, tag_len, data_len = _HEAD.unpack_from(log, at)
        if not frame_len or at + LEN_BYTES + frame_len > len(log):
            break
        if kind in _READ:
            start = at + HEAD_BYTES + node_len + tag_len
            held += _marks(kind, topic_id, log[start : start + data_len])
        at += LEN_BYTES + frame_len
        if not flags & MORE:
            marks += held
            held.clear()
            end = at
    return marks, end


def _marks(kind: int, topic_id: int, data: bytes) -> Iterator[Mark]:
    body = decode_body(kind, data)
    if isinstance(body, TierMark):
        yield from (TierMoved(move.id, move.first, move.tier) for move in body.moves)
    elif isinstance(body, Evict):
        yield FloorMoved(topic_id, body.earliest_seq)
    elif isinstance(body, CkptMark):
        yield from (FloorMoved(topic.id, topic.earliest_seq) for topic in body.topics)
    elif isinstance(body, Delete) and body.match is None and body.before_seq is not None:
        yield FloorMoved(topic_id, min(body.before_seq, body.bound_head or 0))


class OrderViolation(AssertionError):
    """Something happened before what it depends on was durable."""


@lru_cache(maxsize=8192)
def clean_path(path: str) -> str:
    return normpath(path).lstrip("/") or "."


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(top + "/")


class OrderMonitor:
    """One for a disk, for as long as the disk lives. `hot` and `cold` are the two `topics/` directories, if tiering."""

    def __init__(self, *, hot: str | None = None, cold: str | None = None) -> None:
        self.hot = hot and clean_path(hot)
        self.cold = cold and clean_path(cold)
        self.files: dict[str, Tracked] = {}
        self.new_names: set[str] = set()
        self.copies: dict[str, list[str]] = {}
        self.tiers: dict[tuple[int, int], str] = {}
        self.floors: dict[int, int] = {}
        self.violations: list[OrderViolation] = []
        self.mutex = RLock()
        self._stamp = 0

    # --- what tests tell ---

    def acked(self, path: str, position: int) -> None:
        """Somebody was told that the bytes of `path` below `position` survive a power cut."""
        with self.mutex:
            path = clean_path(path)
            tracked = self.files.get(path)
            if tracked is not None and tracked.durable_to() < position:
                self._violate(f"ack up to {position} of {path}, durable up to {tracked.durable_to()}")
            self._need_names(path, "ack")

    def copied(self, source: str, copy: str) -> None:
        """`copy` takes over from `source`, which may then be unlinked when the copy is durable."""
        with self.mutex:
            self.copies.setdefault(clean_path(source), []).append(clean_path(copy))

    def tier_marked(self, *, topic_id: int, first_seq: int, tier: str) -> None:
        """A tier mark is synced. Marks in log files are seen without being told."""
        with self.mutex:
            self.tiers[topic_id, first_seq] = tier

    def dropped(self, *, topic_id: int, floor: int) -> None:
        """All seqs of the topic below `floor` are durably dead."""
        with self.mutex:
            self.floors[topic_id] = max(floor, self.floors.get(topic_id, 0))

    def restarted(self, *, power_cut: bool) -> None:
        """A new process. What was unsynced still is after a kill, and is gone or durable after a power cut."""
        with self.mutex:
            if power_cut:
                self.files.clear()
                self.new_names.clear()
            for tracked in self.files.values():
                tracked.appendable = False
                tracked.unwiped.clear()
                tracked.wipe_stamp = 0

    def check(self) -> None:
        """Raise the first violation, also when the engine swallowed it."""
        if self.violations:
            raise self.violations[0]

    # --- durability ---

    def durable(self, path: str) -> bool:
        tracked = self.files.get(path)
        return (tracked is None or tracked.clean()) and not self._new_name_of(path)

    def _new_name_of(self, path: str) -> str | None:
        """The name on the way to `path` that a power cut could take."""
        while path not in (".", "", "/"):
            if path in self.new_names:
                return path
            path = parent(path)
        return None

    def _need_names(self, path: str, what: str) -> None:
        name = self._new_name_of(path)
        if name is not None:
            self._violate(f"{what} on {path} before dir fsync of {parent(name)}")

    def _violate(self, text: str) -> None:
        violation = OrderViolation(text)
        self.violations.append(violation)
        raise violation

    def _next_stamp(self) -> int:
        self._stamp += 1
        return self._stamp

    # --- what OrderFs tells: bytes ---

    def opened(self, path: str, *, made: bool, emptied: bool) -> Tracked:
        with self.mutex:
            tracked = self.files.get(path)
            if tracked is None:
                tracked = self.files[path] = Tracked(path, is_new=made or emptied)
            elif made or emptied:
                tracked.reset(is_new=True)
            if made:
                self.new_names.add(path)
            return tracked

    def writing(self, tracked: Tracked, off: int, data: bytes, file: File) -> None:
        with self.mutex:
            name = _name(tracked.path)
            if parse_wal(name) is not None:
                self._check_log_write(tracked, off, data, file)
            elif name.startswith("seg-") and name.endswith((".idx", ".idx.tmp")):
                self._check_idx_write(tracked.path, off, data, file)

    def wrote(self, tracked: Tracked, off: int, data: bytes) -> None:
        with self.mutex:
            span = Span(off, off + len(data), self._next_stamp())
            tracked.unsynced.append(span)
            if tracked.doubtful:
                tracked.doubtful = minus(tracked.doubtful, span.lo, span.hi)
            if tracked.wipe_stamp:
                tracked.unwiped = minus(tracked.unwiped, span.lo, span.hi)
                tracked.wipe_stamp = span.stamp

    def write_failed(self, tracked: Tracked, off: int, size: int) -> None:
        with self.mutex:
            tracked.wipe_stamp = self._next_stamp()
            tracked.unwiped.append(Span(off, off + size, tracked.wipe_stamp))

    def truncated(self, tracked: Tracked, n: int) -> None:
        with self.mutex:
            tracked.cut_stamp = self._next_stamp()
            tracked.unsynced = minus(tracked.unsynced, n, END)
            tracked.doubtful = minus(tracked.doubtful, n, END)
            tracked.read_to = min(tracked.read_to, n)

    def sync_begins(self) -> int:
        with self.mutex:
            return self._stamp

    def synced(self, tracked: Tracked, stamp: int, file: File, *, full: bool) -> None:
        """A sync that began at `stamp` covers what was written before it and nothing of a failed one."""
        with self.mutex:
            tracked.unsynced = [span for span in tracked.unsynced if span.stamp > stamp]
            tracked.fsynced |= full
            if 0 < tracked.cut_stamp <= stamp:
                tracked.cut_stamp = 0
                tracked.appendable = True
            if 0 < tracked.wipe_stamp <= stamp and not tracked.unwiped:
                tracked.wipe_stamp = 0
            if parse_wal(_name(tracked.path)) is not None:
                self._read_marks(tracked, file)

    def sync_failed(self, tracked: Tracked) -> None:
        with self.mutex:
            tracked.doubtful += tracked.unsynced
            tracked.unsynced.clear()

    def _read_marks(self, tracked: Tracked, file: File) -> None:
        end = min(tracked.durable_to(), file.size())
        marks, used = read_marks(file.pread(tracked.read_to, max(0, end - tracked.read_to)))
        tracked.read_to += used
        for mark in marks:
            if isinstance(mark, TierMoved):
                self.tiers[mark.topic_id, mark.first_seq] = mark.tier
            else:
                self.dropped(topic_id=mark.topic_id, floor=mark.floor)

    # --- what OrderFs tells: names ---

    def renaming(self, src: str) -> None:
        with self.mutex:
            tracked = self.files.get(src)
            if not src.endswith(".tmp") or src.endswith(".tags.tmp") or tracked is None:
                return  # sidecars are derived and checked in full whenever they are opened
            if not tracked.clean() or tracked.cut_stamp:
                self._violate(f"rename of {src} before the fsync of its bytes")
            if tracked.appendable and not tracked.fsynced:  # made by this process
                self._violate(f"rename of {src}, which was never fsynced")

    def renamed(self, src: str, dst: str) -> None:
        with self.mutex:
            self.unlinked(dst)
            for path in [path for path in self.files if _below(path, src)]:
                tracked = self.files.pop(path)
                tracked.path = dst + path[len(src) :]
                self.files[tracked.path] = tracked
            moved = {path for path in self.new_names if _below(path, src)}
            self.new_names = (self.new_names - moved) | {dst + path[len(src) :] for path in moved} | {dst}

    def made(self, path: str) -> None:
        with self.mutex:
            self.new_names.add(path)

    def unlinked(self, path: str) -> None:
        with self.mutex:
            self.files.pop(path, None)
            self.copies.pop(path, None)
            self.new_names.discard(path)

    def names_in(self, directory: str) -> set[str]:
        with self.mutex:
            return {path for path in self.new_names if parent(path) == directory}

    def names_synced(self, names: set[str]) -> None:
        with self.mutex:
            self.new_names -= names

    def unlinking(self, path: str, fs: Fs) -> None:
        with self.mutex:
            for copy in self.copies.get(path, ()):
                if not fs.exists(copy) or not self.durable(copy):
                    self._violate(f"unlink of {path} before its copy {copy} is durable")
            if parse_snapshot(_name(path)) is not None:
                self._check_snapshot_unlink(path)
            elif self.hot and self.cold and parent(parent(path)) == self.hot:
                self._check_hot_unlink(path, fs)

    # --- the longer rules; the mutex is held ---

    def _check_log_write(self, tracked: Tracked, off: int, data: bytes, file: File) -> None:
        path = tracked.path
        if tracked.wipe_stamp and data.strip(b"\0"):
            self._violate(f"append to {path} at {off} before the failed write was wiped and synced")
        if tracked.appendable:
            return
        if tracked.cut_stamp:
            self._violate(f"append to {path} at {off} before its truncation was synced")
        if file.pread(off, file.size() - off).strip(b"\0"):
            self._violate(f"append to {path} at {off} before the old bytes behind it were cut off")
        tracked.appendable = True

    def _check_idx_write(self, path: str, off: int, data: bytes, file: File) -> None:
        named = self._data_of(path)
        tracked = self.files.get(named)
        if tracked is None or tracked.clean():
            return
        lo, hi = off // ENTRY_BYTES * ENTRY_BYTES, -(-(off + len(data)) // ENTRY_BYTES) * ENTRY_BYTES
        if (lo, hi) != (off, off + len(data)):
            old = file.pread(lo, hi - lo).ljust(off - lo, b"\0")
            data = old[: off - lo] + data + old[off - lo + len(data) :]
        entries = read_idx(data)
        start = entries["offset"].astype(np.int64)
        # The flag byte of a live frame may be changing right now; only bit 2 vouches for it.
        end = start + entries["len"] - ((entries["flags"] & IDX_DELETED) == 0)
        for span in (*tracked.unsynced, *tracked.doubtful):
            if bool(np.any((entries["len"] > 0) & (start < span.hi) & (end > span.lo))):
                self._violate(f"{path} at {off} names bytes {span.lo}..{span.hi} of {named}, which are not synced")

    def _data_of(self, idx_path: str) -> str:
        if idx_path.endswith(".tmp"):
            temp = idx_path.removesuffix(".idx.tmp") + ".data.tmp"
            return temp if temp in self.files else temp.removesuffix(".tmp")
        return idx_path.removesuffix(".idx") + ".data"

    def _check_snapshot_unlink(self, path: str) -> None:
        for other in {*self.files, *self.new_names} - {path}:
            same = parent(other) == parent(path) and parse_snapshot(_name(other)) is not None
            if same and not self.durable(other):
                self._violate(f"unlink of {path} before {other} is durable")

    def _check_hot_unlink(self, path: str, fs: Fs) -> None:
        segment, topic_id = parse_segment(_name(path)), parse_topic_dir(_name(parent(path)))
        if segment is None or topic_id is None or segment.part == "tags":
            return
        base = f"{_name(parent(path))}/{_name(path).rpartition('.')[0]}"
        cold = [f"{self.cold}/{base}.{part}" for part in ("data", "idx")]
        if not fs.exists(cold[0]) or self._below_floor(f"{self.hot}/{base}.idx", topic_id, segment.first_seq, fs):
            return
        tier = self.tiers.get((topic_id, segment.first_seq))
        if tier not in ("cold", "gone"):
            self._violate(f"unlink of {path} before its tier mark is synced")
        for copy in cold if tier == "cold" else ():
            if not fs.exists(copy) or not self.durable(copy):
                self._violate(f"unlink of {path} before {copy} is durable")

    def _below_floor(self, idx: str, topic_id: int, first_seq: int, fs: Fs) -> bool:
        if not fs.exists(idx):
            return False
        return first_seq + fs.stat_len(idx) // ENTRY_BYTES <= self.floors.get(topic_id, 0)
