"""Collect: what a checkpoint has to move, as columns taken from the tail (storage.md section 7, C2).

A snapshot in time: arrays are copied, so the owner goes on while the background thread works. Records that die after
this moment are written as live ones and flagged when the checkpoint is switched in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from topics.core.slots import I64, Bools
from topics.core.tail import TailRun
from topics.core.topic import TopicState
from topics.model.ops import DELETED, RESIDENT
from topics.model.run import WAL_BODY_AT
from topics.storage.checkpoint import Batch


def batches_of(topic: TopicState) -> list[Batch]:
    """The records after the topic's last checkpointed seq, in seq order."""
    return [batch for run in topic.tail.runs_from(topic.ckpt_seq + 1) for batch in _of_run(topic, run)]


def _of_run(topic: TopicState, run: TailRun) -> Iterator[Batch]:
    lo = max(topic.ckpt_seq + 1 - run.first_seq, 0)
    files = np.frombuffer(run.locs[lo:], np.uint64) >> np.uint64(32)
    cuts = [lo, *(np.flatnonzero(np.diff(files)) + 1 + lo).tolist(), lo + len(files)]
    for start, stop in pairwise(cuts):
        if stop > start:
            file = int(files[start - lo])
            if file == RESIDENT:
                yield from _resident(topic, run, start, stop)
            else:
                yield _stored(topic, run, file, start, stop)


def _stored(topic: TopicState, run: TailRun, file: int, start: int, stop: int) -> Batch:
    offs = np.frombuffer(run.locs[start:stop], np.uint64) & np.uint64(0xFFFF_FFFF)
    return _batch(topic, run, start, stop, source=file, offs=offs.astype(np.int64))


def _resident(topic: TopicState, run: TailRun, start: int, stop: int) -> Iterator[Batch]:
    """Router copies: their frames lie in memory, chunk by chunk."""
    at = start
    while at < stop:
        chunk = topic.resident.find(run.first_seq + at)
        assert chunk is not None, "a resident record has no bytes"
        end = min(stop, chunk.next_seq - run.first_seq)
        lo = run.first_seq + at - chunk.first_seq
        offs = np.array(chunk.body_offs[lo : lo + end - at], np.int64) - WAL_BODY_AT
        yield _batch(topic, run, at, end, source=bytes(chunk.buf), offs=offs)
        at = end


def _batch(topic: TopicState, run: TailRun, start: int, stop: int, *, source: int | bytes, offs: I64) -> Batch:
    return Batch(
        first_seq=run.first_seq + start,
        source=source,
        offs=offs,
        lens=np.frombuffer(run.lens[start:stop], np.uint32),
        ts=np.frombuffer(run.ts[start:stop], np.uint64),
        sizes=np.frombuffer(run.sizes[start:stop], np.uint32),
        dead=_dead(topic, run, start, stop),
    )


def _dead(topic: TopicState, run: TailRun, start: int, stop: int) -> Bools | None:
    """Deleted ones, and those below the front: neither needs bytes in a segment."""
    dead = (np.frombuffer(run.flags[start:stop], np.uint8) & DELETED) != 0
    below = topic.earliest_seq - (run.first_seq + start)
    if below > 0:
        dead[:below] = True
    return dead if dead.any() else None
