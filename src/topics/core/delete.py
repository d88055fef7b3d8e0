"""Delete: removal on request, by seq, by tag or both (semantics.md section 9).

`decide_delete` only fixes the bound, in the topic's write order; which records go is settled when the op is applied, by
the same rule live and in recovery. A `before_seq` delete moves the front and touches no slot. A match delete asks the
tag indexes and costs what it finds. `evict_floor` never moves here.
"""

from __future__ import annotations

import numpy as np

from topics.core.effects import Effect, Fate
from topics.core.front import Removal, alive_of, finish_kill, kill_below, kill_seqs, kill_slots
from topics.core.topic import TopicState
from topics.errors import InvalidRequest
from topics.model.match import TagMatch
from topics.model.ops import Delete, DeleteReason, RouterMark


def decide_delete(
    topic: TopicState, *, before_seq: int | None, match: TagMatch | None, routed: tuple[RouterMark, ...] = ()
) -> Delete:
    """Writes reserved before this moment are within the bound, later ones are not."""
    if before_seq is None and match is None:
        raise InvalidRequest("a delete needs before_seq, match or both")
    return Delete(
        topic_id=topic.id, before_seq=before_seq, match=match, bound_head=topic.reserved_head + 1, routed=routed
    )


def decide_delete_seqs(
    topic: TopicState, seqs: tuple[int, ...], *, reason: DeleteReason, routed: tuple[RouterMark, ...] = ()
) -> Delete:
    """Exactly these records, as acks and dead-letter moves need it."""
    return Delete(topic_id=topic.id, seqs=seqs, reason=reason, routed=routed)


def removes_nothing(topic: TopicState, op: Delete) -> bool:
    """Is it certain that the op would change nothing, so that it need not be logged?"""
    return op.seqs is None and bound_of(op) <= topic.earliest_seq


def bound_of(op: Delete) -> int:
    """The first seq that a selector delete spares."""
    assert op.bound_head is not None
    return op.bound_head if op.before_seq is None else min(op.before_seq, op.bound_head)


def apply_delete(topic: TopicState, op: Delete) -> Effect:
    if topic.config.durability == "ephemeral" and topic.replaying:
        return Effect(Fate.IGNORED, topic.id)
    removal = Removal()
    if op.seqs is not None:
        kill_seqs(topic, op.seqs, removal)
    elif op.match is None:
        bound = bound_of(op)
        topic.floors.delete_below = max(topic.floors.delete_below, bound)
        kill_below(topic, min(bound, topic.head + 1), removal, requested=True)
    else:
        _kill_matching(topic, op.match, bound_of(op), removal)
    return Effect(Fate.APPLIED, topic.id, removal=removal)


def _kill_matching(topic: TopicState, match: TagMatch, bound: int, removal: Removal) -> None:
    earliest = topic.floors.earliest_seq
    for sealed in topic.sealed.from_seq(earliest):
        if sealed.first_seq >= bound:
            break
        if sealed.live:
            slots = sealed.view.tag_slots(match)
            slots = slots[(slots >= earliest - sealed.first_seq) & (slots < bound - sealed.first_seq)]
            kill_slots(topic, sealed, alive_of(sealed, slots), removal)
    for run, slots in _tail_slots(topic, topic.tags.take(match, below=bound)):
        kill_slots(topic, run, alive_of(run, slots), removal)
    finish_kill(topic, removal)


def _tail_slots(topic: TopicState, seqs: list[int]):  # type: ignore[no-untyped-def]
    wanted = np.array(sorted(seqs), np.int64)
    wanted = wanted[wanted >= topic.floors.earliest_seq]
    for run in topic.tail.runs:
        inside = wanted[(wanted >= run.first_seq) & (wanted < run.next_seq)]
        if len(inside):
            yield run, inside - run.first_seq
