"""Retention: TTL and caps (`docs/spec/semantics.md#sec-7`).

Two ways a floor moves without a request:
- the count cap of a `discard:"old"` topic, inside the op that exceeds it (`trim_to_cap`): it follows from the log;
- TTL and the byte cap, as an `Evict` op that is logged before anyone may see its floors (`due`, then apply).

Exactness: `cap_lost` and `ttl_lost` are always set to a seq that was live until then, so slots deleted before never
move `evict_floor`. Both walk from the front by whole segments first, so the cost does not follow the log's length.
"""

from __future__ import annotations

from contextlib import suppress

from topics.core.retention.removal import Removal, awaited, blocks_from, first_live, kill_below, last_lives_below
from topics.core.slots.sealed_slots import Sealed
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable
from topics.model.ops import Evict

# --- what is due -----------------------------------------------------------------------------------------------------


def due(topic: TopicLog, now: int) -> Evict | None:
    """The floors that TTL and the byte cap ask for at `now`; None if they are where they should be, or if only a cold
    segment whose index is not loaded could tell."""
    config = topic.config
    if topic.count == 0 or not (config.ttl_ms or config.cap_bytes):
        return None
    ttl_lost = _ttl_lost(topic, now) if config.ttl_ms and now > config.ttl_ms else 0
    cap_lost = 0
    if config.cap_bytes and config.discard == "old" and topic.bytes > config.cap_bytes:
        cap_lost = _cap_lost(topic)
        if cap_lost <= ttl_lost:
            cap_lost = 0  # expiry alone makes enough room
    if ttl_lost == 0 and cap_lost == 0:
        return None
    return floors_op(topic, ttl_lost=ttl_lost, cap_lost=cap_lost)


def _ttl_lost(topic: TopicLog, now: int) -> int:
    cutoff_ts = now - topic.config.ttl_ms
    try:
        return _not_held(topic, _expired_to(topic, cutoff_ts)) if _may_have_expired(topic, cutoff_ts) else 0
    except ColdUnavailable:
        return 0


def _cap_lost(topic: TopicLog) -> int:
    try:
        return _not_held(topic, _over_bytes_to(topic, topic.bytes - topic.config.cap_bytes))
    except ColdUnavailable:
        return 0


def _not_held(topic: TopicLog, last: int) -> int:
    """The highest live seq up to `last` that no named cursor holds back; 0 if there is none. A cursor holds what lies
    behind its position, as long as that is within its bound (`docs/spec/readers.md#sec-1-5`)."""
    allowed = last
    for cursor in topic.cursors.values():
        if cursor.hold is None or cursor.seq >= allowed:
            continue
        records, size = cursor.hold
        beyond = _nth_live(topic, topic.count - records) if 0 < records < topic.count else 0
        if 0 < size < topic.bytes:
            beyond = max(beyond, _over_bytes_to(topic, topic.bytes - size))
        allowed = min(allowed, max(cursor.seq, beyond))
    return last if allowed == last else next(last_lives_below(topic, allowed + 1), 0)


def unlogged(topic: TopicLog) -> Evict | None:
    """The floors, if a count cap moved them since they were last logged.

    Replay finds such floors again by trimming as the appends did. But where slots are flagged or empty before that, it
    may see fewer live records than there were, and trim too little. So the floors have to go in front of a Delete, and
    of a checkpoint. Before a Delete, nothing may be under way on the topic."""
    return floors_op(topic) if topic.floors.lost > topic.logged_lost else None


def floors_op(topic: TopicLog, *, ttl_lost: int = 0, cap_lost: int = 0) -> Evict:
    """The topic's floors as they are, or raised by what is given."""
    floors = topic.floors
    ttl_lost, cap_lost = max(floors.ttl_lost, ttl_lost), max(floors.cap_lost, cap_lost)
    lost = max(ttl_lost, cap_lost, floors.lost)
    for known in topic.lost:
        if known.lo > lost + 1:
            break
        lost = max(lost, known.hi)
    return Evict(
        topic_id=topic.id,
        evict_floor=min(lost + 1, topic.head + 1),
        cap_lost=cap_lost,
        ttl_lost=ttl_lost,
        trim_lost=floors.trim_lost,
        restart_lost=floors.restart_lost,
        earliest_seq=first_live(topic, max(floors.earliest_seq, lost + 1)),
    )


def first_ts(topic: TopicLog) -> int:
    """Timestamp of the oldest live record; the topic must have one."""
    known = topic.first_ts
    if known is None:
        seq = first_live(topic, topic.floors.earliest_seq)
        with awaited(topic, topic.sealed.find(seq)):
            known = topic.first_ts = topic.ts_of(seq)
    return known


def _may_have_expired(topic: TopicLog, cutoff_ts: int) -> bool:
    try:
        return first_ts(topic) < cutoff_ts
    except ColdUnavailable:
        return True


def _expired_to(topic: TopicLog, cutoff_ts: int) -> int:
    """The highest live seq with a timestamp below the cutoff, as far as can be told now; 0 if there is none."""
    bound = _expired_bound(topic, cutoff_ts)
    for last in last_lives_below(topic, bound) if bound else ():
        with suppress(ColdUnavailable):
            return last if _really_expired(topic, last, cutoff_ts) else 0
    return 0


