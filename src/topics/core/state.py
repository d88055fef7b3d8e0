"""State: all topics of an engine, and the totals over them.

What always holds: `topics` has exactly one live instance per name, the one with the highest id; ids and epochs only
grow. An older instance of a name exists only during recovery, when its deletion lies in
another log group (`shadowed`). Owned by the engine; changed by `core.apply` only.
"""

from __future__ import annotations

from sortedcontainers import SortedDict

from topics.core.reading.recent import RecentCache
from topics.core.router import RouterTable
from topics.core.topic import TopicLog, Totals
from topics.errors import TopicNotFound


class State:
    __slots__ = (
        "by_id",
        "fed",
        "last_epoch",
        "next_topic_id",
        "recent",
        "routers",
        "schedules",
        "shadowed",
        "staged_bytes",
        "topics",
        "totals",
    )

    def __init__(self, *, recent_bytes: int = 0) -> None:
        self.topics: SortedDict[str, TopicLog] = SortedDict()
        self.by_id: dict[int, TopicLog] = {}
        self.shadowed: dict[int, TopicLog] = {}  # older instances of a name whose deletion was not seen yet
        self.fed: set[int] = set()  # topics that a router feeds: their ceiling holds in every class
        self.routers = RouterTable(self.fed)
        self.schedules: SortedDict[str, TopicLog] = SortedDict()  # by name: the topic that has it
        self.next_topic_id = 1
        self.last_epoch = 0  # the highest that was given
        self.totals = Totals()
        self.staged_bytes = 0  # of writes being committed
        self.recent = RecentCache(recent_bytes)

    @property
    def total_bytes(self) -> int:
        """Live bytes of all topics."""
        return self.totals.bytes

    def topic(self, name: str) -> TopicLog:
        """The live instance of a name; raises TopicNotFound."""
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def add(self, topic: TopicLog) -> None:
        """A new or recovered instance."""
        self.by_id[topic.id] = topic
        self.next_topic_id = max(self.next_topic_id, topic.id + 1)
        self.last_epoch = max(self.last_epoch, topic.epoch)
        topic.totals = self.totals
        self.totals.bytes += topic.bytes
        known = self.topics.get(topic.name)
        older = topic if known is not None and known.id > topic.id else known
        if older is not None:
            self.shadowed[older.id] = older
        if older is not topic:
            self.topics[topic.name] = topic
        self.schedules.update(dict.fromkeys(topic.schedules, topic))

    def remove(self, topic: TopicLog) -> None:
        """An instance is gone; its id is never used again."""
        del self.by_id[topic.id]
        self.routers.drop_topic(topic.id)
        for name in topic.schedules:
            if self.schedules.get(name) is topic:
                del self.schedules[name]
        self.totals.bytes -= topic.bytes
        topic.totals = Totals()  # whoever still holds it changes nothing here
        self.recent.drop_topic(topic.id)
        if self.shadowed.pop(topic.id, None) is not None:
            return
        del self.topics[topic.name]
        heirs = [other for other in self.shadowed.values() if other.name == topic.name]
        if heirs:
            heir = max(heirs, key=lambda other: other.id)
            del self.shadowed[heir.id]
            self.topics[heir.name] = heir
