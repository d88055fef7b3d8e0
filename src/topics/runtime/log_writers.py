"""The writers of the log at run time: who writes, who syncs, who is told.

    GroupWriter   one WAL group, whoever writes it
    GroupRunner   one WAL group with its thread
    Writers       all groups together

Always holds: a group's bytes are written in submission order and by one thread at a time; an `fsync`-class submission
is applied only after a sync that began after its write returned; every submission taken is answered, also when the
thread dies. The owner (the thread of the event loop, or whoever has the lock of the embedded library) calls `pump`; the
group's own thread runs `_work`. The owner never waits for a sync: small writes that fit go out at once, everything else
(rotation, large batches, a disk that has become slow) goes through the thread, in order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from topics.engine.writing.commit import Commit
from topics.errors import CommitFailed, ReadOnlyCause
from topics.model.submission import Submission
from topics.storage.wal.group import WalGroup


class GroupWriter(Protocol):
    """Moves one group's submissions into its file and syncs them."""

    window_s: float
    """The longest a sync waits for more writers to share it."""

    def start(self) -> None: ...

    def pump(self) -> None:
        """Write what is queued, or hand it over."""

    def request_sync(self) -> None: ...

    def stop(self) -> None: ...


class Writers:
    def __init__(self, writers: Sequence[GroupWriter]) -> None:
        self._writers = writers

    def start(self) -> None:
        for writer in self._writers:
            writer.start()

    def pump(self) -> None:
        for writer in self._writers:
            writer.pump()

    def set_window(self, window_s: float) -> None:
        """Read by the groups' threads at their next sync."""
        for writer in self._writers:
            writer.window_s = window_s

    def stop(self) -> None:
        for writer in self._writers:
            writer.stop()

    def __len__(self) -> int:
        return len(self._writers)


log = logging.getLogger("topics.wal")

LOOP_WRITE_BYTES_MAX = 1024 * 1024
"""A larger batch is copied by the kernel for too long to do it on the owner's thread. This one takes 0.2 ms, and giving
it to the thread takes as long: two hand-overs of the interpreter."""
SLOW_WRITE_S = 0.005
"""A write in the loop slower than this sends the group's writes to its thread for a while."""
SLOW_PENALTY = 20
"""For how many times its own length; a process that was merely not scheduled for a moment must not pay for long."""
SLOW_PENALTY_MAX_S = 1.0
LOOKS_AFTER_SYNC = 20
"""How often the thread looks for unsynced bytes by itself, once each sync interval, before it waits to be told of them:
telling it costs the owner more than a small write does, and nobody writes only once."""
WINDOW_SLICE_S = 0.0001
"""The commit window ends when a slice of this length brings nothing new."""

Post = Callable[[Callable[[], None]], None]