def _expired_bound(topic: TopicLog, cutoff_ts: int) -> int:
    """Everything below has expired. Where an index is not loaded, what lies behind it still tells: time never falls."""
    bound = 0
    for block in blocks_from(topic, topic.floors.earliest_seq):
        try:
            with awaited(topic, block):
                expired = block.expired(cutoff_ts)
        except ColdUnavailable:
            return _expired_bound_behind(topic, block.next_seq, cutoff_ts) or bound
        if expired:
            bound = block.first_seq + expired
        if expired < block.count:
            break
    return bound


def _expired_bound_behind(topic: TopicLog, seq: int, cutoff_ts: int) -> int:
    for block in reversed(list(blocks_from(topic, seq))):
        try:
            expired = block.expired(cutoff_ts)
        except ColdUnavailable:
            continue
        if expired:
            return block.first_seq + expired
    return 0


def _really_expired(topic: TopicLog, seq: int, cutoff_ts: int) -> bool:
    """An index entry is not checksummed: before a floor rests on one, the record's own frame must agree."""
    sealed = topic.sealed.find(seq)
    with awaited(topic, sealed):
        return sealed is None or sealed.view.checked_ts(seq - sealed.first_seq) < cutoff_ts


def _over_bytes_to(topic: TopicLog, need_bytes: int) -> int:
    """The seq up to which live records must go to free so many bytes."""
    earliest = topic.floors.earliest_seq
    for block in blocks_from(topic, earliest):
        if isinstance(block, Sealed) and block.live_bytes < need_bytes:
            need_bytes -= block.live_bytes
            continue
        with awaited(topic, block):
            slot, freed = block.slot_freeing(max(earliest - block.first_seq, 0), need_bytes)
        if slot >= 0:
            return block.first_seq + slot
        need_bytes -= freed
    raise AssertionError("a topic holds fewer bytes than it counts")


# --- applying --------------------------------------------------------------------------------------------------------


def apply_evict(topic: TopicLog, op: Evict) -> Removal | None:
    """Raise every floor to the op's; never lower one."""
    topic.floors.raise_to(op)
    absorb_lost(topic)
    topic.logged_lost = max(topic.logged_lost, op.cap_lost, op.ttl_lost, op.trim_lost, op.restart_lost)
    removal = Removal()
    kill_below(topic, max(topic.floors.lost + 1, op.earliest_seq), removal, requested=False)
    return removal if removal.count or removal.dead_segments else None


def absorb_lost(topic: TopicLog) -> None:
    """Lost ranges that the floor has reached become part of it."""
    if len(topic.lost):
        for lost in topic.lost.absorb(topic.floors.lost + 1):
            topic.floors.absorb(lost.hi, lost.reason)


def trim_to_cap(topic: TopicLog, *, now: int) -> Removal | None:
    """Evict the oldest live records beyond `cap_records`. What had expired by `now` was lost to its TTL instead."""
    config = topic.config
    if config.cap_records == 0 or topic.count <= config.cap_records or config.discard != "old":
        return None
    if topic.awaiting:
        return None  # the count still has what a floor or a delete took from a cold segment: postponed, as below
    excess = topic.count - config.cap_records
    try:
        if topic.replaying:
            excess -= _live_above(topic, topic.replay_head)
        if excess <= 0:
            return None
        last = _not_held(topic, _nth_live(topic, excess))
        if not last:
            return None
        _note_trim(topic, last, now)
    except ColdUnavailable:
        return None  # postponed: `finish_cold_delete` trims again
    absorb_lost(topic)
    removal = Removal()
    kill_below(topic, topic.floors.lost + 1, removal, requested=False)
    return removal


def _note_trim(topic: TopicLog, last: int, now: int) -> None:
    floors, ttl_ms = topic.floors, topic.config.ttl_ms
    expired_to = 0
    if ttl_ms and _may_have_expired(topic, now - ttl_ms):
        expired_to = min(_expired_to(topic, now - ttl_ms), last)
        floors.ttl_lost = max(floors.ttl_lost, expired_to)
    if last > expired_to:
        floors.cap_lost = max(floors.cap_lost, last)


def _live_above(topic: TopicLog, seq: int) -> int:
    """Live records that were not written yet at this point of the log."""
    total = 0
    for block in blocks_from(topic, seq + 1):
        with awaited(topic, block):
            total += len(block.live_slots(max(seq + 1 - block.first_seq, 0), block.count))
    return total


def _nth_live(topic: TopicLog, nth: int) -> int:
    """Seq of the nth live record from the front."""
    earliest = topic.floors.earliest_seq
    for block in blocks_from(topic, earliest):
        if isinstance(block, Sealed) and block.live < nth:
            nth -= block.live
            continue
        with awaited(topic, block):
            slot, seen = block.nth_live(max(earliest - block.first_seq, 0), nth)
        if slot >= 0:
            return block.first_seq + slot
        nth -= seen
    raise AssertionError("a topic holds fewer records than it counts")
