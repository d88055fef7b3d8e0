"""A topic that was ephemeral for a while: a restart knows how far it came, announces what it lost, and brings nothing
back that had gone meanwhile."""

from __future__ import annotations

import pytest
from tests.engine.world import World

LATER = ("memory", "disk", "fsync")


@pytest.mark.parametrize("end", ["killed", "cut"])
@pytest.mark.parametrize("later", LATER)
def test_seqs_of_the_ephemeral_time_are_lost_aloud_and_not_used_again(later: str, end: str) -> None:
    world = World()
    world.topic("t", durability="ephemeral")
    world.write("t", *range(5))
    world.topic("t", durability=later)
    world = getattr(world, end)()
    gaps = world.gaps("t")
    assert [(first, reason) for first, _, reason in gaps] == [(1, "restart")]
    assert world.state("t").head_seq == gaps[0][1] >= 5
    assert world.write("t", "next").first_seq == gaps[0][1] + 1


@pytest.mark.parametrize("later", LATER)
def test_records_written_after_the_change_are_kept(later: str) -> None:
    world = World()
    world.topic("t", durability="ephemeral")
    world.write("t", *range(5))
    world.topic("t", durability=later)
    world.write("t", "kept")
    world = world.killed()
    assert (world.rows("t"), world.gaps("t")) == ([(6, "kept")], [(1, 5, "restart")])
    world = world.killed()
    assert (world.rows("t"), world.gaps("t")) == ([(6, "kept")], [(1, 5, "restart")])


def test_older_records_keep_what_their_class_gave_them() -> None:
    world = World()
    world.topic("t", durability="fsync")
    world.write("t", 1, 2, 3)
    world.topic("t", durability="ephemeral")
    world.write("t", 4, 5)
    world.topic("t", durability="fsync")
    world = world.killed()
    assert (world.rows("t"), world.gaps("t")) == ([(1, 1), (2, 2), (3, 3)], [(4, 5, "restart")])


def test_older_records_survive_a_snapshot_that_was_taken_in_the_ephemeral_time() -> None:
    world = World()
    world.topic("t", durability="fsync")
    world.write("t", 1, 2, 3)
    world.topic("t", durability="ephemeral")
    world.write("t", 4, 5)
    world.kernel.snapshot()
    world.topic("t", durability="fsync")
    world = world.killed()
    assert (world.rows("t"), world.gaps("t")) == ([(1, 1), (2, 2), (3, 3)], [(4, 5, "restart")])


@pytest.mark.parametrize("in_segments", [False, True])
def test_what_was_deleted_in_the_ephemeral_time_stays_deleted(in_segments: bool) -> None:
    world = World(segment_max_events=2)
    world.topic("t", durability="fsync")
    for at in range(6):
        world.write("t", at, tag="odd" if at % 2 else "even")
    if in_segments:
        world.kernel.snapshot()
    world.topic("t", durability="ephemeral")
    world.delete("t", match="odd")
    world.delete("t", before=2)
    world.topic("t", durability="fsync")
    world = world.killed()
    assert (world.rows("t"), world.gaps("t")) == ([(3, 2), (5, 4)], [])


def test_what_was_evicted_in_the_ephemeral_time_does_not_come_back() -> None:
    world = World()
    world.topic("t", durability="fsync")
    world.write("t", *range(6))
    world.topic("t", durability="ephemeral", cap_records=2)
    world.topic("t", durability="fsync")
    world = world.killed()
    assert (world.rows("t"), world.gaps("t")) == ([(5, 4), (6, 5)], [(1, 4, "cap")])


@pytest.mark.parametrize("later", LATER)
def test_a_clean_stop_keeps_them_also_where_checkpoints_had_passed_them_over(later: str) -> None:
    world = World()
    world.topic("t", durability="ephemeral")
    world.write("t", *range(5))
    world.kernel.checkpoint()
    world.topic("t", durability=later)
    world = world.stopped()
    assert (world.rows("t"), world.gaps("t")) == ([(at + 1, at) for at in range(5)], [])


def _killed_while_ephemeral() -> World:
    """With records in segments from the time before."""
    world = World(segment_max_events=2)
    world.topic("t", durability="disk")
    world.write("t", *range(5))
    world.kernel.snapshot()
    world.topic("t", durability="ephemeral")
    world.kernel.snapshot()
    return world.killed()


def test_segments_from_before_the_ephemeral_time_are_removed_by_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    world = _killed_while_ephemeral()
    assert not [path for path in world.disk.dump() if path.startswith("data/topics/00000001/")]
    world.topic("t", durability="disk")
    world.write("t", *range(5, 9))
    world = world.stopped()
    assert [seq for seq, _ in world.rows("t")] == list(range(world.gaps("t")[0][1] + 1, world.state("t").head_seq + 1))
    assert "overlaps" not in caplog.text


def test_segments_that_a_restart_removed_are_not_missed_by_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    world = _killed_while_ephemeral()
    world.topic("t", durability="fsync")
    world.write("t", "new")
    world = world.killed()
    assert world.data("t") == ["new"]
    assert "missing" not in caplog.text


@pytest.mark.parametrize("end", ["killed", "cut", "stopped"])
@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("source", ["ephemeral", "disk", "fsync"])
def test_copies_in_a_destination_that_was_ephemeral_come_back_or_are_announced(
    source: str, later: str, end: str
) -> None:
    world = World()
    world.topic("s", durability=source)
    world.topic("d", durability="ephemeral")
    world.router("r", "s", "d")
    world.write("s", 1, 2, 3)
    assert world.data("d") == [1, 2, 3]
    world.write("d", "direct")
    world.kernel.checkpoint()
    world.topic("d", durability=later)
    before = world.rows("d")
    world = getattr(world, end)()
    assert world.state("d").head_seq >= 4
    told = world.rows("d") + [(seq, "lost") for first, last, _ in world.gaps("d") for seq in range(first, last + 1)]
    assert {seq for seq, _ in before} <= {seq for seq, _ in told}


def test_what_a_destination_lost_of_its_ephemeral_time_is_still_announced_by_the_next_restart() -> None:
    """Its first record is behind the loss by then, and the checkpoint that notes it is replayed before its frames."""
    world = World()
    world.topic("d", durability="disk")
    world.write("d", 1)
    world.delete("d", before=2)
    world.topic("d", durability="ephemeral")
    world.router("r", "s", "d")
    world.write("d", 2, 3, 4)
    world.topic("d", durability="fsync")
    world = world.killed()
    assert world.gaps("d") == [(2, 4, "restart")]
    world.write("d", "kept")
    world.checkpoint()
    for _ in range(2):
        world = world.killed()
        assert (world.rows("d"), world.gaps("d")) == ([(5, "kept")], [(2, 4, "restart")])


@pytest.mark.parametrize("end", ["killed", "cut"])
@pytest.mark.parametrize("later", ["ephemeral", "memory", "disk"])
def test_a_ceiling_that_a_router_kept_holds_after_the_router_is_gone(later: str, end: str) -> None:
    """It was fed when it became `fsync`, so its ceiling stayed, and writes of a weaker class relied on it."""
    world = World()
    world.topic("d", durability="disk")
    world.write("d", 1)
    world.snapshot()
    world.snapshot()  # which has the mark of the first one behind it
    world.router("r", "s", "d")
    world.topic("d", durability="fsync")
    world.drop_router("r")
    world.topic("d", durability=later)
    assert world.write("d", 2, 3).first_seq == 2
    world = getattr(world, end)()
    assert world.state("d").head_seq >= 3
    assert world.write("d", 4).first_seq > 3
