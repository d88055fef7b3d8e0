"""Describe: a topic's state and the list of topics, as the contract shows them. Retention at `now` has run before."""

from __future__ import annotations

from collections.abc import Iterator

from topics.core.priority import effective_priority
from topics.core.state import State
from topics.core.topic import TopicState
from topics.model.results import QueueCounters, TopicSummary
from topics.model.results import TopicState as TopicReport


def report(topic: TopicState, *, now: int, queue: QueueCounters | None = None) -> TopicReport:
    return TopicReport(
        topic=topic.name,
        type=topic.config.type,
        head_seq=topic.head,
        earliest_seq=topic.earliest_seq,
        next_seq=topic.head + 1,
        count=topic.count,
        bytes=topic.bytes,
        config=topic.config,
        effective_priority=effective_priority(topic, now),
        last_write_ts=topic.last_write_ts,
        last_read_ts=topic.last_read_ts,
        queue=queue,
    )


def summary(topic: TopicState, *, now: int) -> TopicSummary:
    return TopicSummary(
        topic=topic.name,
        head_seq=topic.head,
        earliest_seq=topic.earliest_seq,
        count=topic.count,
        bytes=topic.bytes,
        durable=topic.config.durable,
        effective_priority=effective_priority(topic, now),
    )


def names_from(state: State, *, prefix: str = "", after: str | None = None) -> Iterator[str]:
    """Names with a prefix, in byte order (names are ASCII), behind `after`. Do not create or delete meanwhile."""
    start = prefix if after is None else max(prefix, after)
    for name in state.topics.irange(start, inclusive=(after is None or start != after, True)):
        if not name.startswith(prefix):
            break
        yield name
