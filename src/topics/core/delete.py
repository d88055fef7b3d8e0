"""Delete: removal on request, by seq, by tag or both (`docs/spec/semantics.md#sec-9`).

`decide_delete` only fixes the bound, in the topic's write order; which records go is settled when the op is applied, by
the same rule live and in recovery. A `before_seq` delete moves the front and touches no slot. A match delete asks the
tag indexes and costs what it finds. `evict_floor` never moves here.

A cold segment whose index is not loaded cannot be searched at once: it is noted in `topic.awaiting` with the op, and
`finish_cold_delete` catches up when the index has come. Until then nobody may read that segment, and a snapshot that
lets go of the op's frame has it logged again (`awaited_deletes`).
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from topics.core.effects import Effect, OpResult
from topics.core.retention.removal import Removal, advance_front, alive_of, blocks_from, kill_below, kill_slots, verify
from topics.core.retention.rules import trim_to_cap
from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.slot_range import I64
from topics.core.slots.tail import TailRun
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable, InvalidRequest
from topics.model.names import TagMatch
from topics.model.ops import Delete, DeleteReason, RouterMark

# --- deciding --------------------------------------------------------------------------------------------------------


def decide_delete(
    topic: TopicLog, *, before_seq: int | None, match: TagMatch | None, routed: tuple[RouterMark, ...] = ()
) -> Delete:
    """Writes reserved before this moment are within the bound, later ones are not."""
    if before_seq is None and match is None:
        raise InvalidRequest("a delete needs before_seq, match or both")
    bound = topic.reserved_head + 1
    return Delete(topic_id=topic.id, before_seq=before_seq, match=match, bound_head=bound, reason="api", routed=routed)


def decide_delete_seqs(
    topic: TopicLog, seqs: tuple[int, ...], *, reason: DeleteReason, routed: tuple[RouterMark, ...] = ()
) -> Delete:
    """Exactly these records, as acks and dead-letter moves need it. A seq without a live record is left out: such a
    delete has no bound, so replay would take a record that was written later. Without any, nothing needs logging."""
    # Whether a record that exists was deleted before makes no difference.
    chosen = tuple(seq for seq in seqs if topic.may_be_live(seq))
    return Delete(topic_id=topic.id, seqs=chosen, reason=reason, routed=routed)


def removes_nothing(topic: TopicLog, op: Delete) -> bool:
    """Is it certain that the op would change nothing, so that it need not be logged?"""
    return not op.seqs if op.seqs is not None else bound_of(op) <= topic.earliest_seq


def unsearchable_seqs(topic: TopicLog, seqs: tuple[int, ...]) -> list[int]:
    """As `unsearchable`, for a delete of exactly these records."""
    segments = {found.first_seq: found for seq in seqs if (found := topic.sealed.find(seq)) is not None}
    return [first for first, sealed in sorted(segments.items()) if sealed.live and not _is_searchable(sealed, None)]


def unsearchable(topic: TopicLog, *, before_seq: int | None, match: TagMatch | None) -> list[int]:
    """Cold segments (first seqs) whose index must be loaded before such a delete can tell what it removes. The engine
    has them loaded and settled first; a delete applied all the same is completed by `finish_cold_delete`."""
    bound = topic.reserved_head + 1 if before_seq is None else min(before_seq, topic.reserved_head + 1)
    missing: list[int] = []
    for sealed in topic.sealed.from_seq(topic.floors.earliest_seq):
        if sealed.first_seq >= bound:
            break
        whole = match is None and sealed.next_seq <= bound
        if not whole and sealed.live and not _is_searchable(sealed, match):
            missing.append(sealed.first_seq)
    return missing


def _is_searchable(sealed: Sealed, match: TagMatch | None) -> bool:
    if sealed.view.tier == "hot":
        return True  # asked at every delete of every segment
    try:
        if match is not None and not len(sealed.view.tag_slots(match)):
            return True
        sealed.sizes_of(0, 0)
        return sealed.overlay_complete or len(sealed.view.flags) > 0
    except ColdUnavailable:
        return False


def bound_of(op: Delete) -> int:
    """The first seq that a selector delete spares."""
    assert op.bound_head is not None
    return op.bound_head if op.before_seq is None else min(op.before_seq, op.bound_head)


# --- applying --------------------------------------------------------------------------------------------------------


def apply_delete(topic: TopicLog, op: Delete) -> Effect:
    if op.seqs is None and topic.config.durability == "ephemeral" and topic.replaying:
        return Effect(OpResult.IGNORED, topic.id)
    removal = Removal()
    if op.seqs is None and op.match is None:
        bound = bound_of(op)
        topic.floors.delete_below = max(topic.floors.delete_below, bound)
        kill_below(topic, min(bound, topic.head + 1), removal, requested=True)
    else:
        _kill_chosen(topic, op, removal)
        if removal.count:
            advance_front(topic)
    return Effect(OpResult.APPLIED, topic.id, removal=removal)


def _kill_chosen(topic: TopicLog, op: Delete, removal: Removal) -> None:
    """Records named one by one, or found by their tag."""
    tail_seqs = topic.tags.take(op.match, below=bound_of(op)) if op.match is not None else op.seqs or ()
    wanted = np.array(sorted(set(tail_seqs)), np.int64)  # mostly a few acked jobs: `np.unique` is slow to start
    wanted = wanted[(wanted >= topic.floors.earliest_seq) & (wanted <= topic.head)]
    start = topic.floors.earliest_seq if op.match is not None else int(wanted[0]) if len(wanted) else topic.head + 1
    for block in blocks_from(topic, start):
        if isinstance(block, Sealed):
            _kill_in_sealed(topic, block, op, wanted, removal)
        else:
            assert isinstance(block, TailRun)
            kill_slots(topic, block, alive_of(block, _inside(block.first_seq, block.next_seq, wanted)), removal)


def _kill_in_sealed(topic: TopicLog, block: Sealed, op: Delete, wanted: I64, removal: Removal) -> None:
    if block.live == 0:
        return
    try:
        slots = _chosen_slots(topic, block, op, wanted)
    except ColdUnavailable:
        slots = None
    if slots is None or (len(slots) and not verify(topic, block)):
        topic.awaiting.setdefault(block.first_seq, []).append(op)
    elif len(slots):
        kill_slots(topic, block, alive_of(block, slots), removal)


def _chosen_slots(topic: TopicLog, block: Sealed, op: Delete, wanted: I64) -> I64:
    if op.match is None:
        return _inside(block.first_seq, block.next_seq, wanted)
    if block.first_seq >= bound_of(op):
        return wanted[:0]
    slots = block.view.tag_slots(op.match)
    first_seq, earliest = block.first_seq, topic.floors.earliest_seq
    if len(slots) and (slots[0] + first_seq < earliest or slots[-1] + first_seq >= bound_of(op)):
        slots = slots[(slots >= earliest - first_seq) & (slots < bound_of(op) - first_seq)]
    return slots


def _inside(first_seq: int, next_seq: int, wanted: I64) -> I64:
    lo, hi = np.searchsorted(wanted, (first_seq, next_seq))
    return wanted[lo:hi] - first_seq


def awaited_deletes(topic: TopicLog) -> list[Delete]:
    """What waits for the index of a cold segment, each once and no wider than the segments it waits for."""
    ends: dict[Delete, int] = {}
    for first_seq, ops in sorted(topic.awaiting.items()):
        block = topic.sealed.by_first_seq(first_seq)
        ends.update(dict.fromkeys(ops, 0 if block is None else block.next_seq))
    narrowed = (
        replace(op, routed=(), before_seq=None if op.match is None else min(end, bound_of(op)))
        for op, end in ends.items()
    )
    return list(dict.fromkeys(narrowed))


def finish_cold_delete(topic: TopicLog, first_seq: int) -> Removal:
    """The index of a cold segment has come: do what had to wait for it. The segment may be read afterwards."""
    removal = Removal()
    ops = topic.awaiting.pop(first_seq, [])
    block = topic.sealed.by_first_seq(first_seq)
    if block is None:
        return removal
    block.deleted = -1
    try:
        is_logged = verify(topic, block)
        for op in ops if is_logged else ():
            seqs = np.array(sorted(set(op.seqs or ())), np.int64)
            seqs = seqs[seqs >= topic.floors.earliest_seq]
            kill_slots(topic, block, alive_of(block, _chosen_slots(topic, block, op, seqs)), removal)
    except ColdUnavailable:
        is_logged = False
    if is_logged:
        advance_front(topic)
        removal.add(trim_to_cap(topic, now=topic.last_ts))
        _forget_dead_jobs(topic, block)
    elif ops:
        topic.awaiting[first_seq] = ops  # all of them: what one of them took already is not taken twice
    return removal


def _forget_dead_jobs(topic: TopicLog, block: Sealed) -> None:
    """A start keeps the leases it cannot look behind; their jobs may have been dead in the flags already."""
    if topic.queue is not None:
        for seq in [seq for seq in topic.queue.jobs if block.first_seq <= seq < block.next_seq]:
            if not topic.may_be_live(seq):
                topic.queue.forget(seq)
