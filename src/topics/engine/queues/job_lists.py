"""Job lists: what is in a queue and who works on it; nothing is consumed (`docs/spec/semantics.md#sec-16-15`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final

from topics.core.queue.operations import queue_of
from topics.core.queue.queue_job import ACKING, DELAYED, LEASED
from topics.core.retention.removal import blocks_from
from topics.core.topic import TopicLog
from topics.engine.reading.reads import Payload, PayloadSearch
from topics.engine.ticket import Ticket, chain, resolved
from topics.model.results import JobInfo, JobPage, JobState, WorkerInfo, WorkerPage, lease_text
from topics.model.run import StoredRecord

if TYPE_CHECKING:
    from topics.engine.queues.queues import Queues

SEEN_MS: Final = 300_000  # a node that called so long ago is still listed
WORKERS_MAX: Final = 10_000
_LOOKED_AT: Final = 4  # times the page: jobs that one page may look at for a state or a tag


class JobLists:
    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._ctx = queues.context
        self._seen: dict[int, dict[str, int]] = {}  # by topic id: nodes and their last call
        self._ctx.on_deleted.append(self._deleted)

    def _deleted(self, topic: TopicLog) -> None:
        self._seen.pop(topic.id, None)

    def note_call(self, topic: TopicLog, node: str) -> None:
        """A worker called; the newest are remembered."""
        seen = self._seen.setdefault(topic.id, {})
        seen.pop(node, None)
        seen[node] = self._ctx.clock.now_ms()
        if len(seen) > WORKERS_MAX:
            del seen[next(iter(seen))]

    def jobs(
        self, name: str, *, state: JobState | None = None, tag: str | None = None, after: int = 0, page_size: int = 100
    ) -> Ticket[JobPage]:
        """Ascending by seq; `next_cursor` says where the next page begins, if there may be one."""
        topic = self._queues.queue(name)

        def look(_: None) -> Ticket[JobPage]:
            self._ctx.check_exists(topic)
            queue_of(topic).expire(self._ctx.clock.now_ms())
            most = page_size if tag is None else page_size * _LOOKED_AT
            seqs, cursor = _chosen(topic, state, after, most)
            search = PayloadSearch(self._ctx, topic, seqs).begin()
            return chain(search, lambda payload: self._page(topic, payload, seqs, tag, cursor))

        return chain(self._queues.floor_log.ensure_logged(topic), look)

    def _page(
        self, topic: TopicLog, payload: Payload, seqs: list[int], tag: str | None, cursor: int | None
    ) -> Ticket[JobPage]:
        if payload.error is not None:
            raise payload.error
        wanted = None if tag is None else tag.encode()
        records = [payload.found[seq][0].record(payload.found[seq][1]) for seq in seqs if seq in payload.found]
        shown = [_info(topic, record) for record in records if wanted is None or record.tag == wanted]
        return resolved(JobPage(topic.name, shown, None if cursor is None else str(cursor)))

    def workers(self, name: str) -> WorkerPage:
        topic = self._queues.queue(name)
        queue, now = queue_of(topic), self._ctx.clock.now_ms()
        queue.expire(now)
        held: dict[str, list[int]] = {}
        for job in queue.jobs.values():
            if job.state == LEASED:
                held.setdefault(job.node, []).append(job.deadline)
        waiting, streams = self._queues.waiting.nodes(topic.id), self._queues.streams.nodes(topic.id)
        seen = {node: at for node, at in self._seen.get(topic.id, {}).items() if at > now - SEEN_MS}
        nodes = sorted({*held, *waiting, *streams, *seen})[:WORKERS_MAX]
        return WorkerPage(
            topic.name,
            [
                WorkerInfo(
                    node,
                    len(held.get(node, ())),
                    streams.count(node),
                    waiting.count(node),
                    min(held[node]) if node in held else None,
                    seen.get(node),
                )
                for node in nodes
            ],
        )


def _chosen(topic: TopicLog, state: JobState | None, after: int, most: int) -> tuple[list[int], int | None]:
    """Seqs of a page, and where the next one begins; None if there is nothing behind it."""
    queue = queue_of(topic)
    if state == "in_flight" or state == "delayed":
        states = (LEASED, ACKING) if state == "in_flight" else (DELAYED,)
        held = sorted(job.seq for job in queue.jobs.values() if job.state in states and job.seq > after)
        rows = (seq for seq, ready_at, _ in queue.fields.rows(after) if ready_at) if state == "delayed" else ()
        found = list(islice(merge(held, rows), most + 1))
        return found[:most], found[most - 1] if len(found) > most else None
    seqs: list[int] = []
    for looked_at, seq in enumerate(live_seqs(topic, after), 1):
        if state is None or _state_of(topic, seq) == state:
            seqs.append(seq)
        if len(seqs) == most or looked_at == most * _LOOKED_AT:
            return seqs, seq if seq < topic.head else None
    return seqs, None


def live_seqs(topic: TopicLog, after: int) -> Iterator[int]:
    """Live records, ascending. Raises ColdUnavailable where an index is not loaded."""
    start = max(after + 1, topic.floors.earliest_seq)
    for block in blocks_from(topic, start):
        lo, hi = max(start - block.first_seq, 0), min(block.next_seq, topic.head + 1) - block.first_seq
        while lo < hi:
            stop = min(hi, lo + 4096)
            yield from (block.live_slots(lo, stop) + block.first_seq).tolist()
            lo = stop


def _state_of(topic: TopicLog, seq: int) -> JobState:
    queue = queue_of(topic)
    job = queue.jobs.get(seq)
    if job is not None:
        return "in_flight" if job.state in (LEASED, ACKING) else "delayed" if job.state == DELAYED else "ready"
    row = queue.fields.get(seq)
    return "delayed" if row is not None and row.ready_at else "ready"


def _info(topic: TopicLog, record: StoredRecord) -> JobInfo:
    queue = queue_of(topic)
    job, row = queue.jobs.get(record.seq), queue.fields.get(record.seq)
    state = _state_of(topic, record.seq)
    info = partial(
        JobInfo,
        record.seq,
        state,
        record.ts,
        tag=None if record.tag is None else record.tag.decode(),
        unique=queue.unique.key_of(record.seq),
    )
    if job is None:
        ready_at, priority = (0, 0) if row is None else row
        return info(0, priority, due=ready_at or None)
    leased = state == "in_flight"
    return info(
        job.deliveries,
        job.priority,
        node=job.node if leased else None,
        lease_id=lease_text(job.lease_id) if leased else None,
        deadline=job.deadline if leased else None,
        due=job.due_at if state == "delayed" else None,
        error=job.error or None,
        progress=queue.progress.get(job.seq),
    )
