"""Queries: the state of a topic and the list of topics, as the contract shows them.

Retention at `now` has run before. Always holds: an answer that shows a floor is given once that floor is logged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

import msgspec

from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.delivery.ready import effective_priority
from topics.engine.floor_log import FloorLog
from topics.engine.queues.queues import Queues
from topics.engine.routers.forwarding import Forwarding
from topics.engine.ticket import Ticket, chain, gathered, resolved
from topics.model.results import QueueCounters, TopicState, TopicSummary


def report(topic: TopicLog, *, now: int, queue: QueueCounters | None = None) -> TopicState:
    return TopicState(
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


def summary(topic: TopicLog, *, now: int) -> TopicSummary:
    return TopicSummary(
        topic=topic.name,
        head_seq=topic.head,
        earliest_seq=topic.earliest_seq,
        count=topic.count,
        bytes=topic.bytes,
        durable=topic.config.durable,
        effective_priority=effective_priority(topic, now),
        type=topic.config.type,
        last_write_ts=topic.last_write_ts,
    )


def names_from(state: State, *, prefix: str = "", after: str | None = None) -> Iterator[str]:
    """Names with a prefix, in byte order (names are ASCII), after `after`. Do not create or delete meanwhile."""
    start = prefix if after is None else max(prefix, after)
    for name in state.topics.irange(start, inclusive=(after is None or start != after, True)):
        if not name.startswith(prefix):
            break
        yield name


class Queries:
    def __init__(self, context: Context, floor_log: FloorLog, forwarding: Forwarding, queues: Queues) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._forwarding = forwarding
        self._queues = queues

    def state(self, topic: TopicLog, *, touch: bool) -> Ticket[TopicState]:
        feeding = self._forwarding.bring_up_to_date(topic) or resolved(None)
        return chain(feeding, lambda _: self._state_with_floors_logged(topic, touch=touch))

    def _state_with_floors_logged(self, topic: TopicLog, *, touch: bool) -> Ticket[TopicState]:
        self._ctx.check_exists(topic)
        return chain(self._floor_log.ensure_logged_exactly(topic), lambda _: self._shown_state(topic, touch=touch))

    def _shown_state(self, topic: TopicLog, *, touch: bool) -> Ticket[TopicState]:
        self._ctx.check_exists(topic)
        now = self._ctx.clock.now_ms()
        if touch:
            topic.touch(now, read=True)
        state = report(topic, now=now, queue=self._queues.counters(topic))
        shown = self._floor_log.shown(topic, state.earliest_seq)
        return chain(shown, lambda earliest: resolved(_with_earliest(state, earliest)))

    def page(
        self, *, prefix: str, after: str | None, page_size: int, touch: bool, visible: Callable[[str], bool]
    ) -> Ticket[tuple[list[TopicSummary], str | None]]:
        """Topics by name after `after`, at most a page of visible ones, and the last name of the page if there are more
        (a topic of the page may be deleted while its floors are logged, so the name is not taken from the summaries). A
        topic whose floors cannot be logged is listed as it was: one topic must not cost the whole list."""
        found = list(islice(filter(visible, names_from(self._ctx.state, prefix=prefix, after=after)), page_size + 1))
        topics = [self._ctx.state.topics[name] for name in found[:page_size]]
        last = found[page_size - 1] if len(found) > page_size else None
        ready = self._floor_log.ensure_logged_if_possible(topics)
        return chain(ready, lambda _: self._shown_page(topics, last, touch=touch))

    def _shown_page(
        self, topics: list[TopicLog], last: str | None, *, touch: bool
    ) -> Ticket[tuple[list[TopicSummary], str | None]]:
        alive = [topic for topic in topics if self._ctx.exists(topic)]
        now = self._ctx.clock.now_ms()
        for topic in alive if touch else ():
            topic.touch(now, read=False)
        page = [summary(topic, now=now) for topic in alive]
        floors = [self._floor_log.shown(topic, one.earliest_seq) for topic, one in zip(alive, page, strict=True)]

        def listed(_: None) -> Ticket[tuple[list[TopicSummary], str | None]]:
            return resolved((list(map(_with_earliest, page, (floor.result() for floor in floors))), last))

        return chain(gathered(floors), listed)


Shown = TypeVar("Shown", TopicState, TopicSummary)


def _with_earliest(shown: Shown, earliest_seq: int) -> Shown:
    return shown if shown.earliest_seq == earliest_seq else msgspec.structs.replace(shown, earliest_seq=earliest_seq)
