"""ColdCleaning: removes from the cold store what nobody needs any more: dropped segments, deleted topics, leftovers.

What makes a removal permanent was logged before. The store may be away for days: removals wait and are tried again, and
what is forgotten at a stop is found again by the listing after the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from topics.core.topic import TopicState
from topics.engine.engine import Engine
from topics.runtime.driver import Driver
from topics.runtime.store import Store
from topics.storage.segments.drop import drop_cold_copy
from topics.storage.segments.sealed import SealedSegment

log = logging.getLogger("topics.tiers")

Key = tuple[int, int]


class ColdCleaning:
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

    def topic_removed(self, topic: TopicState) -> None:
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

    def _judge(self, topic: TopicState, firsts: list[int]) -> None:
        assert self._store.cold is not None
        for first_seq in firsts:
            segment = topic.sealed.by_first_seq(first_seq)
            if segment is None:
                self._run(partial(self._store.cold.store(topic.id).delete, first_seq))
            elif segment.view.tier == "hot":
                self.copies.add((topic.id, first_seq))
