"""Work streams: connections that are kept supplied with jobs (`docs/spec/semantics.md#sec-16-7`,
`docs/spec/delivery.md#sec-13`).

A stream holds at most `max` unexpired leases and gets each job once. Always holds: only the seqs in `queue.streams`
count against it, so an ack, nack, expiry or deletion frees its slot by itself; a closed stream holds nothing. Streams
of one queue that have room are topped up together, as one cohort. Woken by `stir` and by time; nobody polls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from topics import limits
from topics.core.apply import apply
from topics.core.queue.operations import queue_of, release_events
from topics.core.topic import TopicLog
from topics.engine.queues.claim_pass import Claimed, ClaimedJob, Claimer
from topics.engine.ticket import Ticket
from topics.errors import TopicNotFound, TopicsError

if TYPE_CHECKING:
    from topics.engine.queues.queues import Queues

OnJobs = Callable[[list[ClaimedJob]], None]
OnEnd = Callable[[TopicsError], None]
Grant = Callable[[int, int], int]


class WorkStream:
    """One connection. `on_jobs` gets jobs as they are leased; `on_end` is called once if the queue goes away. Before
    jobs are claimed, `grant` is asked how many bytes of them the connection may be given (wanted, least), and
    `on_claim_over` is told when that claim is over, whatever it brought."""

    def __init__(
        self, streams: WorkStreams, topic: TopicLog, *, number: int, node: str, max: int, lease_ms: int | None
    ) -> None:
        self._streams = streams
        self.topic = topic
        self.number = number
        self.node = node
        self.max = max
        self.lease_ms = lease_ms
        self.on_jobs: OnJobs = lambda _: None
        self.on_end: OnEnd = lambda _: None
        self.grant: Grant = lambda wanted_bytes, _: wanted_bytes
        self.on_claim_over: Callable[[int], None] = lambda _: None
        self.closed = False
        self._paused = False
        self._claimers: dict[Claimer, int] = {}  # claims under way, and what was granted for each

    @property
    def room(self) -> int:
        if self.closed or self._paused:
            return 0
        asked = sum(claimer.max for claimer in self._claimers)
        return max(self.max - queue_of(self.topic).held(self.number) - asked, 0)

    def pause(self) -> None:
        """The connection lags: claim nothing for it until it goes on."""
        self._paused = True
        self.withdraw()

    def withdraw(self) -> None:
        """Take back what was asked for, as far as nothing has been dealt."""
        for claimer in list(self._claimers):
            if self._streams.withdraw(self.topic, claimer):
                self._claim_is_over(claimer)

    def go_on(self) -> None:
        self._paused = False
        self._streams.stir(self.topic)

    def give_back(self, jobs: Sequence[ClaimedJob]) -> None:
        """Jobs whose frames were dropped before the client got them: ready again, at once."""
        wanted = {job.seq: job.lease_id for job in jobs}
        self._streams.release(self, [seq for seq, lease_id in wanted.items()], wanted)

    def close(self) -> None:
        """The connection has ended: every lease delivered on it is released and heads the line."""
        if not self.closed:
            self._streams.close(self)

    # --- called by the service ------------------------------------------------------------------------------------

    def ask(self, lease_ms: int) -> Claimer | None:
        """For as many jobs of middling size as the connection may be given; None if that is none."""
        room, mean_bytes = self.room, self._mean_bytes()
        granted_bytes = self.grant(min(self._portion_bytes(), room * mean_bytes), mean_bytes)
        if not granted_bytes:
            return None
        portion = max(granted_bytes // mean_bytes, 1)
        claimer = Claimer(node=self.node, max=min(room, portion), lease_ms=lease_ms, stream=self.number)
        self._claimers[claimer] = granted_bytes
        claimer.ticket.then(partial(self._got, claimer))
        return claimer

    def _claim_is_over(self, claimer: Claimer) -> None:
        granted_bytes = self._claimers.pop(claimer, None)
        if granted_bytes is not None:
            self.on_claim_over(granted_bytes)

    def _got(self, claimer: Claimer, done: Ticket[Claimed]) -> None:
        self._claim_is_over(claimer)
        if done.error is not None:
            return  # the next look tries again
        jobs = done.result().jobs
        if self.closed:
            self.give_back(jobs)
        elif jobs:
            self.on_jobs(jobs)
            self._streams.stir(self.topic)  # what was asked for may have been a portion

    def _portion_bytes(self) -> int:
        """What to claim in one go: a client that takes none of it costs little more than its buffer. A window opens
        seldom, so there it is all that the buffer holds."""
        has_window = self.topic.config.claim_jitter_ms
        return limits.SSE_BUFFER_BYTES if has_window else limits.RENDER_INLINE_BYTES_MAX

    def _mean_bytes(self) -> int:
        return max(self.topic.bytes // max(self.topic.count, 1), 1)


class WorkStreams:
    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.withdraw = queues.withdraw
        self._ctx = queues.context
        self._numbers = count(1)
        self._by_topic: dict[int, dict[int, WorkStream]] = {}
        self._stirred: dict[int, TopicLog] = {}
        self._look_at: dict[int, int] = {}
        self._ctx.on_published.append(self.stir)
        self._ctx.on_removed.append(lambda topic, _: self.stir(topic))
        self._ctx.on_config.append(lambda topic, _: self.stir(topic))
        self._ctx.on_deleted.append(self._deleted)

    def __len__(self) -> int:
        return sum(map(len, self._by_topic.values()))

    def open(self, topic: TopicLog, *, node: str, max: int, lease_ms: int | None) -> WorkStream:
        """Set its callbacks before the turn ends: jobs come from the next one on."""
        stream = WorkStream(self, topic, number=next(self._numbers), node=node, max=max, lease_ms=lease_ms)
        self._by_topic.setdefault(topic.id, {})[stream.number] = stream
        topic.touch(self._ctx.clock.now_ms(), read=False)
        self.stir(topic)
        return stream

    def close(self, stream: WorkStream) -> None:
        stream.closed = True
        stream.withdraw()
        streams = self._by_topic.get(stream.topic.id)
        if streams is not None:
            streams.pop(stream.number, None)
            if not streams:
                del self._by_topic[stream.topic.id]
                self._look_at.pop(stream.topic.id, None)
        queue = queue_of(stream.topic)
        self.release(stream, sorted(queue.streams.get(stream.number, ())), None)
        queue.streams.pop(stream.number, None)

    def release(self, stream: WorkStream, seqs: Sequence[int], lease_ids: dict[int, int] | None) -> None:
        topic, queue = stream.topic, queue_of(stream.topic)
        held = queue.streams.get(stream.number, set())
        jobs = [queue.jobs[seq] for seq in seqs if seq in held]
        if lease_ids is not None:
            jobs = [job for job in jobs if job.lease_id == lease_ids[job.seq]]
        if not jobs or self._ctx.state.by_id.get(topic.id) is not topic:
            return
        events = release_events(topic, jobs, self._ctx.clock.now_ms())
        if topic.config.keeps_leases:
            self._queues.log_quietly(topic, events)
        for event in events:
            apply(self._ctx.state, event)
        self.stir(topic)

    # --- waking ---------------------------------------------------------------------------------------------------

    def stir(self, topic: TopicLog) -> None:
        """Something about this queue changed: look at its streams at the end of the turn."""
        if topic.id in self._by_topic and topic.id not in self._stirred:
            self._stirred[topic.id] = topic
            self._ctx.commit.wake()

    def turn(self) -> None:
        if self._stirred:
            stirred, self._stirred = self._stirred, {}
            for topic in stirred.values():
                self._top_up(topic)

    def tick(self, now: int) -> None:
        """Leases and delays that are over, and the look every now and then that covers everything else."""
        for topic_id in list(self._by_topic):
            if self._look_at.get(topic_id, 0) <= now:
                topic = self._ctx.state.by_id.get(topic_id)
                if topic is not None:
                    self._top_up(topic)

    def _top_up(self, topic: TopicLog) -> None:
        streams = self._by_topic.get(topic.id)
        queue = topic.queue
        if not streams or queue is None:
            return
        now = self._ctx.clock.now_ms()
        queue.expire(now)
        self._plan_look(topic, now)
        if not queue.claimable(topic.count):
            return
        wanting = [stream for stream in streams.values() if stream.room]
        if wanting:
            topic.touch(now, read=False)
            default_ms = topic.config.lease_ms
            asked = [stream.ask(default_ms if stream.lease_ms is None else stream.lease_ms) for stream in wanting]
            claimers = [claimer for claimer in asked if claimer is not None]
            if claimers:
                self._queues.join(topic, claimers)

    def _plan_look(self, topic: TopicLog, now: int) -> None:
        due = queue_of(topic).next_due()
        look_at = now + limits.WORK_RECHECK_MS
        if due is not None and now < due < look_at:
            look_at = due
        self._look_at[topic.id] = look_at
        self._ctx.wake_at(look_at)

    # --- the end --------------------------------------------------------------------------------------------------

    def _deleted(self, topic: TopicLog) -> None:
        self._look_at.pop(topic.id, None)
        self._stirred.pop(topic.id, None)
        for stream in self._by_topic.pop(topic.id, {}).values():
            stream.closed = True
            stream.on_end(TopicNotFound(topic.name))
