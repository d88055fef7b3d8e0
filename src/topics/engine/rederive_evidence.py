"""Evidence: what the copies of an `exactly_once` router say about themselves (semantics.md section 15.5).

Used at a start where the mapping of copies is not proven: copies are in source order, so the newest one in the
destination tells how far the router had come, and it does not repeat what is there."""

from __future__ import annotations

import msgspec

from topics.core.pick import PickWalk
from topics.core.recent import RecentCache
from topics.core.router import Router
from topics.core.topic import TopicState
from topics.engine.rederive_source import Read
from topics.model.payload import split_blob

NO_CACHE = RecentCache(0)


def newest_copied(topic: TopicState, router: Router, *, from_seq: int, read: Read) -> int:
    """The highest source seq of which the destination holds a copy at or above `from_seq`; 0 if it holds none."""
    walk = PickWalk(topic, range(max(from_seq, topic.earliest_seq), topic.head + 1), NO_CACHE)
    while (extent := walk.need()) is not None:
        walk.feed(read(topic, extent))
    return max((_source_seq(run.record(at).blob, router) for run, at in walk.found.values()), default=0)


class _Evidence(msgspec.Struct):
    router: str
    source_topic_id: int
    source_seq: int


class _Meta(msgspec.Struct):
    evidence: _Evidence = msgspec.field(name="_topics_router")


_decode = msgspec.json.Decoder(_Meta).decode


def _source_seq(blob: bytes, router: Router) -> int:
    """Which source record this is a copy of, if the router made it; else 0."""
    if b"_topics_router" not in blob:
        return 0
    try:
        evidence = _decode(split_blob(blob)[1] or b"{}").evidence
    except (msgspec.DecodeError, ValueError):
        return 0
    ours = evidence.router == router.name and evidence.source_topic_id == router.source_id
    return evidence.source_seq if ours else 0
