"""DeadLetters: exhausted jobs leave their queue: first the copy, then the delete (`docs/spec/semantics.md#sec-16-9`).

The copy's meta says where it came from. Always holds: a job is deleted only after its copy was acked under the
dead-letter topic's class; a move that fails leaves the job in its queue, with its count, for a later pass. Never fails:
whoever started a pass only waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from topics.core.meta import with_keys
from topics.core.queue.operations import queue_of
from topics.core.queue.queue_job import MOVING, QueueJob
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.queues.job_ends import JobEnd, JobEnds
from topics.engine.reading.reads import Payload, PayloadSearch
from topics.engine.ticket import Ticket, failed
from topics.errors import RecordTooLarge, RequestRefused
from topics.limits import MIB
from topics.model.config import TopicConfig, config_beside
from topics.model.payload import split_blob
from topics.model.record import WriteBatch, stored_batch
from topics.model.results import Appended, DeleteResult
from topics.model.run import StoredRecord


class DeadLetter(NamedTuple):
    """A job as it died; the last four are those of its entry."""

    record: StoredRecord
    deliveries: int
    final: bool
    first_ts: int
    last_ts: int
    error: str

    @classmethod
    def of(cls, record: StoredRecord, job: QueueJob) -> DeadLetter:
        return cls(record, job.deliveries, job.final, job.first_ts, job.last_ts, job.error)


def letter_batch(queue: str, letters: Sequence[DeadLetter]) -> WriteBatch:
    """The write that moves these jobs to the dead-letter topic."""
    return stored_batch(
        [_texts(queue, letter) for letter in letters],
        tags=[letter.record.tag for letter in letters],
        nodes=[letter.record.node for letter in letters],
    )


def _texts(queue: str, letter: DeadLetter) -> tuple[bytes, bytes]:
    data, meta = split_blob(letter.record.blob)
    provenance = {
        "$dead_letter_from": queue,
        "$dead_letter_deliveries": str(letter.deliveries),
        "$dead_letter_src_seq": str(letter.record.seq),
        "$dead_letter_src_ts": str(letter.record.ts),
        "$dead_letter_reason": "final" if letter.final else "max_deliveries",
        "$dead_letter_first_ts": str(letter.first_ts),
        "$dead_letter_last_ts": str(letter.last_ts),
    }
    if letter.error:
        provenance["$dead_letter_error"] = letter.error
    return data, with_keys(meta, {name: msgspec.json.encode(text) for name, text in provenance.items()})


log = logging.getLogger("topics.queues")

Append = Callable[[str, WriteBatch, TopicConfig], Ticket[Appended]]

PORTION_JOBS = 1000
PORTION_BYTES = 8 * MIB
"""One claim may find any number of exhausted jobs: at most a portion of them is in memory at a time, by mean size."""


class DeadLetters:
    """`append` writes to a topic by name and creates it, with this config, if it is not there."""

    def __init__(self, context: Context, ends: JobEnds, append: Append) -> None:
        self._ctx = context
        self._ends = ends
        self._append = append

    def move(self, topic: TopicLog, seqs: Sequence[int]) -> Ticket[None]:
        """Resolves when every one of these jobs is gone, or ready again in its queue."""
        move = _Move(self._ctx, self._ends, self._append, topic, seqs)
        move.next()
        return move.over


class _Move:
    """A portion of the jobs at a time, in one write if the dead-letter topic takes that, else one by one. Each step may
    end at once or later, so the steps are a loop and not calls inside calls."""

    def __init__(self, context: Context, ends: JobEnds, append: Append, topic: TopicLog, seqs: Sequence[int]) -> None:
        self._ctx = context
        self._ends = ends
        self._append = append
        self._topic = topic
        self._seqs = sorted(seqs)
        self._begun = 0  # jobs of `_seqs` that were in a portion
        self._left: list[DeadLetter] = []  # of this portion
        self._steps = 0
        self._stuck = 0
        self.over: Ticket[None] = Ticket()

    def next(self) -> None:
        self._steps += 1
        if self._steps > 1:
            return  # the loop below goes on
        while self._steps:
            self._step()
            self._steps -= 1

    def _step(self) -> None:
        if not self._ctx.exists(self._topic) or self._topic.config.dead_letter is None:
            self._end()
        elif self._left:
            self._send(self._left[:1])
        elif self._begun < len(self._seqs):
            portion = self._seqs[self._begun : self._begun + self._portion_size()]
            self._begun += len(portion)
            PayloadSearch(self._ctx, self._topic, portion).begin().then(self._read, self._kept)
        else:
            self._end()

    def _portion_size(self) -> int:
        topic = self._topic
        mean_bytes = topic.bytes // topic.count if topic.count else 0
        return max(min(PORTION_JOBS, PORTION_BYTES // (mean_bytes + 1)), 1)

    def _read(self, done: Ticket[Payload]) -> None:
        payload = done.result()
        queue = queue_of(self._topic)
        if payload.error is not None:
            self._begun = len(self._seqs)  # a later pass tries what could not be read now, and the rest
        for seq in payload.damaged:
            if (job := queue.jobs.get(seq)) is not None:
                queue.set_aside(job)
        for seq, (run, at) in sorted(payload.found.items()):
            if (job := queue.jobs.get(seq)) is not None and seq not in queue.ending:
                self._left.append(DeadLetter.of(run.record(at), job))
        if self._left:
            self._send(self._left)
        else:
            self.next()

    def _send(self, letters: list[DeadLetter]) -> None:
        target = self._topic.config.dead_letter
        if target is None or not self._ctx.exists(self._topic):
            self._end()
            return
        try:
            ticket = self._append(target, letter_batch(self._topic.name, letters), config_beside(self._topic.config))
        except Exception as error:
            ticket = failed(error)
        ticket.then(partial(self._sent, letters), self._kept)

    def _sent(self, letters: list[DeadLetter], done: Ticket[Appended]) -> None:
        if done.error is not None:
            self._refused(letters, done.error)
            return
        self._left = self._left[len(letters) :]
        try:
            self._delete([letter.record.seq for letter in letters])
        except Exception as error:
            self._kept(error)

    def _refused(self, letters: list[DeadLetter], error: BaseException) -> None:
        """Letters that together are too much for the dead-letter topic may fit one by one; one that can never fit does
        not hold up those after it."""
        if len(letters) > 1 and isinstance(error, RequestRefused):
            self.next()
        elif isinstance(error, RecordTooLarge):
            self._left = self._left[1:]
            self._stuck += 1
            self.next()
        else:
            self._kept(error)

    def _delete(self, seqs: list[int]) -> None:
        if not self._ctx.exists(self._topic):
            self._end()
            return
        left = [JobEnd(seq) for seq in seqs if seq not in queue_of(self._topic).ending]
        self._ends.end(self._topic, "failed", left).then(self._deleted, self._kept)

    def _deleted(self, done: Ticket[DeleteResult]) -> None:
        if done.error is not None:
            self._kept(done.error)
        else:
            self.next()

    def _kept(self, error: BaseException) -> None:
        log.warning("dead letters of %r stay in the queue for now: %s", self._topic.name, error)
        self._end()

    def _end(self) -> None:
        """Jobs that are still marked as moving are ready again."""
        if self._stuck:
            log.warning("%d dead letters of %r do not fit their topic", self._stuck, self._topic.name)
        queue = queue_of(self._topic)
        for seq in self._seqs:
            job = queue.jobs.get(seq)
            if job is not None and job.state == MOVING:
                queue.release(job)
        if not self.over.done:
            self.over.resolve(None)
