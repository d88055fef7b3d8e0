"""Janitor: gives back what is no longer needed: dead segments, deleted topics, space inside mostly dead segments.

Always holds: what makes a removal permanent (a floor, a `tier` mark, a TopicDelete) is synced before a file goes; every
removal can be repeated after a crash; a failure costs a retry and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from topics.config import Settings
from topics.core.effects import Effect
from topics.core.retention.rules import floors_op
from topics.core.slots.checkpoint import dropped, flagged, replaced
from topics.core.slots.sealed_slots import Sealed
from topics.core.topic import TopicLog
from topics.engine.engine import Engine
from topics.engine.marks import tier_submission
from topics.engine.ticket import Ticket
from topics.engine.writing.encode import submission
from topics.errors import TopicsError
from topics.formats.wal.bodies import TierMove
from topics.runtime.background.tiers import Tiers
from topics.runtime.drivers.driver import Driver
from topics.runtime.file_work import FileWork
from topics.runtime.store import Store
from topics.storage.segments.replace import drop_segment, remove_retired_dir, retire_topic_dir
from topics.storage.segments.rewrite import RewriteRules, rewrite
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.wal.group import PASSING

log = logging.getLogger("topics.janitor")

SWEEP_TOPICS = 2_000
"""Topics looked at per sweep; the next one goes on behind them."""


class Janitor:
    """`after_checkpoint` runs a step once no checkpoint uses the files of topics."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        driver: Driver,
        jobs: FileWork,
        settings: Settings,
        retired: list[str],
        tiers: Tiers,
        *,
        after_checkpoint: Callable[[Callable[[], None]], None],
    ) -> None:
        self._engine = engine
        self._store = store
        self._driver = driver
        self._jobs = jobs
        self._tiers = tiers
        self._rules = RewriteRules(settings.rewrite_dead_ratio, settings.rewrite_min_dead_bytes)
        self._rewrite_rate = settings.rewrite_bytes_per_sec
        self._keeps_all = settings.salvage  # nothing is deleted in such a run
        self._retired = list(retired)
        self._thinned: set[tuple[int, int]] = set()
        self._rewriting = False
        self._probing: set[int] = set()  # groups that are being asked whether they have space
        self._dropping: set[tuple[int, int]] = set()
        self._sweep_at: Iterator[int] = iter(())
        self._after_checkpoint = after_checkpoint
        engine.context.on_removed.append(self._note_thinned)
        for topic in engine.state.by_id.values():  # drops that a crash interrupted, or that were never begun
            for segment in topic.sealed:
                jobs.note_if_dead(topic, segment.first_seq)

    def is_dropping(self, key: tuple[int, int]) -> bool:
        return key in self._dropping

    # --- once in a while ------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Move floors nobody asked about, then clean up behind all floors."""
        self._log_some_floors()
        if self._keeps_all:
            return
        self._drop_dead()
        self._drop_topics()
        self._rewrite_one()

    def _log_some_floors(self) -> None:
        state, floor_log = self._engine.state, self._engine.floor_log
        now = self._engine.context.clock.now_ms()
        for _ in range(min(SWEEP_TOPICS, len(state.by_id))):
            topic_id = next(self._sweep_at, None)
            if topic_id is None:
                self._sweep_at = iter(list(state.by_id))
                topic_id = next(self._sweep_at)
            topic = state.by_id.get(topic_id)
            if topic is None:
                continue
            topic.idem.expire(now=now, window_ms=topic.config.idempotency_window_ms)
            if (topic.config.ttl_ms or topic.config.cap_bytes) and not floor_log.is_logged(topic):
                self._quietly(partial(floor_log.ensure_logged, topic))

    @staticmethod
    def _quietly(step: Callable[[], object]) -> None:
        """A read-only group refuses; that is known, and the next sweep tries again."""
        try:
            step()
        except TopicsError as error:
            log.debug("postponed: %s", error)

    # --- dead segments --------------------------------------------------------------------------------------------

    def _drop_dead(self) -> None:
        dead = self._jobs.dead_segments
        by_topic: dict[int, list[int]] = {}
        while dead:
            topic_id, first_seq = dead.popleft()
            if (topic_id, first_seq) not in self._dropping:
                by_topic.setdefault(topic_id, []).append(first_seq)
        for topic_id, firsts in by_topic.items():
            topic = self._engine.state.by_id.get(topic_id)
            if topic is not None:
                self._quietly(partial(self._log_drop, topic, firsts))

    def _log_drop(self, topic: TopicLog, firsts: list[int]) -> None:
        """Make the drop permanent in the log: the floors if they imply it, else a `gone` mark."""
        segments = [segment for first in firsts if (segment := topic.sealed.by_first_seq(first)) is not None]
        needed = [segment for segment in segments if self._is_needed(topic, segment)]
        self._jobs.dead_segments.extend((topic.id, segment.first_seq) for segment in needed)
        segments = [segment for segment in segments if segment not in needed]
        below = [segment for segment in segments if segment.next_seq <= topic.earliest_seq]
        inside = [segment for segment in segments if segment.next_seq > topic.earliest_seq]
        context = self._engine.context
        group, now = context.group_of(topic.id), context.clock.now_ms()
        if below:
            sub = submission([floors_op(topic)], None, topic_id=topic.id, ts=now, durable=True, client_frames=0)
            self._drop_when(context.commit.submit(group, sub, finish=lambda _: None, internal=True), topic, below)
        if inside:
            moves = [TierMove(id=topic.id, first=s.first_seq, count=s.count, tier="gone") for s in inside]
            sub = tier_submission(moves, ts=now)
            self._drop_when(context.commit.submit(group, sub, finish=lambda _: None, internal=True), topic, inside)

    def _is_needed(self, topic: TopicLog, segment: Sealed) -> bool:
        """May a router have to copy records of it again after a crash, or is it on its way to another tier? Then its
        bytes stay for now."""
        if self._tiers.is_busy((topic.id, segment.first_seq)):
            return True
        needed_from = self._engine.router_checkpoints.needed_from(topic.id)
        return needed_from is not None and segment.next_seq > needed_from

    def _drop_when(self, logged: Ticket[None], topic: TopicLog, segments: Sequence[Sealed]) -> None:
        keys = {(topic.id, segment.first_seq) for segment in segments}
        self._dropping |= keys

        def go(done: Ticket[None]) -> None:
            self._dropping -= keys
            if done.error is not None:
                self._jobs.dead_segments.extend(sorted(keys))
                return
            for segment in segments:
                view: SealedSegment = segment.view  # type: ignore[assignment]
                dropped(topic, view.first_seq)
                self._driver.run(partial(self._remove, view), self._report)
                self._tiers.cleaning.segment_dropped(view)

        logged.then(go)

    def _remove(self, segment: SealedSegment) -> None:
        self._store.flips.forget(segment)
        drop_segment(segment)

    @staticmethod
    def _report(_: None, error: BaseException | None) -> None:
        if error is not None:
            log.warning("removing files failed, the next start finishes it: %s", error)

    # --- deleted topics -------------------------------------------------------------------------------------------

    def _drop_topics(self) -> None:
        while self._jobs.removed_topics:
            topic = self._jobs.removed_topics.popleft()
            self._tiers.cleaning.topic_removed(topic)
            self._after_checkpoint(partial(self._drop_files, topic))
        while self._retired:
            self._driver.run(partial(remove_retired_dir, self._store.env, self._retired.pop()), self._report)

    def _drop_files(self, topic: TopicLog) -> None:
        files = self._store.topics.pop(topic.id, None)
        if files is not None:
            self._store.flips.forget_topic(topic.id)
            self._driver.run(partial(self._retire, topic), self._report)

    def _retire(self, topic: TopicLog) -> None:
        name = retire_topic_dir(self._store.env, topic.id)
        if name is not None:
            remove_retired_dir(self._store.env, name)

    # --- mostly dead segments -------------------------------------------------------------------------------------

    def _note_thinned(self, topic: TopicLog, effect: Effect) -> None:
        if effect.removal is not None:
            self._thinned.update((topic.id, first_seq) for first_seq, _ in effect.removal.flips)

    def _rewrite_one(self) -> None:
        """One segment at a time, so that a burst of deletes does not become a burst of copying."""
        while self._thinned and not self._rewriting:
            topic_id, first_seq = self._thinned.pop()
            topic = self._engine.state.by_id.get(topic_id)
            segment = None if topic is None else topic.sealed.by_first_seq(first_seq)
            if topic is None or segment is None or not segment.live or self._is_needed(topic, segment):
                continue
            if segment.view.tier == "cold":
                continue  # `Tiers` fetches it back first
            view: SealedSegment = segment.view  # type: ignore[assignment]
            dead = segment.dead(0, segment.count)
            if self._rules.wants(view, dead):
                self._rewriting = True
                job = partial(rewrite, view, dead, throttle=self._throttle)
                self._driver.run(job, partial(self._rewritten, topic, view))

    def _throttle(self, size: int) -> None:
        self._driver.pause(size / self._rewrite_rate if self._rewrite_rate else 0.0)

    def _rewritten(self, topic: TopicLog, view: SealedSegment, done: bool | None, error: BaseException | None) -> None:
        self._rewriting = False
        if topic.id not in self._engine.state.by_id:
            return  # dropped meanwhile, and its files with it
        if error is not None:
            log.warning("rewrite of %r failed, the segment is as it was: %s", view, error)
        elif done and topic.sealed.by_first_seq(view.first_seq) is not None:
            replaced(topic, view)
            flagged(topic, view.first_seq)

    # --- space ----------------------------------------------------------------------------------------------------

    def probe_space(self) -> None:
        """Groups without space, or whose rotation failed, take writes again by themselves (`docs/spec/storage.md#f5`,
        F5b); until then the former take what gives space back (F5a)."""
        commit = self._engine.context.commit
        for index, cause in commit.read_only_causes().items():
            if cause in PASSING and index not in self._probing and commit.may_reopen(index):
                if self._store.groups[index].open_reserve():
                    commit.open_reserve(index)
                self._probing.add(index)
                self._driver.run(self._store.groups[index].probe_space, partial(self._probed, index))

    def _probed(self, index: int, lifted: bool | None, error: BaseException | None) -> None:
        self._probing.discard(index)
        if lifted and error is None:
            log.info("WAL group %r takes writes again", self._store.groups[index].key)
            self._engine.context.commit.reopen(index)
