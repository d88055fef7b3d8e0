"""Scheduler: when checkpoints, snapshots, sweeps and clean-up run. It decides when, never how.

Intervals are measured with the monotonic clock; what is due is looked at once per tick, so a simulator that advances
the clock and ticks sees everything happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.config import Settings
from topics.engine.ticket import guarded

if TYPE_CHECKING:
    from topics.runtime.kernel import Kernel

SNAPSHOT_CHECK_MS = 5_000
SWEEP_MS = 1_000
"""How often floors that nobody asks for are moved, so that disk space comes back."""
PROBE_MS = 1_000
"""How often a group without space, the files themselves and the wall clock are looked at."""


class Scheduler:
    def __init__(self, kernel: Kernel, settings: Settings) -> None:
        self._kernel = kernel
        self._checkpoint_ms = settings.checkpoint_interval_ms
        self._snapshot_ms = settings.snapshot_interval_ms
        self._snapshot_bytes = settings.snapshot_bytes
        now = self._now_ms()
        self._checkpointed = self._snapshotted = self._snapshot_checked = now
        self._swept = self._probed = now
        self._relocate_ms = settings.relocate_interval_ms
        self._relocated = now - self._relocate_ms
        self._bytes_at_snapshot = self._news_bytes()
        self._replayed = kernel.recovered.replayed_frames > 0  # and not in a snapshot yet
        self._rotations = self._wal_rotations()
        self._checkpoint_asked = False
        self._snapshot_asked = False
        self._snapshot_owed = False  # one was due and failed
        self._stopped = False
        self.every_tick: list[Callable[[], None]] = []
        """What else wants to look at the clock: long polls, queues, routers, sessions."""

    def checkpoint_soon(self) -> None:
        self._checkpoint_asked = True

    def snapshot_soon(self) -> None:
        self._snapshot_asked = True

    def stop(self) -> None:
        self._stopped = True

    def tick(self) -> None:
        now = self._now_ms()
        for look in self.every_tick:
            guarded(look)
        if now - self._probed >= PROBE_MS:
            self._probed = now
            self._kernel.janitor.probe_space()
            self._kernel.directory_guard.look()
            self._kernel.clock_watch.look()
        if self._stopped or self._kernel.directory_guard.is_lost:
            return
        self._snapshot_if_due(now)
        self._checkpoint_if_due(now)
        if now - self._swept >= SWEEP_MS:
            self._swept = now
            self._kernel.janitor.sweep()
        if now - self._relocated >= self._relocate_ms:
            self._relocated = now
            self._kernel.tiers.sweep()
        self._kernel.tiers.go_on()
        self._kernel.compactor.tick(now)

    def _checkpoint_if_due(self, now: int) -> None:
        checkpointer = self._kernel.checkpointer
        rotated = self._wal_rotations() != self._rotations
        due = now - self._checkpointed >= self._checkpoint_ms and checkpointer.has_work
        if checkpointer.running or not (due or rotated or self._checkpoint_asked):
            return
        self._checkpoint_asked = False
        self._checkpointed = now
        self._rotations = self._wal_rotations()
        checkpointer.run()

    def _snapshot_if_due(self, now: int) -> None:
        snapshotter = self._kernel.snapshotter
        if snapshotter.running:
            return
        if not self._snapshot_asked:
            if now - self._snapshot_checked < SNAPSHOT_CHECK_MS:
                return
            self._snapshot_checked = now
            if not (self._snapshot_owed or self._is_snapshot_due(now)):
                return
        self._snapshot_asked = False
        self._snapshotted = self._checkpointed = now
        bytes_then = self._news_bytes()
        ticket = snapshotter.run()

        def over(_: object) -> None:
            self._snapshot_owed = ticket.error is not None
            if ticket.error is None:
                self._bytes_at_snapshot = bytes_then
                self._replayed = False

        ticket.then(over)

    def _is_snapshot_due(self, now: int) -> bool:
        written = self._news_bytes() - self._bytes_at_snapshot
        if written >= self._snapshot_bytes:
            return True
        has_reason = written > 0 or self._replayed or self._kernel.snapshotter.frees_more
        return has_reason and now - self._snapshotted >= self._snapshot_ms

    def _now_ms(self) -> int:
        return int(self._kernel.recovered.clock.monotonic() * 1000)

    def _news_bytes(self) -> int:
        """All that was written to the log but what snapshots themselves write: with that, each would cause another."""
        kernel = self._kernel
        written = sum(group.stats.bytes_written - group.stats.open_bytes for group in kernel.store.groups)
        return written - kernel.checkpointer.mark_bytes - kernel.engine.deletes.carried_bytes

    def _wal_rotations(self) -> int:
        """Of files that were full; the others are rotated by checkpoints, and need none."""
        stats = [group.stats for group in self._kernel.store.groups]
        return sum(each.rotations - each.rotations_asked for each in stats)
