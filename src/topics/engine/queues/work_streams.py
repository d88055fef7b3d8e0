"""Work streams: connections that are kept supplied with jobs (`docs/spec/semantics.md#sec-16-7`,
`docs/spec/delivery.md#sec-13`).

A stream holds at most `max` unexpired leases and gets each job once. Always holds: only the seqs in `queue.streams`
count against it, so an ack, nack, expiry or deletion frees its slot by itself; a closed stream holds nothing. Streams
of one queue that want jobs claim them together, as one cohort. Woken by `QueueWaker`; nobody polls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol

from topics import limits
from topics.core.apply import apply
from topics.core.queue.operations import queue_of, release_events
from topics.core.topic import TopicLog
from topics.engine.queues.claim_pass import Claimed, ClaimedJob, Claimer
from topics.engine.ticket import Ticket
from topics.errors import TopicNotFound, TopicsError

if TYPE_CHECKING:
    from topics.engine.queues.queues import Queues


class JobConsumer(Protocol):
    """The connection behind a work stream."""

    def jobs_leased(self, jobs: list[ClaimedJob]) -> None:
        """Jobs as they are leased, each once."""

    def grant(self, wanted_bytes: int, least_bytes: int) -> int:
        """Asked before jobs are claimed: how many bytes of them may the connection be given? 0 for none."""

    def claim_over(self, granted_bytes: int) -> None:
        """The claim that this was granted for is over, whatever it brought."""

    def queue_gone(self, error: TopicsError) -> None:
        """The queue was deleted; nothing follows."""


class WorkStream:
    """One connection's stream of jobs; they come from the turn on that ends after `start`."""

    consumer: JobConsumer

    def __init__(
        self, streams: WorkStreams, topic: TopicLog, *, number: int, node: str, max: int, lease_ms: int | None
    ) -> None:
        self._streams = streams
        self.topic = topic
        self.number = number
        self.node = node
        self.max = max
        self.lease_ms = lease_ms
        self.closed = False
        self._paused = False
        self._claimers: dict[Claimer, int] = {}  # claims under way, and what was granted for each

    def start(self, consumer: JobConsumer) -> None:
        self.consumer = consumer
        self._streams.add(self)

    @property
    def free_slots(self) -> int:
        """How many more jobs it may hold, less those that are being claimed."""
        if self.closed or self._paused:
            return 0
        claimed = sum(claimer.max for claimer in self._claimers)
        return max(self.max - queue_of(self.topic).held(self.number) - claimed, 0)

    def pause(self) -> None:
        """The connection lags: claim nothing for it until it goes on."""
        self._paused = True
        self.withdraw()

    def withdraw(self) -> None:
        """End the claims under way to which nothing has been dealt yet."""
        for claimer in list(self._claimers):
            if self._streams.withdraw(self.topic, claimer):
                self._claim_is_over(claimer)

    def go_on(self) -> None:
        self._paused = False
        self._streams.mark_dirty(self.topic)

    def give_back(self, jobs: Sequence[ClaimedJob]) -> None:
        """Jobs whose frames were dropped before the client got them: ready again, at once."""
        wanted = {job.seq: job.lease_id for job in jobs}
        self._streams.release(self, list(wanted), wanted)

    def close(self) -> None:
        """The connection has ended: every lease delivered on it is released and heads the line."""
        if not self.closed:
            self._streams.close(self)

    # --- called by the service ------------------------------------------------------------------------------------

    def claim(self, lease_ms: int) -> Claimer | None:
        """Claim as many jobs of mean size as the connection may be given; None if that is none."""
        slots, mean_bytes = self.free_slots, max(self.topic.bytes // max(self.topic.count, 1), 1)
        granted_bytes = self.consumer.grant(min(self._portion_bytes(), slots * mean_bytes), mean_bytes)
        if not granted_bytes:
            return None
        portion = max(granted_bytes // mean_bytes, 1)
        claimer = Claimer(node=self.node, max=min(slots, portion), lease_ms=lease_ms, stream=self.number)
        self._claimers[claimer] = granted_bytes
        claimer.ticket.then(partial(self._got, claimer))
        return claimer

    def _claim_is_over(self, claimer: Claimer) -> None:
        granted_bytes = self._claimers.pop(claimer, None)
        if granted_bytes is not None:
            self.consumer.claim_over(granted_bytes)

    def _got(self, claimer: Claimer, done: Ticket[Claimed]) -> None:
        self._claim_is_over(claimer)
        if done.error is not None:
            return  # the next recheck tries again
        jobs = done.result().jobs
        if self.closed:
            self.give_back(jobs)
        elif jobs:
            self.consumer.jobs_leased(jobs)
            self._streams.mark_dirty(self.topic)  # it may have claimed less than it has slots for

    def _portion_bytes(self) -> int:
        """How much to claim at once: a client that reads none of it costs little more than its buffer. A claim window
        opens seldom, so there it is all that the buffer holds."""
        has_window = self.topic.config.claim_jitter_ms
        return limits.SSE_BUFFER_BYTES if has_window else limits.RENDER_INLINE_BYTES_MAX


class WorkStreams:
    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.withdraw = queues.withdraw
        self._ctx = queues.context
        self._numbers = count(1)
        self._by_topic: dict[int, dict[int, WorkStream]] = {}
        self._ctx.on_published.append((self._by_topic, self.mark_dirty))
        self._ctx.on_deleted.append(self._deleted)

    def __contains__(self, topic_id: int) -> bool:
        return topic_id in self._by_topic

    def mark_dirty(self, topic: TopicLog) -> None:
        self._queues.waker.mark_dirty(topic)

    def nodes(self, topic_id: int) -> list[str]:
        """Whose streams are open, once for each."""
        return [stream.node for stream in self._by_topic.get(topic_id, {}).values()]

    def __len__(self) -> int:
        return sum(map(len, self._by_topic.values()))

    def open(self, topic: TopicLog, *, node: str, max: int, lease_ms: int | None) -> WorkStream:
        return WorkStream(self, topic, number=next(self._numbers), node=node, max=max, lease_ms=lease_ms)

    def add(self, stream: WorkStream) -> None:
        self._by_topic.setdefault(stream.topic.id, {})[stream.number] = stream
        stream.topic.touch(self._ctx.clock.now_ms(), read=False)
        self.mark_dirty(stream.topic)

    def close(self, stream: WorkStream) -> None:
        stream.closed = True
        stream.withdraw()
        streams = self._by_topic.get(stream.topic.id)
        if streams is not None:
            streams.pop(stream.number, None)
            if not streams:
                del self._by_topic[stream.topic.id]
        queue = queue_of(stream.topic)
        self.release(stream, sorted(queue.streams.get(stream.number, ())), None)
        queue.streams.pop(stream.number, None)

    def release(self, stream: WorkStream, seqs: Sequence[int], lease_ids: dict[int, int] | None) -> None:
        topic, queue = stream.topic, queue_of(stream.topic)
        held = queue.streams.get(stream.number, set())
        jobs = [queue.jobs[seq] for seq in seqs if seq in held]
        if lease_ids is not None:
            jobs = [job for job in jobs if job.lease_id == lease_ids[job.seq]]
        if not jobs or not self._ctx.exists(topic):
            return
        events = release_events(topic, jobs, self._ctx.clock.now_ms())
        self._queues.log_quietly(topic, events)
        for event in events:
            apply(self._ctx.state, event)
        self.mark_dirty(topic)

    # --- serving --------------------------------------------------------------------------------------------------

    def top_up(self, topic: TopicLog) -> None:
        """The streams that have room claim what there is."""
        streams = self._by_topic.get(topic.id)
        if not streams or not queue_of(topic).claimable(topic.count):
            return
        wanting = [stream for stream in streams.values() if stream.free_slots]
        if wanting:
            topic.touch(self._ctx.clock.now_ms(), read=False)
            default_ms = topic.config.lease_ms
            claims = [stream.claim(default_ms if stream.lease_ms is None else stream.lease_ms) for stream in wanting]
            claimers = [claimer for claimer in claims if claimer is not None]
            if claimers:
                self._queues.join(topic, claimers)

    # --- the end --------------------------------------------------------------------------------------------------

    def _deleted(self, topic: TopicLog) -> None:
        for stream in self._by_topic.pop(topic.id, {}).values():
            stream.closed = True
            stream.consumer.queue_gone(TopicNotFound(topic.name))
