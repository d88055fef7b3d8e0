"""Copies as ops: encoded like records of the log, but kept in memory until a checkpoint writes them to segments."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from topics.core.append import Reservation, make_append
from topics.core.router_copy import Copy, batch_of
from topics.core.topic import TopicLog
from topics.formats.wal.frame import encode_appends
from topics.model.ops import HOPS_SHIFT, RESIDENT, Append


def copies_op(dest: TopicLog, reservation: Reservation, copies: Sequence[Copy]) -> Append:
    """The op of copies that have their seqs and one time."""
    batch = batch_of(copies)
    encoded = encode_appends(
        topic_id=dest.id,
        first_seq=reservation.first_seq,
        ts=reservation.ts,
        datas=batch.blobs,
        nodes=batch.nodes,
        tags=batch.tags,
        durable=False,
    )
    op = make_append(
        dest,
        reservation,
        batch,
        frames=encoded.buffer,
        offs=array("I", encoded.offsets),
        lens=array("I", encoded.lengths),
    )
    op.file = RESIDENT
    op.hops = max([copy.hops for copy in copies])
    flags = op.flags
    for at, copy in enumerate(copies):
        flags[at] |= copy.hops << HOPS_SHIFT
    return op
