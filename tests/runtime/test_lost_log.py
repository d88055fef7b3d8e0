"""A log that ends before a position that was recorded as synced: the bytes were there once, so it is damage.

What lay behind the position is gone with its acks, and nobody can tell how much that was. So each topic of the group
announces all that fits into the missing bytes, and none of these seqs is used again.

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.harness import Rig, read_all
from tests.runtime.world import World

from topics.errors import StartRefused
from topics.testing import SimFs

RECORDS = 60
CUT_AT = 120
"""Behind the first frame of a file and in front of every position."""


def written(*, shards: int = 1, **settings: object) -> World:
    """Ten records of each class in front of a snapshot, and sixty behind it in the same file, all synced."""
    world = World(wal_shards=shards, wal_file_bytes=1 << 16, seq_reserve=8, **settings)
    for durability in ("fsync", "disk", "memory"):
        world.rig.create(durability, durability)
        world.rig.write(durability, 10)
    world.rig.snapshot()
    for durability in ("fsync", "disk", "memory"):
        for _ in range(RECORDS):
            world.rig.write(durability)
    world.rig.sim.sync_all()
    world.disk.kill()
    world.disk = world.disk.reboot()
    return world


def logs(disk: SimFs) -> list[str]:
    return sorted(path for path in disk.dump() if "/wal-" in path and "quarantine" not in path)


def cut_short(disk: SimFs) -> None:
    for path in logs(disk):
        disk.tamper(path, lambda data: data[:CUT_AT])


def zero_the_end(disk: SimFs) -> None:
    for path in logs(disk):
        disk.tamper(path, lambda data: data[:CUT_AT] + bytes(len(data) - CUT_AT))


def empty_file(disk: SimFs) -> None:
    for path in logs(disk):
        disk.tamper(path, lambda data: b"")


def lose_all_files(disk: SimFs) -> None:
    for path in [path for path in disk.dump() if path.startswith("data/wal/")]:
        disk.erase(path)


def lose_directories(disk: SimFs) -> None:
    lose_all_files(disk)
    for name in disk.listdir("data/wal"):
        disk.rmdir(f"data/wal/{name}")


WAYS: dict[str, Callable[[SimFs], None]] = {
    "cut short": cut_short,
    "its end zeroed": zero_the_end,
    "an empty file": empty_file,
    "all files gone": lose_all_files,
    "the directories gone": lose_directories,
}


def start(world: World, disk: SimFs, **settings: object) -> Rig:
    return Rig(disk, world.rig.ledger, clock=world.clock, host=world.host, **{**world.settings, **settings})


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_log_that_ends_before_a_recorded_position_is_damage_and_what_it_held_is_announced(
    way: str, shards: int
) -> None:
    """Row 95."""
    world = written(shards=shards)
    WAYS[way](world.disk)
    rig = start(world, world.disk)
    assert 0 < rig.sim.kernel.recovered.damage <= shards  # one of them may have held nothing
    for name in ("fsync", "disk", "memory"):
        seen = read_all(rig.sim, name)
        acked = world.rig.ledger.instance(name).acked()
        assert sorted(seen.records) == list(range(1, 11))
        assert all(seen.announced(seq) for seq in acked if seq > 10)
        rig.write(name)
        first_seq = world.rig.ledger.instance(name).writes[-1].first_seq
        assert first_seq == seen.head + 1 > max(acked)
    before = {name: read_all(rig.sim, name) for name in ("fsync", "disk", "memory")}
    world.disk.kill()
    again = start(world, world.disk.reboot(), wal_damage="refuse")
    assert {name: read_all(again.sim, name) for name in before} == before
    assert again.sim.kernel.recovered.damage == 0


@pytest.mark.parametrize("way", WAYS)
def test_with_refuse_a_log_that_ends_before_a_recorded_position_stops_the_start_and_no_byte_changes(way: str) -> None:
    """Row 95."""
    world = written()
    WAYS[way](world.disk)
    before = world.disk.dump()
    with pytest.raises(StartRefused, match="ends before"):
        start(world, world.disk, wal_damage="refuse")
    assert world.disk.dump() == before


def test_after_a_clean_stop_a_log_that_was_cut_is_damage_too() -> None:
    world = written()
    rig = start(world, world.disk)
    rig.sim.close()
    disk = world.disk.reboot()
    disk.tamper(logs(disk)[-1], lambda data: data[:CUT_AT])
    rig = start(world, disk)
    assert rig.sim.kernel.recovered.damage == 1
    assert len(read_all(rig.sim, "fsync").records) == 10 + RECORDS


def test_an_older_file_that_ends_before_the_recorded_position_is_damage_although_the_log_goes_on() -> None:
    world = World(wal_file_bytes=4096)
    world.rig.create("t", "fsync")
    world.rig.write("t", 2, size=300)
    world.rig.snapshot()
    for _ in range(20):
        world.rig.write("t", 1, size=300)
    acked = world.rig.ledger.instance("t").acked()
    world.disk.kill()
    disk = world.disk.reboot()
    assert len(logs(disk)) > 2
    disk.tamper(logs(disk)[0], lambda data: data[:200])
    with pytest.raises(StartRefused, match="numbering"):
        start(world, disk, wal_damage="refuse")
    rig = start(world, disk)
    assert rig.sim.kernel.recovered.damage == 1
    seen = read_all(rig.sim, "t")
    assert all(seq in seen.records or seen.announced(seq) for seq in acked)
    assert seen.head >= max(acked)


def test_a_bad_frame_in_front_of_a_position_that_a_mark_behind_it_recorded_is_damage() -> None:
    """The mark says how far the log was synced when it was written: what fails before that place was good once."""
    world = World(wal_file_bytes=1 << 16)
    world.rig.create("t", "fsync")
    world.rig.write("t", 5)
    world.rig.checkpoint()
    world.rig.write("t", 2)
    world.disk.kill()
    disk = world.disk.reboot()
    token = world.rig.ledger.tokens("t")[2].encode()
    at = disk.contents(logs(disk)[0]).index(token)
    disk.tamper(logs(disk)[0], lambda data: data[:at] + b"?" + data[at + 1 :])
    with pytest.raises(StartRefused, match="damaged in file"):
        start(world, disk, wal_damage="refuse")
    rig = start(world, disk)
    assert rig.sim.kernel.recovered.damage == 1
    seen = read_all(rig.sim, "t")
    assert sorted(seen.records) == [1, 2, 3, 4, 5]
    assert all(seen.announced(seq) for seq in (6, 7))


def test_copies_that_nobody_can_derive_again_from_a_cut_log_are_announced_in_their_destination() -> None:
    world = World(wal_file_bytes=1 << 16, seq_reserve=8)
    for name in ("a", "b"):
        world.rig.create(name, "fsync")
    world.rig.router("r", "a", "b")
    world.rig.write("a", 4)
    world.rig.look("b")
    world.rig.snapshot()
    for _ in range(30):
        world.rig.write("a", 2)
    world.rig.look("b")
    copies = world.rig.ledger.instance("b").copies
    assert len(copies) == 64
    world.disk.kill()
    disk = world.disk.reboot()
    cut_short(disk)
    rig = start(world, disk)
    seen = read_all(rig.sim, "b")
    assert all(seen.records.get(seq) == token or seen.announced(seq) for seq, token in copies.items())
    rig.write("a")
    assert all(seq <= seen.head or seq > max(copies) for seq in read_all(rig.sim, "b").records)


def test_topic_ids_of_a_cut_log_are_not_given_again() -> None:
    world = written()
    rig = start(world, world.disk)
    rig.create("late", "fsync")
    given = rig.sim.engine.state.topic("late").id
    world.disk.kill()
    disk = world.disk.reboot()
    cut_short(disk)
    rig = start(world, disk)
    assert "late" not in rig.sim.engine.state.topics
    rig.create("later", "fsync")
    assert rig.sim.engine.state.topic("later").id > given


def test_a_file_that_ends_inside_a_frame_was_cut_whatever_was_recorded() -> None:
    """A writer never writes over the end of a file, so no crash leaves half of a frame there."""
    world = written()
    path = logs(world.disk)[-1]
    whole = world.disk.contents(path)
    token = world.rig.ledger.tokens("fsync")[40].encode()
    disk = world.disk.clone()
    disk.tamper(path, lambda data: data[: whole.index(token) + 3])
    with pytest.raises(StartRefused, match="damaged in file"):
        start(world, disk, wal_damage="refuse")
    rig = start(world, disk)
    assert rig.sim.kernel.recovered.damage == 1
    for name in ("fsync", "disk", "memory"):
        seen = read_all(rig.sim, name)
        assert all(seq in seen.records or seen.announced(seq) for seq in world.rig.ledger.instance(name).acked())


def test_a_newest_file_without_its_first_frame_was_whole_if_current_names_it() -> None:
    world = World(wal_file_bytes=4096)
    world.rig.create("t", "fsync")
    for _ in range(20):
        world.rig.write("t", 1, size=300)
    world.disk.kill()
    disk = world.disk.reboot()
    disk.tamper(logs(disk)[-1], lambda data: data[:4])
    rig = start(world, disk)
    assert rig.sim.kernel.recovered.damage == 1
    seen = read_all(rig.sim, "t")
    acked = world.rig.ledger.instance("t").acked()
    assert all(seq in seen.records or seen.announced(seq) for seq in acked)
    assert len(seen.records) < len(acked)


@pytest.mark.parametrize("reboots", [False, True])
def test_a_frame_that_fails_after_a_kill_was_good_once_and_after_a_reboot_may_have_been_torn(reboots: bool) -> None:
    """While kernel and file system live, a frame that was written whole is as it was written."""
    world = World(wal_file_bytes=1 << 16)
    world.rig.create("t", "fsync")
    world.rig.write("t", 3)
    world.disk.kill()
    disk = world.disk.reboot()
    token = world.rig.ledger.tokens("t")[2].encode()
    at = disk.contents(logs(disk)[0]).index(token)
    disk.tamper(logs(disk)[0], lambda data: data[:at] + b"?" + data[at + 1 :])
    if reboots:
        world.host.reboot()
    rig = start(world, disk)
    assert rig.sim.kernel.recovered.damage == (0 if reboots else 1)
    seen = read_all(rig.sim, "t")
    assert reboots or all(seen.announced(seq) for seq in (1, 2, 3))


def test_seqs_of_frames_that_fail_between_valid_ones_are_announced_and_not_used_again() -> None:
    """The last frame of a write fails, and nothing that can be read says that its seq was used."""
    world = World(wal_file_bytes=1 << 16)
    world.rig.create("a", "fsync")
    world.rig.create("f", "fsync")
    world.rig.write("a", 2)
    world.rig.write("f", 1)
    world.disk.power_cut(None, "keep_all")
    world.host.reboot()
    disk = world.disk.reboot()
    token = world.rig.ledger.tokens("a")[1].encode()
    at = disk.contents(logs(disk)[0]).index(token)
    disk.tamper(logs(disk)[0], lambda data: data[:at] + b"?" + data[at + 1 :])
    rig = start(world, disk)
    seen = read_all(rig.sim, "a")
    assert all(seen.announced(seq) for seq in (1, 2))
    rig.write("a", 1)
    first_seq = world.rig.ledger.instance("a").writes[-1].first_seq
    assert first_seq is not None
    assert first_seq > 2
