"""TopicSurvey: what a scrape counts per topic, queue and router, one topic at a time.

The topics of a server are looked at in several steps, with other requests served in between, so nothing here runs over
all of them. Sums are over all topics; names are shown only to whom they are permitted, and at most `shown_max` of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from topics.api.metrics.exposition import Family, gauge, label, labelled
from topics.core.reading.named_cursors import lag_of
from topics.core.router import RouterProgress
from topics.core.topic import TopicLog
from topics.engine.engine import Engine
from topics.model.config import DURABILITIES
from topics.model.results import QueueCounters
from topics.model.router import RouterDef

SEGMENTS_A_TOPIC = 16
"""Looking at so many segments or cursors costs about as much as looking at a topic."""


class TopicSurvey:
    def __init__(self, *, shown_max: int, permits: Callable[[str], bool], permits_router: Callable[[RouterDef], bool]):
        self._shown_max = shown_max
        self._permits = permits
        self._permits_router = permits_router
        self.topics = self.records = self.bytes = self.queues = self.leases = self.routers = 0
        self.by_class: Counter[str] = Counter()
        self.segments: Counter[str] = Counter()
        self.segment_bytes: Counter[str] = Counter()
        self._shown = self._routers_shown = 0
        self._truncated = False
        by_topic = "topics_topic_"
        self.head_seq = Family(by_topic + "head_seq", "gauge", "highest seq")
        self.earliest_seq = Family(by_topic + "earliest_seq", "gauge", "first live seq")
        self.records_live = Family(by_topic + "records_live", "gauge", "live records")
        self.bytes_live = Family(by_topic + "bytes_live", "gauge", "live bytes")
        self.queue_ready = Family(by_topic + "queue_ready", "gauge", "ready jobs")
        self.queue_in_flight = Family(by_topic + "queue_in_flight", "gauge", "leased jobs")
        self.queue_delayed = Family(by_topic + "queue_delayed", "gauge", "jobs that wait for their time")
        self.queue_paused = Family(by_topic + "queue_paused", "gauge", "1 while the hand-out is stopped")
        self.queue_oldest = Family(by_topic + "queue_oldest_age_seconds", "gauge", "age of the oldest undone job")
        self.queue_dead = Family(by_topic + "queue_dead_lettered_total", "counter", "jobs that became dead letters")
        self.cursor_records = Family("topics_cursor_lag_records", "gauge", "records a reader has not dealt with yet")
        self.cursor_seconds = Family("topics_cursor_lag_seconds", "gauge", "age of the oldest of these records")
        self._readers_shown = 0
        self.router_records = Family("topics_router_lag_records", "gauge", "records not copied yet")
        self.router_seconds = Family("topics_router_lag_seconds", "gauge", "age of the oldest record not copied yet")
        self.router_forwarded = Family("topics_router_forwarded_total", "counter", "records copied or given up as lost")

    def look_at(self, topic: TopicLog, engine: Engine) -> None:
        self.topics += 1
        self.records += topic.count
        self.bytes += topic.bytes
        self.by_class[topic.config.durability] += 1
        for segment in topic.sealed:
            self.segments[segment.view.tier] += 1
            self.segment_bytes[segment.view.tier] += segment.view.data_len
        counters = engine.queues.counters(topic)
        if counters is not None:
            self.leases += counters.in_flight
            self.queues += 1
        if self._permits(topic.name):
            if self._shown < self._shown_max:
                self._shown += 1
                self._show(topic, engine, counters)
            else:
                self._truncated = True
        for router in engine.state.routers.from_source(topic.id):
            self._look_at_router(router, topic, engine)

    def shows(self, topic: TopicLog) -> bool:
        """Whether the topic, looked at next, has samples of its own."""
        return self._shown < self._shown_max and self._permits(topic.name)

    def _show(self, topic: TopicLog, engine: Engine, counters: QueueCounters | None) -> None:
        labels = label(topic=topic.name)
        self.head_seq.add(labels, topic.head)
        self.earliest_seq.add(labels, engine.floor_log.durable_earliest(topic))
        self.records_live.add(labels, topic.count)
        self.bytes_live.add(labels, topic.bytes)
        if counters is not None:
            assert topic.queue is not None
            self.queue_ready.add(labels, counters.ready)
            self.queue_in_flight.add(labels, counters.in_flight)
            self.queue_delayed.add(labels, counters.delayed)
            self.queue_paused.add(labels, int(topic.queue.rules.paused))
            self.queue_dead.add(labels, counters.dead_lettered)
            if counters.oldest_ms is not None:
                self.queue_oldest.add(labels, counters.oldest_ms / 1000)
        self._show_readers(topic, engine)

    def _show_readers(self, topic: TopicLog, engine: Engine) -> None:
        """Its named cursors, queue and routers, as the list of readers has them (`docs/spec/readers.md#sec-1-7`)."""
        routers = engine.state.routers

        def is_seen(name: str) -> bool:
            router = routers.get(name)
            return router is not None and self._permits_router(router.definition)

        for reader in engine.cursors.of_topic(topic.name, is_seen, size=self._shown_max - self._readers_shown):
            labels = label(topic=topic.name, cursor=reader.cursor, kind=reader.kind)
            self.cursor_records.add(labels, reader.lag.records)
            self.cursor_seconds.add(labels, reader.lag.ms / 1000)
            self._readers_shown += 1

    def _look_at_router(self, router: RouterProgress, source: TopicLog, engine: Engine) -> None:
        self.routers += 1
        if self._routers_shown >= self._shown_max or not self._permits_router(router.definition):
            return
        self._routers_shown += 1
        lag = lag_of(source, router.cursor, now=engine.context.clock.now_ms())
        labels = label(router=router.name)
        self.router_records.add(labels, lag.records)
        self.router_seconds.add(labels, lag.ms / 1000)
        self.router_forwarded.add(labels, router.forwarded_total)

    # --- families -------------------------------------------------------------------------------------------------

    def first_families(self) -> list[Family]:
        """Those that the contract has first, in its order."""
        classes = [(name, float(self.by_class[name])) for name in DURABILITIES]
        return [
            gauge("topics_topics", "number of topics", self.topics),
            labelled("topics_topics_by_class", "gauge", "topics by durability class", "class", classes),
            gauge("topics_routers", "number of routers", self.routers),
            gauge("topics_records_live", "live records, all topics", self.records),
            gauge("topics_bytes_live", "live bytes, all topics", self.bytes),
            self.head_seq,
            self.earliest_seq,
            self.records_live,
            self.bytes_live,
            self.queue_ready,
            self.queue_in_flight,
            gauge(
                "topics_topic_metrics_truncated",
                "1 if per-topic families stop before the last topic",
                int(self._truncated),
            ),
            gauge("topics_queue_topics", "queue topics", self.queues),
            gauge("topics_queue_leases_in_flight", "unexpired leases", self.leases),
        ]

    def further_families(self) -> list[Family]:
        tiers = ("hot", "cold")
        return [
            self.queue_delayed,
            self.queue_paused,
            self.queue_oldest,
            self.queue_dead,
            self.cursor_records,
            self.cursor_seconds,
            self.router_records,
            self.router_seconds,
            self.router_forwarded,
            labelled("topics_segments", "gauge", "sealed segments", "tier", [(t, self.segments[t]) for t in tiers]),
            labelled(
                "topics_segment_bytes",
                "gauge",
                "bytes of sealed segments",
                "tier",
                [(tier, self.segment_bytes[tier]) for tier in tiers],
            ),
        ]


def cost_of(topic: TopicLog) -> int:
    """Of looking at a topic, in the cost of one that is small."""
    return 1 + (len(topic.sealed) + len(topic.cursors)) // SEGMENTS_A_TOPIC
