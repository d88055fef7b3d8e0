"""Apply: the one way published state changes, live and in recovery.

Total: an op of a topic that is not there is IGNORED, one that is reflected already changes nothing. Per topic, ops come
in log order. Called by the engine when an op's commit is done, and by its replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topics.core.delete import apply_delete
from topics.core.effects import Effect, Fate
from topics.core.lifecycle import apply_config, apply_create, apply_delete_topic
from topics.core.lineage import apply_fork
from topics.core.memory import forget_dead
from topics.core.publish import apply_append
from topics.core.queue_leases import apply_lease
from topics.core.retention import apply_evict
from topics.core.seqs import apply_head
from topics.core.state import State
from topics.core.topic import TopicState
from topics.model.ops import (
    Append,
    ConfigUpdate,
    Delete,
    Evict,
    HeadMark,
    LeaseEvent,
    Op,
    RouterDelete,
    RouterPut,
    TopicCreate,
    TopicDelete,
)


def apply(state: State, op: Op) -> Effect:
    """Change the state by one op and say what happened."""
    kind = type(op)
    on_topic = _ON_TOPIC.get(kind)
    if on_topic is None:
        return _ON_STATE[kind](state, op)
    topic = state.by_id.get(op.topic_id)  # type: ignore[union-attr]
    if topic is None:
        return Effect(Fate.IGNORED, op.topic_id)  # type: ignore[union-attr]
    effect = on_topic(state, topic, op)
    if effect.removal is not None:
        if topic.queue is not None:
            lost_to = None if kind is Delete else topic.floors
            topic.queue.removed(effect.removal, topic.floors.earliest_seq, lost_to=lost_to)
        if topic.config.is_ephemeral:
            forget_dead(topic, effect.removal)
    return effect


def _append(state: State, topic: TopicState, op: Append) -> Effect:
    return apply_append(topic, op, state.recent)


def _delete(_: State, topic: TopicState, op: Delete) -> Effect:
    effect = apply_delete(topic, op)
    if topic.queue is not None and op.reason == "dead_letter" and effect.fate is not Fate.IGNORED:
        topic.queue.dead_lettered += len(op.seqs or ())
    return effect


def _evict(_: State, topic: TopicState, op: Evict) -> Effect:
    return Effect(Fate.APPLIED, topic.id, removal=apply_evict(topic, op))


def _head(state: State, topic: TopicState, op: HeadMark) -> Effect:
    if op.fork is not None:
        apply_fork(state, topic, op.fork)
    return apply_head(topic, op)


def _config(state: State, topic: TopicState, op: ConfigUpdate) -> Effect:
    return apply_config(topic, op, fed=topic.id in state.fed)


def _lease(_: State, topic: TopicState, op: LeaseEvent) -> Effect:
    return apply_lease(topic, op)


_ON_TOPIC: dict[type, Callable[[State, TopicState, Any], Effect]] = {
    Append: _append,
    Delete: _delete,
    Evict: _evict,
    HeadMark: _head,
    ConfigUpdate: _config,
    LeaseEvent: _lease,
}
_ON_STATE: dict[type, Callable[[State, Any], Effect]] = {
    TopicCreate: apply_create,
    TopicDelete: apply_delete_topic,
    RouterPut: lambda state, op: state.routers.put(op),
    RouterDelete: lambda state, op: state.routers.delete(op),
}
