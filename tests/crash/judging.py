"""Judging: every crash a workload could have had, each judged by restarts and the ledger of its moment.

A state counts once: two crashes that leave the same files after the same answers are one. States of the first seed are
restarted twice; of the others every fourth is, because what a second start does depends on the first far less than on
the disk it found."""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.crash.harness import Rig, survey
from tests.crash.ledger import Ledger, check
from tests.crash.workloads import Workload

from topics.testing import SimFs
from topics.testing.clock import SimClock, SimHost
from topics.testing.crashes import CrashPoints, CrashState
from topics.testing.faultfs import FaultFs
from topics.testing.orderfs import OrderFs, OrderMonitor
from topics.testing.powercut import POWER_PATTERNS

RANDOM_PATTERNS = ("keep_prefix_torn", "reorder", "zero_sector", "flip", "random")
SEEDS = range(int(os.environ.get("CRASH_SEEDS", "12")))
"""Each gives the patterns that chance decides another outcome. `make sim` asks for more."""
LATER_MS = 1_755_000_100_000
SECOND_START_EVERY = 4
COLLECT_EVERY = 250  # an engine is full of cycles; collecting after each one costs more than the engine


def points_of(workload: Workload) -> CrashPoints:
    """Run the workload once and keep the disk as it was before each of its calls."""
    disk, ledger, clock = SimFs(), Ledger(), SimClock()
    points = CrashPoints(disk, note=ledger.copy)
    monitor = OrderMonitor()
    hooked = FaultFs(OrderFs(disk, monitor), record=False)
    rig = Rig(hooked, ledger, clock=clock, **workload.settings)
    workload.before(rig)
    hooked.hook = points.before
    workload.story(rig)
    points.end()
    return points


def distinct_states(points: CrashPoints, seeds: range) -> Iterator[tuple[int, CrashState]]:
    """Each with its seed. The patterns that leave nothing to chance come with the first seed only."""
    met: set[bytes] = set()
    for seed in seeds:
        patterns = POWER_PATTERNS if seed == 0 else RANDOM_PATTERNS
        for state in points.states(rng=Random(seed), patterns=patterns):
            if seed and state.how == "kill":
                continue
            known = fingerprint(state)
            if known not in met:
                met.add(known)
                yield seed, state


def fingerprint(state: CrashState) -> bytes:
    """Of what a start can see, and of what it is judged by."""
    assert isinstance(state.note, Ledger)
    digest = hashlib.blake2b(repr((state.how == "kill", state.note.facts())).encode(), digest_size=16)
    for path, data in state.disk.dump().items():
        digest.update(f"{path}:{len(data)}:".encode())
        digest.update(data.rstrip(b"\0"))
    return digest.digest()


def judge_all(workload: Workload, seeds: range) -> int:
    """Judge every distinct state; how many there were."""
    count, seed, state = 0, 0, None
    points = points_of(workload)
    gc.disable()
    try:
        for seed, state in distinct_states(points, seeds):
            count += 1
            judge(workload, state, count, twice=seed == 0 or count % SECOND_START_EVERY == 0)
            if count % COLLECT_EVERY == 0:
                gc.collect()
    except BaseException as error:
        error.add_note(f"workload {workload.name}, seed {seed}, state {count}: {state}")
        raise
    finally:
        gc.enable()
    return count


def judge(workload: Workload, state: CrashState, number: int, *, twice: bool) -> None:
    ledger = state.note
    assert isinstance(ledger, Ledger)
    power_cut = state.how != "kill"
    host = SimHost("boot-2") if power_cut else SimHost()
    rig = start(workload, state.disk, ledger.copy(), host, number)
    before = survey(rig.sim)
    check(ledger, before, power_cut=power_cut)
    if twice:
        state.disk.kill()
        rig = start(workload, state.disk.reboot(), rig.ledger, host, number + 1)
        assert survey(rig.sim) == before, "the second restart shows another state"
    for name in list(rig.sim.engine.state.topics):
        next_seq_is_new(rig, name, max(before[name].records, default=0))
        every_job_can_be_claimed(rig, name)


def start(workload: Workload, disk: Any, ledger: Ledger, host: SimHost, number: int) -> Rig:
    """With the workload's settings, or with one of the shard counts it goes on with."""
    shards = workload.shards_after
    settings = {**workload.settings, "wal_shards": shards[number % len(shards)]} if shards else workload.settings
    return Rig(disk, ledger, clock=SimClock(LATER_MS), host=host, **settings)


def next_seq_is_new(rig: Rig, name: str, visible: int) -> None:
    instance = rig.ledger.instance(name)
    taken = max([*instance.acked(), visible])
    rig.write(name, 1)
    first_seq = instance.writes[-1].first_seq
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
