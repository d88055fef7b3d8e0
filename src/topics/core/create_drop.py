"""Lifecycle: creating, reconfiguring and deleting topics (`docs/spec/semantics.md#sec-3`).

Decisions return ops; an empty list means that nothing has to change. The engine holds a name exclusively from decision
to apply, so two creates of one name cannot meet here. Router removals that go with a topic are added by the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from topics.core.capture import dead_in_files
from topics.core.effects import Effect, OpResult
from topics.core.lineage import new_epoch
from topics.core.queue.queue_rules import QueueRules
from topics.core.retention.rules import due, floors_op, trim_to_cap
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.errors import InvalidRequest, Throttled, TopicExistsIncompatible, TopicNotEmpty
from topics.model.config import TopicConfig
from topics.model.names import check_topic_name, is_topic_name
from topics.model.ops import ConfigUpdate, Delete, Evict, HeadMark, Op, TopicCreate, TopicDelete

SEQS_PER_FRAME = 10_000

# --- deciding --------------------------------------------------------------------------------------------------------


def check_config(name: str, config: TopicConfig) -> None:
    """What only the lifecycle knows: where dead letters and the history of jobs may go."""
    dead_letter, done = config.dead_letter, config.done
    if dead_letter is not None and not is_topic_name(dead_letter):
        raise InvalidRequest.bad_dead_letter(dead_letter)
    if done is not None and not is_topic_name(done):
        raise InvalidRequest(f"done must be a topic's name, not {done!r}")
    if config.is_queue and config.compact is not None:
        raise InvalidRequest("a queue cannot be compacted: compact is for topics of type log")
    if config.is_queue and name in (dead_letter, done):
        raise InvalidRequest(f"a queue cannot be its own {'dead_letter' if dead_letter == name else 'done'}")


AnyId = Callable[[int], bool]
"""Which ids suit a new topic: those of one log group, if it is to share submissions with another topic."""


def decide_put(
    state: State,
    name: str,
    config: TopicConfig,
    *,
    now: int,
    topics_max: int = 0,
    chance: int = 0,
    suits: AnyId = lambda _: True,
) -> tuple[list[Op], bool]:
    """Ops that make the topic exist with exactly this config, and whether it is new."""
    check_topic_name(name)
    check_config(name, config)
    topic = state.topics.get(name)
    if topic is None:
        return [decide_create(state, name, config, now=now, topics_max=topics_max, chance=chance, suits=suits)], True
    return decide_config(topic, config, now=now), False


def decide_create(
    state: State,
    name: str,
    config: TopicConfig,
    *,
    now: int,
    topics_max: int = 0,
    chance: int = 0,
    suits: AnyId = lambda _: True,
) -> TopicCreate:
    """A new instance. Its id and epoch are used up even if the commit fails; `chance` is random, for the epoch."""
    check_topic_name(name)
    check_config(name, config)
    if topics_max and len(state.topics) >= topics_max:
        raise Throttled.cap("max_topics", max=topics_max)
    topic_id = next(filter(suits, count(state.next_topic_id)))
    state.next_topic_id = topic_id + 1
    return TopicCreate(topic_id, name, new_epoch(state, now=now, chance=chance), config, now)


def decide_config(topic: TopicLog, config: TopicConfig, *, now: int) -> list[Op]:
    """Replace the config as a whole. Where retention changes, the floors of today are logged in front of it: what they
    took under the old config must not come back under the new one."""
    old = topic.config
    if old.type != config.type:
        raise TopicExistsIncompatible.type_change(topic.name, existing_type=old.type, requested_type=config.type)
    if old == config:
        return []
    update = ConfigUpdate(topic.id, topic.name, config, now)
    if old.is_ephemeral and not config.is_ephemeral and topic.reserved_head:
        return _end_ephemeral(topic, update)
    ops: list[Op] = [update]
    if old.is_fsync and not config.is_fsync and topic.ceiling > topic.head:
        # A topic that was fed when it became `fsync` kept its ceiling. Replay cannot know that once the router is gone,
        # and from here on writes rely on it.
        ops.insert(0, HeadMark(topic_id=topic.id, ceiling=topic.ceiling))
    floors = _floors_to_log(topic, config, now)
    return ops if floors is None else [floors, *ops]


def _end_ephemeral(topic: TopicLog, update: ConfigUpdate) -> list[Op]:
    """No frame says what happened while the topic was ephemeral: how far it came, what it lost, and which of its older
    records, in files from the time before, were deleted. From here on a restart has to know."""
    head = topic.reserved_head
    mark = HeadMark(topic_id=topic.id, ceiling=max(topic.ceiling, head), resume_at=head + 1)
    dead = dead_in_files(topic)
    pieces = [dead[at : at + SEQS_PER_FRAME] for at in range(0, len(dead), SEQS_PER_FRAME)]
    return [
        floors_op(topic),
        *(Delete(topic_id=topic.id, seqs=tuple(piece), reason="api") for piece in pieces),
        mark,
        update,
    ]


def _floors_to_log(topic: TopicLog, config: TopicConfig, now: int) -> Evict | None:
    old = topic.config
    before = (old.ttl_ms, old.cap_records, old.cap_bytes, old.discard)
    after = (config.ttl_ms, config.cap_records, config.cap_bytes, config.discard)
    if topic.head == 0 or old.is_ephemeral or before == after:
        return None
    return due(topic, now) or floors_op(topic)


def decide_delete_topic(topic: TopicLog, *, if_empty: bool) -> TopicDelete:
    """Retention at `now` has run. Writes being committed hold the name, so none is under way."""
    if if_empty and topic.count:
        raise TopicNotEmpty(topic.name, count=topic.count)
    return TopicDelete(topic_id=topic.id, name=topic.name, epoch=topic.epoch)


# --- applying --------------------------------------------------------------------------------------------------------


def apply_create(state: State, op: TopicCreate) -> Effect:
    known = state.by_id.get(op.topic_id)
    if known is not None:
        return Effect(OpResult.DUPLICATE, op.topic_id)
    state.add(TopicLog(topic_id=op.topic_id, name=op.name, epoch=op.epoch, config=op.config, created_ts=op.created_ts))
    return Effect(OpResult.APPLIED, op.topic_id)


def apply_config(topic: TopicLog, op: ConfigUpdate, *, fed: bool = False) -> Effect:
    """The new config rules from here on. A tighter count cap bites at once; TTL and bytes as soon as they are logged.

    A change to `fsync` needs no ceiling any more, unless the topic is `fed` by a router: the sync of this very frame
    covers everything before it."""
    old, topic.config = topic.config, op.config
    if topic.queue is not None:
        topic.queue.follow(QueueRules(op.config, topic.id))
    if op.config.is_fsync and not old.is_fsync and not fed:
        topic.ceiling = topic.head
    removal = trim_to_cap(topic, now=max(op.ts, topic.last_ts))
    return Effect(OpResult.APPLIED, topic.id, removal=removal)


def apply_delete_topic(state: State, op: TopicDelete) -> Effect:
    state.next_topic_id = max(state.next_topic_id, op.topic_id + 1)
    state.last_epoch = max(state.last_epoch, op.epoch)
    topic = state.by_id.get(op.topic_id)
    if topic is None:
        return Effect(OpResult.DUPLICATE, op.topic_id)
    state.remove(topic)
    return Effect(OpResult.APPLIED, op.topic_id)
