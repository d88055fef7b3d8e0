"""Dead letters: exhausted jobs leave their queue: first the copy, then the delete (semantics.md section 16.9).

Always holds: a job is deleted only after its copy was acked under the dead-letter topic's class; a move that fails
leaves the job in its queue, with its count, for a later pass. Never fails: whoever started a pass only waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from topics.core.delete import decide_delete_seqs
from topics.core.queue import MOVING
from topics.core.queue_calls import queue_of
from topics.core.queue_letters import Letter, letter_batch
from topics.core.topic import TopicState
from topics.engine.context import Context
from topics.engine.deletes import Deleted, Deletes
from topics.engine.payloads import Payload, Payloads
from topics.engine.ticket import Ticket
from topics.errors import RequestRefused
from topics.model.appended import Appended
from topics.model.record import WriteBatch

log = logging.getLogger("topics.queues")

Append = Callable[[str, WriteBatch], Ticket[Appended]]


class DeadLetters:
    """`append` writes to a topic by name and creates it if it is not there."""

    def __init__(self, context: Context, deletes: Deletes, payloads: Payloads, append: Append) -> None:
        self._ctx = context
        self._deletes = deletes
        self._payloads = payloads
        self._append = append

    def move(self, topic: TopicState, seqs: Sequence[int]) -> Ticket[None]:
        """Resolves when every one of these jobs is gone or back in line."""
        over: Ticket[None] = Ticket()
        _Move(self._ctx, self._deletes, self._append, topic, seqs, over).begin(self._payloads)
        return over


class _Move:
    def __init__(
        self,
        context: Context,
        deletes: Deletes,
        append: Append,
        topic: TopicState,
        seqs: Sequence[int],
        over: Ticket[None],
    ) -> None:
        self._ctx = context
        self._deletes = deletes
        self._append = append
        self._topic = topic
        self._seqs = sorted(seqs)
        self._over = over
        self._left: list[Letter] = []

    def begin(self, payloads: Payloads) -> None:
        payloads.of(self._topic, self._seqs).then(self._read)

    def _read(self, done: Ticket[Payload]) -> None:
        payload = done.result()
        queue = queue_of(self._topic)
        for seq in payload.damaged:
            if (job := queue.jobs.get(seq)) is not None:
                queue.set_aside(job)
        for seq, (run, at) in sorted(payload.found.items()):
            if (job := queue.jobs.get(seq)) is not None:
                self._left.append(Letter(run.record(at), job.deliveries))
        self._send(self._left)

    def _send(self, letters: list[Letter]) -> None:
        target = self._topic.config.dead_letter
        if not letters or target is None or not self._is_there():
            self._end()
            return
        try:
            ticket = self._append(target, letter_batch(self._topic.name, letters))
        except Exception as error:
            self._refused(letters, error)
        else:
            ticket.then(partial(self._sent, letters))

    def _sent(self, letters: list[Letter], done: Ticket[Appended]) -> None:
        if done.error is not None:
            self._refused(letters, done.error)
            return
        self._left = self._left[len(letters) :]
        try:
            self._delete([letter.record.seq for letter in letters])
        except Exception as error:
            self._kept(error)

    def _refused(self, letters: list[Letter], error: BaseException) -> None:
        """A batch that is too much for the dead-letter topic may still fit one by one."""
        if len(letters) > 1 and isinstance(error, RequestRefused):
            self._send(letters[:1])
        else:
            self._kept(error)

    def _delete(self, seqs: list[int]) -> None:
        if not self._is_there():
            self._end()
            return
        op = decide_delete_seqs(self._topic, tuple(seqs), reason="dead_letter")
        if not op.seqs:
            self._send(self._left[:1])
            return
        self._deletes.log(self._topic, op).then(self._deleted)

    def _deleted(self, done: Ticket[Deleted]) -> None:
        if done.error is not None:
            self._kept(done.error)
        else:
            self._send(self._left[:1])

    def _kept(self, error: BaseException) -> None:
        log.warning("dead letters of %r stay in the queue for now: %s", self._topic.name, error)
        self._end()

    def _is_there(self) -> bool:
        return self._ctx.state.by_id.get(self._topic.id) is self._topic

    def _end(self) -> None:
        """Whatever is still marked as moving is back in line."""
        queue = queue_of(self._topic)
        for seq in self._seqs:
            job = queue.jobs.get(seq)
            if job is not None and job.state == MOVING:
                queue.release(job)
        self._over.resolve(None)
