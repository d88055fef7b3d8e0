"""Snapshotter: checkpoint, capture, install, then let go of log files nobody needs (`docs/spec/storage.md#sec-8-3`).

Always holds: the recorded positions are those of the checkpoint that ran first; a failed snapshot removes nothing and
is tried again; log files go only when both kept snapshots lie behind them."""

from __future__ import annotations

import logging

import msgspec
import numpy as np

from topics.core.capture import capture
from topics.core.topic import TopicLog
from topics.engine.engine import Engine
from topics.engine.ticket import Ticket, chain, forward, resolved
from topics.formats.snapshot import (
    AncestorItem,
    CursorItem,
    DeadRange,
    GroupPosition,
    IdemItem,
    SegmentItem,
    Snapshot,
    TopicItem,
)
from topics.model.config import TopicConfig
from topics.runtime.background.checkpointer import Checkpointer, Positions
from topics.runtime.background.failure_log import FailureLog
from topics.runtime.background.gather import all_done, in_portions
from topics.runtime.directory_guard import DirectoryGuard
from topics.runtime.drivers.driver import Driver, carried_out
from topics.runtime.recovery.images import queue_item, router_item
from topics.runtime.store import Store
from topics.storage.wal.file_removal import remove_absorbed

log = logging.getLogger("topics.snapshot")


