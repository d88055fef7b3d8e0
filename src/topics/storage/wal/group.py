"""WalGroup: one ordered stream of WAL files, written at its tail and synced (`docs/spec/storage.md#sec-4` and
`docs/spec/storage.md#sec-5-4`).

Always holds: frames lie in the file in submission order; `synced_lsn <= written_lsn`, and what `synced_lsn` covers was
synced after it was written; no byte lands over a failed region before its wipe is synced; after a failed sync no
sync is ever believed again; a sync counts only if the file's path still names the file. A group that failed is
`read_only` with a cause, and every write is refused.

No threads inside. `write` (with rotation) and `prepare_next` are called by one thread at a time; `probe_space` only
while the group is read-only, beside writes into the reserve at most, which never rotate. `sync` may overlap a `write`
that does not rotate: positions are plain ints, published after the system call returned."""

from __future__ import annotations

import errno
import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from topics.clock import Clock
from topics.errors import CommitFailed, ReadOnlyCause
from topics.formats.buffers import is_zero
from topics.model.submission import Submission
from topics.storage.fs import Fs, SyncFailed, is_in_place, read_full, write_all
from topics.storage.wal.rotation import Layout, NextFile, grown
from topics.storage.wal.wal_files import LogPosition, WalFile, WalFiles

SYNC_BUCKETS_US: Final = (50, 100, 250, 500, 1000, 5000, 10000, 50000, 100000)
"""Upper bounds of the sync latency histogram; one more bucket takes what is slower."""


class WalStats:
    """What one group has done, for metrics (`docs/spec/storage.md#sec-16`).

    Plain counters without a lock: each is changed by one thread at a time (the writer's or the syncer's) and read by
    any."""

    __slots__ = (
        "batches",
        "bytes_written",
        "client_frames",
        "failures",
        "frames",
        "last_write_s",
        "open_bytes",
        "prealloc_failures",
        "rotations",
        "rotations_asked",
        "slow_writes",
        "sync_buckets",
        "sync_seconds",
        "syncs",
    )

    def __init__(self) -> None:
        self.frames = 0
        self.client_frames = 0
        self.batches = 0
        self.bytes_written = 0
        self.open_bytes = 0  # of `bytes_written`: the frames that files begin with
        self.rotations = 0
        self.rotations_asked = 0  # of `rotations`: for a checkpoint, before the file was full
        self.prealloc_failures = 0
        self.failures: dict[str, int] = {"write": 0, "sync": 0, "rotate": 0}
        self.last_write_s = 0.0
        self.slow_writes = 0  # counted by the runtime: writes after which it fell back to the group's thread
        self.syncs = 0
        self.sync_seconds = 0.0
        self.sync_buckets = [0] * (len(SYNC_BUCKETS_US) + 1)

    def count_sync(self, elapsed_s: float) -> None:
        self.syncs += 1
        self.sync_seconds += elapsed_s
        self.sync_buckets[bisect_left(SYNC_BUCKETS_US, elapsed_s * 1e6)] += 1


log = logging.getLogger("topics.wal")

PASSING: Final = ("no_space", "rotate")
"""Causes that `probe_space` may lift."""
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
RESERVE_SHARE: Final = 16
RESERVE_BYTES_MAX: Final = 1 << 20
"""How much of a file records leave free, for the deletes and acks that give space back when the disk is full (F5a)."""
_ZEROS: Final = bytes(1 << 20)
SKIPPED_PROBES_MAX: Final = 31
"""A failed rotation is tried again at the next probe, then at the second after that, the fourth ... the 32nd."""


