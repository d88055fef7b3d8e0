"""Random histories of one queue beside a plain model: who holds what, who gets what next (invariants 47 to 55).

The model keeps every job as a small record and finds the next ones by looking at all of them. A restart is told to it
with what the queue's class and `leases_durable` keep."""

from dataclasses import dataclass

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.queues.world import World

NODES = ["n", "m"]
nodes = st.sampled_from(NODES)
seqs = st.lists(st.integers(1, 30), max_size=6)


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

    def is_held(self, now):
        return self.node is not None and now <= self.until

    def is_delayed(self, now):
        return self.delayed and now < self.until

    def is_ready(self, now):
        return not self.is_held(now) and not self.is_delayed(now)

    def let_go(self):
        self.node, self.delayed = None, False


class QueueMachine(RuleBasedStateMachine):
    @initialize(durable=st.booleans(), limit=st.sampled_from([0, 2]), recent=st.booleans())
    def begin(self, durable, limit, recent):
        more = {} if recent else {"recent_cache_bytes": 0}
        self.world = World(segment_max_events=5, **more)
        self.durable, self.limit = durable, limit
        self.world.queue("q", leases_durable=durable, max_deliveries=limit, dead_letter="dead")
        self.jobs = {}
        self.dead = []
        self.next_seq = 1
        self.ids = set()

    @property
    def now(self):
        return self.world.clock.wall_ms()

    # --- calls ----------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4), tag=st.sampled_from("ab"))
    def write(self, count, tag):
        self.world.write("q", *range(self.next_seq, self.next_seq + count), tag=tag)
        for seq in range(self.next_seq, self.next_seq + count):
            self.jobs[seq] = Job(seq, tag)
        self.next_seq += count

    @rule(node=nodes, count=st.integers(1, 5), lease_ms=st.sampled_from([100, 1000]))
    def claim(self, node, count, lease_ms):
        expected = self.next_in_line(count)
        jobs = self.world.claim(node=node, max=count, lease_ms=lease_ms)
        assert [job.seq for job in jobs] == sorted(expected)
        for job in jobs:
            mine = self.jobs[job.seq]
            mine.deliveries += 1
            mine.node, mine.lease_id, mine.until = node, job.lease_id, self.now + lease_ms
            mine.delayed, mine.was_out = False, True
            assert (job.deliveries, job.deadline) == (mine.deliveries, mine.until)
            assert job.run.record(job.at).blob == b'{"d":%d}' % job.seq
            assert job.lease_id not in self.ids
            self.ids.add(job.lease_id)

    def next_in_line(self, count):
        """Reclaimed ones first, lowest first; exhausted ones die on the way."""
        ready = [job for job in self.jobs.values() if job.is_ready(self.now)]
        chosen = []
        for job in sorted(ready, key=lambda job: (not job.was_out, job.seq)):
            if len(chosen) == count:
                break
            if self.limit and job.deliveries >= self.limit:
                self.dead.append(job.seq)
                del self.jobs[job.seq]
            else:
                chosen.append(job.seq)
        return chosen

    def held(self, node, wanted, fences):
        accepted = []
        for at, seq in enumerate(wanted):
            job = self.jobs.get(seq)
            fits = job is not None and job.is_held(self.now) and job.node == node and seq not in accepted
            if fits and (fences is None or fences[at] in (None, job.lease_id)):
                accepted.append(seq)
        return accepted

    def fences_for(self, wanted, kind):
        if kind == "none":
            return None
        current = [self.jobs[seq].lease_id if seq in self.jobs else 1 for seq in wanted]
        if kind == "current":
            return current
        return [None if at % 2 else max(lease_id - 1, 1) for at, lease_id in enumerate(current)]

    def check_counts(self, answer, accepted, wanted):
        skipped = list(wanted)
        for seq in accepted:
            skipped.remove(seq)
        assert sorted(answer.skipped) == sorted(skipped)

    @rule(node=nodes, wanted=seqs, kind=st.sampled_from(["none", "current", "old"]))
    def ack(self, node, wanted, kind):
        fences = self.fences_for(wanted, kind)
        accepted = self.held(node, wanted, fences)
        answer = self.world.ack(*wanted, node=node, fences=fences)
        assert answer.acked == len(accepted)
        self.check_counts(answer, accepted, wanted)
        for seq in accepted:
            del self.jobs[seq]

    @rule(node=nodes, wanted=seqs, kind=st.sampled_from(["none", "old"]), delay_ms=st.sampled_from([0, 0, 500]))
    def nack(self, node, wanted, kind, delay_ms):
        fences = self.fences_for(wanted, kind)
        accepted = self.held(node, wanted, fences)
        answer = self.world.nack(*wanted, node=node, delay_ms=delay_ms, fences=fences)
        assert answer.nacked == len(accepted)
        self.check_counts(answer, accepted, wanted)
        for seq in accepted:
            job = self.jobs[seq]
            job.let_go()
            job.delayed, job.until = delay_ms > 0, self.now + delay_ms

    @rule(node=nodes, wanted=seqs, lease_ms=st.sampled_from([100, 2000]))
    def extend(self, node, wanted, lease_ms):
        accepted = self.held(node, wanted, None)
        answer = self.world.extend(*wanted, node=node, lease_ms=lease_ms)
        assert answer.deadlines == dict.fromkeys(accepted, self.now + lease_ms)
        self.check_counts(answer, accepted, wanted)
        for seq in accepted:
            self.jobs[seq].until = self.now + lease_ms

    @rule(tag=st.sampled_from("ab"))
    def delete_tag(self, tag):
        self.world.delete("q", match=tag)
        self.jobs = {seq: job for seq, job in self.jobs.items() if job.tag != tag}

    @rule(ms=st.sampled_from([1, 99, 101, 500, 1001]))
    def advance(self, ms):
        self.world.advance(ms)

    # --- background and restarts ----------------------------------------------------------------------------------

    @rule()
    def checkpoint(self):
        self.world.checkpoint()

    @rule()
    def snapshot(self):
        self.world.snapshot()

    @rule(how=st.sampled_from(["killed", "stopped"]))
    def restart(self, how):
        self.world = getattr(self.world, how)()
        if not self.durable:
            for job in self.jobs.values():
                job.let_go()
                job.deliveries, job.was_out = 0, False

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def counters_agree(self):
        held = sum(job.is_held(self.now) for job in self.jobs.values())
        delayed = sum(job.is_delayed(self.now) for job in self.jobs.values())
        ready = len(self.jobs) - held - delayed
        assert self.world.counters() == (ready, held, len(self.dead))
        assert self.world.state("q").count == ready + held + delayed

    @invariant()
    def dead_letters_are_where_they_belong(self):
        if self.dead:
            assert sorted(self.world.data("dead")) == sorted(self.dead)


QueueMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, phases=[Phase.reuse, Phase.generate, Phase.shrink]
)
TestQueueMachine = QueueMachine.TestCase
