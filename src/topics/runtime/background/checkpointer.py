"""Checkpoints: published records move from the log into segments, one run at a time (`docs/spec/storage.md#sec-7`).

    CheckpointThrottle    how much of the interpreter a run takes, by how far the log is ahead of the segments
    OtherProcessThrottle  the same for a run that computes in another process
    Checkpointer          the runs

The steps of a run:

    barrier   a durable submission per group: when it is applied, everything before it is, and is synced (C1, C2). It
              holds the floors that count caps moved, so that what they took may become empty slots
    collect   columns of what lies in no segment yet, on the owner's thread, in one instant (C2)
    write     segments, in the background (C3 to C8)
    mark      a durable mark to every group (C9)
    switch    locations move from log to segment (C10)

Always holds: nothing in memory points into a segment before its mark is synced; a run that fails changes nothing and
leaves the work to the next one. Router cursors are noted in the same instant as the records they account for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from topics.config import Settings
from topics.core.apply import apply
from topics.core.slots.checkpoint import PendingBatch, flagged, pending, placed, sealed
from topics.core.topic import TopicLog
from topics.engine.engine import Engine
from topics.engine.marks import checkpoint_submission, topic_mark
from topics.engine.ticket import Ticket, chain, failed, forward, resolved
from topics.engine.writing.encode import submission
from topics.formats.kernel_choice import KERNEL
from topics.formats.wal.bodies import TopicMark
from topics.model.config import TopicConfig
from topics.model.ops import RouterMark
from topics.model.submission import Submission
from topics.runtime.background.failure_log import FailureLog
from topics.runtime.background.gather import all_done, in_portions
from topics.runtime.directory_guard import DirectoryGuard
from topics.runtime.drivers.driver import Driver, carried_out
from topics.runtime.file_work import FileWork
from topics.runtime.store import Store
from topics.storage.checkpoint import absorb as checkpoint
from topics.storage.checkpoint.absorb import (
    CheckpointJob,
    CheckpointRecords,
    CheckpointResult,
    SealRules,
    TopicResult,
    TopicWork,
)
from topics.storage.wal.wal_files import LogPosition

CHUNK_RECORDS = (256, 1024, 4096) if KERNEL == "pure" else (4096, 8192, 16_384)
"""By how far the log is ahead: not far, far, very far. The plain codecs hold the GIL throughout."""


class CheckpointThrottle:
    """With little to absorb, a checkpoint converts small chunks and yields the GIL after each, so that it delays
    nobody. The further the log is ahead, the larger the chunks: a log that only grows makes the next start slow and
    fills the disk. While the process ends, there is nobody to yield to.

    `backlog_bytes` says how much log is not absorbed yet; up to `calm_bytes` the chunks stay small. Called by the
    checkpoint's thread."""

    def __init__(self, driver: Driver, backlog_bytes: Callable[[], int], *, calm_bytes: int) -> None:
        self._driver = driver
        self._backlog_bytes = backlog_bytes
        self._calm_bytes = calm_bytes
        self.closing = False

    def chunk_records(self) -> int:
        """How many records to convert at a time from here on."""
        return CHUNK_RECORDS[self._level()]

    def yield_gil(self) -> None:
        """Between two chunks: let others have the GIL, unless the log is very far ahead."""
        if self._level() < len(CHUNK_RECORDS) - 1:
            self._driver.yield_gil()

    def _level(self) -> int:
        if self.closing:
            return len(CHUNK_RECORDS) - 1
        return min(self._backlog_bytes() // max(self._calm_bytes, 1), len(CHUNK_RECORDS) - 1)


log = logging.getLogger("topics.checkpoint")

Positions = dict[str, LogPosition]


class Checkpointer:
    def __init__(
        self,
        engine: Engine,
        store: Store,
        driver: Driver,
        jobs: FileWork,
        settings: Settings,
        *,
        directory_guard: DirectoryGuard,
    ) -> None:
        self._engine = engine
        self._store = store
        self._driver = driver
        self._jobs = jobs
        self._directory_guard = directory_guard
        self._rules = SealRules(
            max_events=settings.segment_max_events,
            max_bytes=settings.segment_max_bytes,
            max_age_ms=settings.segment_max_age_ms,
        )
        self.throttle = CheckpointThrottle(driver, self._backlog_bytes, calm_bytes=settings.snapshot_bytes)
        self._absorbed_bytes = 0  # of all that was written since the start
        self._seal_due_ms: int | None = None  # when the next active segment will be too old; None: there is none
        self._running: Ticket[Positions] | None = None
        self.trouble = FailureLog(log, "checkpoint")
        self._replaced: dict[int, TopicConfig] = {}
        self.runs_total = 0
        self.topics_marked = 0
        """By the last run."""
        self.failures_total = 0
        self.mark_bytes = 0
        """Of the log, all that marks took."""
        engine.context.on_config.append(self._config_changed)

    def _written_bytes(self) -> int:
        return sum(group.stats.bytes_written for group in self._store.groups)

    def _backlog_bytes(self) -> int:
        """Log written and not absorbed yet, what a run under way is absorbing included."""
        return self._written_bytes() - self._absorbed_bytes

    def _config_changed(self, topic: TopicLog, old: TopicConfig) -> None:
        self._replaced.setdefault(topic.id, old)
        if old.is_ephemeral:  # runs have passed over what it holds
            self._engine.context.changed_ids.add(topic.id)

    def config_at_barrier(self, topic: TopicLog) -> TopicConfig:
        """The config that was in force at the recorded position of the topic's group."""
        return self._replaced.get(topic.id, topic.config)

    @property
    def has_work(self) -> bool:
        context, due_ms = self._engine.context, self._seal_due_ms
        return bool(context.changed_ids) or (due_ms is not None and context.clock.now_ms() >= due_ms)

    @property
    def running(self) -> bool:
        return self._running is not None

    # --- one run --------------------------------------------------------------------------------------------------

    def run(self) -> Ticket[Positions]:
        """Checkpoint now. The positions are where each group's log is absorbed up to. A run under way is joined by
        waiting for it and running again, because it may have collected before the caller's records came."""
        if self._running is not None:
            again: Ticket[Positions] = Ticket()
            self._running.then(lambda _: _follow(self.run, again), again.abandon)
            return again
        try:
            ticket = chain(self._barriers(), self._collect_and_write)
        except Exception as error:
            ticket = failed(error)
        self._running = ticket
        ticket.then(self._over)
        return ticket

    def after_run(self, step: Callable[[], None]) -> None:
        """At once, or when the run under way has let go of the files it works on."""
        if self._running is None:
            step()
        else:
            self._running.then(lambda _: step())

    def _over(self, done: Ticket[Positions]) -> None:
        self._running = None
        if done.error is None:
            self.runs_total += 1
            self._seal_due_ms = self._next_seal_ms()
        else:
            self.failures_total += 1
        self.trouble.over(done.error)

    def _next_seal_ms(self) -> int | None:
        """Idle topics are sealed by age, too (`docs/spec/storage.md#sec-6-4`)."""
        age_ms = self._rules.max_age_ms
        actives = (
            self._store.topics[topic.id].active
            for topic in self._engine.state.by_id.values()
            if topic.id in self._store.topics and not topic.config.is_ephemeral
        )
        first_ts = (active.first_ts for active in actives if active is not None and active.count)
        return min((ts + age_ms for ts in first_ts), default=None) if age_ms else None

    def _barriers(self) -> Ticket[Positions]:
        positions: Positions = {}
        commit = self._engine.context.commit
        tickets = []
        for index, group in enumerate(self._store.groups):
            floors = self._engine.floor_log.unlogged_floors(self._changed_in(index))
            now_ms = self._engine.context.clock.now_ms()
            sub = submission(floors, None, topic_id=0, ts=now_ms, durable=True, client_frames=0)
            finish = partial(self._at_barrier, index, group.key, positions)
            tickets.append(commit.submit(index, sub, finish=finish, internal=True))
        return chain(all_done(tickets), lambda _: resolved(positions))

    def _changed_in(self, index: int) -> Iterator[TopicLog]:
        context = self._engine.context
        topics = (context.state.by_id.get(topic_id) for topic_id in context.changed_ids)
        return (topic for topic in topics if topic is not None and context.group_of(topic.id) == index)

    def _at_barrier(self, index: int, key: str, positions: Positions, sub: Submission) -> None:
        for floors in sub.ops:
            apply(self._engine.state, floors)  # type: ignore[arg-type]
        positions[key] = LogPosition(self._store.files.get(sub.file).number, sub.offset)
        for listener in self._engine.context.on_barrier:
            listener(index)
        group_of = self._engine.context.group_of
        self._replaced = {
            topic_id: config for topic_id, config in self._replaced.items() if group_of(topic_id) != index
        }

    def _collect_and_write(self, positions: Positions) -> Ticket[Positions]:
        context = self._engine.context
        dirty, context.changed_ids = context.changed_ids, set()
        written_bytes = self._written_bytes()
        works = {topic.id: work for topic, work in self._works(dirty)}
        cursors = self._engine.router_checkpoints.cursors()
        job = self._job(list(works.values()))
        ticket: Ticket[Positions] = Ticket()

        def written(done: Ticket[CheckpointResult]) -> None:
            if done.error is not None:
                context.changed_ids |= dirty
                ticket.fail(done.error)
                return
            result = done.result()
            marks = self._mark(result, positions, list(cursors))
            marks.then(lambda done: self._engine.router_checkpoints.marked(cursors) if done.error is None else None)
            marks.then(lambda done: self._absorbed(written_bytes) if done.error is None else None)
            marks.then(partial(self._marked, result, positions, dirty, ticket), ticket.abandon)

        carried_out(self._driver.run, lambda: self._write(job)).then(written, ticket.abandon)
        return ticket

    def _write(self, job: CheckpointJob) -> CheckpointResult:
        self._directory_guard.require()
        return checkpoint.run(job)

    def _job(self, works: list[TopicWork]) -> CheckpointJob:
        return CheckpointJob(
            topics=works,
            now_ms=self._engine.context.clock.now_ms(),
            rules=self._rules,
            read_wal=self._store.files.pread,
            flips=self._store.flips,
            pace=self.throttle,
            side_by_side=self._driver.side_by_side,
        )

    def _absorbed(self, written_bytes: int) -> None:
        self._absorbed_bytes = written_bytes

    def _works(self, dirty: set[int]) -> list[tuple[TopicLog, TopicWork]]:
        works = []
        now = self._engine.context.clock.now_ms()
        for topic in self._engine.state.by_id.values():
            if topic.config.is_ephemeral:
                continue
            files = self._store.topics.get(topic.id)
            active = None if files is None else files.active
            batches = pending(topic) if topic.id in dirty else []
            if batches or (active is not None and active.count and self._rules.is_old(active.first_ts, now)):
                files = self._store.files_of(topic.id, name=topic.name)
                works.append(
                    (
                        topic,
                        TopicWork(
                            files.place,
                            active,
                            [
                                _batch(pending, self._engine.router_checkpoints.needed_from(topic.id))
                                for pending in batches
                            ],
                        ),
                    )
                )
        return works

    # --- mark and switch ------------------------------------------------------------------------------------------

    def _mark(self, result: CheckpointResult, positions: Positions, routers: Sequence[RouterMark]) -> Ticket[None]:
        context, store = self._engine.context, self._store
        by_group: dict[int, list[TopicMark]] = {index: [] for index in range(len(store.groups))}
        for done in result.topics:
            topic = context.state.by_id.get(done.place.topic_id)
            if topic is not None:
                by_group[context.group_of(topic.id)].append(self._topic_mark(topic, done))
        self.topics_marked = sum(map(len, by_group.values()))
        number, store.next_ckpt = store.next_ckpt, store.next_ckpt + 1
        tickets: list[Ticket[None]] = []
        try:
            for index, marks in by_group.items():
                store.groups[index].rotate_for_checkpoint()
                position = positions[store.groups[index].key]
                sub = checkpoint_submission(
                    n=number,
                    file=position.file,
                    off=position.off,
                    topics=marks,
                    routers=routers if index == 0 else (),
                    ts=context.clock.now_ms(),
                )
                tickets.append(context.commit.submit(index, sub, finish=self._mark_written, internal=True))
        except Exception as error:
            tickets.append(failed(error))
        return all_done(tickets)

    def _mark_written(self, mark: Submission) -> None:
        self.mark_bytes += mark.size

    @staticmethod
    def _topic_mark(topic: TopicLog, done: TopicResult) -> TopicMark:
        known = topic.sealed[len(topic.sealed) - 1].next_seq - 1 if len(topic.sealed) else 0
        sealed_to = max([known, *(segment.last_seq for segment in done.sealed)])  # a hole may have been filled
        active = None if done.active is None else done.active.mark
        return topic_mark(topic, seq=max(done.seq, topic.ckpt_seq), active=active, sealed_to=sealed_to)

    def _marked(
        self,
        result: CheckpointResult,
        positions: Positions,
        dirty: set[int],
        ticket: Ticket[Positions],
        marks: Ticket[None],
    ) -> None:
        if marks.error is not None:
            self._engine.context.changed_ids |= dirty
            error = marks.error
            carried_out(self._driver.run, result.abandon).then(lambda _: ticket.fail(error), ticket.abandon)
            return
        switching = in_portions(self._driver, result.topics, lambda done: self._switch(result, done))
        switching.then(partial(self._switched, result, positions, ticket), ticket.abandon)

    def _switched(
        self, result: CheckpointResult, positions: Positions, ticket: Ticket[Positions], switching: Ticket[None]
    ) -> None:
        if switching.error is not None:  # our own mistake; the next run must not wait for this one for ever
            log.error("locations could not be switched", exc_info=switching.error)
            ticket.fail(switching.error)
            return
        for now_flagged in result.flagged:
            topic = self._engine.state.by_id.get(now_flagged.topic_id)
            if topic is not None:
                flagged(topic, now_flagged.first_seq)
        ticket.resolve(positions)

    def _switch(self, result: CheckpointResult, done: TopicResult) -> None:
        """C10 of one topic; the log serves the others until it is their turn. What died since the records were
        collected is flagged where it lies now."""
        result.commit(done)
        files = self._store.topics.get(done.place.topic_id)
        if files is None:
            return
        files.active = done.active
        topic = self._engine.state.by_id.get(done.place.topic_id)
        if topic is None:
            return
        for segment in done.sealed:
            late = sealed(topic, segment, keep_hops=bool(self._engine.state.routers.from_source(topic.id)))
            self._store.flips.flip(segment, late)
            self._jobs.note_if_dead(topic, segment.first_seq)
        for part in done.placed:
            late = placed(topic, part.first_seq, part.offs, part.lens)
            if len(late):
                self._jobs.flag_active(topic, late)


def _batch(collected: PendingBatch, needed_from: int | None) -> CheckpointRecords:
    """Bytes of dead records from `needed_from` on are kept: a router may have to copy them again after a crash."""
    dead = collected.dead if collected.dead.any() else None
    kept = None
    if dead is not None and needed_from is not None:
        kept = dead & (np.arange(len(dead)) + collected.first_seq >= needed_from) & (collected.offs >= 0)
    return CheckpointRecords(
        first_seq=collected.first_seq,
        source=collected.source,
        offs=collected.offs,
        lens=collected.lens,
        ts=collected.ts,
        sizes=collected.sizes,
        dead=dead,
        kept=kept,
    )


def _follow(start: Callable[[], Ticket[Positions]], target: Ticket[Positions]) -> None:
    forward(start(), target)
