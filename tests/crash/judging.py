"""Judging: every crash a workload could have had, each judged by restarts and the ledger of its moment.

A state counts once: two crashes that leave the same files after the same answers are one. Each is started, read whole
and held against its ledger. What follows a start depends on the files that it left and on what it shows, and a thousand
starts have some fifty outcomes: of the states with the same one, the first is started again, the next is written to,
and the third is checkpointed and killed; where one comes less often, these take turns."""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from tests.crash.fates import fates
from tests.crash.harness import Rig, read_all, survey
from tests.crash.ledger import Ledger, Seen, check
from tests.crash.workloads import Workload

from topics.model.record import Expected
from topics.testing import SimFs
from topics.testing.clock import SimClock, SimHost
from topics.testing.crashes import CrashPoints, CrashState
from topics.testing.faultfs import FaultFs
from topics.testing.order_fs import OrderFs
from topics.testing.order_monitor import OrderMonitor

FINER = float(os.environ.get("CRASH_FINER", "1"))
"""How many more tears and chances than usual; `make sim` asks for more, `make planted` for fewer."""
LATER_MS = 1_755_000_100_000
COLLECT_EVERY = 250
Step = Callable[[Rig, CrashState, dict[str, Seen], int], None]


def points_of(workload: Workload) -> CrashPoints:
    """Run the workload once and keep the disk as it was before each of its calls."""
    disk, ledger, clock = SimFs(), Ledger(), SimClock()
    points = CrashPoints(disk, note=ledger.copy)
    cold = workload.settings.get("cold_dir")
    monitor = OrderMonitor(hot="data/topics", cold=f"{cold}/topics" if cold else None)
    hooked = FaultFs(OrderFs(disk, monitor), record=False)
    rig = Rig(hooked, ledger, clock=clock, **workload.settings)
    workload.before(rig)
    hooked.hook = points.before
    workload.story(rig)
    points.end()
    monitor.check()
    return points


def distinct_states(
    workload: Workload, *, seed: int = 0, fineness: int | None = None, met: set[bytes] | None = None
) -> Iterator[CrashState]:
    """Every point as a kill and as a power cut of every fate, without those that leave what another one left, here or
    among the states `met` before. Another `seed` draws other chances."""
    met = set() if met is None else met
    rng = Random(f"{workload.name} {seed}" if seed else workload.name)
    fineness = round(workload.fineness * FINER) if fineness is None else fineness
    for state in _states(points_of(workload), rng, fineness):
        known = fingerprint(state)
        if known not in met:
            met.add(known)
            yield state


def _states(points: CrashPoints, rng: Random, fineness: int) -> Iterator[CrashState]:
    for at, (call, note, disk) in enumerate(points.points):
        yield CrashState(at, call, "kill", note, disk.clone())
        for how, fate in fates(disk, rng, fineness=fineness) if disk.dirty else ():
            after = disk.clone()
            after.power_cut(pattern=fate)
            yield CrashState(at, call, how, note, after.reboot())


def fingerprint(state: CrashState, shown: object = ()) -> bytes:
    """Of what a start can see, and of what it is judged by; after one, also of what it has `shown`."""
    assert isinstance(state.note, Ledger)
    known = (state.how == "kill", state.note.facts(), *([shown] if shown else []))
    digest = hashlib.blake2b(repr(known).encode(), digest_size=16)
    for path, data in state.disk.dump().items():
        digest.update(f"{path}:{len(data)}:".encode())
        digest.update(data.rstrip(b"\0"))
    return digest.digest()


def judge_all(workload: Workload) -> int:
    """Judge every distinct state; how many there were."""
    count, judge = 0, Judge(workload)
    for count, state in enumerate(collecting_rarely(distinct_states(workload)), 1):
        with noted(f"workload {workload.name}, state {count}: {state}"):
            judge(state, count)
    return count


@contextmanager
def noted(note: str) -> Iterator[None]:
    """A failure inside says where it happened."""
    try:
        yield
    except BaseException as error:
        error.add_note(note)
        raise


def collecting_rarely(states: Iterable[CrashState]) -> Iterator[CrashState]:
    """An engine is full of cycles, and collecting them after each one costs more than the engine. What is there with
    the first state stays to the end, and is not looked through."""
    gc.disable()
    try:
        for count, state in enumerate(states, 1):
            if count == 1:
                gc.collect()
                gc.freeze()
            yield state
            if count % COLLECT_EVERY == 0:
                gc.collect()
    finally:
        gc.unfreeze()
        gc.enable()


