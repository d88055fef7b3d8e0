"""Seqs across restarts: the ceiling, jumps of the head, lost ranges (`docs/spec/semantics.md#sec-4-3` and
`docs/spec/semantics.md#sec-6-3`; `docs/spec/storage.md#sec-5`).

`apply_head` is how a `HeadMark` works, live and in recovery. `decide_restart` says what a crash cost a topic, once all
its frames are back. When a block of seqs is reserved is the engine's business.
"""

from __future__ import annotations

from collections.abc import Iterator

from topics.core.effects import Effect, OpResult
from topics.core.retention.removal import Removal, advance_front, blocks_from, kill_below, kill_slots
from topics.core.retention.rules import absorb_lost, trim_to_cap
from topics.core.topic import TopicLog
from topics.model.ops import HeadMark, Lost


def apply_head(topic: TopicLog, op: HeadMark) -> Effect:
    old_head = topic.head
    topic.ceiling = max(topic.ceiling, op.ceiling)
    if topic.queue is not None:
        topic.queue.lease_ceiling = max(topic.queue.lease_ceiling, op.lease_ceiling)
    new_head = max([old_head, *(hi for _, hi, _ in op.lost)])
    if op.resume_at is not None:
        new_head = max(new_head, op.resume_at - 1)
    topic.head = new_head
    topic.reserved_head = max(topic.reserved_head, new_head)
    if op.resume_at is not None:
        topic.replay_head = max(topic.replay_head, op.resume_at - 1)
    lost = op.lost
    if topic.replaying and topic.config.is_ephemeral and op.resume_at is not None:
        lost += tuple(_without_slot(topic, op.resume_at))
    if not lost and new_head == old_head:
        return Effect(OpResult.APPLIED, topic.id)
    removal = _lose(topic, lost)
    return Effect(OpResult.APPLIED, topic.id, first_seq=old_head + 1, last_seq=new_head, removal=removal)


def _without_slot(topic: TopicLog, next_seq: int) -> Iterator[Lost]:
    """An ephemeral topic went on to be of another class, and a restart came: its own records are in no file."""
    at = topic.floors.earliest_seq
    for block in blocks_from(topic, at):
        if block.first_seq >= next_seq:
            break
        if block.first_seq > at:
            yield at, block.first_seq - 1, "restart"
        at = max(at, block.next_seq)
    if at < next_seq:
        yield at, next_seq - 1, "restart"


def _lose(topic: TopicLog, ranges: tuple[Lost, ...]) -> Removal | None:
    """Open lost ranges, at once part of the floor where that has reached them. What is in them is dead."""
    removal = Removal()
    floor = topic.floors.lost + 1
    was_logged = topic.floors.lost <= topic.logged_lost
    for lo, hi, reason in ranges:
        if reason == "restart" and not topic.config.is_ephemeral:  # whose records never come back, but whose keys may
            topic.idem.forget_lost(lo, hi)
        if lo > floor:
            for piece in topic.lost.add(lo, hi, reason):
                _kill_inside(topic, *piece, removal)
        elif hi >= floor:
            topic.floors.absorb(hi, reason)
            floor = hi + 1
    absorb_lost(topic)
    if was_logged:  # the mark that brings these ranges is what moves the floor
        topic.logged_lost = topic.floors.lost
    kill_below(topic, topic.floors.lost + 1, removal, requested=False)
    advance_front(topic)
    return removal if removal.count or removal.dead_segments else None


def _kill_inside(topic: TopicLog, lo: int, hi: int, removal: Removal) -> None:
    """Records inside a lost range: none, unless logs disagree, and then the announced loss holds."""
    lo = max(lo, topic.floors.earliest_seq)
    for block in list(blocks_from(topic, lo)):
        if block.first_seq > hi:
            break
        slots = block.live_slots(max(lo - block.first_seq, 0), min(hi + 1 - block.first_seq, block.count))
        kill_slots(topic, block, slots, removal)


def hole_op(topic: TopicLog, next_seq: int) -> HeadMark:
    """Recovery holds records from `next_seq` on and will not see what lies before them: that is lost."""
    lost: Lost = (topic.head + 1, next_seq - 1, "restart")
    return HeadMark(topic_id=topic.id, ceiling=topic.ceiling, resume_at=next_seq, lost=(lost,))


def decide_restart(
    topic: TopicLog, *, same_boot: bool, behind: int = 0, is_whole: bool | None = None
) -> HeadMark | None:
    """What a restart took: seqs that may have been acked and did not come back. None if nothing is missing.

    `same_boot`: the kernel never died, so everything written is still there and the ceiling says nothing. `behind` is
    the highest seq in log bytes that recovery had to set aside; it counts whatever the boot. `is_whole` is given where
    routers feed the topic, or did: is everything back that anyone may have seen? Ends the replay."""
    topic.replaying = False
    trim_to_cap(topic, now=topic.last_ts)  # of records that were in segments before their frames came by
    recovered = max(topic.head, topic.floors.earliest_seq - 1)
    if topic.config.durability == "ephemeral":
        return _restart_ephemeral(topic, max(recovered, topic.ceiling))
    trusted = same_boot and topic.config.durability in ("disk", "memory") if is_whole is None else is_whole
    target = max(recovered, behind, 0 if trusted else topic.ceiling)
    if target > topic.head:
        lost: Lost = (topic.head + 1, target, "restart")
        return HeadMark(topic_id=topic.id, ceiling=max(topic.ceiling, target), resume_at=target + 1, lost=(lost,))
    advance_front(topic)
    return None


def _restart_ephemeral(topic: TopicLog, head: int) -> HeadMark | None:
    """No record comes back, and readers are told: the whole front up to the head is lost."""
    floor = topic.floors.lost + 1
    if floor > head and topic.head == head:
        advance_front(topic)
        return None
    lost: tuple[Lost, ...] = ((floor, head, "restart"),) if floor <= head else ()
    return HeadMark(topic_id=topic.id, ceiling=max(topic.ceiling, head), resume_at=head + 1, lost=lost)
