"""Queues: claim, ack, nack and extend on queue topics, and the work streams over them
(`docs/spec/semantics.md#sec-16`).

Lease events are decided and applied in one instant, and logged after that if the topic keeps leases; the call is
answered when the log has them. So two calls can never both think they hold a job, and whatever builds on an event comes
after it in the log. Always holds: the ack of a job is its delete, one per call; if that fails, all its jobs are ready
again. Called on the owner's thread; `turn` at the end of each turn and `tick` by the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from topics import limits
from topics.core.apply import apply
from topics.core.queue.image import note_position
from topics.core.queue.leases import RELEASED
from topics.core.queue.operations import (
    HeldJobs,
    ack_events,
    extend_events,
    held_by,
    nack_events,
    queue_of,
    release_events,
)
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.deletes import Deletes
from topics.engine.floor_log import FloorLog
from topics.engine.lifecycle import Lifecycle
from topics.engine.queues.claim_pass import Claimed, Claimer, ClaimPass, LeaseIds
from topics.engine.queues.dead_letters import Append, DeadLetters
from topics.engine.queues.job_actions import JobActions
from topics.engine.queues.job_ends import JobEnd, JobEnds
from topics.engine.queues.job_lists import JobLists
from topics.engine.queues.waiting import QueueWaker, WaitingClaims
from topics.engine.queues.work_streams import WorkStream, WorkStreams
from topics.engine.routers.forwarding import Forwarding
from topics.engine.ticket import Ticket, chain, either_way, gathered, resolved
from topics.engine.writing.writes import Writes
from topics.errors import BatchTooLarge, ColdUnavailable, InvalidRequest, NotAQueue, TopicNotFound, TopicsError
from topics.model.ops import LeaseEvent
from topics.model.results import (
    AckResult,
    DeleteResult,
    ExtendResult,
    JobProgress,
    NackResult,
    PauseResult,
    QueueCounters,
)
from topics.model.values import ProgressReport

log = logging.getLogger("topics.queues")

T = TypeVar("T")

Fences = Sequence[int | None] | None
"""One entry per seq: the lease id it must have now, or None for any; no list at all: no fencing."""


class Acked(NamedTuple):
    result: AckResult
    sync_ms: float


class Window(NamedTuple):
    """Claims that are served together when it closes."""

    topic: TopicLog
    closes_at: int
    cohort: list[Claimer]


class Queues:
    """`append` writes dead letters to a topic by name, and creates it, with a given config, if it is not there."""

    def __init__(
        self,
        context: Context,
        floor_log: FloorLog,
        forwarding: Forwarding,
        lifecycle: Lifecycle,
        deletes: Deletes,
        writes: Writes,
        append: Append,
    ) -> None:
        self.context = context
        self.floor_log = floor_log
        self.forwarding = forwarding
        self._lifecycle = lifecycle
        self.deletes = deletes
        self.append = append
        self.ends = JobEnds(context, lifecycle, deletes, writes)
        self._windows: dict[int, Window] = {}
        self._lost_in_flight = 0  # in queues that are gone
        self.ids = LeaseIds(context)
        self.dead_letters = DeadLetters(context, self.ends, append)
        self.waker = QueueWaker(self, wanted=self._is_wanted, serve=self._serve)
        self.waiting = WaitingClaims(self)
        self.streams = WorkStreams(self)
        self.lists = JobLists(self)
        self.actions = JobActions(self)
        context.on_barrier.append(self._at_barrier)
        context.on_deleted.append(self._deleted)

    def queue(self, name: str) -> TopicLog:
        """The topic of a queue call; raises TopicNotFound or NotAQueue."""
        topic = self.context.state.topic(name)
        if topic.queue is None:
            raise NotAQueue(name)
        return topic

    def counters(self, topic: TopicLog) -> QueueCounters | None:
        queue = topic.queue
        if queue is None:
            return None
        now = self.context.clock.now_ms()
        queue.expire(now)
        return QueueCounters(
            queue.ready(topic.count),
            queue.in_flight,
            queue.dead_lettered,
            queue.delayed,
            queue.lost_in_flight,
            oldest_ms=_oldest_ms(topic, now),
            next_due=queue.next_due(),
        )

    # --- claim ----------------------------------------------------------------------------------------------------

    def claim(
        self, name: str, *, node: str, max: int = 1, lease_ms: int | None = None, wait_ms: int = 0
    ) -> Ticket[Claimed]:
        """Lease up to `max` jobs to a node."""
        return self.ask(name, node=node, max=max, lease_ms=lease_ms, wait_ms=wait_ms).ticket

    def ask(self, name: str, *, node: str, max: int = 1, lease_ms: int | None = None, wait_ms: int = 0) -> Claimer:
        """As `claim`, for a caller that may give up before it is answered: see `WaitingClaims.leave`."""
        _check_node(node)
        claimer = Claimer(node=node, max=limits.CLAIM_MAX(max), lease_ms=0)
        if wait_ms:
            claimer.waits_until = self.context.clock.running_ms() + limits.CLAIM_WAIT_MS(wait_ms)

        def begin() -> Ticket[None]:
            topic = self.queue(name)
            self.lists.note_call(topic, node)
            claimer.lease_ms = topic.config.lease_ms if lease_ms is None else limits.LEASE_MS(lease_ms)
            self.join(topic, [claimer])
            return resolved(None)

        self._lifecycle.when_free(name, begin).then(claimer.begun, claimer.ticket.abandon)
        return claimer

    def join(self, topic: TopicLog, claimers: list[Claimer]) -> None:
        """Serve claimers at once, or together with others when the coalescing window closes."""
        jitter_ms = topic.config.claim_jitter_ms
        clock = self.context.clock
        now = clock.running_ms()
        window = self._windows.get(topic.id)
        if window is not None and window.closes_at <= now:
            self._close(window)
            window = None
        if window is not None:
            window.cohort.extend(claimers)
        elif jitter_ms:
            self._windows[topic.id] = Window(topic, now + jitter_ms, claimers)
            self.context.wake_at(clock.now_ms() + jitter_ms)
        else:
            ClaimPass(self, topic, claimers).run()

    def withdraw(self, topic: TopicLog, claimer: Claimer) -> bool:
        """Remove a claimer from a window that is still open. False: it is closed."""
        window = self._windows.get(topic.id)
        if window is None or claimer not in window.cohort:
            return False
        window.cohort.remove(claimer)
        return True

    def _close(self, window: Window) -> None:
        self._windows.pop(window.topic.id, None)
        if window.cohort:
            ClaimPass(self, window.topic, window.cohort).run()

    def open_stream(self, name: str, *, node: str, max: int = 1, lease_ms: int | None = None) -> WorkStream:
        """A work stream; the caller starts it."""
        _check_node(node)
        lease_ms = None if lease_ms is None else limits.LEASE_MS(lease_ms)
        return self.streams.open(self.queue(name), node=node, max=limits.CLAIM_MAX(max), lease_ms=lease_ms)

    # --- ack ------------------------------------------------------------------------------------------------------

    def ack(
        self,
        name: str,
        *,
        node: str,
        seqs: Sequence[int],
        fences: Fences = None,
        results: Sequence[bytes | None] = (),
    ) -> Ticket[Acked]:
        """Delete jobs that this node holds. `results`, one JSON text for each seq, go to the queue's history."""
        if results and len(results) != len(seqs):
            raise InvalidRequest(f"{len(results)} results were given for {len(seqs)} seqs")
        by_seq = dict(zip(seqs, results, strict=True)) if results else {}
        return self._on_held(name, node, seqs, fences, partial(self._ack, by_seq))

    def _ack(self, results: dict[int, bytes | None], topic: TopicLog, held: HeldJobs, now: int) -> Ticket[Acked]:
        if not held.jobs:
            return resolved(self._acked(topic, held))
        events = ack_events(topic, held.jobs, now)
        for event in events:
            apply(self.context.state, event)
        ends = [JobEnd(event.seq, results.get(event.seq)) for event in events]
        try:
            ticket = self.ends.end(topic, "acked", ends, leases=events if topic.config.keeps_leases else ())
        except BaseException:
            self._ack_failed(topic, events)
            raise
        answer: Ticket[Acked] = Ticket()

        def over(done: Ticket[DeleteResult]) -> None:
            if done.error is not None:
                self._ack_failed(topic, events)
                answer.fail(done.error)
                return
            sync_ms = getattr(done, "sync_ms", 0.0) if topic.config.is_fsync else 0.0
            answer.resolve(self._acked(topic, held, count=len(events), sync_ms=sync_ms))

        ticket.then(over, answer.abandon)
        return answer

    def _acked(self, topic: TopicLog, held: HeldJobs, *, count: int = 0, sync_ms: float = 0.0) -> Acked:
        queue = queue_of(topic)
        ready = queue.ready(topic.count)
        return Acked(AckResult(topic.name, count, held.skipped, ready, queue.in_flight, held.lost), sync_ms)

    def _ack_failed(self, topic: TopicLog, events: Sequence[LeaseEvent]) -> None:
        """The jobs were not deleted: release their leases."""
        jobs = queue_of(topic).jobs
        kept = [jobs[event.seq] for event in events if event.seq in jobs]
        for event in release_events(topic, kept, self.context.clock.now_ms()):
            apply(self.context.state, event)
        self.waker.mark_dirty(topic)

    # --- nack, extend ---------------------------------------------------------------------------------------------

    def nack(
        self,
        name: str,
        *,
        node: str,
        seqs: Sequence[int],
        fences: Fences = None,
        delay_ms: int | None = None,
        error: str = "",
        final: bool = False,
    ) -> Ticket[NackResult]:
        """Drop leases; the jobs are ready at once or after a delay, by the queue's policy if none is given. `final`:
        they are dead letters now."""
        delay_ms = None if delay_ms is None else limits.NACK_DELAY_MS(delay_ms)
        if len(error.encode()) > limits.ERROR_BYTES_MAX:
            raise InvalidRequest(f"error has at most {limits.ERROR_BYTES_MAX} bytes")

        def act(topic: TopicLog, held: HeldJobs, now: int) -> Ticket[NackResult]:
            if final and topic.config.dead_letter is None:
                raise InvalidRequest(f"final needs a dead_letter in the config of {topic.name!r}")
            events = nack_events(topic, held.jobs, delay_ms=delay_ms, error=error, final=final, now=now)
            changed = self.change(topic, events)
            if final and events:
                changed = gathered([changed, self._give_up(topic, [event.seq for event in events])])
            return chain(changed, lambda _: resolved(self._nacked(topic, held)))

        return self._on_held(name, node, seqs, fences, act)

    def _give_up(self, topic: TopicLog, seqs: Sequence[int]) -> Ticket[None]:
        queue = queue_of(topic)
        for seq in seqs:
            queue.move(queue.jobs[seq])
        return self.dead_letters.move(topic, seqs)

    def _nacked(self, topic: TopicLog, held: HeldJobs) -> NackResult:
        queue = queue_of(topic)
        ready = queue.ready(topic.count)
        return NackResult(topic.name, len(held.jobs), held.skipped, ready, queue.in_flight, held.lost)

    def extend(
        self,
        name: str,
        *,
        node: str,
        seqs: Sequence[int],
        lease_ms: int,
        fences: Fences = None,
        progress: Sequence[ProgressReport | None] = (),
    ) -> Ticket[ExtendResult]:
        """Set the deadline of leases to `lease_ms` from now. `progress`, one for each seq: how far the work is."""
        lease_ms = limits.LEASE_MS(lease_ms)
        told = dict(zip(seqs, progress, strict=True)) if progress else {}

        def act(topic: TopicLog, held: HeldJobs, now: int) -> Ticket[ExtendResult]:
            events = extend_events(topic, held.jobs, lease_ms=lease_ms, now=now)
            deadlines = {event.seq: event.deadline for event in events}
            for seq in deadlines if told else ():
                if (report := told[seq]) is not None:
                    queue_of(topic).progress[seq] = JobProgress(report.fraction, report.text, ts=now)
            done = ExtendResult(topic.name, len(events), held.skipped, deadlines, held.lost)
            return chain(self.change(topic, events), lambda _: resolved(done))

        return self._on_held(name, node, seqs, fences, act)

    # --- what the three have in common ----------------------------------------------------------------------------

    def _on_held(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        fences: Fences,
        act: Callable[[TopicLog, HeldJobs, int], Ticket[T]],
    ) -> Ticket[T]:
        if not node:
            raise InvalidRequest("node must not be empty")
        if len(seqs) > limits.SEQS_PER_CALL_MAX:
            raise BatchTooLarge.of_seqs(len(seqs), max=limits.SEQS_PER_CALL_MAX)
        if fences is not None and len(fences) != len(seqs):
            raise InvalidRequest(f"{len(fences)} lease ids were given for {len(seqs)} seqs")

        def begin() -> Ticket[T]:
            topic = self.queue(name)
            if self.floor_log.is_logged(topic):
                return with_floors_logged(topic)
            return chain(self.floor_log.ensure_logged(topic), lambda _: with_floors_logged(topic))

        def with_floors_logged(topic: TopicLog) -> Ticket[T]:
            self.context.check_exists(topic)
            now = self.context.clock.now_ms()
            if queue_of(topic).expire(now):
                self.waker.mark_dirty(topic)
            self.lists.note_call(topic, node)
            return act(topic, held_by(queue_of(topic), node, seqs, fences), now)

        return self._lifecycle.when_free(name, begin)

    def change(self, topic: TopicLog, events: Sequence[LeaseEvent]) -> Ticket[None]:
        """Apply events now; the answer waits for the log."""
        logged = self.log_leases(topic, events) if events else resolved(None)
        for event in events:
            apply(self.context.state, event)
        self.waker.mark_dirty(topic)
        return logged

    def log_leases(self, topic: TopicLog, events: Sequence[LeaseEvent]) -> Ticket[None]:
        """Log lease events: all of them where leases are kept, elsewhere only releases, which tell of counts, errors
        and delays; logging every claim makes a job cost half as much again. They commute with everything else of their
        topic, so nothing waits for them, and they wait for nothing. Where they must be kept a failure is the caller's;
        elsewhere a lost event means one more delivery, and a log that takes nothing does not stop the work."""
        config = topic.config
        if not config.keeps_leases:
            events = [event for event in events if event.event == RELEASED]
        if not config.logs_leases or not events:
            return resolved(None)
        must = config.keeps_leases or (config.is_fsync and any(event.ready_at for event in events))
        try:
            logged = self.context.log(
                topic.id,
                events,
                finish=lambda _: None,
                durable=must,
                client_frames=len(events),
                barrier=False,
                internal=True,
                apart=True,
            )
        except TopicsError:
            if must:
                raise
            return resolved(None)
        return logged if must else either_way(logged)

    def log_quietly(self, topic: TopicLog, events: Sequence[LeaseEvent]) -> None:
        """For releases nobody waits for: a lost one means that the lease runs out instead."""
        try:
            self.log_leases(topic, events).then(lambda _: None)
        except TopicsError as error:
            log.debug("released leases of %r were not logged: %s", topic.name, error)

    # --- time, positions, the end ---------------------------------------------------------------------------------

    def set_paused(self, name: str, paused: bool) -> Ticket[PauseResult]:
        """Stop or start the hand-out; the rest of the config is not touched."""

        def change() -> Ticket[PauseResult]:
            config = msgspec.structs.replace(self.queue(name).config, paused=paused)
            done = self._lifecycle.put(name, config)
            return chain(done, lambda _: resolved(PauseResult(name, paused)))

        return self._lifecycle.when_free(name, change)

    def _is_wanted(self, topic_id: int) -> bool:
        return topic_id in self.streams or topic_id in self.waiting

    def _serve(self, topic: TopicLog) -> None:
        self.waiting.serve(topic)
        self.streams.top_up(topic)

    def tick(self) -> None:
        """Close windows whose time is over; look at queues that have something due; answer who has waited enough."""
        clock = self.context.clock
        now = clock.running_ms()
        for window in [window for window in self._windows.values() if window.closes_at <= now]:
            self._close(window)
        self.waker.tick(clock.now_ms())
        self.waiting.tick()

    def _at_barrier(self, group: int) -> None:
        for topic in self.context.state.by_id.values():
            if topic.queue is not None and self.context.group_of(topic.id) == group:
                note_position(topic.queue)

    def lost_in_flight(self) -> int:
        """Leased jobs that retention evicted since the start, in all queues and in those that are deleted."""
        queues = (topic.queue for topic in self.context.state.by_id.values() if topic.queue is not None)
        return self._lost_in_flight + sum(queue.lost_in_flight for queue in queues)

    def _deleted(self, topic: TopicLog) -> None:
        if topic.queue is not None:
            self._lost_in_flight += topic.queue.lost_in_flight
        window = self._windows.pop(topic.id, None)
        for claimer in () if window is None else window.cohort:
            claimer.ticket.fail(TopicNotFound(topic.name))


def _oldest_ms(topic: TopicLog, now: int) -> int | None:
    """The age of the oldest job; None if there is none, or if only the cold store could tell."""
    if not topic.count:
        return None
    try:
        return max(now - topic.ts_of(topic.earliest_seq), 0)
    except ColdUnavailable:
        return None


def _check_node(node: str) -> None:
    if not 0 < len(node.encode()) <= limits.NODE_BYTES_MAX:
        raise InvalidRequest(f"node must have 1..{limits.NODE_BYTES_MAX} bytes")
