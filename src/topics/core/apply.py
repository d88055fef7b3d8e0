"""Apply: the one way published state changes, live and in recovery.

Total: an op of a topic that is not there is IGNORED, one that is reflected already changes nothing. Per topic, ops come
in log order. Called by the engine when an op's commit is done, and by its replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topics.core.append import apply_append
from topics.core.create_drop import apply_config, apply_create, apply_delete_topic
from topics.core.delete import apply_delete
from topics.core.effects import Effect, OpResult
from topics.core.lineage import apply_fork
from topics.core.queue.leases import apply_jobs_added, apply_lease
from topics.core.reading.named_cursors import apply_cursor
from topics.core.retention.ceiling import apply_head
from topics.core.retention.removal import Removal
from topics.core.retention.rules import apply_evict
from topics.core.schedules.schedule_changes import apply_schedule
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.model.ops import (
    Append,
    ConfigUpdate,
    CursorChange,
    Delete,
    Evict,
    HeadMark,
    JobsAdded,
    LeaseEvent,
    Op,
    RouterDelete,
    RouterPut,
    ScheduleChange,
    TopicCreate,
    TopicDelete,
)

SLOTS_KEPT = 1024  # dead slots at the front are dropped together, so that dropping costs little per slot
RECORDS_KEPT = 256  # likewise for records that died in the middle


def forget_dead(topic: TopicLog, removal: Removal) -> None:
    """Memory of ephemeral topics: what dies there is in no file, so its slots, tags and bytes are given back here.

    Other topics need none of this: their slots leave with a sealed segment, their bytes with the recent cache. Called
    after every op that removed something; the cost is spread over the removals that made it necessary.

    The front at once, by whole chunks; the middle when the dead are more than the living."""
    earliest = topic.earliest_seq
    topic.resident.drop_below(earliest)
    runs = topic.tail.runs
    if runs and earliest - runs[0].first_seq >= max(SLOTS_KEPT, topic.count):
        topic.tail.drop_below(earliest)
        topic.tags.drop_below(earliest)
    topic.resident.removed += sum(map(len, removal.seqs))
    if topic.resident.removed > max(RECORDS_KEPT, topic.count):
        topic.resident.thin_out(topic.live)


def apply(state: State, op: Op) -> Effect:
    """Change the state by one op and say what happened."""
    kind = type(op)
    on_topic = _ON_TOPIC.get(kind)
    if on_topic is None:
        return _ON_STATE[kind](state, op)
    topic = state.by_id.get(op.topic_id)  # type: ignore[union-attr]
    if topic is None:
        return Effect(OpResult.IGNORED, op.topic_id)  # type: ignore[union-attr]
    effect = on_topic(state, topic, op)
    if effect.removal is not None:
        if topic.queue is not None:
            lost_to = None if kind is Delete else topic.floors
            topic.queue.removed(effect.removal, topic.floors.earliest_seq, lost_to=lost_to)
        if topic.config.is_ephemeral:
            forget_dead(topic, effect.removal)
    return effect


def _append(state: State, topic: TopicLog, op: Append) -> Effect:
    if op.jobs is not None:
        apply_jobs_added(topic, op.jobs)
    return apply_append(topic, op, state.recent)


def _delete(_: State, topic: TopicLog, op: Delete) -> Effect:
    effect = apply_delete(topic, op)
    if topic.queue is not None and op.reason == "dead_letter" and effect.fate is not OpResult.IGNORED:
        topic.queue.dead_lettered += len(op.seqs or ())
    return effect


def _evict(_: State, topic: TopicLog, op: Evict) -> Effect:
    return Effect(OpResult.APPLIED, topic.id, removal=apply_evict(topic, op))


def _head(state: State, topic: TopicLog, op: HeadMark) -> Effect:
    if op.fork is not None:
        apply_fork(state, topic, op.fork)
    return apply_head(topic, op)


def _config(state: State, topic: TopicLog, op: ConfigUpdate) -> Effect:
    return apply_config(topic, op, fed=topic.id in state.fed)


def _lease(_: State, topic: TopicLog, op: LeaseEvent) -> Effect:
    return apply_lease(topic, op)


def _cursor(_: State, topic: TopicLog, op: CursorChange) -> Effect:
    return apply_cursor(topic, op)


_ON_TOPIC: dict[type, Callable[[State, TopicLog, Any], Effect]] = {
    Append: _append,
    Delete: _delete,
    Evict: _evict,
    HeadMark: _head,
    ConfigUpdate: _config,
    LeaseEvent: _lease,
    JobsAdded: lambda _, topic, op: apply_jobs_added(topic, op),
    CursorChange: _cursor,
    ScheduleChange: apply_schedule,
}
_ON_STATE: dict[type, Callable[[State, Any], Effect]] = {
    TopicCreate: apply_create,
    TopicDelete: apply_delete_topic,
    RouterPut: lambda state, op: state.routers.put(op),
    RouterDelete: lambda state, op: state.routers.delete(op),
}
