"""ClaimPass: jobs dealt to one cohort of claimers (`docs/spec/semantics.md#sec-16-3` and
`docs/spec/semantics.md#sec-16-6`).

    obstacles   routers into the queue, due floors, cold indexes, tags, lease ids: waited for, one after the other
    deal        without interruption: pick, deal, lease, log
    deliver     when the leases are logged, the dead letters moved and the payloads read

Always holds: leases are decided and applied in the same instant, so no job is dealt twice; a pass that fails gives all
of its jobs back and fails every member; a claimer is answered exactly once, or waits for the next pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from topics.core.apply import apply
from topics.core.queue.operations import (
    LOOK_AHEAD,
    claim_events,
    claim_index_needed,
    deal,
    give_back,
    pick,
    queue_of,
    unlearned,
)
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.reading.reads import Payload, PayloadSearch
from topics.engine.ticket import Ticket, gathered
from topics.errors import TopicNotFound
from topics.model.ops import HeadMark, LeaseEvent
from topics.model.run import RecordRun
from topics.model.submission import Submission

if TYPE_CHECKING:
    from topics.engine.queues.queues import Queues


class ClaimedJob(NamedTuple):
    """A leased record: `run.record(at)` is what to work on."""

    seq: int
    lease_id: int
    deadline: int
    deliveries: int
    run: RecordRun
    at: int


class Claimed(NamedTuple):
    """Jobs ascend by seq; `ready` is what is left for others."""

    topic: str
    jobs: list[ClaimedJob]
    ready: int


class Claimer:
    """Somebody who wants up to `max` jobs; `stream` is a work stream's number, 0 for a plain claim. `waits_until`, by
    the running clock: when to be answered with none; 0 is at once."""

    __slots__ = ("lease_ms", "max", "node", "number", "stream", "ticket", "waits_until")

    def __init__(self, *, node: str, max: int, lease_ms: int, stream: int = 0, waits_until: int = 0) -> None:
        self.node = node
        self.max = max
        self.lease_ms = lease_ms
        self.stream = stream
        self.waits_until = waits_until
        self.number = 0  # of arrival, once it waits
        self.ticket: Ticket[Claimed] = Ticket()

    def begun(self, done: Ticket[None]) -> None:
        if done.error is not None:
            self.ticket.fail(done.error)

    def leave(self) -> None:
        """Its caller gave up: if nothing was dealt to it yet, nothing will be."""
        self.max = 0


ID_BLOCK = 16_384  # lease ids; a busy queue reserves the next block about once a second, in the background


class LeaseIds:
    """A counter per queue that never hands out an id twice, also across restarts (`docs/spec/semantics.md#sec-16-4`).

    If leases are logged, the log itself has every id. If not, a block of ids is reserved by a synced mark before any of
    it is handed out, as seqs are: after a crash the counter goes on above the block. A clean stop keeps it exact."""

    def __init__(self, context: Context) -> None:
        self._ctx = context
        self._raising: dict[int, Ticket[None]] = {}

    def wait(self, topic: TopicLog, count: int) -> Ticket[None] | None:
        """What to wait for before so many ids may be handed out; None if nothing. Reserves ahead of need."""
        if topic.config.keeps_leases:
            return None
        assert topic.queue is not None
        left = topic.queue.lease_ceiling - topic.queue.next_lease_id + 1
        if left >= count + ID_BLOCK // 2:
            return None
        ticket = self._raise(topic, count)
        return ticket if left < count else None

    def _raise(self, topic: TopicLog, count: int) -> Ticket[None]:
        pending = self._raising.get(topic.id)
        if pending is not None:
            return pending
        assert topic.queue is not None
        ceiling = max(topic.queue.next_lease_id, topic.queue.lease_ceiling) + count + ID_BLOCK
        mark = HeadMark(topic_id=topic.id, ceiling=topic.ceiling, lease_ceiling=ceiling)
        ticket = self._ctx.log(topic.id, [mark], finish=partial(self._reserved, mark), barrier=False, internal=True)
        self._raising[topic.id] = ticket
        ticket.then(lambda _: self._over(topic.id))
        return ticket

    def _reserved(self, mark: HeadMark, _: Submission) -> None:
        apply(self._ctx.state, mark)

    def _over(self, topic_id: int) -> None:
        self._raising.pop(topic_id, None)


class ClaimPass:
    def __init__(self, queues: Queues, topic: TopicLog, cohort: Sequence[Claimer]) -> None:
        self._queues = queues
        self._ctx = queues.context
        self._topic = topic
        self._cohort = cohort
        self._shares: list[list[LeaseEvent]] = []
        self._fed = False
        self._steps: list[Callable[[], Ticket[None] | None]] = [
            self._feed,
            self._log_floors,
            self._load_index,
            self._expire,
            self._learn,
            self._reserve_ids,
        ]
        self._learned = 0  # jobs whose tags this pass has read

    def run(self) -> None:
        try:
            self._go_on()
        except Exception as error:
            self._fail(error)

    @property
    def _wanted(self) -> int:
        return sum(claimer.max for claimer in self._cohort)

    # --- obstacles ------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        while self._steps:
            obstacle = self._steps[0]()
            if obstacle is None:
                self._steps.pop(0)
            elif obstacle.done:
                obstacle.result()
            else:
                obstacle.then(self._cleared, self._fail)
                return
        self._deal()

    def _cleared(self, done: Ticket[None]) -> None:
        if done.error is not None:
            self._fail(done.error)
            return
        try:
            self._ctx.check_exists(self._topic)
            self._go_on()
        except Exception as error:
            self._fail(error)

    def _feed(self) -> Ticket[None] | None:
        """Once only: a source that is written all the time must not hold up a claim for ever."""
        if self._fed:
            return None
        self._fed = True
        return self._queues.forwarding.bring_up_to_date(self._topic)

    def _log_floors(self) -> Ticket[None] | None:
        floor_log = self._queues.floor_log
        return None if floor_log.is_logged(self._topic) else floor_log.ensure_logged(self._topic)

    def _load_index(self) -> Ticket[None] | None:
        extent = claim_index_needed(self._topic, self._wanted)
        if extent is None:
            return None
        self._steps.insert(0, self._log_floors)  # once more: the index will tell which records have expired
        loaded: Ticket[None] = Ticket()
        self._ctx.files.fetch(self._topic, extent).then(
            lambda done: loaded.resolve(None) if done.error is None else loaded.fail(done.error), loaded.abandon
        )
        return loaded

    def _expire(self) -> None:
        """Before the tags are read: a job whose delay is over may come before others of its tag. What is over later is
        for the next pass."""
        queue_of(self._topic).expire(self._ctx.clock.now_ms())

    def _learn(self) -> Ticket[None] | None:
        """Where a rule is about tags, read those of the jobs that come next, a portion in each pass; and all of those
        that were handed out before, since they may hold others up."""
        if self._learned >= LOOK_AHEAD and not queue_of(self._topic).untold:
            return None
        seqs = unlearned(self._topic)
        if not seqs:
            return None
        self._learned += len(seqs)
        learned: Ticket[None] = Ticket()
        PayloadSearch(self._ctx, self._topic, seqs).begin().then(partial(self._teach, seqs, learned), learned.abandon)
        return learned

    def _teach(self, seqs: Sequence[int], learned: Ticket[None], done: Ticket[Payload]) -> None:
        payload, queue = done.result(), queue_of(self._topic)
        for seq in seqs:
            if seq in payload.found:
                run, at = payload.found[seq]
                queue.learn(seq, run.record(at).tag)
            elif seq in payload.damaged:
                queue.set_aside(queue.enter(seq))
                queue.untold.pop(seq, None)
            elif payload.error is not None and seq not in queue.jobs:
                queue.untold[seq] = None  # a later pass tries again
            elif payload.error is None:
                queue.untold.pop(seq, None)  # it died meanwhile
        if payload.error is not None:
            learned.fail(payload.error)
        else:
            learned.resolve(None)

    def _reserve_ids(self) -> Ticket[None] | None:
        return self._queues.ids.wait(self._topic, min(self._wanted, self._topic.count))

    # --- dealing --------------------------------------------------------------------------------------------------

    def _deal(self) -> None:
        topic, now = self._topic, self._ctx.clock.now_ms()
        queue = queue_of(topic)
        if topic.config.keeps_leases:
            self._ctx.commit.check_writable(self._ctx.group_of(topic.id), reclaims=True)
        if queue.untold and not queue.rules.paused:  # another call took note of them while this one waited
            self._steps += [self._learn, self._reserve_ids]
            self._go_on()
            return
        picked = pick(topic, self._wanted, now)
        if not picked.seqs and not picked.exhausted and self._may_learn_more():
            self._learned = 0
            self._steps += [self._load_index, self._learn, self._reserve_ids]  # the next jobs may lie in a cold segment
            self._go_on()
            return
        for claimer, places in zip(self._cohort, deal(len(picked.seqs), [c.max for c in self._cohort]), strict=True):
            seqs = sorted([picked.seqs[place] for place in places])
            self._shares.append(
                claim_events(topic, seqs, node=claimer.node, lease_ms=claimer.lease_ms, stream=claimer.stream, now=now)
            )
        events = [event for share in self._shares for event in share]
        for event in events:
            apply(self._ctx.state, event)
        waits: list[Ticket[None]] = []
        if events:
            waits.append(self._queues.log_leases(topic, events))
        if picked.exhausted:
            waits.append(self._queues.dead_letters.move(topic, picked.exhausted))
        gathered(waits).then(self._leased, self._give_up)

    def _may_learn_more(self) -> bool:
        queue = queue_of(self._topic)
        return queue.rules.by_tag and not queue.rules.paused and (bool(queue.untold) or queue.cursor < self._topic.head)

    def _leased(self, done: Ticket[None]) -> None:
        if done.error is not None:
            self._give_up(done.error)
            return
        seqs = [event.seq for share in self._shares for event in share]
        PayloadSearch(self._ctx, self._topic, seqs).begin().then(self._deliver, self._give_up)

    # --- delivering -----------------------------------------------------------------------------------------------

    def _deliver(self, done: Ticket[Payload]) -> None:
        payload = done.result()
        if not self._ctx.exists(self._topic):
            self._fail(TopicNotFound(self._topic.name))
            return
        self._set_aside(payload)
        answers = [self._jobs(share, payload) for share in self._shares]
        if payload.error is not None:
            missing = [e for share in self._shares for e in share if e.seq not in payload.found]
            self._give_back([event for event in missing if event.seq not in payload.damaged])
        for claimer, share, jobs in zip(self._cohort, self._shares, answers, strict=True):
            self._answer(claimer, share, jobs, payload)

    def _jobs(self, share: list[LeaseEvent], payload: Payload) -> list[ClaimedJob]:
        """A record that died since it was leased is left out; its lease went with it."""
        found = payload.found
        if self._topic.config.done is not None:
            self._note_origins(payload)
        return [
            ClaimedJob(event.seq, event.lease_id, event.deadline, event.deliveries, *found[event.seq])
            for event in share
            if event.seq in found
        ]

    def _note_origins(self, payload: Payload) -> None:
        """The history wants to know them when the job ends; now they are at hand."""
        jobs = queue_of(self._topic).jobs
        for seq, (run, at) in payload.found.items():
            if (job := jobs.get(seq)) is not None:
                record = run.record(at)
                job.origin = record.ts, record.tag

    def _answer(self, claimer: Claimer, share: list[LeaseEvent], jobs: list[ClaimedJob], payload: Payload) -> None:
        if share and not jobs and payload.error is not None:
            claimer.ticket.fail(payload.error)
        elif share and not jobs and any(event.seq in payload.damaged for event in share):
            ClaimPass(self._queues, self._topic, [claimer]).run()  # damaged jobs are set aside now: try the next
        elif jobs or not self._queues.waiting.wait(self._topic, claimer):
            ready = queue_of(self._topic).ready(self._topic.count)
            claimer.ticket.resolve(Claimed(self._topic.name, jobs, ready))

    def _set_aside(self, payload: Payload) -> None:
        queue = queue_of(self._topic)
        for seq in payload.damaged:
            if (job := queue.jobs.get(seq)) is not None:
                queue.set_aside(job)

    # --- failing --------------------------------------------------------------------------------------------------

    def _give_back(self, events: Sequence[LeaseEvent]) -> None:
        now = self._ctx.clock.now_ms()
        for event in events:
            apply(self._ctx.state, give_back(self._topic, event, now))

    def _give_up(self, error: BaseException) -> None:
        """Jobs were dealt: claimers that were not answered lose them."""
        for claimer, share in zip(self._cohort, self._shares, strict=True):
            if not claimer.ticket.done:
                self._give_back(share)
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        for claimer in self._cohort:
            self._queues.waiting.leave(claimer)  # a later pass must not answer it once more
            claimer.ticket.abandon(error)