class Snapshotter:
    def __init__(
        self, engine: Engine, store: Store, driver: Driver, checkpointer: Checkpointer, directory_guard: DirectoryGuard
    ) -> None:
        self._engine = engine
        self._store = store
        self._driver = driver
        self._checkpointer = checkpointer
        self._directory_guard = directory_guard
        self._running: Ticket[None] | None = None
        self.trouble = FailureLog(log, "snapshot")
        self.total = 0
        self.failures_total = 0
        self.frees_more = False
        """Whether there are log files that nobody writes to: the next snapshot, or the one behind it, lets them go."""

    @property
    def running(self) -> bool:
        return self._running is not None

    def run(self, *, clean: bool = False) -> Ticket[None]:
        """Take a snapshot now; `clean` is the last one of a clean stop, when nothing is under way any more."""
        if self._running is not None:
            again: Ticket[None] = Ticket()
            self._running.then(lambda _: forward(self.run(clean=clean), again), again.abandon)
            return again
        absorbed = self._checkpointer.run()
        if clean:
            absorbed = chain(absorbed, self._absorb_rest)
        ticket = chain(absorbed, lambda positions: self._write(positions, clean=clean))
        self._running = ticket
        ticket.then(self._over)
        return ticket

    def _absorb_rest(self, positions: Positions, runs_left: int = 7) -> Ticket[Positions]:
        """Run until a run finds nothing to do. Marks and ceilings of a run lie behind its own position: a start that
        replayed them would raise each ceiling again and take the seqs up to it for lost."""
        if not runs_left or (self._checkpointer.topics_marked == 0 and self._engine.context.commit.idle()):
            return resolved(positions)
        return chain(self._checkpointer.run(), lambda after: self._absorb_rest(after, runs_left - 1))

    def _over(self, done: Ticket[None]) -> None:
        self._running = None
        if done.error is None:
            self.total += 1
        else:
            self.failures_total += 1
        self.trouble.over(done.error)

    def _write(self, positions: Positions, *, clean: bool) -> Ticket[None]:
        """Deletes that wait for the index of a cold segment are in no flag and no list yet: they get frames behind the
        positions, in the same instant in which the capture begins."""
        deletes = self._engine.deletes
        carried = all_done([deletes.carry_over(topic) for topic in self._engine.state.by_id.values() if topic.awaiting])
        captured = self._capture(positions, clean=clean)
        return chain(carried, lambda _: chain(captured, self._install_in_background))

    def _install_in_background(self, body: Snapshot) -> Ticket[None]:
        referenced = self._referenced()
        return carried_out(self._driver.run, lambda: self._install(body, referenced))

    # --- on the owner's thread ------------------------------------------------------------------------------------

    def _capture(self, positions: Positions, *, clean: bool) -> Ticket[Snapshot]:
        """Topics are captured some at a time, others act in between. That is no matter as long as nothing is older than
        the positions and no config newer: replay converges. Which topics there are, and the places of the routers, are
        those of this moment; of a topic that comes or goes later the log tells."""
        body = self._body_without_topics(positions, clean=clean)
        wanted = [(topic, self._checkpointer.config_at_barrier(topic)) for topic in self._engine.state.by_id.values()]
        items: list[TopicItem] = []

        def capture_one(entry: tuple[TopicLog, TopicConfig]) -> None:
            topic, config = entry
            if topic.id in self._engine.state.by_id:
                items.append(self._topic_item(topic, config, clean=clean))

        over = in_portions(self._driver, wanted, capture_one)
        return chain(over, lambda _: resolved(msgspec.structs.replace(body, topics=tuple(items))))

    def _body_without_topics(self, positions: Positions, *, clean: bool) -> Snapshot:
        store, state, clock = self._store, self._engine.state, self._engine.context.clock
        groups = {**store.leftovers, **positions}
        now = clock.now_ms()
        return Snapshot(
            id=store.snapshots.next_number,
            instance=store.instance,
            boot=store.boot,
            clock_ms=now,
            ts=now,
            clean=clean,
            gen=store.layout.gen,
            shards=store.layout.shards,
            next_topic_id=state.next_topic_id,
            last_epoch=state.last_epoch,
            next_ckpt=store.next_ckpt,
            groups=tuple(GroupPosition(key=key, file=at.file, off=at.off) for key, at in sorted(groups.items())),
            topics=(),
            routers=tuple(router_item(*captured) for captured in self._engine.router_checkpoints.captured()),
        )

    def _topic_item(self, topic: TopicLog, config: TopicConfig, *, clean: bool) -> TopicItem:
        image = capture(topic, config=config, clean=clean)
        segments = [SegmentItem(*row) for row in image.segments]  # type: ignore[arg-type]
        files = self._store.topics.get(topic.id)
        if files is not None and files.active is not None and files.active.count:
            first, count, data_len = files.active.mark
            segments.append(SegmentItem(first, count, data_len, False, "hot", *image.active))
        return TopicItem(
            id=image.id,
            name=image.name,
            epoch=image.epoch,
            config=image.config.to_dict(),
            created_ts=image.created_ts,
            last_ts=image.last_ts,
            head=image.head,
            ceiling=image.ceiling,
            ckpt_seq=image.ckpt_seq,
            base_seq=image.base_seq,
            earliest_seq=image.earliest_seq,
            evict_floor=image.evict_floor,
            cap_lost=image.cap_lost,
            ttl_lost=image.ttl_lost,
            trim_lost=image.trim_lost,
            restart_lost=image.restart_lost,
            delete_below=image.delete_below,
            count=image.count,
            bytes=image.bytes,
            lost=tuple(image.lost),
            dead=tuple(DeadRange(*dead) for dead in image.dead),
            segments=tuple(segments),
            queue=queue_item(topic, clean=clean),
            idem=tuple(IdemItem(*row) for row in image.idem),
            ancestors=tuple(AncestorItem(*row) for row in image.ancestors),
            cursors=tuple(CursorItem(*msgspec.structs.astuple(cursor)) for cursor in image.cursors),
            schedules=tuple(image.schedules),
        )

    def _referenced(self) -> frozenset[int]:
        """WAL files that a location in memory points into."""
        files: set[int] = set()
        for topic in self._engine.state.by_id.values():
            for run in topic.tail.runs_from(topic.ckpt_seq + 1):
                lo = max(topic.ckpt_seq + 1 - run.first_seq, 0)
                files.update(np.unique(np.frombuffer(run.locs[lo:], np.uint64) >> np.uint64(32)).tolist())
        return frozenset(files)

    # --- on the background thread ---------------------------------------------------------------------------------

    def _install(self, body: Snapshot, referenced: frozenset[int]) -> None:
        self._directory_guard.require()
        keep_all = self._engine.context.settings.salvage  # nothing is deleted in such a run
        self._store.snapshots.install(body, keep_all=keep_all)
        if self._store.owes_marks:  # everything that the start had no space to log is in this snapshot
            self._store.lock.claim(self._store.boot)
            self._store.owes_marks = False
        if not keep_all:
            self._remove_log(referenced)

    def _remove_log(self, referenced: frozenset[int]) -> None:
        store = self._store
        kept = store.snapshots.kept()
        active = {group.key: group.position.file for group in store.groups}
        frees_more = False
        for key in list(store.files.group_keys()):
            writing = active.get(key)
            remove_absorbed(
                store.fs,
                store.files,
                key=key,
                dir=store.data.group(key),
                snapshots=kept,
                referenced=referenced.__contains__,
                active=writing,
                end=store.leftovers.get(key),
            )
            oldest = next(iter(store.files.of_group(key)), None)
            frees_more |= oldest is not None and oldest.number != writing and oldest.index not in referenced
        self.frees_more = frees_more
