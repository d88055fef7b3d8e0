"""Stored records as the values that library users see."""

from __future__ import annotations

import msgspec

from topics.embedded.records import Records
from topics.engine.queues.claim_pass import ClaimedJob
from topics.engine.reading.reads import ReadDone
from topics.model.payload import split_blob
from topics.model.position import token
from topics.model.results import Job, ReadResult, Record
from topics.model.run import StoredRecord
from topics.wire.requests import lease_text


def record_view(stored: StoredRecord) -> Record:
    data, meta = split_blob(stored.blob)
    return Record(
        seq=stored.seq,
        ts=stored.ts,
        node=None if stored.node is None else stored.node.decode(),
        tag=None if stored.tag is None else stored.tag.decode(),
        data=msgspec.Raw(data),
        meta=msgspec.UNSET if meta is None else msgspec.Raw(meta),
    )


def job_view(job: ClaimedJob) -> Job:
    record = record_view(job.run.record(job.at))
    assert isinstance(record.data, msgspec.Raw)
    return Job(
        seq=job.seq,
        lease_id=lease_text(job.lease_id),
        deadline=job.deadline,
        ts=record.ts,
        deliveries=job.deliveries,
        data=record.data,
        tag=record.tag,
        meta=record.meta,
    )


def read_view(topic: str, done: ReadDone) -> ReadResult:
    outcome = done.outcome
    return ReadResult(
        topic=topic,
        records=Records(outcome.runs, outcome.epoch),
        next_from_seq=outcome.next_from_seq,
        head_seq=outcome.head_seq,
        earliest_seq=outcome.earliest_seq,
        caught_up=outcome.caught_up,
        tombstone=outcome.tombstone,
        lag=outcome.lag,
        next=token(outcome.next_from_seq, outcome.epoch),
    )
