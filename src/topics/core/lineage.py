"""Lineage: which life of a topic a position belongs to (`docs/spec/semantics.md#sec-3-1` and
`docs/spec/semantics.md#sec-5`).

A topic's epoch is unlike that of every other topic, in every data directory. A copy of a directory that is opened
forks: its topics get new epochs, and the old ones become ancestors, each valid up to the head that the copy had. Always
holds: `(epoch_of(topic, seq), seq)` names one record, here and in every copy that has it; ancestors are sorted by head.
`is_foreign` is the one place that decides whether a position is of another life; every door comes here, by `core.read`.
"""

from __future__ import annotations

from typing import Final

from topics.core.state import State
from topics.core.topic import TopicLog
from topics.model.ops import Fork, HeadMark
from topics.model.position import Position

EPOCH_CHANCE_BITS: Final = 11
"""Beside 42 bits of milliseconds, which last until 2109: an epoch is exact in JSON readers that keep 53 bits."""
ANCESTORS_MAX: Final = 32
"""Of a topic, the newest; a position of an older one is foreign."""


def new_epoch(state: State, *, now: int, chance: int) -> int:
    """An epoch that nobody has: `chance` is random, for directories that make a topic in the same millisecond."""
    drawn = (now << EPOCH_CHANCE_BITS) | (chance & ((1 << EPOCH_CHANCE_BITS) - 1))
    state.last_epoch = max(drawn, state.last_epoch + 1)
    return state.last_epoch


def epoch_of(topic: TopicLog, seq: int) -> int:
    """The epoch under which this seq was written, or will be."""
    for epoch, head in topic.ancestors:
        if seq <= head:
            return epoch
    return topic.epoch


def is_foreign(topic: TopicLog, seq: int, epoch: int | None) -> bool:
    """Is this a position of another life? Without an epoch only the head can tell."""
    if epoch is None or epoch == topic.epoch:
        return seq > topic.head
    return not any(epoch == ancestor and seq <= head for ancestor, head in topic.ancestors)


def epoch_to_read(topic: TopicLog, start: Position) -> int:
    """What a reader that keeps its place on the server begins with: the topic's own epoch where the position is one of
    the topic, else the foreign one, which its first read announces."""
    if start.epoch is None or not is_foreign(topic, start.seq, start.epoch):
        return topic.epoch
    return start.epoch


def decide_fork(state: State, topic: TopicLog, *, now: int, chance: int) -> HeadMark:
    """The directory is a copy: what was written up to here is shared with another one, and nothing from here on."""
    fork = Fork(new_epoch(state, now=now, chance=chance), topic.head)
    return HeadMark(topic_id=topic.id, ceiling=topic.ceiling, fork=fork)


def apply_fork(state: State, topic: TopicLog, fork: Fork) -> None:
    state.last_epoch = max(state.last_epoch, fork.epoch)
    if fork.epoch <= topic.epoch:
        return  # a snapshot had it already
    topic.ancestors = with_ancestor(topic.ancestors, topic.epoch, fork.head)
    topic.epoch = fork.epoch


def with_ancestor(ancestors: tuple[tuple[int, int], ...], epoch: int, head: int) -> tuple[tuple[int, int], ...]:
    """An epoch that has no record of its own is in no position that could be ours, so it is not kept."""
    if ancestors and ancestors[-1][1] >= head:
        return ancestors
    return (*ancestors, (epoch, head))[-ANCESTORS_MAX:]