class WalGroup:
    """The writer of one group.

    `sync_failed` is called, once per failed sync and before anything else, so that the boot line of the lock file
    stops claiming that written bytes are safe.
    """

    def __init__(
        self,
        fs: Fs,
        *,
        key: str,
        dir: str,
        files: WalFiles,
        layout: Layout,
        file_bytes: int,
        clock: Clock,
        sync_failed: Callable[[], None],
        next_number: int,
    ) -> None:
        self.key = key
        self.dir = dir
        self.layout = layout
        self.stats = WalStats()
        self.read_only: ReadOnlyCause | None = None
        self.written_lsn = 0
        self.synced_lsn = 0
        self._files = files
        self._file_bytes = file_bytes
        self._clock = clock
        self._sync_failed = sync_failed
        self._fs = fs
        self._set_capacity(0)
        self._next = NextFile(fs, dir)
        # Until the first file exists (start without space), `_active` is None and `_next_number` is its number.
        self._active: WalFile | None = None
        self._tail = 0
        self._reserve_open = False
        self._next_number = next_number
        self._failed: tuple[WalFile, int, int] | None = None
        self._rotation_asked = False
        self._weak_written = 0
        self._weak_synced = 0
        self._sync_broken = False
        self._probes_to_skip = self._skipped_last = 0  # before a failed rotation is tried again
        # Two datasyncs of one descriptor must not overlap: the kernel reports a write-back error to one of them only.
        self._sync_lock = Lock()
        self._latch_lock = Lock()

    # --- opening --------------------------------------------------------------------------------------------------

    def resume(self, file: WalFile, *, tail: int, frames: int, capacity: int) -> None:
        """Go on in the last file, which recovery has cut at `tail` and allocated to `capacity`."""
        self._active = file
        self._tail = tail
        self._set_capacity(capacity)
        self._next_number = file.number + frames

    def _set_capacity(self, capacity: int) -> None:
        self._capacity = capacity
        self._reserve = self._reserve_of(capacity)
        self._next_bytes = grown(capacity, file_bytes=self._file_bytes)

    def _reserve_of(self, capacity: int) -> int:
        return min(min(capacity, self._file_bytes) // RESERVE_SHARE, RESERVE_BYTES_MAX)

    def begin(self) -> None:
        """Start a file of this layout; without space the group starts read-only, any other failure is raised."""
        try:
            self._open_next(0)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            log.error("no space to begin WAL group %r, it is read-only until there is some: %s", self.key, error)
            self.latch("no_space")

    # --- what the driver asks -------------------------------------------------------------------------------------

    @property
    def position(self) -> LogPosition:
        """End of the log; a batch boundary when asked by the writer."""
        return LogPosition(self._next_number if self._active is None else self._active.number, self._tail)

    @property
    def active(self) -> WalFile | None:
        """The file being written; none while the group has not found space for its first."""
        return self._active

    @property
    def half_full(self) -> bool:
        """Whether the next file is prepared, and whether a checkpoint begins it."""
        return self._tail * 2 > self._capacity

    def rotate_for_checkpoint(self) -> None:
        """A checkpoint is about to write its mark: if more than half of the active file is in use, the mark begins the
        next one, so that this one may go. Only if the next file has its space: a full disk must not end writes that
        the active file has room for."""
        self._rotation_asked = self.half_full and self._next.ready

    @property
    def at_risk_frames(self) -> int:
        """Client frames acked under a weaker class whose sync failed (F8)."""
        return self._weak_written - self._weak_synced if self._sync_broken else 0

    def fits(self, size: int) -> bool:
        """Whether a batch goes into the active file; if not, `write` rotates, which syncs."""
        if self._rotation_asked:
            return False
        kept_free = 0 if self._reserve_open else self._reserve
        return self._tail + size <= self._capacity - kept_free and self._next.named is None

    # --- writing --------------------------------------------------------------------------------------------------

    def write(self, subs: Sequence[Submission]) -> None:
        """Put a batch at the tail, whole or not at all. A failure is a CommitFailed and leaves the group read-only."""
        size = sum([sub.size for sub in subs])
        if self.read_only is not None:
            if not self._may_use_reserve(subs, size):
                raise CommitFailed("not_committed", cause=self.read_only)
        elif not self.fits(size):
            self.rotate(room=size)
        file = self._active
        assert file is not None
        began_s = self._clock.monotonic()
        try:
            write_all(file.writer, self._tail, _joined(subs))
        except (OSError, MemoryError) as error:
            raise self._write_failed(error, file, size) from error
        self.stats.last_write_s = self._clock.monotonic() - began_s
        self._place(file, subs)

    def _may_use_reserve(self, subs: Sequence[Submission], size: int) -> bool:
        return self._reserve_open and self.fits(size) and all(sub.reclaims for sub in subs)

    def _place(self, file: WalFile, subs: Sequence[Submission]) -> None:
        """Tell each submission where it lies, and move the tail."""
        index, tail, lsn, stats = file.index, self._tail, self.written_lsn, self.stats
        frames = client_frames = weak = 0
        start = tail
        for sub in subs:
            sub.file = index
            sub.offset = tail
            tail += sub.size
            lsn += sub.size
            sub.end_lsn = lsn
            frames += sub.frame_count
            client_frames += sub.client_frames
            if not sub.durable:
                weak += sub.client_frames
        stats.frames += frames
        stats.client_frames += client_frames
        stats.batches += 1
        stats.bytes_written += tail - start
        self._next_number += frames
        self._tail = tail
        self._weak_written += weak
        self.written_lsn = lsn  # last: a sync that sees it covers everything above

    def _write_failed(self, error: BaseException, file: WalFile, size: int) -> CommitFailed:
        """F4: wipe what was attempted; only then may it be said that nothing is there."""
        self.stats.failures["write"] += 1
        log.error("write of %d bytes at %s:%d failed: %s", size, file.path, self._tail, error)
        self._failed = (file, self._tail, self._tail + size)
        try:
            self._wipe(writable=False)
        except (OSError, MemoryError) as failure:
            log.error("wiping %s failed: %s", file.path, failure)
            return CommitFailed("unknown", cause=self.latch("write"))
        return CommitFailed("not_committed", cause=self.latch("no_space" if _is_no_space(error) else "write"))

    def _wipe(self, *, writable: bool) -> None:
        """Zeros over the failed region, synced. A full disk also refuses zeros: unless the region must prove
        `writable`, it is enough then that the refused write left nothing there."""
        if self._failed is None:
            return
        file, start, end = self._failed
        for at in range(start, end, len(_ZEROS)):
            zeros = memoryview(_ZEROS)[: end - at]
            try:
                write_all(file.writer, at, zeros)
            except OSError as error:
                if writable or not _is_no_space(error) or not is_zero(memoryview(read_full(file.file, at, len(zeros)))):
                    raise
        error_of_sync = self._datasync(file)
        if error_of_sync is not None:
            raise error_of_sync

    # --- syncing --------------------------------------------------------------------------------------------------

    def sync(self) -> int:
        """Make everything written so far durable; returns the position that is. A failure is final (F6)."""
        lsn, weak, file = self.written_lsn, self._weak_written, self._active
        if file is None or (lsn == self.synced_lsn and not self._sync_broken):
            return lsn
        error = self._datasync(file)
        if error is not None:
            raise CommitFailed("unknown", cause=self.read_only or "sync") from error
        self._weak_synced = weak
        self.synced_lsn = lsn
        return lsn

    def _datasync(self, file: WalFile) -> OSError | None:
        """One sync of the file, counted; a failure is latched before anyone else can sync."""
        with self._sync_lock:
            if self._sync_broken:
                return OSError(errno.EIO, "an earlier sync failed", file.path)
            began_s = self._clock.monotonic()
            try:
                file.writer.datasync()
            except OSError as error:
                return self._break_sync(error, "sync")
            self.stats.count_sync(self._clock.monotonic() - began_s)
            return self._look_for(file)

    def _look_for(self, file: WalFile) -> OSError | None:
        """F6a: bytes in a file that no name leads to are gone with this process. Called with `_sync_lock` held."""
        try:
            found = is_in_place(self._fs, file.path, file.file)
        except OSError as error:  # proves nothing, and the sync went well
            log.warning("%s cannot be looked for: %s", file.path, error)
            return None
        if found or file is not self._active:  # a file that is not written any more may be removed by us
            return None
        return self._break_sync(OSError(errno.ENOENT, "removed or replaced under the server", file.path), "removed")

    def _break_sync(self, error: OSError, cause: ReadOnlyCause) -> OSError:
        self._sync_broken = True
        self._sync_failed()
        self.stats.failures["sync"] += 1
        log.critical("WAL group %r is read-only until restart, a sync cannot be trusted: %s", self.key, error)
        self.latch(cause)
        return error

    def check_in_place(self) -> OSError | None:
        """Whether the active file is still where it was, between syncs. A loss is final, as a failed sync is."""
        with self._sync_lock:
            file = self._active
            return None if file is None or self._sync_broken else self._look_for(file)

    def give_up(self, error: OSError) -> None:
        """The whole directory is not ours any more."""
        with self._sync_lock:
            if not self._sync_broken:
                self._break_sync(error, "removed")

    # --- rotation -------------------------------------------------------------------------------------------------

    def prepare_next(self) -> None:
        """Allocate the next file ahead of need; cheap when it is not due. Failing is fine: rotation tries again."""
        if self._next.ready or self.read_only is not None or not self.half_full:
            return
        try:
            self._next.prepare(self._next_bytes)
        except OSError:
            self.stats.prealloc_failures += 1

    def rotate(self, *, room: int = 0) -> None:
        """R1 to R5: sync the active file, then go on in a new one with at least `room` bytes.

        A failure is a CommitFailed: nothing of the batch it was for is on disk. The group is read-only then, and when
        space comes back it rotates before it writes, because the next file's name may already be taken.
        """
        if self._active is not None:
            self._sync_before_rotation(self._active)
        try:
            self._open_next(room)
        except (OSError, MemoryError) as error:
            log.error("rotation of WAL group %r failed: %s", self.key, error)
            self._probes_to_skip = self._skipped_last = 0
            raise CommitFailed("not_committed", cause=self._rotation_failed(error)) from error
        self.stats.rotations += 1
        self.stats.rotations_asked += self._rotation_asked
        self._rotation_asked = False

    def _rotation_failed(self, error: BaseException) -> ReadOnlyCause:
        """Nothing acked lies in a file that could not be made, so making it is tried again (F5b). A sync that failed is
        not, whatever it was for."""
        self.stats.failures["rotate"] += 1
        if _is_no_space(error):
            return self.latch("no_space")
        return self.latch("sync" if isinstance(error, SyncFailed) else "rotate")

    def _sync_before_rotation(self, file: WalFile) -> None:
        lsn, weak = self.written_lsn, self._weak_written
        error = self._datasync(file)
        if error is not None:
            raise CommitFailed("not_committed", cause=self.read_only or "sync") from error
        self._weak_synced = weak
        self.synced_lsn = lsn

    def _open_next(self, room: int) -> None:
        number = self._next_number
        opened = self._next.open(
            layout=self.layout,
            number=number,
            group=self.key,
            ts=self._clock.wall_ms(),
            room=room + self._reserve_of(max(self._next_bytes, 2 * room)),
            file_bytes=self._next_bytes,
        )
        self._active = self._files.add(key=self.key, number=number, path=opened.path, file=opened.file)
        self._active.written_through(opened.file)
        self._tail = opened.tail
        self._set_capacity(opened.capacity)
        self._next_number = number + 1
        self._failed = None  # the old file ends where it was wiped, and nobody appends there any more
        self.stats.frames += 1
        self.stats.bytes_written += opened.tail
        self.stats.open_bytes += opened.tail

    # --- failures -------------------------------------------------------------------------------------------------

    def latch(self, cause: ReadOnlyCause) -> ReadOnlyCause:
        """Go read-only. The first cause stays, except that anything replaces one that may pass. Gives the cause that
        holds."""
        with self._latch_lock:
            self._reserve_open = False
            if self.read_only in (None, *PASSING):
                self.read_only = cause
            return self.read_only

    def open_reserve(self) -> bool:
        """F5a: whether there is room in the active file for what gives space back. Only when every batch that was taken
        before the failure was answered: one of them must not be written although another before it was not."""
        with self._latch_lock:
            self._reserve_open = (
                self.read_only == "no_space"
                and self._failed is None  # else the allocation of the file proved to be worth nothing
                and self._active is not None
                and self._next.named is None
                and self._tail < self._capacity
            )
            return self._reserve_open

    def probe_space(self) -> bool:
        """F5: after `no_space`, try to wipe again and to allocate the next file; F5b: after a failed rotation, try it
        again. True: the group takes writes again."""
        if self.read_only == "rotate":
            return self._try_rotation_again()
        if self.read_only != "no_space":
            return False
        failed = self._failed
        try:
            self._wipe(writable=True)
            if not self._next.ready:
                self._next.prepare(self._next_bytes)
        except OSError as error:
            if not _is_no_space(error):
                self.latch("write")
            return False
        return self._lift(failed)

    def _try_rotation_again(self) -> bool:
        """Nobody writes or rotates meanwhile: the group is read-only, and all that it had taken was answered."""
        if self._probes_to_skip:
            self._probes_to_skip -= 1
            return False
        self._skipped_last = min(2 * self._skipped_last + 1, SKIPPED_PROBES_MAX)
        self._probes_to_skip = self._skipped_last
        try:
            if self._active is not None:
                self._sync_before_rotation(self._active)
            self._open_next(0)
        except CommitFailed:
            return False  # no sync can be trusted any more, and that is the cause now
        except (OSError, MemoryError) as error:
            self._rotation_failed(error)
            return False
        self.stats.rotations += 1
        with self._latch_lock:
            if self.read_only != "rotate" or self._sync_broken:
                return False
            self.read_only = None
            return True

    def _lift(self, wiped: tuple[WalFile, int, int] | None) -> bool:
        """Unless a write into the reserve has failed meanwhile: what it left is not wiped."""
        with self._latch_lock:
            if self.read_only != "no_space" or self._sync_broken or self._failed is not wiped:
                return False
            self.read_only = None
            self._failed = None
            self._reserve_open = False
            return True

    def close(self) -> None:
        """Let go of what only this writer holds; the files stay readable through `WalFiles`."""
        self._next.discard()


def _joined(subs: Sequence[Submission]) -> bytes:
    # Measured: joining beats pwritev for the many small buffers of a turn and loses little for a few large ones.
    if len(subs) == 1 and len(subs[0].frames) == 1:
        return subs[0].frames[0]
    return b"".join([frame for sub in subs for frame in sub.frames])


def _is_no_space(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in NO_SPACE
