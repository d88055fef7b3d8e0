"""Rows of groups A, B and C of the fault matrix that destroy bytes of the log, as readers of the topics see them.

What is gone is announced, its seqs name nothing else, what lies before the damage is whole, and a second start shows
the same.

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.harness import Rig, read_all, survey
from tests.crash.ledger import Seen
from tests.runtime.world import World

from topics.errors import StartRefused
from topics.testing import SimFs

RECORDS = 60
SIZE = 150
"""So large that the log has more than three files, none of them absorbed."""


def written() -> World:
    world = World()
    world.rig.create("t", "fsync")
    for _ in range(RECORDS):
        world.rig.write("t", 1, size=SIZE)
    world.disk.kill()
    assert len(logs(world.disk)) > 3
    return world


def logs(disk: SimFs) -> list[str]:
    return sorted(path for path in disk.dump() if "/wal-" in path and "quarantine" not in path)


def flip_record(disk: SimFs, path: str, world: World) -> int:
    """Flip a bit inside the second record of a file; its seq."""
    tokens = world.rig.ledger.tokens("t")
    content = disk.contents(path)
    seq = [at for at, token in enumerate(tokens, 1) if token.encode() in content][1]
    place = content.index(tokens[seq - 1].encode())
    disk.tamper(path, lambda data: data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
    return seq


def flip_in_last(disk: SimFs, world: World) -> int:
    return flip_record(disk, logs(disk)[-1], world)


def flip_in_rotated(disk: SimFs, world: World) -> int:
    return flip_record(disk, logs(disk)[1], world)


def lose_middle(disk: SimFs, world: World) -> int:
    path = logs(disk)[1]
    content = disk.contents(path)
    disk.erase(path)
    return next(at for at, token in enumerate(world.rig.ledger.tokens("t"), 1) if token.encode() in content)


WAYS: dict[str, Callable[[SimFs, World], int]] = {
    "a middle frame of the last file": flip_in_last,
    "a rotated file": flip_in_rotated,
    "a middle file missing": lose_middle,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_lies_behind_damage_is_set_aside_announced_and_its_seqs_are_not_used_again(way: str) -> None:
    """Rows 36, 41 and 42."""
    world = written()
    expected = dict(enumerate(world.rig.ledger.tokens("t"), 1))
    first_gone = WAYS[way](world.disk, world)
    disk = world.disk.reboot()
    rig = Rig(disk, clock=world.clock, host=world.host)
    seen = read_all(rig.sim, "t")
    assert seen.records == {seq: token for seq, token in expected.items() if seq < first_gone}
    assert seen.gaps == [(first_gone, seen.head)]
    assert seen.head >= RECORDS
    assert [path for path in disk.dump() if path.startswith("data/wal/quarantine/")]
    assert rig.sim.kernel.recovered.damage == 1
    assert again(rig, disk, world) == seen


def again(rig: Rig, disk: SimFs, world: World) -> Seen:
    """What the next start shows after one more write, without that write."""
    rig.create("u", "fsync")
    rig.sim.call(lambda engine: engine.drop_topic("u"))
    before = disk.dump()
    disk.kill()
    later = Rig(disk.reboot(), clock=world.clock, host=world.host)
    assert {path for path in before if "quarantine" in path} <= set(disk.dump())
    head = read_all(later.sim, "t").head
    later.ledger.begin("t", "fsync")
    later.write("t", 1)
    assert later.ledger.instance("t").writes[-1].first_seq == head + 1
    found = read_all(later.sim, "t")
    found.records.pop(head + 1)
    return Seen(found.records, found.gaps, head, found.earliest, found.floor, found.count - 1, found.config)


def test_with_refuse_a_damaged_log_stops_the_start_and_no_byte_changes() -> None:
    """Row 43."""
    world = written()
    flip_in_rotated(world.disk, world)
    disk = world.disk.reboot()
    before = disk.dump()
    with pytest.raises(StartRefused, match="damaged in file"):
        Rig(disk, clock=world.clock, host=world.host, wal_damage="refuse")
    assert disk.dump() == before


def test_of_two_unsynced_batches_only_the_second_survives_and_both_are_announced() -> None:
    """Row 17."""
    world = World()
    world.rig.create("d", "disk")
    world.rig.write("d", 1)
    world.rig.sim.sync_all()
    world.rig.write("d", 2, size=600)
    world.rig.write("d", 1)
    first = world.rig.ledger.instance("d").writes[1].tokens[0].encode()
    world.disk.power_cut(None, "keep_all")
    log = logs(world.disk)[0]
    at = world.disk.contents(log).index(first)
    world.disk.tamper(log, lambda data: data[: at - 44] + bytes(1044) + data[at + 1000 :])
    seen = world.restart_after_cut()["d"]
    assert sorted(seen.records) == [1]
    assert all(seen.announced(seq) for seq in (2, 3, 4))
    world.rig.write("d", 1)
    first_seq = world.rig.ledger.instance("d").writes[-1].first_seq
    assert first_seq == seen.head + 1 > 4


def test_a_group_of_an_older_layout_that_comes_back_changes_no_config_and_no_floor() -> None:
    """Row 39."""
    world = World(wal_shards=1)
    world.rig.create("t", "fsync", cap_records=3)
    world.rig.write("t", 5)
    world.disk.kill()
    old = {path: content for path, content in world.disk.dump().items() if path.startswith("data/wal/")}
    world.kill(wal_shards=3)
    world.rig.configure("t", "fsync", cap_records=2)
    world.rig.write("t", 5)
    for _ in range(3):
        world.rig.snapshot()
        world.rig.tick(5_100)
    assert not set(old) & set(world.disk.dump()), "the old group is still there"
    before = world.seen()
    disk = world.disk.clone()
    for path, content in old.items():
        disk.plant(path, content)
    rig = Rig(disk, clock=world.clock, host=world.host, wal_shards=3)
    assert survey(rig.sim) == before
    rig.snapshot()
    disk.kill()
    assert survey(Rig(disk.reboot(), clock=world.clock, host=world.host, wal_shards=3).sim) == before
