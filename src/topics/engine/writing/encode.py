"""Ops to frames: turns the ops of one command into one submission.

Always holds: the frames of a submission form one run, all but the last with `more` set, so a crash keeps all of them or
none; an `Append` of an ephemeral topic has no frames at all. The inverse, frames to ops, is `engine.replay`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from topics.core.append import Reservation, make_append
from topics.core.topic import TopicLog
from topics.formats.wal import bodies
from topics.formats.wal.bodies import encode_body, kind_of
from topics.formats.wal.frame import encode_appends, encode_frame
from topics.model import ops
from topics.model.names import TagMatch
from topics.model.record import WriteBatch
from topics.model.submission import Submission


def control_frame(op: ops.Op, *, ts: int, durable: bool, more: bool) -> bytes:
    """The frame of any op but an Append."""
    body = _BODIES[type(op)](op)
    return encode_frame(
        kind_of(body),
        ts=ts,
        data=encode_body(body),
        topic_id=getattr(op, "topic_id", 0),
        seq=op.seq if isinstance(op, ops.LeaseEvent) else 0,
        durable=durable,
        more=more,
    )


def encode_append(
    topic: TopicLog,
    batch: WriteBatch,
    reservation: Reservation,
    *,
    durable: bool,
    times: array[int] | None = None,
    runs: list[int] | None = None,
) -> ops.Append:
    """The op of a reserved write, with its frames: one run, or `runs` of records with their own `times`."""
    encoded = encode_appends(
        topic_id=topic.id,
        first_seq=reservation.first_seq,
        ts=reservation.ts if times is None else times,
        datas=batch.blobs,
        nodes=batch.nodes,
        tags=batch.tags,
        durable=durable,
        runs=runs,
    )
    offs, lens = array("I", encoded.offsets), array("I", encoded.lengths)
    return make_append(topic, reservation, batch, frames=encoded.buffer, offs=offs, lens=lens, ts=times)


def append_submission(append: ops.Append, *, durable: bool) -> Submission:
    """The commonest submission: the records of one write and nothing else."""
    assert append.frames is not None
    count = append.count
    return Submission(
        [append.frames],
        frame_count=count,
        client_frames=count,
        durable=durable,
        ops=[append],
        topic_id=append.topic_id,
        size=len(append.frames),
    )


def submission(
    controls: Sequence[ops.Op], append: ops.Append | None, *, topic_id: int, ts: int, durable: bool, client_frames: int
) -> Submission:
    """Control frames first, then the records of one append (encoded before, as the end of the run)."""
    frames: list[bytes] = []
    size = 0
    last = len(controls) - 1
    for at, op in enumerate(controls):
        frame = control_frame(op, ts=ts, durable=durable, more=append is not None or at < last)
        frames.append(frame)
        size += len(frame)
    every: list[ops.Op] = list(controls)
    count = len(controls)
    if append is not None:
        assert append.frames is not None
        append.base = size
        frames.append(append.frames)
        size += len(append.frames)
        count += append.count
        every.append(append)
    return Submission(
        frames,
        frame_count=count,
        client_frames=client_frames,
        durable=durable,
        ops=every,
        topic_id=topic_id,
    )


def _marks(routed: Sequence[ops.RouterMark]) -> tuple[bodies.RouterMark, ...]:
    return tuple(
        bodies.RouterMark(name=m.name, cursor=m.cursor, forwarded_total=m.forwarded_total, dest_base=m.dest_base)
        for m in routed
    )


def _selector(match: TagMatch | None) -> bodies.Selector | None:
    return None if match is None else (match.op, match.value)


def _topic_create(op: ops.TopicCreate) -> bodies.TopicCreate:
    return bodies.TopicCreate(name=op.name, epoch=op.epoch, config=op.config.to_dict(), created_ts=op.created_ts)


def _router_put(op: ops.RouterPut) -> bodies.RouterCreate:
    r = op.router
    return bodies.RouterCreate(
        name=r.name,
        source=r.source,
        dest=r.dest,
        source_id=op.source_id,
        dest_id=op.dest_id,
        preserve_node=r.preserve_node,
        preserve_tag=r.preserve_tag,
        create_dest=r.create_dest,
        allow_cycle=r.allow_cycle,
        guarantee=r.guarantee,
        filter=_selector(r.filter),
        initial_cursor=op.initial_cursor,
        initial_dest_base=op.initial_dest_base,
        created_ts=op.created_ts,
        rev=op.rev,
    )


def _delete(op: ops.Delete) -> bodies.Delete:
    return bodies.Delete(
        before_seq=op.before_seq,
        match=_selector(op.match),
        seqs=op.seqs,
        bound_head=op.bound_head,
        reason=op.reason,
        routed=_marks(op.routed),
    )


def _evict(op: ops.Evict) -> bodies.EvictWatermark:
    return bodies.EvictWatermark(
        evict_floor=op.evict_floor,
        cap_lost=op.cap_lost,
        ttl_lost=op.ttl_lost,
        trim_lost=op.trim_lost,
        restart_lost=op.restart_lost,
        earliest_seq=op.earliest_seq,
        routed=_marks(op.routed),
    )


def _head(op: ops.HeadMark) -> bodies.HeadWatermark:
    pin = op.pin
    return bodies.HeadWatermark(
        ceiling=op.ceiling,
        resume_at=op.resume_at,
        lost=tuple(bodies.LostRange(first, last, reason) for first, last, reason in op.lost),
        pin=None
        if pin is None
        else bodies.Pin(
            router=pin.router, cursor=pin.cursor, forwarded_total=pin.forwarded_total, dest_base=pin.dest_base
        ),
        lease_ceiling=op.lease_ceiling,
        fork=None if op.fork is None else bodies.Fork(*op.fork),
    )


def _lease(op: ops.LeaseEvent) -> bodies.Lease:
    return bodies.Lease(
        event=op.event,
        node=op.node,
        lease_id=op.lease_id,
        deadline=op.deadline,
        deliveries=op.deliveries,
        ready_at=op.ready_at,
        stream=op.stream != 0,
        error=op.error,
        final=op.final,
    )


def _jobs_added(op: ops.JobsAdded) -> bodies.JobsFrame:
    return bodies.JobsFrame(
        first=op.first_seq,
        ready_at=op.ready_at,
        priority=op.priority,
        unique=tuple(None if key is None else bodies.UniqueItem(*key) for key in op.unique),
    )


def _cursor(op: ops.CursorChange) -> bodies.CursorFrame:
    return bodies.CursorFrame(
        name=op.name,
        event=op.event,
        seq=op.seq,
        fence=op.fence,
        owner=op.owner,
        meta=op.meta,
        hold=None if op.hold is None else bodies.CursorHoldRow(*op.hold),
    )


_BODIES: dict[type[Any], Callable[[Any], bodies.Body]] = {
    ops.TopicCreate: _topic_create,
    ops.TopicDelete: lambda op: bodies.TopicDelete(name=op.name, epoch=op.epoch),
    ops.ConfigUpdate: lambda op: bodies.ConfigUpdate(name=op.name, config=op.config.to_dict()),
    ops.RouterPut: _router_put,
    ops.RouterDelete: lambda op: bodies.RouterDelete(name=op.name),
    ops.Delete: _delete,
    ops.Evict: _evict,
    ops.HeadMark: _head,
    ops.LeaseEvent: _lease,
    ops.JobsAdded: _jobs_added,
    ops.CursorChange: _cursor,
}
