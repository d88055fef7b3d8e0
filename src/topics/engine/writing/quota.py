"""Quota: a write is refused for the bytes that are live now, not for those that retention has taken
(`docs/spec/http-api.md#sec-9`).

Floors that TTL or a byte cap asks for move when somebody looks, or with the sweep; until then their bytes count. So a
write that finds no room looks first: at its own topic always, at the others as often as their number allows. So does a
router's step. Always holds: test and reservation stay one step, the write that is tried again is tested again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.floor_log import FloorLog
from topics.engine.ticket import Ticket, failed, forward
from topics.errors import Throttled

T = TypeVar("T")

LIMIT = "max_total_bytes"
TOPICS_PER_MS = 30
"""So that looking at all of them takes a small part of the time, however many writes are refused."""


class QuotaTicket(Ticket[T]):
    """The ticket of a write that waits until what is due has gone."""

    __slots__ = ()


class Quota:
    def __init__(self, context: Context, floor_log: FloorLog) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._look_again_ms = 0

    def within(self, name: str, write: Callable[[], Ticket[T]]) -> Ticket[T]:
        """The write, tried a second time if room was made after the first."""
        try:
            ticket = write()
        except Throttled as error:
            ticket = failed(error)
        if ticket.done:
            return self._try_again(name, write) if _is_over(ticket) else ticket
        target: Ticket[T] = Ticket()
        ticket.then(partial(self._finish, name, write, target), target.abandon)
        return target

    def _finish(self, name: str, write: Callable[[], Ticket[T]], target: Ticket[T], ticket: Ticket[T]) -> None:
        forward(self._try_again(name, write) if _is_over(ticket) else ticket, target)

    def _try_again(self, name: str, write: Callable[[], Ticket[T]]) -> Ticket[T]:
        """Nothing may be due: then the second try costs little, and is refused like the first."""
        target: QuotaTicket[T] = QuotaTicket()
        self.make_room(name).then(lambda _: forward(_attempt(write), target), target.abandon)
        return target

    def make_room(self, name: str) -> Ticket[None]:
        """Have what is due go, as far as that works and does not take long."""
        return self._floor_log.log_soon(list(self._due(name)))

    def _due(self, name: str) -> Iterator[TopicLog]:
        topics = self._ctx.state.topics
        own, now = topics.get(name), self._ctx.clock.running_ms()
        if own is not None and self._is_due(own):
            yield own
        if now >= self._look_again_ms:
            self._look_again_ms = now + len(topics) // TOPICS_PER_MS
            yield from (topic for topic in topics.values() if topic is not own and self._is_due(topic))

    def _is_due(self, topic: TopicLog) -> bool:
        config = topic.config
        return bool(config.ttl_ms or config.cap_bytes) and not self._floor_log.is_logged(topic)


def _attempt(write: Callable[[], Ticket[T]]) -> Ticket[T]:
    try:
        return write()
    except Exception as error:
        return failed(error)


def _is_over(ticket: Ticket[Any]) -> bool:
    error = ticket.error
    return isinstance(error, Throttled) and error.detail is not None and error.detail.get("limit") == LIMIT
