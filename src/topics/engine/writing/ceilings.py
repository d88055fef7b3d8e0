"""Ceilings: the durable seq reservations of classes that ack before syncing (`docs/spec/storage.md#sec-5-2`).

No seq above a topic's synced ceiling is acked or visible, so after any crash the next seq lies above everything anyone
has seen. Always holds: `topic.ceiling` (applied, hence synced) <= what is staged here. A busy topic takes larger
blocks, so that steady writing costs a few background syncs per second at most."""

from __future__ import annotations

from functools import partial

from topics.core.apply import apply
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.writing.commit import Commit
from topics.engine.writing.encode import submission
from topics.model.ops import HeadMark
from topics.model.submission import Submission

BLOCK_MAX = 65_536
BUSY_MS = 1_000
"""A topic that needs a new block within this time of the last one doubles its block; a slower one goes back."""


class Ceilings:
    def __init__(self, state: State, commit: Commit, *, block: int) -> None:
        self._state = state
        self._commit = commit
        self._block = block
        self._staged: dict[int, int] = {}
        self._raised_ms: dict[int, int] = {}

    def staged(self, topic: TopicLog) -> int:
        """The highest seq that a ceiling covers once everything submitted is synced."""
        return max(topic.ceiling, self._staged.get(topic.id, 0))

    def raise_over(self, topic: TopicLog, last_seq: int, now: int) -> HeadMark | None:
        """The mark to be synced before `last_seq` may be seen; None if one on its way covers it already."""
        if last_seq <= self.staged(topic):
            return None
        return self._mark(topic, last_seq, now)

    def refill(self, topic: TopicLog, group: int, now: int) -> None:
        """Have the next block reserved in the background when less than half of one is left, so that writers rarely
        wait for it. Topics of the class `fsync` need none, unless a router feeds them."""
        if topic.config.is_fsync and topic.id not in self._state.fed:
            return
        if self.staged(topic) - topic.reserved_head >= topic.block // 2:
            return
        mark = self._mark(topic, topic.reserved_head, now)
        self._commit.submit(
            group,
            submission([mark], None, topic_id=topic.id, ts=now, durable=True, client_frames=0),
            finish=partial(self._finish, topic),
            on_failure=lambda _: self.forget(topic.id),
            barrier=False,
            internal=True,
        )

    def _finish(self, topic: TopicLog, sub: Submission) -> None:
        apply(self._state, sub.ops[0])  # type: ignore[arg-type]
        self.release(topic)

    def release(self, topic: TopicLog) -> None:
        """Whatever was staged for this topic is applied or has failed as far as `topic.ceiling` says."""
        if self._staged.get(topic.id, 0) <= topic.ceiling:
            self._staged.pop(topic.id, None)

    def forget(self, topic_id: int) -> None:
        self._staged.pop(topic_id, None)
        self._raised_ms.pop(topic_id, None)

    def _mark(self, topic: TopicLog, last_seq: int, now: int) -> HeadMark:
        busy = now - self._raised_ms.get(topic.id, -BUSY_MS) < BUSY_MS
        topic.block = min(topic.block * 2, BLOCK_MAX) if busy else self._block
        self._raised_ms[topic.id] = now
        ceiling = last_seq + topic.block
        self._staged[topic.id] = ceiling
        return HeadMark(topic_id=topic.id, ceiling=ceiling)
