"""Compactor: when topics with `compact: "tag"` are compacted. How is `engine.compaction`'s matter.

Passes over several topics take turns, one piece of work each, and rest while the process is short of time. A pass that
had to leave something, as when the cold store does not answer, is made again after a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from topics import limits
from topics.config import Settings
from topics.engine.compaction import CompactionPass
from topics.engine.engine import Engine

LOOK_MS = 1_000
LOOK_TOPICS = 2_000
"""Topics that are asked whether they have something to do, at a time."""
STEPS = 2
"""Pieces of work per tick: at most some milliseconds of 50."""
AGAIN_MS = 30_000


class Compactor:
    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._passes: deque[CompactionPass] = deque()
        self._begun: set[int] = set()  # topics in `_passes`
        self._not_before_ms: dict[int, int] = {}
        self._look_at: Iterator[int] = iter(())
        self._looked_ms = 0
        self.is_off = settings.salvage
        """Nothing is deleted in a run that salvages."""

    def tick(self, now_ms: int) -> None:
        """`now_ms` is of the monotonic clock."""
        if self.is_off or self._engine.context.pressure.pressure >= limits.PRESSURE_DEFER:
            return
        if now_ms - self._looked_ms >= LOOK_MS:
            self._looked_ms = now_ms
            self._look(now_ms)
        for _ in range(STEPS):
            self._step(now_ms)

    def _step(self, now_ms: int) -> None:
        if not self._passes:
            return
        current = self._passes.popleft()
        current.step()
        if not current.is_over:
            self._passes.append(current)
            return
        self._begun.discard(current.topic.id)
        if not current.is_complete:
            self._not_before_ms[current.topic.id] = now_ms + AGAIN_MS

    def _look(self, now_ms: int) -> None:
        by_id = self._engine.state.by_id
        self._not_before_ms = {topic_id: ms for topic_id, ms in self._not_before_ms.items() if ms > now_ms}
        for _ in range(min(LOOK_TOPICS, len(by_id))):
            topic_id = next(self._look_at, None)
            if topic_id is None:
                self._look_at = iter(list(by_id))
                topic_id = next(self._look_at)
            topic = by_id.get(topic_id)
            if topic is None or topic_id in self._begun or topic_id in self._not_before_ms:
                continue
            begun = self._engine.compaction.begin(topic)
            if begun is not None:
                self._passes.append(begun)
                self._begun.add(topic_id)
