"""Queries: state and listing of topics, at `now`, after their floors are settled.

Always holds: an answer that shows a floor is given once that floor is logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from topics.core.describe import names_from, report, summary
from topics.core.topic import TopicState
from topics.engine.context import Context
from topics.engine.settling import Settling
from topics.engine.ticket import Ticket, chain, gathered, resolved
from topics.model import results


class Queries:
    def __init__(self, context: Context, settling: Settling) -> None:
        self._ctx = context
        self._settling = settling
        self.queue_counters: Callable[[TopicState], results.QueueCounters | None] = lambda _: None
        """Counters of a queue topic; set by the queue service."""
        self.bring_up_to_date: Callable[[TopicState], Ticket[None] | None] = lambda _: None
        """Step the routers that feed a topic; None if there is nothing to do. Set by the router service."""

    def state(self, topic: TopicState, *, touch: bool) -> Ticket[results.TopicState]:
        feeding = self.bring_up_to_date(topic) if topic.id in self._ctx.fed else None
        if feeding is not None:
            return chain(feeding, lambda _: self._settled_state(topic, touch=touch))
        return self._settled_state(topic, touch=touch)

    def _settled_state(self, topic: TopicState, *, touch: bool) -> Ticket[results.TopicState]:
        self._ctx.check_exists(topic)
        return chain(self._settling.settle_exactly(topic), lambda _: self._shown_state(topic, touch=touch))

    def _shown_state(self, topic: TopicState, *, touch: bool) -> Ticket[results.TopicState]:
        state = self._state(topic, touch=touch)
        sure = self._settling.shown(topic, state.earliest_seq)
        return chain(sure, lambda earliest: resolved(_with_earliest(state, earliest)))

    def _state(self, topic: TopicState, *, touch: bool) -> results.TopicState:
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
        ready = self._settling.settle_possible(topics)
        return chain(ready, lambda _: self._shown_page(topics, last, touch=touch))

    def _shown_page(
        self, topics: list[TopicState], last: str | None, *, touch: bool
    ) -> Ticket[tuple[list[results.TopicSummary], str | None]]:
        alive = [topic for topic in topics if self._ctx.state.by_id.get(topic.id) is topic]
        page = self._summaries(alive, touch=touch)
        sure = [self._settling.shown(*shown) for shown in zip(alive, (one.earliest_seq for one in page), strict=True)]
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

    def _summaries(self, topics: list[TopicState], *, touch: bool) -> list[results.TopicSummary]:
        now = self._ctx.clock.now_ms()
        if touch:
            for topic in topics:
                topic.touch(now, read=False)
        return [summary(topic, now=now) for topic in topics]


Shown = TypeVar("Shown", results.TopicState, results.TopicSummary)


def _with_earliest(shown: Shown, earliest_seq: int) -> Shown:
    return shown if shown.earliest_seq == earliest_seq else msgspec.structs.replace(shown, earliest_seq=earliest_seq)
