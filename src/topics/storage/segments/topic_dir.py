"""Where segments lie: what all topics of a data directory share, and the directory of one topic.

`SegmentEnv` is made once per open data directory and carries the injected disk, the caches and the counters.
`TopicDir` names the files of one topic. Neither reads or writes; names come from `formats.names`, and a name that is
not canonically padded is used as it was found."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Protocol, cast

from topics.formats.file_names import SegmentPart, segment_name, topic_dir_name
from topics.storage.fs import File, Fs, ReadFile, ReadFs

if TYPE_CHECKING:
    from topics.storage.segments.findings import Finding
    from topics.storage.tiers.stores import SegmentStore

MAPPED_SEGMENTS_MAX = 256


class Mapped(Protocol):
    """A segment as its cache sees it."""

    recently_used: bool

    @property
    def idx_bytes(self) -> int: ...

    def unmap(self) -> None: ...


class MapCache:
    """Bounds how much of the sealed history is mapped at a time.

    Each sealed segment maps its files on first use; this cache closes the least recently used ones once their `.idx`
    bytes exceed `TOPICS_INDEX_CACHE_BYTES`, or once too many descriptors are tied up (a mapping holds one each).
    "Closing" is dropping the segment's reference: readers that hold the old arrays keep the mapping alive until they
    finish.

    Use is noted by a mark on the segment, not by reordering a list, so a look-up costs an attribute; the sweep gives
    marked ones a second chance. Safe from any thread."""

    def __init__(self, bytes_max: int, *, segments_max: int = MAPPED_SEGMENTS_MAX) -> None:
        self._bytes_max = bytes_max
        self._segments_max = segments_max
        self._queue: deque[tuple[Mapped, int]] = deque()
        self._lock = Lock()
        self.bytes_mapped = 0

    def __len__(self) -> int:
        return len(self._queue)

    def admit(self, segment: Mapped) -> None:
        """Count a segment that was just mapped, and unmap others until all fit; at least this one stays."""
        segment.recently_used = False  # being mapped is no use yet; the next look is
        with self._lock:
            self._queue.append((segment, segment.idx_bytes))
            self.bytes_mapped += segment.idx_bytes
            victims = self._victims(segment)
        for victim in victims:
            victim.unmap()

    def _victims(self, newest: Mapped) -> list[Mapped]:
        victims: list[Mapped] = []
        chances = 2 * len(self._queue)
        while chances and len(self._queue) > 1 and self._too_much():
            chances -= 1
            segment, idx_bytes = self._queue.popleft()
            if segment is newest or (segment.recently_used and chances > len(self._queue)):
                segment.recently_used = False
                self._queue.append((segment, idx_bytes))
            else:
                self.bytes_mapped -= idx_bytes
                victims.append(segment)
        return victims

    def _too_much(self) -> bool:
        return self.bytes_mapped > self._bytes_max or len(self._queue) > self._segments_max

    def remove(self, segment: Mapped) -> None:
        """Forget a segment that unmapped itself (rewrite, relocation, drop)."""
        with self._lock:
            kept = [(other, n) for other, n in self._queue if other is not segment]
            if len(kept) < len(self._queue):
                self.bytes_mapped -= sum(n for other, n in self._queue if other is segment)
                self._queue = deque(kept)

    def close(self) -> None:
        """Unmap all: a map holds its file open, and would until somebody collects it."""
        with self._lock:
            mapped, self._queue, self.bytes_mapped = self._queue, deque(), 0
        for segment, _ in mapped:
            segment.unmap()


TAG_FILTER_BYTES_MAX = 32 << 20
_FILTER_OVERHEAD_BYTES = 256  # the objects around the words of a filter


class Filtered(Protocol):
    """A segment as the cache of filters sees it."""

    def forget_filter(self) -> None: ...


class FilterCache:
    """Bounds the memory for tag filters that stay when their segments are unmapped.

    A segment keeps a copy of its filter from the first time its sidecar is opened, so that a read by tag can pass over
    segments that lack the tag without opening them again. Beyond `bytes_max` the filters that were kept first go. Safe
    from any thread."""

    def __init__(self, bytes_max: int = TAG_FILTER_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Filtered, int] = OrderedDict()
        self._lock = Lock()
        self.bytes_kept = 0

    def admit(self, segment: Filtered, nbytes: int) -> None:
        """The segment keeps a filter of so many bytes now."""
        with self._lock:
            self._take_out(segment)
            self._kept[segment] = nbytes + _FILTER_OVERHEAD_BYTES
            self.bytes_kept += nbytes + _FILTER_OVERHEAD_BYTES
            victims: list[Filtered] = []
            while self.bytes_kept > self._bytes_max:
                victims.append(next(iter(self._kept)))
                self._take_out(victims[-1])
        for victim in victims:
            victim.forget_filter()

    def remove(self, segment: Filtered) -> None:
        """Forget a segment that is gone or has let go of its filter."""
        with self._lock:
            self._take_out(segment)

    def _take_out(self, segment: Filtered) -> None:
        self.bytes_kept -= self._kept.pop(segment, 0)


IDLE_FILES_MAX = 256


class _Held:
    __slots__ = ("file", "stale", "users")

    def __init__(self, file: ReadFile) -> None:
        self.file = file
        self.users = 0
        self.stale = False


class OpenFiles:
    """Descriptors of segment files, kept open while they are in use.

    Topics are many and descriptors are few: at most `limit` idle files stay open, the least recently used goes first. A
    file somebody has borrowed is never closed under them. `forget` is for names that now mean another file (a rewrite
    renamed over them) or none (a drop): later borrowers open anew, present ones keep the old file.

    Safe from any thread: the owner flips delete flags while pool threads read and the checkpointer syncs."""

    def __init__(self, fs: ReadFs, *, limit: int = IDLE_FILES_MAX) -> None:
        self._fs = fs
        self._writer: Fs | None = None
        self._limit = limit
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def borrow(self, path: str) -> Iterator[ReadFile]:
        held = self._take(path)
        try:
            yield held.file
        finally:
            self._give_back(held)

    @contextmanager
    def borrow_writable(self, path: str) -> Iterator[File]:
        """As `borrow`; readers and writers share one descriptor."""
        assert self._writer is not None, "a directory that is only looked at is not written"
        with self.borrow(path) as file:
            yield cast(File, file)

    def allow_writes(self, fs: Fs) -> None:
        """From now on files are opened to be written too."""
        self.close()
        self._writer = fs

    def _open(self, path: str) -> ReadFile:
        return self._fs.open(path) if self._writer is None else self._writer.open(path, "rw")

    def _take(self, path: str) -> _Held:
        with self._lock:
            held = self._held.get(path)
            if held is not None:
                self._held.move_to_end(path)
                held.users += 1
                return held
        opened = _Held(self._open(path))  # may wait for the disk: not under the lock
        opened.users = 1
        with self._lock:
            if path in self._held:
                opened.stale = True  # another thread was faster; ours is closed when given back
            else:
                self._held[path] = opened
                self._close_idle()
        return opened

    def _give_back(self, held: _Held) -> None:
        with self._lock:
            held.users -= 1
            if held.stale and not held.users:
                held.file.close()

    def _close_idle(self) -> None:
        spare = len(self._held) - self._limit
        if spare > 0:
            self._close_some(spare)

    def _close_some(self, count: int) -> int:
        idle = [key for key, held in self._held.items() if not held.users][:count]
        for key in idle:
            self._held.pop(key).file.close()
        return len(idle)

    def close_idle(self) -> int:
        """Descriptors are used up: close all that nobody has borrowed. How many there were."""
        with self._lock:
            return self._close_some(len(self._held))

    def forget(self, *paths: str) -> None:
        """These names mean other files from now on."""
        with self._lock:
            for path in [path for path in self._held if path in paths]:
                held = self._held.pop(path)
                held.stale = True
                if not held.users:
                    held.file.close()

    def close(self) -> None:
        with self._lock:
            for held in self._held.values():
                held.file.close()
            self._held.clear()


class SegmentCounters:
    """Totals since start; the runtime reads them when metrics are asked for."""

    __slots__ = (
        "cold_reads",
        "dropped",
        "flip_failures",
        "flips",
        "idx_rebuilt",
        "relocated",
        "relocated_bytes",
        "relocation_failures",
        "rewritten",
    )

    def __init__(self) -> None:
        self.idx_rebuilt = 0
        self.dropped = 0
        self.rewritten = 0
        self.relocated = 0
        self.relocated_bytes = 0
        self.relocation_failures = 0
        self.flips = 0
        self.flip_failures = 0
        self.cold_reads = 0


class SegmentEnv:
    """Reads only, until recovery has accepted the directory (`allow_writes`); repairs are put off until then.

    `keeps_all`: log or metadata are lost, so segments that no mark covers may be all that is left of their records.
    """

    def __init__(
        self, fs: ReadFs, topics_dir: str, *, index_cache_bytes: int = 1 << 28, keeps_all: bool = False
    ) -> None:
        self.read_fs = fs
        self._writer: Fs | None = None
        self.topics_dir = topics_dir
        self.files = OpenFiles(fs)
        self.maps = MapCache(index_cache_bytes)
        self.filters = FilterCache()
        self.counters = SegmentCounters()
        self.findings: list[Finding] = []
        self.keeps_all = keeps_all
        self.deferred: list[Callable[[], None]] = []
        self.sidecar_lock = Lock()

    @property
    def may_write(self) -> bool:
        return self._writer is not None

    @property
    def fs(self) -> Fs:
        """The disk, once it may be written."""
        assert self._writer is not None, "a directory that is only looked at is not written"
        return self._writer

    def report(self, finding: Finding) -> None:
        """Keep a finding made at run time until the runtime collects it."""
        self.findings.append(finding)

    def take_findings(self) -> list[Finding]:
        """What was found since the last call."""
        found, self.findings = self.findings, []
        return found

    def write_or_defer(self, action: Callable[[], None]) -> None:
        """Carry out a repair now, or once recovery has decided that this directory may be written."""
        if self.may_write:
            action()
        else:
            self.deferred.append(action)

    def allow_writes(self, fs: Fs) -> None:
        """Recovery has accepted the directory: do what was put off, in order."""
        self._writer = fs
        self.files.allow_writes(fs)
        deferred, self.deferred = self.deferred, []
        for action in deferred:
            action()

    def make_room(self) -> bool:
        """Descriptors are used up: give back those that only save time. Whether there were any."""
        mapped = len(self.maps)
        self.maps.close()
        return self.files.close_idle() + mapped > 0

    def close(self) -> None:
        self.files.close()
        self.maps.close()


class TopicDir:
    """One topic's directory in the hot tier, and its cold store if there is one."""

    def __init__(self, env: SegmentEnv, topic_id: int, *, name: str = "", cold: SegmentStore | None = None) -> None:
        self.env = env
        self.topic_id = topic_id
        self.name = name or topic_dir_name(topic_id)
        self.cold = cold
        self.path = f"{env.topics_dir}/{topic_dir_name(topic_id)}"
        self.name_synced = False  # whether the directory's own name was made durable since this process started
        self._found_names: dict[tuple[int, SegmentPart], str] = {}

    @property
    def fs(self) -> Fs:
        return self.env.fs

    @property
    def read_fs(self) -> ReadFs:
        return self.env.read_fs

    def file(self, first_seq: int, part: SegmentPart) -> str:
        """Path of one part of a segment."""
        found = self._found_names.get((first_seq, part)) if self._found_names else None
        return f"{self.path}/{found or segment_name(first_seq, part)}"

    def make(self) -> None:
        """The directory, if it is missing; not durable before the directory above is synced."""
        if not self.name_synced and not self.fs.is_dir(self.path):
            self.fs.mkdir(self.path)

    def use_name(self, first_seq: int, part: SegmentPart, name: str) -> None:
        """This part lies under a name that parses but is not padded as we would."""
        self._found_names[first_seq, part] = name
