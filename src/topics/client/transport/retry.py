"""Retry: whether a failed call is tried again, and when. Pure but for one log line: time and chance come in.

A call is repeated if the server cannot have seen it, if it said 429 or 503 (it did nothing), or if doing it twice does
no harm. Caps on what exists do not go away by waiting and are reported at once."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from topics.errors import TopicsError, Unreachable

log = logging.getLogger("topics.client")

TELL_AFTER_S = 1.0  # of failing in vain; whoever waits for a call learns why
_RETRIED = frozenset((429, 503))
_PASSING_CAPS = frozenset(
    ("max_inflight_per_key", "max_sse_connections", "max_sse_connections_per_key", "max_sse_connections_per_client")
)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Pauses double from `first_s` to `longest_s`, each shortened by chance; no pause ends after `total_s`."""

    total_s: float = 30.0
    first_s: float = 0.02
    longest_s: float = 2.0


class Attempts:
    """The tries of one call."""

    __slots__ = ("_deadline", "_pause_s", "_policy", "_tell_at")

    def __init__(self, policy: RetryPolicy, *, now: float) -> None:
        self._policy = policy
        self._deadline = now + policy.total_s
        self._pause_s = policy.first_s
        self._tell_at = now + TELL_AFTER_S

    def pause_s(self, error: TopicsError, *, repeatable: bool, now: float, chance: Callable[[], float]) -> float | None:
        """How long to wait before the next try; None: give up. `chance` gives 0..1."""
        if not may_repeat(error, repeatable=repeatable):
            return None
        pause_s = self._pause_s * (0.5 + chance() / 2)
        self._pause_s = min(self._pause_s * 2, self._policy.longest_s)
        if not isinstance(error, Unreachable) and error.retry_after_s is not None:
            pause_s = max(pause_s, error.retry_after_s)
        return pause_s if now + pause_s <= self._deadline else None

    def tell(self, error: TopicsError, *, now: float) -> None:
        """Say once that the server is away, unless the call is about to say so itself by failing."""
        if self._tell_at <= now < self._deadline - TELL_AFTER_S:
            self._tell_at = float("inf")
            log.warning("%s; trying again until it answers%s", error, self._limit())

    def _limit(self) -> str:
        return "" if self._deadline == float("inf") else f", for {self._policy.total_s:g} s at most"


def may_repeat(error: TopicsError, *, repeatable: bool) -> bool:
    if isinstance(error, Unreachable):
        return repeatable or not error.sent
    if error.status not in _RETRIED:
        return False
    limit = (error.detail or {}).get("limit")
    return limit is None or limit in _PASSING_CAPS
