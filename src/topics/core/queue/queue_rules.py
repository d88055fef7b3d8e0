"""Rules: what a queue's config says about retries and flow, and the token buckets that keep rates
(`docs/spec/semantics.md#sec-16-12` and `docs/spec/semantics.md#sec-16-13`).

Everything here is a function of its arguments: the same job fails into the same delay, live and in replay."""

from __future__ import annotations

from typing import Final

from topics.model.config import Rate, RetryRule, TopicConfig

_MASK: Final = 2**64 - 1


def retry_delay(policy: RetryRule, *, topic_id: int, seq: int, deliveries: int) -> int:
    """How long a job waits after its delivery number `deliveries` has failed."""
    try:
        plain = min(policy.base_ms * policy.factor ** max(deliveries - 1, 0), float(policy.max_ms))
    except OverflowError:
        plain = float(policy.max_ms)
    swing = 2.0 * _fraction(topic_id, seq, deliveries) - 1.0
    return max(round(plain * (1.0 + policy.jitter * swing)), 1)


def _fraction(topic_id: int, seq: int, deliveries: int) -> float:
    """From 0 to 1, spread evenly: splitmix64 of the three numbers."""
    mixed = (topic_id * 0x9E3779B97F4A7C15 + seq * 0xD1B54A32D192ED03 + deliveries * 0x8CB92BA72F3D8DD7) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) / 2.0**64


class QueueRules:
    """The part of a topic's config that decides about hand-outs."""

    __slots__ = (
        "by_tag",
        "concurrency",
        "deliveries_max",
        "fair",
        "paused",
        "rate",
        "retry",
        "serial",
        "tag_concurrency",
        "tag_rate",
        "topic_id",
    )

    def __init__(self, config: TopicConfig, topic_id: int) -> None:
        self.topic_id = topic_id
        self.retry = config.retry
        self.deliveries_max = config.max_deliveries if config.dead_letter is not None else 0
        self.serial = config.serial_by is not None
        self.fair = config.fair_by is not None
        self.concurrency = config.concurrency
        self.tag_concurrency = config.tag_concurrency
        self.rate = config.rate
        self.tag_rate = config.tag_rate
        self.paused = config.paused
        self.by_tag = self.serial or self.fair or self.tag_concurrency > 0 or self.tag_rate is not None

    def is_exhausted(self, deliveries: int) -> bool:
        return 0 < self.deliveries_max <= deliveries

    def delay(self, seq: int, deliveries: int) -> int:
        """After a failed delivery without a delay of its own; 0: ready at once."""
        if self.retry is None or self.is_exhausted(deliveries):
            return 0
        return retry_delay(self.retry, topic_id=self.topic_id, seq=seq, deliveries=deliveries)


class TokenBucket:
    """`jobs` tokens at most, refilled evenly at `jobs` per `per_ms`; it starts full."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: Rate, now: int) -> None:
        self._rate = rate
        self._tokens = float(rate.jobs)
        self._at = now

    def tokens(self, now: int) -> int:
        """Whole tokens there are. A clock that was turned back refills nothing."""
        rate = self._rate
        if now > self._at:
            self._tokens = min(self._tokens + (now - self._at) * rate.jobs / rate.per_ms, float(rate.jobs))
        self._at = now
        return int(self._tokens + 1e-9)

    def take(self, count: int = 1) -> None:
        self._tokens -= count

    def next_at(self) -> int:
        """When the next whole token is there."""
        missing = max(1.0 - self._tokens, 0.0)
        return self._at + max(int(missing * self._rate.per_ms / self._rate.jobs + 0.999999), 1 if missing else 0)
