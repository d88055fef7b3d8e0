"""Ops to frames: turns the ops of one command into one submission.

Always holds: the frames of a submission form one run, all but the last with `more` set, so a crash keeps all of them or
none; an `Append` of an ephemeral topic has no frames at all. The inverse, frames to ops, is `engine.replay`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from topics.core.append import Reservation, make_append
from topics.core.topic import TopicLog
from topics.formats.wal import bodies
from topics.formats.wal.bodies import encode_body, kind_of
from topics.formats.wal.frame import encode_appends, encode_frame
from topics.model import ops
from topics.model.record import WriteBatch
from topics.model.submission import Submission


def control_frame(op: ops.Op, *, ts: int, durable: bool, more: bool) -> bytes:
    """The frame of any op but an Append."""
    body = _body_of(op)
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
    return make_append(
        topic, reservation, batch, frames=encoded.buffer, offs=encoded.offsets, lens=encoded.lengths, ts=times
    )


def append_submission(append: ops.Append, *, durable: bool) -> Submission:
    """The commonest submission: the records of one write and nothing else."""
    assert append.frames is not None
    count = append.count
    return Submission(
        [append.frames],
        len(append.frames),
        count,
        client_frames=count,
        durable=durable,
        ops=[append],
        topic_id=append.topic_id,
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
    every: list[object] = list(controls)
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
        size,
        count,
        client_frames=client_frames,
        durable=durable,
        ops=every,
        topic_id=topic_id,
    )


def _body_of(op: ops.Op) -> bodies.Body:
    match op:
        case ops.FrameOp():
            return op
        case ops.TopicCreate():
            return bodies.TopicCreateBody(
                name=op.name, epoch=op.epoch, config=op.config.to_dict(), created_ts=op.created_ts
            )
        case ops.ConfigUpdate():
            return bodies.ConfigUpdateBody(name=op.name, config=op.config.to_dict())
        case ops.RouterPut():
            return bodies.RouterCreate(
                **msgspec.structs.asdict(op.router),
                source_id=op.source_id,
                dest_id=op.dest_id,
                initial_cursor=op.initial_cursor,
                initial_dest_base=op.initial_dest_base,
                created_ts=op.created_ts,
                rev=op.rev,
            )
        case _:
            raise TypeError(f"{type(op).__name__} is no op of a control frame")
