"""Effective priority: the base of `docs/spec/delivery.md#sec-3`, without ageing, which belongs to the scheduler.

A manual priority replaces the recency bonus. The value is never stored: it is a function of the config, the last
consumption and `now`."""

import math

from topics import limits
from topics.core.topic import TopicLog


def base_priority(topic: TopicLog, now: int) -> float:
    config = topic.config
    if config.priority is not None:
        return limits.EFFECTIVE_PRIORITY(config.priority)
    if not config.auto_priority or topic.last_consumed is None:
        return 0
    idle_ms = now - topic.last_consumed
    if idle_ms >= limits.PRIORITY_AUTO_FLOOR_MS:
        return 0
    return float(limits.PRIORITY_AUTO_MAX) * math.pow(2.0, -idle_ms / limits.PRIORITY_HALF_LIFE_MS)


def effective_priority(topic: TopicLog, now: int) -> int:
    """Rounded to the nearest integer, halves upwards."""
    return int(base_priority(topic, now) + 0.5) if topic.config.priority is None else int(base_priority(topic, now))
