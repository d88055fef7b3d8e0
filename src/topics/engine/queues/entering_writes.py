"""EnteringWrites: writes whose records have job fields (`docs/spec/semantics.md#sec-16-11`).

Always holds: of concurrent writes with one unique key one is decided at a time, so the second sees what became of the
first; a write that is refused has left no trace."""

from __future__ import annotations

from functools import partial

from topics.core.lineage import epoch_of
from topics.core.queue.entering import BusyKey, Entering, check_times, decide_entering
from topics.core.queue.operations import queue_of
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.ticket import Ticket, chain, either_way, resolved
from topics.engine.writing.job_controls import entered_jobs
from topics.engine.writing.writes import Writes
from topics.errors import NotAQueue
from topics.model.record import WriteBatch
from topics.model.results import Appended, EnteredJobs


class EnteringWrites:
    def __init__(self, context: Context, writes: Writes) -> None:
        self._ctx = context
        self._writes = writes
        self._by_key: dict[tuple[int, str], Ticket[Appended]] = {}
        writes.enter_jobs = self.append

    def append(self, topic: TopicLog, batch: WriteBatch) -> Ticket[Appended]:
        if topic.queue is None:
            raise NotAQueue(topic.name)
        now = self._ctx.clock.now_ms()
        check_times(batch, now)
        wait = self._writes.wait_before(topic, batch, now)
        if wait is not None:
            return chain(wait, lambda _: self._writes.append_again(topic, batch))
        if self._writes.is_known(topic, batch):
            return self._writes.decide(topic, batch, now)
        decision = decide_entering(topic, batch, now)
        if isinstance(decision, BusyKey):
            first = self._by_key[topic.id, decision.key]
            return chain(either_way(first), lambda _: self._writes.append_again(topic, batch))
        if decision.batch is None:
            return resolved(self._nothing_appended(topic, decision))
        ticket = self._writes.decide(topic, decision.batch, now, tuple(decision.replaced))
        self._stage(topic, decision.batch, ticket)
        return chain(ticket, partial(entered_jobs, decision))

    def _stage(self, topic: TopicLog, batch: WriteBatch, ticket: Ticket[Appended]) -> None:
        keys = [field.key for field in batch.jobs or () if field is not None and field.key is not None]
        if ticket.done or not keys:
            return
        staged = queue_of(topic).unique.staged
        staged.update(keys)
        self._by_key.update({(topic.id, key): ticket for key in keys})

        def over(_: Ticket[Appended]) -> None:
            staged.difference_update(keys)
            for key in keys:
                self._by_key.pop((topic.id, key), None)

        ticket.then(over)

    def _nothing_appended(self, topic: TopicLog, decision: Entering) -> Appended:
        seqs = decision.seqs(0)
        last = max(seqs)
        entered = EnteredJobs(seqs, decision.kept, decision.replaced)
        return Appended(min(seqs), 0, topic.head, epoch_of(topic, last), entered=entered)
