"""Random histories of one queue beside a plain model: invariants 47 to 55 of `docs/spec/semantics.md#sec-17`, each a
`check_that_...`.

The model keeps every job as a small record and finds the next ones by looking at all of them. A restart is told to it
with what the queue's class and `leases_durable` keep."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.engine.world import JobList, World

from topics.core.queue.operations import queue_of
from topics.core.queue.queue_job import LEASED

NODES = ["n", "m"]
WINDOW_MS = 20
nodes = st.sampled_from(NODES)
picks = st.lists(st.integers(0, 9), min_size=1, max_size=6)
"""Places among the jobs that are out; a few of them are seqs at random instead."""


@dataclass
class Job:
    seq: int
    tag: str
    deliveries: int = 0
    node: str | None = None
    lease_id: int = 0
    until: int = 0  # last moment of the lease, or first moment after a delay
    delayed: bool = False
    was_out: bool = False  # handed out before, as far as this life of the queue knows
    streamed: bool = False  # delivered on the work stream that is open
    priority: int = 0
    was_delayed: bool = False  # from its append

    def is_held(self, now: int) -> bool:
        return self.node is not None and now <= self.until

    def is_delayed(self, now: int) -> bool:
        return self.delayed and now < self.until

    def is_ready(self, now: int) -> bool:
        return not self.is_held(now) and not self.is_delayed(now)

    def let_go(self) -> None:
        self.node, self.delayed, self.streamed = None, False, False


def some_are(*states: str) -> Callable[[QueueMachine], bool]:
    """Steps that would do nothing are left out: without this, most of a history is waiting for a job."""
    return lambda self: any(getattr(job, f"is_{state}")(self.now) for job in self.jobs.values() for state in states)


class QueueMachine(RuleBasedStateMachine):
    @initialize(
        durability=st.sampled_from(["fsync", "disk"]),
        durable=st.booleans(),
        limit=st.sampled_from([0, 2]),
        recent=st.booleans(),
    )
    def begin(self, durability: str, durable: bool, limit: int, recent: bool) -> None:
        more: dict[str, Any] = {} if recent else {"recent_cache_bytes": 0}
        self.world = World(segment_max_events=5, wal_file_bytes=1 << 16, **more)
        self.durability, self.durable, self.limit = durability, durable, limit
        self.world.topic("dead", durability=durability)
        self.configure()
        self.jobs: dict[int, Job] = {}
        self.dead: dict[int, int] = {}  # dead letters: seq and deliveries
        self.acked: set[int] = set()
        self.taken: dict[int, Job] = {}  # by retention, while somebody held it
        self.taken_before: set[int] = set()  # ... in a former life of the process: it may be told or not
        self.lost_in_flight = 0
        self.next_seq = 1
        self.ids: set[int] = set()
        self.write(4, "a")

    def configure(self, **more: Any) -> None:
        fixed = {"durability": self.durability, "leases_durable": self.durable}
        self.world.queue("q", **fixed, max_deliveries=self.limit, dead_letter="dead", **{"cap_records": 0} | more)

    @property
    def now(self) -> int:
        return self.world.clock.wall_ms()

    # --- producers ------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4), tag=st.sampled_from("ab"))
    def write(self, count: int, tag: str) -> None:
        self.world.write("q", *range(self.next_seq, self.next_seq + count), tag=tag)
        for seq in range(self.next_seq, self.next_seq + count):
            self.jobs[seq] = Job(seq, tag)
        self.next_seq += count

    @rule(count=st.integers(1, 3), delay_ms=st.sampled_from([0, 1, 500]), priority=st.sampled_from([-9, -1, 0, 3]))
    def write_with_fields(self, count: int, delay_ms: int, priority: int) -> None:
        values = range(self.next_seq, self.next_seq + count)
        self.world.write("q", *values, tag="a", fields={"delay_ms": delay_ms, "priority": priority})
        for seq in values:
            job = self.jobs[seq] = Job(seq, "a", priority=priority)
            job.was_delayed = job.was_out = delay_ms > 0 or priority != 0
            job.delayed, job.until = delay_ms > 0, self.now + delay_ms
        self.next_seq += count

    @precondition(lambda self: len(self.jobs) > 6)
    @rule(cap=st.integers(1, 8), tag=st.sampled_from("ab-"))
    def take_away(self, cap: int, tag: str) -> None:
        """Deletes and retention take jobs whoever holds them."""
        if tag == "-":
            self.configure(cap_records=cap)
            self.configure()
            lost = sorted(self.jobs)[: max(len(self.jobs) - cap, 0)]
        else:
            self.world.delete("q", match=tag)
            lost = [seq for seq, job in self.jobs.items() if job.tag == tag]
        for seq in lost:
            job = self.jobs.pop(seq)
            if tag == "-" and job.is_held(self.now):
                self.taken[seq] = job
                self.lost_in_flight += 1

    # --- claims ---------------------------------------------------------------------------------------------------

    @precondition(some_are("ready"))
    @rule(node=nodes, count=st.integers(1, 5), lease_ms=st.sampled_from([100, 1000]))
    def claim(self, node: str, count: int, lease_ms: int) -> None:
        expected = self.check_that_reclaimed_jobs_go_first(count)
        jobs = self.world.claim(node=node, max=count, lease_ms=lease_ms)
        assert [job.seq for job in jobs] == sorted(expected)
        for job in jobs:
            self.leased(job, node, lease_ms)

    @precondition(some_are("ready"))
    @rule(wants=st.lists(st.integers(1, 4), min_size=2, max_size=4))
    def claim_together(self, wants: list[int]) -> None:
        self.configure(claim_jitter_ms=WINDOW_MS)
        tickets = [self.world.claim_later(node=NODES[at % 2], max=want) for at, want in enumerate(wants)]
        self.world.advance(WINDOW_MS)
        expected = self.check_that_reclaimed_jobs_go_first(sum(wants))
        shares = [self.world.call(ticket).jobs for ticket in tickets]
        assert sorted(job.seq for share in shares for job in share) == sorted(expected)
        self.check_that_shares_are_even([len(share) for share in shares], wants)
        for at, share in enumerate(shares):
            for job in share:
                self.leased(job, NODES[at % 2], 30_000)
        self.configure()

    def leased(self, job: Any, node: str, lease_ms: int, *, streamed: bool = False) -> None:
        mine = self.jobs[job.seq]
        self.check_that_one_unexpired_lease_at_most(mine, job.lease_id)
        self.check_that_what_was_acked_is_never_claimed_again(job.seq)
        mine.deliveries += 1
        self.check_that_no_job_is_delivered_too_often(job, mine.deliveries)
        mine.node, mine.lease_id, mine.until = node, job.lease_id, self.now + lease_ms
        mine.delayed, mine.was_out, mine.streamed = False, True, streamed
        assert job.deadline == mine.until

    def check_that_one_unexpired_lease_at_most(self, job: Job, lease_id: int) -> None:
        assert not job.is_held(self.now)
        assert lease_id not in self.ids, "a lease id was handed out twice"
        self.ids.add(lease_id)

    def check_that_what_was_acked_is_never_claimed_again(self, seq: int) -> None:
        assert seq not in self.acked

    def check_that_no_job_is_delivered_too_often(self, job: Any, deliveries: int) -> None:
        assert job.deliveries == deliveries
        assert not self.limit or deliveries <= self.limit

    @staticmethod
    def check_that_shares_are_even(shares: Sequence[int], wants: Sequence[int]) -> None:
        for mine, want in zip(shares, wants, strict=True):
            for other in shares:
                assert other - mine <= 1 or mine == want

    def check_that_reclaimed_jobs_go_first(self, count: int) -> list[int]:
        """What the next pass hands out: by priority; those that were out or waited first; lowest first. Exhausted ones
        die on the way."""
        ready = [job for job in self.jobs.values() if job.is_ready(self.now)]
        chosen: list[int] = []
        for job in sorted(ready, key=lambda job: (-job.priority, not job.was_out, job.seq)):
            if len(chosen) == count:
                break
            if self.limit and job.deliveries >= self.limit:
                self.dead[job.seq] = job.deliveries
                del self.jobs[job.seq]
            else:
                chosen.append(job.seq)
        return chosen

    # --- ack, nack, extend ----------------------------------------------------------------------------------------

    def wanted(self, node: str, chosen: list[int]) -> list[int]:
        """Mostly jobs that the node holds, some that others hold, some that nobody does."""
        out = [job.seq for job in (*self.jobs.values(), *self.taken.values()) if job.node == node]
        others = sorted(set(self.jobs) - set(out))
        return [
            out[at % len(out)] if at < 7 and out else others[at % len(others)] if at < 9 and others else at + 1
            for at in chosen
        ]

    def held(self, node: str, wanted: list[int], fences: list[int | None] | None) -> list[int]:
        accepted: list[int] = []
        for at, seq in enumerate(wanted):
            job = self.jobs.get(seq)
            fits = job is not None and job.is_held(self.now) and job.node == node and seq not in accepted
            if fits and job is not None and (fences is None or fences[at] in (None, job.lease_id)):
                accepted.append(seq)
        return accepted

    def fences_for(self, wanted: list[int], kind: str) -> list[int | None] | None:
        if kind == "none":
            return None
        known = self.taken | self.jobs
        current = [known[seq].lease_id if seq in known else 1 for seq in wanted]
        if kind == "current":
            return [*current]
        return [None if at % 2 else max(lease_id - 1, 1) for at, lease_id in enumerate(current)]

    def check_skipped(
        self, answer: Any, accepted: list[int], wanted: list[int], node: str, fences: list[int | None] | None
    ) -> None:
        skipped = list(wanted)
        for seq in accepted:
            skipped.remove(seq)
        assert sorted(answer.skipped) == sorted(skipped)
        self.check_that_holders_are_told_what_retention_took(answer, node, wanted, fences)

    def check_that_holders_are_told_what_retention_took(
        self, answer: Any, node: str, wanted: list[int], fences: list[int | None] | None
    ) -> None:
        lost = set()
        for at, seq in enumerate(wanted):
            job = self.taken.get(seq)
            if job is not None and job.node == node and job.is_held(self.now):
                lost |= {seq} if fences is None or fences[at] in (None, job.lease_id) else set()
        assert {job.seq for job in answer.lost} - self.taken_before == lost
        assert {job.reason for job in answer.lost} <= {"cap"}
        assert len(answer.lost) == len({job.seq for job in answer.lost})

    @precondition(some_are("held"))
    @rule(node=nodes, chosen=picks, kind=st.sampled_from(["none", "current", "old"]))
    def ack(self, node: str, chosen: list[int], kind: str) -> None:
        wanted = self.wanted(node, chosen)
        fences = self.fences_for(wanted, kind)
        accepted = self.held(node, wanted, fences)
        answer = self.world.ack(*wanted, node=node, fences=fences)
        assert answer.acked == len(accepted)
        self.check_skipped(answer, accepted, wanted, node, fences)
        for seq in accepted:
            del self.jobs[seq]
        self.acked |= set(accepted)

    @precondition(some_are("held"))
    @rule(node=nodes, chosen=picks, kind=st.sampled_from(["none", "old"]), delay_ms=st.sampled_from([0, 500]))
    def nack(self, node: str, chosen: list[int], kind: str, delay_ms: int) -> None:
        wanted = self.wanted(node, chosen)
        fences = self.fences_for(wanted, kind)
        accepted = self.held(node, wanted, fences)
        answer = self.world.nack(*wanted, node=node, delay_ms=delay_ms, fences=fences)
        assert answer.nacked == len(accepted)
        self.check_skipped(answer, accepted, wanted, node, fences)
        for seq in accepted:
            job = self.jobs[seq]
            job.let_go()
            job.delayed, job.until = delay_ms > 0, self.now + delay_ms

    @precondition(some_are("held"))
    @rule(node=nodes, chosen=picks, lease_ms=st.sampled_from([100, 2000]))
    def extend(self, node: str, chosen: list[int], lease_ms: int) -> None:
        wanted = self.wanted(node, chosen)
        accepted = self.held(node, wanted, None)
        answer = self.world.extend(*wanted, node=node, lease_ms=lease_ms)
        assert answer.deadlines == dict.fromkeys(accepted, self.now + lease_ms)
        self.check_skipped(answer, accepted, wanted, node, None)
        for seq in accepted:
            self.jobs[seq].until = self.now + lease_ms

    @precondition(some_are("held"))
    @rule(node=nodes, call=st.sampled_from(["ack", "nack", "extend"]))
    def check_that_a_superseded_token_changes_nothing(self, node: str, call: str) -> None:
        fences = {job.seq: job.lease_id - 1 for job in self.jobs.values() if job.lease_id > 1}
        seqs = list(fences)
        before = self.everything()
        answer = getattr(self.world, call)(*seqs, node=node, fences=list(fences.values()))
        assert answer.skipped == seqs
        assert self.everything() == before

    def everything(self) -> object:
        queue = queue_of(self.world.engine.state.topic("q"))
        queue.expire(self.now)
        leases = {
            job.seq: (job.node, job.lease_id, job.due_at, job.deliveries)
            for job in queue.jobs.values()
            if job.state == LEASED
        }
        return leases, self.world.counters(), self.world.rows("q")

    # --- work streams ---------------------------------------------------------------------------------------------

    @precondition(some_are("ready"))
    @rule(room=st.integers(1, 4), acks=st.integers(0, 2), node=nodes)
    def check_that_closing_a_stream_frees_exactly_its_jobs(self, room: int, acks: int, node: str) -> None:
        got = JobList()
        stream = self.world.engine.queues.open_stream("q", node=node, max=room, lease_ms=5000)
        stream.start(got)
        expected = self.check_that_reclaimed_jobs_go_first(room)
        self.world.rest()
        assert sorted(job.seq for job in got) == sorted(expected)
        for job in got:
            self.leased(job, node, 5000, streamed=True)
        done = [job.seq for job in got[:acks]]
        stream.pause()
        assert self.world.ack(*done, node=node).acked == len(done)
        self.acked |= set(done)
        self.jobs = {seq: job for seq, job in self.jobs.items() if seq not in done}
        stream.close()
        for streamed in [job for job in self.jobs.values() if job.streamed]:
            streamed.let_go()
        ready = sum(job.is_ready(self.now) for job in self.jobs.values())
        assert self.world.counters()[0] == ready

    # --- time, background, restarts -------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 99, 500, 1001]))
    def advance(self, ms: int) -> None:
        self.world.advance(ms)

    @precondition(some_are("held", "delayed"))
    @rule(past=st.integers(0, 1))
    def advance_to_the_next_end_of_a_lease_or_delay(self, past: int) -> None:
        waiting = [job for job in self.jobs.values() if not job.is_ready(self.now)]
        if waiting:
            first = min(job.until - job.delayed for job in waiting)
            self.world.advance(max(first - self.now, 0) + past)

    @precondition(lambda self: self.durable)
    @rule(chance=st.integers(0, 2))
    def stop_keeping_leases(self, chance: int) -> None:
        if chance:
            return
        self.durable = False
        self.configure()

    @rule(what=st.sampled_from(["checkpoint", "snapshot"]))
    def tidy(self, what: str) -> None:
        getattr(self.world, what)()

    @rule(how=st.sampled_from(["killed", "stopped", "cut"]))
    def restart(self, how: str) -> None:
        if how == "cut" and self.durability != "fsync":
            how = "killed"
        self.world = getattr(self.world, how)()
        self.taken_before |= set(self.taken)
        self.taken.clear()
        self.lost_in_flight = 0
        for job in self.jobs.values():
            if not self.durable and job.node is not None:
                job.let_go()
        if not self.durable:
            self.take_counts()
        if not self.durable:
            self.check_that_every_kept_job_that_is_not_delayed_is_claimable_at_once()

    def take_counts(self) -> None:
        """Only what a nack said is certain to be kept; a power cut may take that too."""
        queue = queue_of(self.world.engine.state.topic("q"))
        for seq, mine in self.jobs.items():
            kept = queue.jobs.get(seq)
            assert kept is None or kept.deliveries <= mine.deliveries
            mine.deliveries = 0 if kept is None else kept.deliveries
            mine.was_out = kept is not None or mine.was_delayed

    def check_that_every_kept_job_that_is_not_delayed_is_claimable_at_once(self) -> None:
        """Asked on a copy of the disk, so that the history goes on as if nobody had."""
        expected = {job.seq for job in self.jobs.values() if job.is_ready(self.now)}
        if self.limit:
            expected -= {job.seq for job in self.jobs.values() if job.deliveries >= self.limit}
        assert self.world.killed().seqs(node="probe", max=1000) == sorted(expected)

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def check_that_jobs_leave_only_by_ack_move_delete_or_retention(self) -> None:
        assert [seq for seq, _ in self.world.rows("q")] == sorted(self.jobs)

    @invariant()
    def check_that_ready_in_flight_and_delayed_are_all(self) -> None:
        held = sum(job.is_held(self.now) for job in self.jobs.values())
        delayed = sum(job.is_delayed(self.now) for job in self.jobs.values())
        ready = len(self.jobs) - held - delayed
        assert self.world.counters() == (ready, held, len(self.dead))
        assert self.world.state("q").queue.lost_in_flight == self.lost_in_flight
        assert self.world.state("q").count == ready + held + delayed

    @invariant()
    def check_that_dead_letters_say_where_they_come_from(self) -> None:
        letters = self.world.records("dead") if self.dead else []
        assert sorted(letter["data"] for letter in letters) == sorted(self.dead)
        for letter in letters:
            assert letter["meta"] == {
                "$dead_letter_from": "q",
                "$dead_letter_deliveries": str(self.dead[letter["data"]]),
                "$dead_letter_src_seq": str(letter["data"]),
            } | {name: text for name, text in letter["meta"].items() if name.endswith(("_ts", "_reason"))}


QueueMachine.TestCase.settings = settings(
    max_examples=max(80, int(float(os.environ.get("SIM_SECONDS", 0)) * 5)),  # `make sim` takes about its time
    stateful_step_count=50,
    deadline=None,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
)
TestQueueMachine = QueueMachine.TestCase
