"""Rows of group I of the fault matrix that need a whole engine: deletes and floors, and what keeps them.

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno

import pytest
from tests.crash.harness import read_all
from tests.engine.world import World as Queues
from tests.runtime.world import WAL, World

from topics.errors import TopicsError
from topics.formats.segments.idx import ENTRY_BYTES, FLAGS_AT, IDX_DELETED
from topics.formats.wal.bodies import encode_body
from topics.formats.wal.frame import FrameType, encode_frame
from topics.model.names import TagMatch
from topics.model.ops import Delete, Evict
from topics.testing import FOREVER

LOG = "data/wal/wal-0000000000000001.log"
DIR = "data/topics/00000001"


def with_frames(world: World, *frames: bytes) -> None:
    """Put frames behind the end of the log of a process that is gone."""
    world.disk.kill()
    end = len(world.disk.contents(LOG).rstrip(b"\0"))
    world.disk.tamper(LOG, lambda data: (data[:end] + b"".join(frames)).ljust(len(data), b"\0"))


def control(world: World, body: Delete | Evict) -> bytes:
    kind = FrameType.DELETE if isinstance(body, Delete) else FrameType.EVICT_WATERMARK
    return encode_frame(kind, topic_id=1, seq=0, ts=world.clock.wall_ms(), data=encode_body(body))


def floors(cap_lost: int, earliest_seq: int) -> Evict:
    return Evict(
        evict_floor=cap_lost + 1, cap_lost=cap_lost, ttl_lost=0, trim_lost=0, restart_lost=0, earliest_seq=earliest_seq
    )


def test_a_delete_whose_appends_were_lost_does_no_harm() -> None:
    """Row 117: it names seqs that no record has, and records that get those seqs later are not its business."""
    world = World()
    world.rig.create("t", "fsync")
    world.rig.write("t", 3, tag="a")
    with_frames(world, control(world, Delete(match=TagMatch("Eq", "a"), bound_head=1, reason="api")),
                control(world, Delete(seqs=(90, 91), bound_head=0, reason="ack")))  # fmt: skip
    assert sorted(world.kill()["t"].records) == [1, 2, 3]
    world.rig.write("t", 2, tag="a")
    assert sorted(world.cut()["t"].records) == [1, 2, 3, 4, 5]


def test_floors_that_come_out_of_order_never_fall() -> None:
    """Row 117."""
    world = World()
    world.rig.create("t", "fsync")
    world.rig.write("t", 8)
    world.rig.ledger.instance("t").cap = 1  # what the frames below evict is announced
    with_frames(world, control(world, floors(5, 6)), control(world, floors(2, 3)), control(world, floors(4, 5)))
    for end in (world.kill, world.cut):
        seen = end()["t"]
        assert (seen.floor, seen.earliest, sorted(seen.records)) == (6, 6, [6, 7, 8])
        assert seen.gaps == [(1, 5)]


def test_a_record_deleted_before_its_checkpoint_leaves_an_empty_slot_and_no_byte() -> None:
    """Row 118."""
    world = World()
    world.rig.create("t", "fsync")
    world.rig.write("t", 1)
    world.rig.write("t", 1, tag="secret")
    world.rig.write("t", 1)
    (token,) = world.rig.ledger.instance("t").writes[1].tokens
    world.rig.delete("t", match="secret")
    world.rig.checkpoint()
    data = b"".join(content for path, content in world.disk.dump().items() if path.endswith(".data"))
    assert token.encode() not in data
    (idx,) = [path for path in world.disk.dump() if path.endswith(".idx")]
    entry = world.disk.contents(idx)[20:40]
    assert (entry[:8], entry[16]) == (bytes(8), 0x04)
    assert sorted(world.cut()["t"].records) == [1, 3]


@pytest.mark.parametrize("part", ["data", "idx"])
def test_a_segment_that_a_delete_cleared_and_could_not_be_unlinked_is_never_served(part: str) -> None:
    """Row 119: it is tried again, and finished by the next start."""
    world = World()
    world.rig.create("t", "fsync")
    world.rig.write("t", 9)
    world.rig.checkpoint()
    broken = world.faults.fail("unlink", f"{DIR}/*.{part}", times=FOREVER)
    world.rig.delete("t", before_seq=5)
    for _ in range(3):
        world.rig.tick()
    assert sorted(world.seen()["t"].records) == [5, 6, 7, 8, 9]
    assert broken.hits
    broken.lift()
    assert sorted(world.cut()["t"].records) == [5, 6, 7, 8, 9]
    world.rig.tick()
    assert not [name for name in world.disk.listdir(DIR) if name.startswith("seg-0000000000000001.")]
    assert sorted(world.kill()["t"].records) == [5, 6, 7, 8, 9]


def test_a_floor_that_cannot_be_synced_stays_and_no_file_goes() -> None:
    """Row 120."""
    world = World()
    world.rig.create("t", "fsync", ttl_ms=1_000)
    world.rig.write("t", 9)
    world.rig.checkpoint()
    files = set(world.disk.listdir(DIR))
    world.faults.fail("datasync", WAL, times=FOREVER)
    world.clock.advance(2_000)
    with pytest.raises(TopicsError):
        read_all(world.rig.sim, "t")
    world.rig.sim.tick()
    assert files <= set(world.disk.listdir(DIR))
    world.rig.ledger.instance("t").gone |= set(range(1, 10))  # they expire, announced
    seen = world.cut()["t"]
    assert (seen.floor, seen.gaps, seen.records) == (10, [(1, 9)], {})


def test_a_floor_that_is_synced_drops_its_segments_at_the_next_start() -> None:
    """Row 120: killed between the sync and the drop."""
    world = World()
    world.rig.create("t", "fsync", cap_records=2)
    world.rig.ledger.instance("t").cap = 2
    world.rig.write("t", 2)
    stuck = world.faults.fail("unlink", f"{DIR}/*", times=FOREVER)
    world.rig.write("t", 10)
    world.rig.checkpoint()
    world.rig.tick()
    assert "seg-0000000000000001.data" in world.disk.listdir(DIR)
    stuck.lift()
    assert sorted(world.cut()["t"].records) == [11, 12]
    world.rig.tick()
    assert "seg-0000000000000001.data" not in world.disk.listdir(DIR)
    assert sorted(world.kill()["t"].records) == [11, 12]


def test_segments_that_are_dead_when_they_seal_are_dropped_too() -> None:
    """`docs/spec/storage.md#sec-11-2`: a cap may take records before their segment is sealed."""
    world = World()
    world.rig.create("t", "fsync", cap_records=2)
    for _ in range(4):
        world.rig.write("t", 12)
        world.rig.checkpoint()
        world.rig.tick()
    first = min(int(name[4:20]) for name in world.disk.listdir(DIR))
    assert first == 45, "only the segment of the two live records is left"
    assert sorted(world.cut()["t"].records) == [47, 48]


def test_a_flip_that_fails_for_ever_fails_no_delete_and_is_made_up_for() -> None:
    """Row 114, through the whole engine."""
    world = World()
    world.rig.create("t", "fsync")
    world.rig.write("t", 3, tag="a")
    world.rig.write("t", 3)
    world.rig.checkpoint()
    broken = world.faults.fail("pwrite", f"{DIR}/*", code=errno.EIO, times=FOREVER)
    world.rig.delete("t", match="a")
    assert sorted(world.seen()["t"].records) == [4, 5, 6]
    assert broken.hits
    broken.lift()
    world.rig.snapshot()
    assert sorted(world.cut()["t"].records) == [4, 5, 6]
    world.rig.snapshot()
    assert sorted(world.cut()["t"].records) == [4, 5, 6]


@pytest.mark.parametrize("more", [2, 0], ids=["sealed", "active"])
@pytest.mark.parametrize("part", ["data", "idx"])
@pytest.mark.parametrize("rebooted", [False, True])
def test_flags_whose_sync_failed_before_a_kill_are_not_taken_for_durable(more: int, part: str, rebooted: bool) -> None:
    """Row 114: they read as set, but no later sync would bring them to the disk."""
    world = World()
    world.rig.create("t", "fsync")
    world.rig.write("t", 1)
    world.rig.write("t", 2, tag="a")
    if more:
        world.rig.write("t", more)
    world.rig.snapshot()
    if rebooted:  # the snapshot is of another boot, so that its totals prove nothing and all flags are looked at
        world.cut()
    failing = world.faults.fail("datasync", f"*/seg-*.{part}", times=FOREVER)
    world.rig.delete("t", match="a")
    world.rig.checkpoint()
    assert failing.hits
    world.kill()
    for _ in range(3):  # until the log with the delete is absorbed and gone
        world.rig.write("t", 3, size=400)
        world.rig.snapshot()
    assert not {2, 3} & set(world.cut()["t"].records)


@pytest.mark.parametrize("room", [0, 420, 1 << 20])
def test_flags_that_only_the_frames_have_count_once_also_where_indexes_are_closed_for_lack_of_room(room: int) -> None:
    """A power cut kept the flags in the frames and lost those in the indexes."""
    world = Queues(segment_max_events=2, index_cache_bytes=room)
    for name in ("t", "u"):
        world.topic(name, durability="fsync")
    world.kernel.snapshot()
    for name in ("t", "u"):
        for at in range(20):
            world.write(name, at, tag="odd" if at % 2 else "even")
    world.kernel.checkpoint()
    world.delete("t", match="odd")
    world.delete("u", match="odd")
    for path in [path for path in world.disk.dump() if path.endswith(".idx")]:
        world.disk.tamper(path, without_flags)
    world = world.killed()
    for name in ("t", "u"):
        assert world.data(name) == list(range(0, 20, 2))
        assert world.state(name).count == 10


def without_flags(idx: bytes) -> bytes:
    cleared = bytearray(idx)
    for at in range(FLAGS_AT, len(cleared), ENTRY_BYTES):
        cleared[at] &= 0xFF ^ IDX_DELETED
    return bytes(cleared)
