"""Tiers: decides which sealed segments move between hot and cold, and has it done on the cold pool.

    sweep   every TOPICS_RELOCATE_INTERVAL_MS: is the store ours, what lies beyond hot retention, which deletes wait
    go_on   every tick: a slice of the topics is looked at, and as many jobs run as half of the cold pool can take

Always holds: planning is the owner's, waiting is the cold pool's; no job starts on a segment that is being dropped, and
nothing is dropped while a job has it; a tier mark is logged only while its segment is still there; a failure costs a
retry and nothing else."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from topics.config import Settings
from topics.core.slots.checkpoint import flagged, replaced
from topics.core.slots.sealed_slots import Sealed
from topics.core.topic import TopicLog
from topics.engine.engine import Engine
from topics.engine.marks import tier_submission
from topics.engine.ticket import Ticket
from topics.errors import ShuttingDown, StorageIo
from topics.formats.wal.bodies import TierMove
from topics.runtime.drivers.driver import Driver
from topics.runtime.recovery.recover import Recovered
from topics.runtime.store import Store
from topics.storage.segments.flips import Flagged
from topics.storage.segments.replace import drop_cold_copy
from topics.storage.segments.rewrite import RewriteRules, rewrite
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.tiers.relocate import delete_hot, flush_cold_flips, plan_moves, promote, relocate

log = logging.getLogger("topics.tiers")

Key = tuple[int, int]


class ColdCleaning:
    """Removes from the cold store what nobody needs any more: dropped segments, deleted topics, leftovers.

    What makes a removal permanent was logged before. The store may be away for days: removals wait and are tried again,
    and what is forgotten at a stop is found again by the listing after the next start."""

    def __init__(self, engine: Engine, store: Store, driver: Driver, *, is_busy: Callable[[int], bool]) -> None:
        self._engine = engine
        self._store = store
        self._driver = driver
        self._is_busy = is_busy
        self._removed_topics: list[int] = []
        self._failed: list[Callable[[], None]] = []
        self.copies: set[Key] = set()
        """Segments that may have a cold copy although they are hot."""
        self.seen: set[int] = set()
        """Topics whose cold segments were looked at since the start."""

    def segment_dropped(self, segment: SealedSegment) -> None:
        key = segment.place.topic_id, segment.first_seq
        if segment.place.cold is not None and (segment.tier == "cold" or key in self.copies):
            self.copies.discard(key)
            self._run(partial(drop_cold_copy, segment))

    def topic_removed(self, topic: TopicLog) -> None:
        """Its cold copies go by list, once no job is putting another one."""
        self.seen.discard(topic.id)
        mine = {key for key in self.copies if key[0] == topic.id}
        self.copies -= mine
        if self._store.cold is not None and (mine or any(segment.tier == "cold" for segment in topic.sealed)):
            self._removed_topics.append(topic.id)

    def go_on(self) -> None:
        cold = self._store.cold
        free = [topic_id for topic_id in self._removed_topics if not self._is_busy(topic_id)]
        for topic_id in free if cold is not None and cold.ours else ():
            assert cold is not None
            self._removed_topics.remove(topic_id)
            self._run(partial(cold.remove_topic, topic_id))

    def retry(self) -> None:
        failed, self._failed = self._failed, []
        for job in failed:
            self._run(job)

    def _run(self, job: Callable[[], None]) -> None:
        def over(_: None, error: BaseException | None) -> None:
            if error is not None:
                log.warning("removing from the cold store failed, it will be tried again: %s", error)
                self._failed.append(job)

        self._driver.run_cold(job, over)

    # --- after a start --------------------------------------------------------------------------------------------

    def look_for_leftovers(self) -> None:
        """Once: copies that a crash left behind, and topics that were deleted while the store was away."""
        self._driver.run_cold(self._list, self._listed)

    def _list(self) -> dict[int, list[int]]:
        cold = self._store.cold
        assert cold is not None
        return {topic_id: cold.store(topic_id).list_any() for topic_id in cold.topic_ids()}

    def _listed(self, found: dict[int, list[int]] | None, error: BaseException | None) -> None:
        if found is None:
            log.warning("the cold store could not be listed, leftovers stay until the next start: %s", error)
            return
        state, cold = self._engine.state, self._store.cold
        assert cold is not None
        for topic_id, firsts in found.items():
            topic = state.by_id.get(topic_id)
            if topic is not None:
                self._judge(topic, firsts)
            elif topic_id < state.next_topic_id:
                self._removed_topics.append(topic_id)

    def _judge(self, topic: TopicLog, firsts: list[int]) -> None:
        assert self._store.cold is not None
        for first_seq in firsts:
            segment = topic.sealed.by_first_seq(first_seq)
            if segment is None:
                self._run(partial(self._store.cold.store(topic.id).delete, first_seq))
            elif segment.view.tier == "hot":
                self.copies.add((topic.id, first_seq))


SLICE_TOPICS = 2_000
"""Topics looked at per tick."""
INDEXES_PER_SWEEP = 64
"""Cold indexes fetched per topic and sweep because something waits for them."""
MAINTAIN_AFTER_MS = 600_000
"""How long deletes in an object may wait before it is fetched and put anew: a burst of them costs one round."""

Work = tuple[Callable[[TopicLog, Sealed], None], Key]


class Tiers:
    """`is_named`: is a snapshot with our instance durable? Only then may a store be claimed."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        driver: Driver,
        settings: Settings,
        recovered: Recovered,
        *,
        index_came: Callable[[TopicLog, int], None],
        is_dropping: Callable[[Key], bool],
        is_named: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._store = store
        self._driver = driver
        self.cold = store.cold
        self._retain_segments = settings.hot_retain_segments
        self._retain_bytes = settings.hot_retain_bytes
        self._rules = RewriteRules(settings.rewrite_dead_ratio, settings.rewrite_min_dead_bytes)
        self._rewrite_rate = settings.rewrite_bytes_per_sec
        self._jobs_max = max(1, settings.cold_io_threads // 2)
        self._waiting: deque[Work] = deque()
        self._queued: set[Key] = set()
        self._busy: set[Key] = set()
        self._busy_topics: Counter[int] = Counter()
        self._scan: Iterator[int] = iter(())
        self._deleted_since: dict[Key, int] = {}
        self._judged: dict[Key, int] = {}
        self._looking = self._stopped = False
        self.last_success_ms = 0
        self._index_came = index_came
        self._is_dropping = is_dropping
        self._is_named = is_named
        self.cleaning = ColdCleaning(engine, store, driver, is_busy=lambda topic_id: self._busy_topics[topic_id] > 0)
        self._may_clean = not settings.salvage and not recovered.damage and recovered.has_snapshot

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._busy)

    def is_busy(self, key: Key) -> bool:
        """A job of the cold pool has the segment's files."""
        return key in self._busy

    def stop(self) -> None:
        """Start nothing more; marks that come late are refused."""
        self._stopped = True
        self._waiting.clear()

    # --- when -----------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        if self.cold is None or self._stopped:
            return
        if not self.cold.ours:
            self._look_for_store()
            return
        if self._may_clean:
            self._may_clean = False
            self.cleaning.look_for_leftovers()
        self._note_deletes()
        self._scan = iter(list(self._engine.state.by_id))
        self.cleaning.retry()

    def go_on(self) -> None:
        if self.cold is None or self._stopped:
            return
        for _ in range(SLICE_TOPICS):
            topic_id = next(self._scan, None)
            if topic_id is None:
                break
            topic = self._engine.state.by_id.get(topic_id)
            if topic is not None and len(topic.sealed):
                self._plan(topic)
        self._start_some()
        self.cleaning.go_on()

    def _look_for_store(self) -> None:
        cold = self.cold
        if self._looking or cold is None or (cold.unclaimed and not self._is_named()):
            return
        self._looking = True
        self._driver.run_cold(cold.claim if cold.unclaimed else cold.check, self._looked)

    def _looked(self, _: None, error: BaseException | None) -> None:
        self._looking = False
        cold = self.cold
        assert cold is not None
        if error is not None:
            log.warning("the cold store %s cannot be used, everything stays hot: %s", cold.label, error)
            return
        log.info("the cold store %s is in use", cold.label)
        self.sweep()
        self.go_on()

    # --- what -----------------------------------------------------------------------------------------------------

    def _plan(self, topic: TopicLog) -> None:
        for first_seq in islice(topic.awaiting, INDEXES_PER_SWEEP):
            self._enqueue(self._load_index, (topic.id, first_seq))
        if len(topic.sealed) > self._retain_segments or self._retain_bytes:
            views: list[SealedSegment] = [segment.view for segment in topic.sealed]  # type: ignore[misc]
            for view in plan_moves(views, retain_segments=self._retain_segments, retain_bytes=self._retain_bytes):
                self._enqueue(self._move, (topic.id, view.first_seq))
            for view in views:
                if view.hot_remnant:
                    self._enqueue(self._remove_remnant, (topic.id, view.first_seq))
        if self._first_scan_of(topic):
            self._flip_again(topic)

    def _flip_again(self, topic: TopicLog) -> None:
        for segment in topic.sealed:
            if segment.view.tier == "cold" and segment.overlay is not None:
                self._store.flips.flip(segment.view, segment.unflagged())  # type: ignore[arg-type]

    def _first_scan_of(self, topic: TopicLog) -> bool:
        """Deletes that a snapshot listed as dead are to be flagged after a start."""
        if topic.id in self.cleaning.seen:
            return False
        self.cleaning.seen.add(topic.id)
        return True

    def _note_deletes(self) -> None:
        """Deletes in cold segments: flagged in place, or left until it is worth putting the object anew."""
        assert self.cold is not None
        now = self._engine.context.clock.now_ms()
        for flippable in self._store.flips.cold():
            key = flippable.place.topic_id, flippable.first_seq
            segment = self._find(key)
            if segment is None or not segment.live or key in self._busy:
                continue
            since = self._deleted_since.setdefault(key, now)
            if self._is_thin(key, segment) or (not self.cold.in_place and now - since >= MAINTAIN_AFTER_MS):
                self._enqueue(self._fetch_back, key)
            elif self.cold.in_place:
                self._enqueue(self._flag, key)

    def _is_thin(self, key: Key, segment: Sealed) -> bool:
        """Would a rewrite pay? Judged by the number of deleted records, because a cold index need not be at hand."""
        rules, size = self._rules, segment.view.data_len
        dead = segment.deleted if segment.deleted >= 0 else segment.count - segment.live
        dead_bytes = size * dead // segment.count
        if not rules.dead_ratio or dead_bytes < max(rules.min_dead_bytes, rules.dead_ratio * size):
            return False
        return self._judged.get(key) != dead

    def _find(self, key: Key) -> Sealed | None:
        topic = self._engine.state.by_id.get(key[0])
        return None if topic is None else topic.sealed.by_first_seq(key[1])

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _enqueue(self, job: Callable[[TopicLog, Sealed], None], key: Key) -> None:
        if key not in self._queued and key not in self._busy:
            self._queued.add(key)
            self._waiting.append((job, key))

    def _start_some(self) -> None:
        while self._waiting and len(self._busy) < self._jobs_max:
            job, key = self._waiting.popleft()
            self._queued.discard(key)
            topic, segment = self._engine.state.by_id.get(key[0]), self._find(key)
            if topic is None or segment is None or not segment.live or self._is_dropping(key):
                continue
            self._busy.add(key)
            self._busy_topics[topic.id] += 1
            job(topic, segment)

    def _free(self, topic: TopicLog, view: SealedSegment) -> None:
        self._busy.discard((topic.id, view.first_seq))
        self._busy_topics[topic.id] -= 1
        self._driver.soon(self.go_on)

    def _run(
        self, topic: TopicLog, segment: Sealed, job: Callable[[], Any], done: Callable[[TopicLog, Any], None]
    ) -> None:
        """Carry out a job on the cold pool; `done` only if it succeeded and the segment is still there."""
        view: SealedSegment = segment.view  # type: ignore[assignment]

        def over(value: object, error: BaseException | None) -> None:
            self._free(topic, view)
            if error is not None:
                log.warning("%r: %s; it will be tried again", view, error)
            elif topic.sealed.by_first_seq(view.first_seq) is segment:
                done(topic, value)

        self._driver.run_cold(job, over)

    def _load_index(self, topic: TopicLog, segment: Sealed) -> None:
        view: SealedSegment = segment.view  # type: ignore[assignment]
        self._run(topic, segment, view.load_index, lambda topic, _: self._index_came(topic, view.first_seq))

    def _move(self, topic: TopicLog, segment: Sealed) -> None:
        view: SealedSegment = segment.view  # type: ignore[assignment]
        if view.tier == "cold":
            self._free(topic, view)
            return
        self.cleaning.copies.add((topic.id, view.first_seq))
        self._run(topic, segment, lambda: relocate(view, partial(self._log_mark, topic)), partial(self._moved, view))

    def _moved(self, view: SealedSegment, topic: TopicLog, done: bool) -> None:
        if done:
            self.last_success_ms = self._engine.context.clock.now_ms()
            replaced(topic, view)

    def _remove_remnant(self, topic: TopicLog, segment: Sealed) -> None:
        """Hot files that could not be removed when the segment moved."""
        view: SealedSegment = segment.view  # type: ignore[assignment]
        self._run(topic, segment, lambda: delete_hot(view), lambda _, __: None)

    def _flag(self, topic: TopicLog, segment: Sealed) -> None:
        view: SealedSegment = segment.view  # type: ignore[assignment]
        self._run(topic, segment, lambda: flush_cold_flips(view), partial(self._flagged, view))

    def _flagged(self, view: SealedSegment, topic: TopicLog, done: Flagged | None) -> None:
        self._deleted_since.pop((topic.id, view.first_seq), None)
        segment = topic.sealed.by_first_seq(view.first_seq)
        if done is not None and segment is not None:
            segment.proven(done.slots)

    def _fetch_back(self, topic: TopicLog, segment: Sealed) -> None:
        """Deletes in an object, or a mostly dead segment: hot again, rewritten if that pays, and later moved anew."""
        view: SealedSegment = segment.view  # type: ignore[assignment]
        self._judged[topic.id, view.first_seq] = segment.deleted
        self._run(
            topic, segment, lambda: promote(view, partial(self._log_mark, topic)), partial(self._fetched_back, view)
        )

    def _fetched_back(self, view: SealedSegment, topic: TopicLog, done: bool) -> None:
        segment = topic.sealed.by_first_seq(view.first_seq)
        if not done or segment is None:
            return
        self._deleted_since.pop((topic.id, view.first_seq), None)
        replaced(topic, view)
        dead = segment.dead(0, segment.count)
        self._judged[topic.id, view.first_seq] = int(dead.sum())
        if self._rules.wants(view, dead):
            self._busy.add((topic.id, view.first_seq))
            self._busy_topics[topic.id] += 1
            self._driver.run(
                partial(rewrite, view, dead, throttle=self._throttle), partial(self._rewritten, topic, view)
            )

    def _throttle(self, size: int) -> None:
        self._driver.pause(size / self._rewrite_rate if self._rewrite_rate else 0.0)

    def _rewritten(self, topic: TopicLog, view: SealedSegment, done: bool | None, error: BaseException | None) -> None:
        self._free(topic, view)
        if error is not None:
            log.warning("rewrite of %r failed, the segment is as it was: %s", view, error)
        elif done and topic.sealed.by_first_seq(view.first_seq) is not None:
            replaced(topic, view)
            flagged(topic, view.first_seq)

    # --- marks ----------------------------------------------------------------------------------------------------

    def _log_mark(self, topic: TopicLog, moves: Sequence[TierMove]) -> None:
        """`docs/spec/storage.md#t6`, from a thread of the cold pool: returns when the mark is synced."""
        self._driver.ask(lambda: self._submit_mark(topic, moves))

    def _submit_mark(self, topic: TopicLog, moves: Sequence[TierMove]) -> Ticket[None]:
        context = self._engine.context
        if self._stopped:
            raise ShuttingDown()
        for move in moves:
            if self._find((topic.id, move.first)) is None or self._is_dropping((topic.id, move.first)):
                raise StorageIo(f"segment {move.first} of topic {topic.name!r} is gone")
        sub = tier_submission(moves, ts=context.clock.now_ms())
        return context.commit.submit(
            context.group_of(topic.id), sub, finish=lambda _: self._logged(topic, moves), internal=True
        )

    @staticmethod
    def _logged(topic: TopicLog, moves: Sequence[TierMove]) -> None:
        """From this instant on a snapshot has to tell the same as the log."""
        for move in moves:
            segment = topic.sealed.by_first_seq(move.first)
            if segment is not None and move.tier != "gone":
                segment.tier = move.tier
