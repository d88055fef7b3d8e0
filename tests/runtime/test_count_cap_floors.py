"""The floor of a count cap is as durable as what it let go: no crash hides a loss, no floor that was shown falls."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from tests.crash.harness import Rig, read_all
from tests.runtime.world import WAL, World

from topics.core.reading.walk import ReadRequest
from topics.errors import CommitFailed
from topics.testing.crashes import CrashPoints


def capped(world: World, durability: str, *, routed: bool = False) -> str:
    """Five records where three have room; the topic that holds them, and the name under which they are written."""
    world.rig.create("c", durability, cap_records=3)
    if routed:
        world.rig.create("a", durability)
        world.rig.router("r", "a", "c")
    return "a" if routed else "c"


@pytest.mark.parametrize("routed", [False, True], ids=["written", "routed"])
@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_a_kill_at_any_call_of_a_checkpoint_tells_of_what_the_cap_took(durability: str, routed: bool) -> None:
    world = World()
    world.rig.write(capped(world, durability, routed=routed), 5)
    assert read_all(world.rig.sim, "c").gaps == [(1, 2)]
    points = CrashPoints(world.disk)
    world.faults.hook = points.before
    world.rig.checkpoint()
    points.end()
    assert len(points.points) > 8
    for _, _, disk in points.points:
        for _ in range(2):
            seen = read_all(Rig(disk, clock=world.clock, host=world.host).sim, "c")
            assert (seen.gaps, sorted(seen.records)) == ([(1, 2)], [3, 4, 5])
            disk.kill()
            disk = disk.reboot()


def _by_state(rig: Rig) -> int:
    shown: int = rig.sim.call(lambda engine: engine.topic_state("c")).earliest_seq
    return shown


def _by_list(rig: Rig) -> int:
    shown: int = rig.sim.call(lambda engine: engine.page_of_topics(prefix="c"))[0][0].earliest_seq
    return shown


def _by_a_gap(rig: Rig) -> int:
    gap = rig.sim.call(lambda engine: engine.read("c", ReadRequest(from_seq=0, shows_floor=False))).outcome.tombstone
    assert gap is not None
    return gap.earliest_seq


def _by_the_tail(rig: Rig) -> int:
    head = rig.sim.engine.state.topics["c"].head
    shown: int = rig.sim.call(lambda engine: engine.read("c", ReadRequest(from_seq=head))).outcome.earliest_seq
    return shown


def _by_a_delete(rig: Rig) -> int:
    shown: int = rig.sim.call(lambda engine: engine.delete_records("c", before_seq=1)).earliest_seq
    return shown


DOORS: dict[str, Callable[[Rig], int]] = {
    "state": _by_state,
    "list": _by_list,
    "tombstone": _by_a_gap,
    "read at the end": _by_the_tail,
    "delete": _by_a_delete,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("routed", [False, True], ids=["written", "routed"])
@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_a_power_cut_undoes_no_floor_that_an_answer_has_shown(durability: str, routed: bool, door: str) -> None:
    world = World()
    name = capped(world, durability, routed=routed)
    world.rig.write(name, 5)
    world.rig.sim.sync_all()
    for _ in range(2):
        world.rig.write(name, 2)
        shown = DOORS[door](world.rig)
        assert shown == world.rig.sim.engine.state.topics["c"].earliest_seq
    world.rig.write(name, 2)
    seen = world.cut()["c"]
    assert seen.earliest >= shown
    assert seen.floor >= shown


def test_writes_and_live_streams_do_not_wait_for_a_floor() -> None:
    world = World()
    capped(world, "disk")
    world.rig.write("c", 5)
    world.rig.sim.sync_all()
    syncs = world.rig.sim.kernel.store.groups[0].stats.syncs
    for _ in range(50):
        world.rig.write("c")
        request = ReadRequest(from_seq=world.rig.sim.engine.state.topics["c"].head - 1, shows_floor=False)
        live = world.rig.sim.engine.read("c", request)
        assert live.done, "a live stream waits for a floor that it does not show"
    ceilings = 50 // 4 + 1  # blocks of 8 seqs, the next one reserved when half is left
    assert world.rig.sim.kernel.store.groups[0].stats.syncs - syncs <= ceilings


def test_where_a_floor_cannot_be_logged_a_gap_is_not_told_and_other_answers_show_the_floor_that_is_sure() -> None:
    world = World()
    capped(world, "disk")
    world.rig.write("c", 5)
    assert _by_state(world.rig) == 3
    world.rig.write("c", 2)
    world.faults.fail("datasync", WAL, code=errno.EIO)
    with pytest.raises(CommitFailed):
        _by_a_gap(world.rig)
    assert _by_state(world.rig) == 3
    assert _by_the_tail(world.rig) == 3
    outcome = world.rig.sim.call(lambda engine: engine.read("c", ReadRequest(from_seq=5))).outcome
    assert outcome.records == 2