class GroupRunner:
    def __init__(
        self,
        index: int,
        *,
        wal: WalGroup,
        commit: Commit,
        post: Post,
        sync_interval_ms: int,
        window_us: int,
        batch_frames_max: int,
        batch_bytes_max: int,
    ) -> None:
        self.index = index
        self.wal = wal
        self.window_s = window_us / 1e6
        self._commit = commit
        self._queue = commit.queue(index)
        self._post = post
        self._sync_interval_s = sync_interval_ms / 1000
        self._batch_frames_max = batch_frames_max
        self._batch_bytes_max = batch_bytes_max
        self._cond = threading.Condition()
        # Guarded by _cond: what the thread has to do next.
        self._writes: list[list[Submission]] = []
        self._sync_wanted = False
        self._durable_waiting = 0
        self._dirty_since: float | None = None
        self._looks_left = 0
        self._looks_soon = False  # the thread waits, for a sync interval at most
        self._stopping = False
        # Owner's side: batches the thread has not reported yet, and until when writes stay with the thread.
        self._handed_over = 0
        self._threaded_until = 0.0
        self._thread = threading.Thread(target=self._work, name=f"topics-wal-{wal.key or 'flat'}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # --- the owner's side ---------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Write what is queued. Called at the end of each turn that produced submissions."""
        while self._queue:
            batch = self._commit.take(self.index, self._batch_frames_max, self._batch_bytes_max)
            size = sum([sub.size for sub in batch])
            if self._must_hand_over(size):
                self._hand_over(batch)
            else:
                self._write_here(batch)

    def request_sync(self) -> None:
        """Ask for a sync of all that is written, without waiting for it."""
        with self._cond:
            self._sync_wanted = True
            self._cond.notify()

    def _must_hand_over(self, size: int) -> bool:
        if self._handed_over:
            return True  # order: what the thread has not written yet comes first
        if size > LOOP_WRITE_BYTES_MAX or not self.wal.fits(size):
            return True
        return self._threaded_until > 0.0 and time.monotonic() < self._threaded_until

    def _write_here(self, batch: list[Submission]) -> None:
        try:
            self._write(batch)
        except CommitFailed as error:
            self._commit.write_failed(self.index, batch, error)
            self.request_sync()  # what was written before may still be synced; if not, its waiters are told there
            return
        took_s = self.wal.stats.last_write_s
        if took_s > SLOW_WRITE_S:
            self._threaded_until = time.monotonic() + min(SLOW_PENALTY * took_s, SLOW_PENALTY_MAX_S)
            self.wal.stats.slow_writes += 1
        waiting = self._commit.written(self.index, batch)
        self._tell_thread(durable=waiting)

    def _write(self, batch: list[Submission]) -> None:
        """What no file system should raise is a failed write too: whoever waits for the batch is told."""
        try:
            self.wal.write(batch)
        except CommitFailed:
            raise
        except Exception as error:
            log.exception("writing to the log of group %r failed in an unforeseen way", self.wal.key)
            raise CommitFailed("unknown", cause="write") from error

    def _tell_thread(self, *, durable: int) -> None:
        """Wake the thread only when it has something new to know: a sync to do, or, unless it is about to look itself,
        the first unsynced byte."""
        if durable:
            with self._cond:
                self._durable_waiting += durable
                self._sync_wanted = True
                self._cond.notify()
        elif self._dirty_since is None:
            with self._cond:
                self._dirty_since = time.monotonic()
                if not self._looks_soon:
                    self._cond.notify()

    def _hand_over(self, batch: list[Submission]) -> None:
        self._handed_over += 1
        with self._cond:
            self._writes.append(batch)
            self._cond.notify()

    def stop(self) -> None:
        """Write and sync what was handed over, then end the thread."""
        with self._cond:
            self._stopping = True
            self._cond.notify()
        if self._thread.is_alive():
            self._thread.join()

    # --- the group's thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self._wait_for_work():
                self._turn()
        except BaseException as error:  # the thread must not die in silence: every waiter gets an answer
            log.exception("wal thread of group %r died", self.wal.key)
            self._report_failure(error, cause="writer_dead")

    def _wait_for_work(self) -> bool:
        with self._cond:
            while not (self._writes or self._sync_wanted):
                if self._stopping:
                    if self._dirty_since is None:
                        return False
                    self._sync_wanted = True
                    break
                timeout = self._until_next_look()
                if timeout is not None and timeout <= 0:
                    self._sync_wanted = True
                    break
                self._looks_soon = timeout is not None
                self._cond.wait(timeout)
                self._looks_soon = False
            return True

    def _until_next_look(self) -> float | None:
        """Until a sync is due; without unsynced bytes the next look, or none. Called with `_cond` held."""
        if self._dirty_since is not None:
            return self._dirty_since + self._sync_interval_s - time.monotonic()
        if not self._looks_left:
            return None
        self._looks_left -= 1
        return self._sync_interval_s

    def _turn(self) -> None:
        with self._cond:
            writes, self._writes = self._writes, []
        gated = False
        for position, batch in enumerate(writes):
            if not self._write_there(batch):
                # What was written before may still be synced; if not, its waiters are told there.
                self._fail_batches(writes[position + 1 :])
                gated = True
                break
            gated = gated or any(sub.durable for sub in batch)
        self._hold_window()
        if self._begin_sync(gated=gated):
            self._sync()
            self.wal.prepare_next()

    def _begin_sync(self, *, gated: bool) -> bool:
        """Whether somebody waits for a sync. What nobody waits for is synced when the interval has passed, so that the
        next write need not wait until the disk is done with this one."""
        with self._cond:
            if not (self._sync_wanted or gated):
                return False
            self._sync_wanted = False
            self._durable_waiting = 0
            self._dirty_since = None
            self._looks_left = LOOKS_AFTER_SYNC
            return True

    def _write_there(self, batch: list[Submission]) -> bool:
        try:
            self._write(batch)
        except CommitFailed as error:
            failure = error
            self._post(lambda: self._done_there(lambda: self._commit.write_failed(self.index, batch, failure)))
            return False
        self._post(lambda: self._done_there(lambda: self._written_there(batch)))
        return True

    def _written_there(self, batch: list[Submission]) -> None:
        """On the owner's thread, who alone can say what has to wait behind what."""
        self._tell_thread(durable=self._commit.written(self.index, batch))

    def _done_there(self, report: Callable[[], object]) -> None:
        self._handed_over -= 1
        report()

    def _fail_batches(self, batches: Sequence[list[Submission]]) -> None:
        for batch in batches:
            self._post(lambda batch=batch: self._done_there(lambda: self._commit.refuse(self.index, batch)))  # type: ignore[misc]

    def _hold_window(self) -> None:
        """Group commit: while several durable submissions keep arriving, let more of them share the sync."""
        deadline = time.perf_counter() + self.window_s
        seen = self._durable_waiting
        while seen > 1 and time.perf_counter() < deadline:
            time.sleep(WINDOW_SLICE_S)
            if self._durable_waiting == seen:
                return
            seen = self._durable_waiting

    def _sync(self) -> None:
        try:
            lsn = self.wal.sync()
        except Exception as error:  # any failed sync is final for the group: docs/spec/storage.md#f6
            self._report_failure(error, cause="sync")
            return
        self._post(lambda: self._commit.synced(self.index, lsn))

    def _report_failure(self, error: BaseException, *, cause: ReadOnlyCause) -> None:
        """A failure of the log says itself what it came from."""
        known = error.cause if isinstance(error, CommitFailed) else cause
        self._post(lambda: self._commit.sync_failed(self.index, error, known))
