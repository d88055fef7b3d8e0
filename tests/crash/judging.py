"""Judging: every crash a workload could have had, each judged by restarts and the ledger of its moment.

A state counts once: two crashes that leave the same files after the same answers are one. Every fourth state is started
twice, every fourth one is checkpointed and killed again, and every fourth one is written to, because what follows a
start depends on it far less than on the disk it found; what can be said without a write is said of all."""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from tests.crash.fates import fates
from tests.crash.harness import Rig, survey
from tests.crash.ledger import Ledger, Seen, check
from tests.crash.workloads import Workload

from topics.testing import SimFs
from topics.testing.clock import SimClock, SimHost
from topics.testing.crashes import CrashPoints, CrashState
from topics.testing.faultfs import FaultFs
from topics.testing.order_fs import OrderFs
from topics.testing.order_monitor import OrderMonitor

FINER = float(os.environ.get("CRASH_FINER", "1"))
"""How many more tears and chances than usual; `make sim` asks for more, `make planted` for fewer."""
LATER_MS = 1_755_000_100_000
EVERY = 4
COLLECT_EVERY = 250


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


def fingerprint(state: CrashState) -> bytes:
    """Of what a start can see, and of what it is judged by."""
    assert isinstance(state.note, Ledger)
    digest = hashlib.blake2b(repr((state.how == "kill", state.note.facts())).encode(), digest_size=16)
    for path, data in state.disk.dump().items():
        digest.update(f"{path}:{len(data)}:".encode())
        digest.update(data.rstrip(b"\0"))
    return digest.digest()


def judge_all(workload: Workload) -> int:
    """Judge every distinct state; how many there were."""
    count = 0
    for count, state in enumerate(collecting_rarely(distinct_states(workload)), 1):
        with noted(f"workload {workload.name}, state {count}: {state}"):
            judge(workload, state, count)
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
    """An engine is full of cycles, and collecting them after each one costs more than the engine."""
    gc.disable()
    try:
        for count, state in enumerate(states, 1):
            yield state
            if count % COLLECT_EVERY == 0:
                gc.collect()
    finally:
        gc.enable()


def judge(workload: Workload, state: CrashState, number: int) -> None:
    ledger = state.note
    assert isinstance(ledger, Ledger)
    power_cut = state.how != "kill"
    host = host_after(state.how, number)
    rig = start(workload, state.disk, ledger.copy(), host, number)
    before = survey(rig.sim)
    check(ledger, before, power_cut=power_cut)
    assert rig.sim.kernel.recovered.damage == 0, "a crash was taken for damage"
    if number % EVERY == 0:
        state.disk.kill()
        rig = start(workload, state.disk.reboot(), rig.ledger, host, number + 1)
        assert survey(rig.sim) == before, "the second restart shows another state"
    if number % EVERY == 2:
        rig = checkpointed(workload, rig, state.disk, before, host, number)
    for name, topic in list(rig.sim.engine.state.topics.items()):
        taken = max([*rig.ledger.instance(name).acked(), *before[name].records], default=0)
        assert topic.reserved_head >= taken, f"{name}: the next seq, {topic.reserved_head + 1}, was used before"
        if number % EVERY == 1:
            next_seq_is_new(rig, name, taken)
            every_job_can_be_claimed(rig, name)


def host_after(how: str, number: int, boot: str = "boot-2") -> SimHost:
    """By turns the machine lost its power, or only the file system died: then the boot id is the same as before."""
    return SimHost(boot) if how != "kill" and number // EVERY % 2 else SimHost()


def checkpointed(workload: Workload, rig: Rig, disk: Any, before: dict[str, Seen], host: SimHost, number: int) -> Rig:
    """What the log brought back goes to segments: nothing changes by that, nor by a kill behind it."""
    rig.checkpoint()
    assert survey(rig.sim) == before, "a checkpoint after the restart changed what can be read"
    disk.kill()
    rig = start(workload, disk.reboot(), rig.ledger, host, number + 1)
    assert survey(rig.sim) == before, "a restart behind that checkpoint shows another state"
    return rig


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


def every_job_can_be_claimed(rig: Rig, name: str) -> None:
    """At once where leases are forgotten; after they ran out where they are kept. None is lost, none comes twice."""
    if not rig.ledger.instance(name).queue or rig.ledger.instance(name).dead_letter:
        return
    if rig.ledger.instance(name).queue == "kept":
        rig.tick(60_000)
    jobs = survey(rig.sim)[name].records
    claimed = rig.claim(name, 1000, node="next")
    assert claimed == sorted(jobs), f"{name}: jobs {sorted(jobs)}, claimable {claimed}"
