"""Entering: which records of a write with job fields are appended, and what is logged in front of them
(`docs/spec/semantics.md#sec-16-11`).

    decide_entering  unique keys: which records are kept out, which jobs they replace; nothing has changed yet
    jobs_op          the op, once the seqs are reserved

A record of the batch counts as standing for those after it."""

from __future__ import annotations

from typing import NamedTuple

from topics.core.queue.operations import queue_of
from topics.core.topic import TopicLog
from topics.errors import InvalidRequest, JobExists
from topics.limits import JOB_DELAY_MS_MAX
from topics.model.ops import JobsAdded
from topics.model.record import JobField, WriteBatch, chosen


class BusyKey(NamedTuple):
    """A write with this unique key is being committed: take turns."""

    key: str


class Entering(NamedTuple):
    """`batch` is what is appended, None if nothing is. `standing` has for each record of the write the seq of the job
    that stood before, or, negative, ~place in `batch`. `kept` are the places of records that are not appended."""

    batch: WriteBatch | None
    standing: list[int]
    kept: list[int]
    replaced: list[int]
    has_keys: bool

    def seqs(self, first_seq: int) -> list[int]:
        return [first_seq + ~seq if seq < 0 else seq for seq in self.standing]


def decide_entering(topic: TopicLog, batch: WriteBatch, now: int) -> Entering | BusyKey:
    """Raises JobExists; then nothing has changed."""
    assert batch.jobs is not None
    unique = queue_of(topic).unique
    places: list[int] = []  # of the records that are appended
    standing: list[int] = []
    owners: dict[str, int] = {}  # keys of the batch: the place of the record that stands
    replaced: list[int] = []
    for at, field in enumerate(batch.jobs):
        key = None if field is None else field.key
        if field is None or key is None:
            standing.append(at)
            places.append(at)
            continue
        if key in unique.staged:
            return BusyKey(key)
        found = unique.find(key, now) if key not in owners else None
        stands = found is not None and (found.until > 0 or topic.may_be_live(found.seq))
        if not stands and key not in owners:
            owners[key] = at
            standing.append(at)
            places.append(at)
            continue
        seq = found.seq if found is not None else 0
        if field.on_conflict == "reject":
            raise JobExists(index=at, seq=seq)
        if field.on_conflict == "keep":
            standing.append(owners[key] if found is None else -seq)
            continue
        if found is not None:
            if topic.may_be_live(seq):
                replaced.append(seq)
        else:
            places.remove(owners[key])
            standing = [at if place == owners[key] else place for place in standing]
        owners[key] = at
        standing.append(at)
        places.append(at)
    ranks = {place: number for number, place in enumerate(places)}
    standing = [-place if place < 0 else ~ranks[place] for place in standing]
    if len(places) == batch.count:
        return Entering(batch, standing, [], replaced, bool(owners))
    kept = [at for at in range(batch.count) if at not in ranks]
    return Entering(chosen(batch, places) if places else None, standing, kept, replaced, True)


def jobs_op(topic: TopicLog, fields: list[JobField | None], first_seq: int, ts: int) -> JobsAdded | None:
    """What is to be known of jobs that are about to be appended; None: they are plain."""
    times = [0 if field is None else field.ready_at(ts) for field in fields]
    priorities = [0 if field is None else field.priority for field in fields]
    unique = [
        None if field is None or field.key is None else (field.key, ts + field.for_ms if field.for_ms else 0)
        for field in fields
    ]
    if not (any(times) or any(priorities) or unique.count(None) < len(unique)):
        return None
    return JobsAdded(
        topic_id=topic.id,
        first_seq=first_seq,
        ready_at=tuple(times) if any(times) else (),
        priority=tuple(priorities) if any(priorities) else (),
        unique=tuple(unique) if unique.count(None) < len(unique) else (),
    )


def check_times(batch: WriteBatch, now: int) -> None:
    """What only the clock can tell about job fields."""
    for at, field in enumerate(batch.jobs or ()):
        if field is not None and field.deliver_at > now + JOB_DELAY_MS_MAX:
            raise InvalidRequest(f"records[{at}].deliver_at: must be at most {now + JOB_DELAY_MS_MAX}, 100 years ahead")
