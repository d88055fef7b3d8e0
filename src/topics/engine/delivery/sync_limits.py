"""SyncLimits: up to which seq a topic is covered by a sync, for strong watchers (`docs/spec/semantics.md#sec-14-2`).

Only topics that somebody watches strongly are followed. A publication is covered once everything is synced that the
groups it lives in had written by then: its own group, and, since a copy has no frames of its own, those of the topics
it may have been copied from. Always holds: `limit` never exceeds what a power cut leaves, except for what came from
`ephemeral` topics, where strong equals eventual."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from topics.core.topic import TopicLog
from topics.engine.context import Context

Needs = dict[int, int]
"""By group: the log position that has to be synced."""


class _Followed:
    __slots__ = ("pending", "seq", "topic", "users")

    def __init__(self, topic: TopicLog) -> None:
        self.topic = topic
        self.users = 0
        self.seq = 0
        self.pending: deque[tuple[Needs, int]] = deque()  # and the head once they are met


class SyncLimits:
    def __init__(self, context: Context, moved: Callable[[TopicLog], None]) -> None:
        self._ctx = context
        self._moved = moved
        self._followed: dict[int, _Followed] = {}
        context.commit.on_synced.append(self._synced)

    def follow(self, topic: TopicLog) -> None:
        followed = self._followed.get(topic.id)
        if followed is None:
            followed = self._followed[topic.id] = _Followed(topic)
            self._note(followed)
        followed.users += 1

    def unfollow(self, topic: TopicLog) -> None:
        followed = self._followed[topic.id]
        followed.users -= 1
        if not followed.users:
            del self._followed[topic.id]

    def published(self, topic: TopicLog) -> None:
        followed = self._followed.get(topic.id)
        if followed is not None:
            self._note(followed)

    def limit(self, topic: TopicLog) -> int:
        """The highest seq a strong watcher of a followed topic may see now."""
        return topic.head if topic.config.is_ephemeral else self._followed[topic.id].seq

    def _note(self, followed: _Followed) -> None:
        needs = self._needs(followed.topic)
        pending = followed.pending
        if not needs and not pending:
            followed.seq = followed.topic.head
            return
        if pending and pending[-1][0] == needs:
            pending.pop()
        pending.append((needs, followed.topic.head))

    def _needs(self, topic: TopicLog) -> Needs:
        """What must be synced before all that is published now is safe; what is safe already is left out."""
        commit, needs = self._ctx.commit, Needs()
        for one in self._origins(topic):
            if not one.config.is_fsync and not one.config.is_ephemeral:  # the one is synced before it is published
                group = self._ctx.group_of(one.id)
                written = commit.written_lsn(group)
                if commit.synced_lsn(group) < written:
                    needs[group] = written
        return needs

    def _origins(self, topic: TopicLog) -> list[TopicLog]:
        """The topic, and all that its records may have been copied from."""
        origins = [topic]
        if topic.id not in self._ctx.fed:
            return origins
        state, seen = self._ctx.state, {topic.id}
        for one in origins:
            sources = {router.source_id for router in state.routers.into(one.id)} - seen
            seen |= sources
            origins += [state.by_id[source] for source in sources if source in state.by_id]
        return origins

    def _synced(self, group: int, lsn: int) -> None:
        for followed in list(self._followed.values()):
            pending, moved = followed.pending, False
            while pending and self._is_met(pending[0][0]):
                followed.seq, moved = pending.popleft()[1], True
            if moved:
                self._moved(followed.topic)

    def _is_met(self, needs: Needs) -> bool:
        return all(self._ctx.commit.synced_lsn(group) >= lsn for group, lsn in needs.items())
