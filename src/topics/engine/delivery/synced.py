"""Synced: up to which seq a topic is covered by a sync, for strong watchers (semantics.md section 14.2).

Only topics that somebody watches strongly are followed. A publication is covered once everything its group had written
by then is synced. Always holds: `limit` never exceeds what a power cut leaves, except for `ephemeral` topics, where
strong equals eventual."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from topics.core.topic import TopicState
from topics.engine.context import Context


class _Followed:
    __slots__ = ("group", "pending", "seq", "topic", "users")

    def __init__(self, topic: TopicState, group: int) -> None:
        self.topic = topic
        self.group = group
        self.users = 0
        self.seq = 0
        self.pending: deque[tuple[int, int]] = deque()  # log position, and the head once that is synced


class Synced:
    def __init__(self, context: Context, moved: Callable[[TopicState], None]) -> None:
        self._ctx = context
        self._moved = moved
        self._followed: dict[int, _Followed] = {}
        context.commit.on_synced.append(self._synced)

    def follow(self, topic: TopicState) -> None:
        followed = self._followed.get(topic.id)
        if followed is None:
            followed = self._followed[topic.id] = _Followed(topic, self._ctx.group_of(topic.id))
            self._note(followed)
        followed.users += 1

    def unfollow(self, topic: TopicState) -> None:
        followed = self._followed[topic.id]
        followed.users -= 1
        if not followed.users:
            del self._followed[topic.id]

    def published(self, topic: TopicState) -> None:
        followed = self._followed.get(topic.id)
        if followed is not None:
            self._note(followed)

    def limit(self, topic: TopicState) -> int:
        """The highest seq a strong watcher of a followed topic may see now."""
        if topic.config.is_fsync or topic.config.is_ephemeral:
            return topic.head
        return self._followed[topic.id].seq

    def _note(self, followed: _Followed) -> None:
        commit = self._ctx.commit
        written = commit.written_lsn(followed.group)
        if commit.synced_lsn(followed.group) >= written:
            followed.seq = followed.topic.head
            followed.pending.clear()
            return
        pending = followed.pending
        if pending and pending[-1][0] == written:
            pending.pop()
        pending.append((written, followed.topic.head))

    def _synced(self, group: int, lsn: int) -> None:
        for followed in list(self._followed.values()):
            pending = followed.pending
            if followed.group != group or not pending or pending[0][0] > lsn:
                continue
            while pending and pending[0][0] <= lsn:
                followed.seq = pending.popleft()[1]
            self._moved(followed.topic)
