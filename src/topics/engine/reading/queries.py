"""Describe: a topic's state and the list of topics, as the contract shows them. Retention at `now` has run before.

Queries: state and listing of topics, at `now`, after their floors are settled.

Always holds: an answer that shows a floor is given once that floor is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.delivery.priority import effective_priority
from topics.engine.floor_log import FloorLog
from topics.engine.ticket import Ticket, chain, gathered, resolved
from topics.model import results
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
    )


def names_from(state: State, *, prefix: str = "", after: str | None = None) -> Iterator[str]:
    """Names with a prefix, in byte order (names are ASCII), behind `after`. Do not create or delete meanwhile."""
    start = prefix if after is None else max(prefix, after)
    for name in state.topics.irange(start, inclusive=(after is None or start != after, True)):
        if not name.startswith(prefix):
            break
        yield name


class Queries:
    def __init__(self, context: Context, floor_log: FloorLog) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self.queue_counters: Callable[[TopicLog], results.QueueCounters | None] = lambda _: None
        """Counters of a queue topic; set by the queue service."""
        self.bring_up_to_date: Callable[[TopicLog], Ticket[None] | None] = lambda _: None
        """Step the routers that feed a topic; None if there is nothing to do. Set by the router service."""

    def state(self, topic: TopicLog, *, touch: bool) -> Ticket[results.TopicState]:
        feeding = self.bring_up_to_date(topic) if topic.id in self._ctx.fed else None
        if feeding is not None:
            return chain(feeding, lambda _: self._state_with_floors_logged(topic, touch=touch))
        return self._state_with_floors_logged(topic, touch=touch)

    def _state_with_floors_logged(self, topic: TopicLog, *, touch: bool) -> Ticket[results.TopicState]:
        self._ctx.check_exists(topic)
        return chain(self._floor_log.ensure_logged_exactly(topic), lambda _: self._shown_state(topic, touch=touch))

    def _shown_state(self, topic: TopicLog, *, touch: bool) -> Ticket[results.TopicState]:
        state = self._state(topic, touch=touch)
        sure = self._floor_log.shown(topic, state.earliest_seq)
        return chain(sure, lambda earliest: resolved(_with_earliest(state, earliest)))

    def _state(self, topic: TopicLog, *, touch: bool) -> results.TopicState:
        self._ctx.check_exists(topic)
        now = self._ctx.clock.now_ms()
        if touch:
            topic.touch(now, read=True)
        return report(topic, now=now, queue=self.queue_counters(topic) if topic.config.is_queue else None)

    def page(
        self, *, prefix: str, after: str | None, page_size: int, touch: bool, visible: Callable[[str], bool]
    ) -> Ticket[tuple[list[results.TopicSummary], str | None]]:
        """Topics by name behind `after`, at most a page of visible ones, and the last name of the page if there are
        more: its topic, and all others of the page, may go while it is settled. A topic whose floors cannot be logged
        is listed as it was, because one must not cost the whole list."""
        names, more = self._names(prefix=prefix, after=after, page_size=page_size, visible=visible)
        topics = [self._ctx.state.topics[name] for name in names]
        last = names[-1] if more else None
        ready = self._floor_log.ensure_logged_if_possible(topics)
        return chain(ready, lambda _: self._shown_page(topics, last, touch=touch))

    def _shown_page(
        self, topics: list[TopicLog], last: str | None, *, touch: bool
    ) -> Ticket[tuple[list[results.TopicSummary], str | None]]:
        alive = [topic for topic in topics if self._ctx.state.by_id.get(topic.id) is topic]
        page = self._summaries(alive, touch=touch)
        sure = [self._floor_log.shown(*shown) for shown in zip(alive, (one.earliest_seq for one in page), strict=True)]
        return chain(
            gathered(sure),
            lambda _: resolved(
                ([_with_earliest(one, floor.result()) for one, floor in zip(page, sure, strict=True)], last)
            ),
        )

    def _names(
        self, *, prefix: str, after: str | None, page_size: int, visible: Callable[[str], bool]
    ) -> tuple[list[str], bool]:
        page: list[str] = []
        for name in names_from(self._ctx.state, prefix=prefix, after=after):
            if not visible(name):
                continue
            if len(page) == page_size:
                return page, True
            page.append(name)
        return page, False

    def _summaries(self, topics: list[TopicLog], *, touch: bool) -> list[results.TopicSummary]:
        now = self._ctx.clock.now_ms()
        if touch:
            for topic in topics:
                topic.touch(now, read=False)
        return [summary(topic, now=now) for topic in topics]


Shown = TypeVar("Shown", results.TopicState, results.TopicSummary)


def _with_earliest(shown: Shown, earliest_seq: int) -> Shown:
    return shown if shown.earliest_seq == earliest_seq else msgspec.structs.replace(shown, earliest_seq=earliest_seq)