class Judge:
    """Of the states of one workload. Remembers the outcomes of its starts, and what is still to be done with each."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._left: dict[bytes, list[Step]] = {}

    def __call__(self, state: CrashState, number: int) -> None:
        ledger = state.note
        assert isinstance(ledger, Ledger)
        rig = start(self._workload, state.disk, ledger.copy(), host_after(state.how, number), number)
        before = survey(rig.sim)
        check(ledger, before, power_cut=state.how != "kill")
        assert rig.sim.kernel.recovered.damage == 0, "a crash was taken for damage"
        for name, topic in rig.sim.engine.state.topics.items():
            taken = taken_seq(rig, name, before)
            assert topic.reserved_head >= taken, f"{name}: the next seq, {topic.reserved_head + 1}, was used before"
        outcome = fingerprint(state, shown=before)
        if outcome not in self._left:
            steps: list[Step] = [self._start_again, self._write, self._checkpoint]
            at = len(self._left) % len(steps)  # some outcomes come once
            self._left[outcome] = steps[at:] + steps[:at]
        if left := self._left[outcome]:
            left.pop(0)(rig, state, before, number)

    def _start_again(self, rig: Rig, state: CrashState, before: dict[str, Seen], number: int) -> None:
        state.disk.kill()
        host = host_after(state.how, number)
        rig = start(self._workload, state.disk.reboot(), rig.ledger, host, number + 1)
        assert survey(rig.sim) == before, "the second restart shows another state"

    def _write(self, rig: Rig, state: CrashState, before: dict[str, Seen], number: int) -> None:
        for name in list(rig.sim.engine.state.topics):
            versions_are_those_that_can_be_read(rig, name)
            next_seq_is_new(rig, name, taken_seq(rig, name, before))
            every_job_can_be_claimed(rig, name)

    def _checkpoint(self, rig: Rig, state: CrashState, before: dict[str, Seen], number: int) -> None:
        """What the log brought back goes to segments: nothing changes by that, nor by a kill behind it."""
        rig.checkpoint()
        assert survey(rig.sim) == before, "a checkpoint after the restart changed what can be read"
        self._start_again(rig, state, before, number)


def taken_seq(rig: Rig, name: str, before: dict[str, Seen]) -> int:
    return max([*rig.ledger.instance(name).acked(), *before[name].records], default=0)


def host_after(how: str, number: int, boot: str = "boot-2") -> SimHost:
    """By turns the machine lost its power, or only the file system died: then the boot id is the same as before."""
    return SimHost(boot) if how != "kill" and number // 4 % 2 else SimHost()


def start(workload: Workload, disk: Any, ledger: Ledger, host: SimHost, number: int) -> Rig:
    """With the workload's settings, or with one of the shard counts it goes on with."""
    shards = workload.shards_after
    settings = {**workload.settings, "wal_shards": shards[number % len(shards)]} if shards else workload.settings
    return Rig(disk, ledger, clock=SimClock(LATER_MS), host=host, **settings)


def next_seq_is_new(rig: Rig, name: str, taken: int) -> None:
    rig.write(name, 1)
    first_seq = rig.ledger.instance(name).writes[-1].first_seq
    assert first_seq is not None
    assert first_seq > taken, f"{name}: seq {first_seq} was used before"


def versions_are_those_that_can_be_read(rig: Rig, name: str) -> None:
    """A write that expects the newest record of a tag, as a reader finds it, is taken; one with another is not."""
    for tag in sorted(rig.ledger.instance(name).guarded):
        tags: dict[int, str] = {}
        read_all(rig.sim, name, tags=tags)
        newest = max((seq for seq, found in tags.items() if found == tag), default=0)
        for expected, is_right in ((newest + 1, False), (newest, True)):
            write, _ = given = rig.submit(name, 1, tag=tag, expected=Expected(tags=((tag, expected),)))
            rig.finish(given)
            assert write.refused is not is_right, (
                f"{name}: {tag} has {newest}, a write that expects {expected}: {write}"
            )


def every_job_can_be_claimed(rig: Rig, name: str) -> None:
    """At once where leases are forgotten; after they ran out where they are kept. None is lost, none comes twice."""
    if not rig.ledger.instance(name).queue or rig.ledger.instance(name).dead_letter:
        return
    if rig.ledger.instance(name).queue == "kept":
        rig.tick(60_000)
    jobs = survey(rig.sim)[name].records
    claimed = rig.claim(name, 1000, node="next")
    assert claimed == sorted(jobs), f"{name}: jobs {sorted(jobs)}, claimable {claimed}"
