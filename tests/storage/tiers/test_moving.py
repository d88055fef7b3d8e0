"""Segments move, are read, deleted and dropped in either tier: whole engine, folder and objects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.storage.tiers.world import OPENERS, World

from topics.core.reading.walk import ReadRequest
from topics.errors import ColdStoreMismatch, ColdUnavailable, ConfigError
from topics.model.config import patch_from, resolve_config
from topics.model.names import parse_match
from topics.model.router import RouterDef
from topics.storage.segments.sealed_segment import SealedSegment

both = pytest.mark.parametrize("store", list(OPENERS))


@both
def test_segments_beyond_hot_retention_move_and_read_the_same(store: str) -> None:
    world = World(store=store).prepared()
    before = world.read_all()
    world.tick()
    assert world.tiers() == {1: "cold", 5: "cold", 9: "cold", 13: "hot"}
    assert world.read_all() == before
    assert not [path for path in world.files("data/topics") if path.endswith("0001.data")]
    world.restart().check()
    assert world.restart().tiers() == {1: "cold", 5: "cold", 9: "cold", 13: "hot"}


@both
def test_a_read_says_how_many_cold_segments_it_fetched_and_cache_hits_do_not_count(store: str) -> None:
    world = World(store=store).prepared().tick()
    world = world.restart()
    first, again = world.read(0, limit=8), world.read(0, limit=8)
    assert (first.cold_segments, again.cold_segments) == (2, 0)
    assert first.outcome.records == again.outcome.records == 8


@both
def test_the_byte_bound_moves_what_the_count_would_keep(store: str) -> None:
    world = World(store=store, hot_retain_segments=4, hot_retain_bytes=1).prepared().tick()
    assert set(world.tiers().values()) == {"cold"}


@both
def test_deletes_in_cold_segments_hold_through_restarts_before_and_after_they_are_flagged(store: str) -> None:
    world = World(store=store, rewrite_dead_ratio=0).prepared().tick()
    world.delete(match="odd").check()
    world = world.restart().check().snapshot().restart().check()
    world.tick().tick().snapshot()
    world = world.restart(boot="boot-2").check()
    world.tick(700_000).tick().tick().snapshot()
    world.restart(boot="boot-3").check()


def test_cold_flags_are_set_in_place_in_a_folder_and_the_dead_list_is_empty_then() -> None:
    world = World(rewrite_dead_ratio=0).prepared().tick()
    world.delete(match="odd").tick().snapshot()
    assert world.disk.contents("cold/topics/00000001/seg-0000000000000001.data").count(0xD5) == 2
    segment = world.sim.engine.state.topic("t").sealed[0]
    assert segment.unflagged().tolist() == []


def test_an_object_with_deletes_is_put_anew_later_while_a_complete_hot_copy_exists() -> None:
    world = World(store="objects", rewrite_dead_ratio=0).prepared().tick()
    world.delete(match="odd").tick()
    path = "cold/topics/00000001/seg-0000000000000001.data"
    assert world.disk.contents(path).count(0xD5) == 0
    world.tick(700_000).tick().tick()
    assert world.disk.contents(path).count(0xD5) == 2
    assert world.tiers()[1] == "cold"
    assert world.sim.engine.state.topic("t").sealed[0].unflagged().tolist() == []
    world.check().snapshot().restart(boot="boot-2").check()


@both
def test_a_mostly_dead_cold_segment_is_fetched_rewritten_and_moved_again(store: str) -> None:
    world = World(store=store).prepared().tick()
    path = "cold/topics/00000001/seg-0000000000000001.data"
    size = len(world.disk.contents(path))
    world.delete(match="even").tick().tick().tick()
    assert len(world.disk.contents(path)) < size / 2
    assert world.tiers()[1] == "cold"
    assert world.sim.kernel.store.env.counters.rewritten >= 1
    world.check().snapshot().restart().check()


@both
def test_dropped_segments_leave_the_cold_store(store: str) -> None:
    world = World(store=store).prepared().tick()
    world.delete(before_seq=9).tick().tick()
    assert [path for path in world.files() if path.endswith(".data")] == [
        "cold/topics/00000001/seg-0000000000000009.data"
    ]
    world.check().restart().check()


@both
def test_a_read_passes_over_segments_that_were_dropped_since_the_snapshot(store: str) -> None:
    world = World(store=store)
    world.sim.tick()
    world.create(ttl_ms=60_000).write(18).checkpoint().tick().snapshot()
    world.delete(before_seq=9).tick().tick()
    assert world.restart().read(0).outcome.records == 7


@both
def test_a_segment_that_moved_and_was_dropped_since_the_snapshot_does_not_stop_a_start(store: str) -> None:
    """A drop below `earliest_seq` is not logged, so the move is the last that the log tells of the segment."""
    world = World(store=store).tick().snapshot().create().write(18).checkpoint().tick()
    world.delete(before_seq=9).tick().tick()
    world.restart().check().tick().restart().check()


@both
def test_a_cold_copy_that_is_gone_stops_no_start(store: str) -> None:
    """Whoever lost it: as long as no snapshot has passed the move, the log still has the records."""
    world = World(store=store).tick().snapshot().create().write(18).checkpoint().tick()
    before = world.read_all()
    for path in [path for path in world.files() if "0005." in path]:
        world.disk.unlink(path)
    assert world.restart().read_all() == before


@both
def test_a_deleted_topic_leaves_the_cold_store(store: str) -> None:
    world = World(store=store).prepared().tick()
    world.sim.call(lambda engine: engine.drop_topic("t"))
    world.tick().tick()
    assert world.files() == ["cold/OWNER"]


@both
def test_what_a_crash_left_in_the_cold_store_is_removed_after_the_next_start(store: str) -> None:
    world = World(store=store).prepared().create("u")
    world.sim.call(lambda engine: engine.drop_topic("u"))
    world.tick().snapshot()
    world.disk.plant("cold/topics/00000001/seg-0000000000000900.data", b"old")
    world.disk.plant("cold/topics/00000002/seg-0000000000000001.data", b"of a topic that was deleted")
    world = world.restart().tick().tick()
    assert not [path for path in world.files() if "0900" in path or "/00000002/" in path]
    world.check()


# --- whose store it is ------------------------------------------------------------------------------------------------


@both
def test_the_owner_is_written_once_a_snapshot_has_named_the_instance(store: str) -> None:
    world = World(store=store)
    assert world.files() == []
    world.tick().tick().tick(6_000).tick()
    assert world.files() == ["cold/OWNER"]
    world.restart().tick()


@both
def test_a_store_of_another_directory_is_refused_and_no_byte_changes(store: str) -> None:
    world = World(store=store).prepared().tick().snapshot()
    world.disk.tamper("cold/OWNER", lambda _: b"f" * 32 + b"\n")
    before = world.disk.dump()
    with pytest.raises(ColdStoreMismatch, match="another data directory"):
        world.restart()
    assert world.disk.reboot().dump() == before


@both
def test_cold_segments_without_a_cold_store_are_refused_and_no_byte_changes(store: str) -> None:
    world = World(store=store).prepared().tick()
    before = world.disk.dump()
    with pytest.raises(ColdStoreMismatch, match="TOPICS_COLD_DIR is not set"):
        world.restart(cold_dir=None)
    assert world.disk.reboot().dump() == before


def test_a_data_directory_is_refused_as_a_store_whether_it_is_our_own_or_somebody_elses() -> None:
    world = World(cold_dir=None).prepared()
    before = world.disk.dump()
    for own, location in [("data", "data"), ("data", "./data/"), ("second", "file:///data")]:
        with pytest.raises(ColdStoreMismatch, match="is a data directory itself"):
            world.restart(data_dir=own, cold_dir=location)
    after = world.disk.reboot().dump()
    assert {name: after[name] for name in before} == before
    world.restart(cold_dir="data/cold").tick().check()


def test_a_first_store_that_cannot_be_written_is_refused_with_a_sentence() -> None:
    with pytest.raises(ColdStoreMismatch, match="the cold store cold cannot be used"):
        World(down=True)


@pytest.mark.parametrize("location", ["nosuch://bucket/x", "s3://", "s3://bucket/x?bogus=1", "file://relative", " "])
def test_a_location_that_cannot_be_parsed_is_a_wrong_setting(location: str) -> None:
    with pytest.raises(ConfigError, match="TOPICS_COLD_DIR"):
        World(cold_dir=location)


# --- the store does not answer ----------------------------------------------------------------------------------------


@both
def test_an_unreachable_store_fails_only_the_reads_that_need_it(store: str) -> None:
    world = World(store=store).prepared().tick().snapshot()
    world = world.restart()
    world.store_down()
    with pytest.raises(ColdUnavailable, match="cold"):
        world.read(0)
    assert world.read(12).outcome.records == 6
    world.write(6).checkpoint().tick()
    assert world.tiers()[13] == "hot"
    world.store_up()
    world.tick(2_000).tick().check()
    assert world.tiers()[13] == "cold"


@both
@pytest.mark.parametrize("snapshot", [True, False])
def test_a_start_without_the_store_serves_the_rest_and_goes_on_when_it_is_back(store: str, snapshot: bool) -> None:
    world = World(store=store).prepared().tick()
    if snapshot:
        world.snapshot()
    world.store_down()
    for boot in ("boot-1", "boot-2"):
        world = world.restart(boot=boot)
        assert world.read(12).outcome.records == 6
        with pytest.raises(ColdUnavailable, match="cold"):
            world.read(0)
    world.write(3)
    world.store_up().tick(2_000).tick().check()


def test_a_folder_that_is_not_mounted_is_lost_and_not_damaged() -> None:
    world = World().prepared().tick().snapshot()
    world = world.restart()
    world.disk.rename("cold", "away")
    with pytest.raises(ColdUnavailable, match="cold"):
        world.read(0)
    world.write(6).checkpoint().tick().tick()
    assert world.tiers()[13] == "hot"
    assert world.files("cold") == []
    world.disk.rename("away", "cold")
    world.tick(2_000).tick().check()


@both
def test_a_delete_while_the_index_is_out_of_reach_is_not_forgotten(store: str) -> None:
    world = World(store=store, rewrite_dead_ratio=0).prepared().tick()
    world.delete(match="odd").tick().snapshot()
    world.store_down()
    world = world.restart(boot="boot-2")
    world.delete(match="even")
    world = world.restart(boot="boot-3")
    world.tick(2_000).tick()
    world.store_up()
    world.tick(2_000).tick().check().snapshot()
    world.restart(boot="boot-4").check()


@both
def test_the_log_does_not_grow_while_a_delete_waits_for_the_index_of_a_cold_segment(store: str) -> None:
    world = World(store=store, rewrite_dead_ratio=0).prepared().tick()
    world.delete(match="odd").tick().snapshot()
    world.store_down()
    world = world.restart(boot="boot-2")
    world.delete(match="even")
    for boot in range(3, 6):
        world = world.restart(boot=f"boot-{boot}").tick(2_000)
        assert any(world.sim.engine.state.topic("t").awaiting.values())
        for _ in range(8):
            world.write(60).snapshot()
        assert len(world.files("data/wal")) < 8
    world = world.restart(boot="boot-6")
    world.store_up().tick(2_000).tick().check().snapshot()
    world.restart(boot="boot-7").check()


@both
@pytest.mark.parametrize("room", [0, 500, 5_000])
def test_a_start_that_has_no_room_for_all_indexes_of_cold_segments_counts_right(store: str, room: int) -> None:
    """Moved since the last snapshot, so the totals of none of them are known."""
    world = World(store=store, index_cache_bytes=room)
    world.sim.tick()
    world.create().write(200).checkpoint().tick().tick().tick()
    world.delete(match="odd")
    world = world.restart(boot="boot-2").check()
    assert list(world.tiers().values()).count("cold") > 40
    assert world.sim.call(lambda engine: engine.topic_state("t")).count == 100


@both
def test_what_has_expired_in_the_cold_store_is_not_read_after_a_restart_either(store: str) -> None:
    world = World(store=store)
    world.sim.tick()
    world.create(ttl_ms=60_000).write(18).checkpoint().tick().tick().snapshot()
    world = world.restart()
    world.clock.advance(60_000)
    outcome = world.read().outcome
    assert (outcome.records, outcome.caught_up, outcome.tombstone and outcome.tombstone.reason) == (0, True, "ttl")
    assert world.read_all() == {}
    assert world.sim.call(lambda engine: engine.topic_state("t")).count == 0


@both
def test_an_index_that_is_not_loaded_does_not_keep_what_lies_behind_it_from_expiring(store: str) -> None:
    world = World(store=store)
    world.sim.tick()
    world.create(ttl_ms=60_000).write(18).checkpoint().tick().tick().snapshot()
    world = world.restart()
    world.store_down()
    world.clock.advance(60_000)
    outcome = world.read(13).outcome
    assert (outcome.records, outcome.tombstone and outcome.tombstone.reason) == (0, "ttl")


@both
def test_a_read_in_the_middle_of_the_cold_store_delivers_nothing_expired_after_a_restart(store: str) -> None:
    world = _half_of_it_old(store).restart()
    world.clock.advance(50_000)
    outcome = world.read(6).outcome
    assert outcome.tombstone is not None
    assert (outcome.tombstone.gap_from, outcome.tombstone.gap_to, outcome.tombstone.reason) == (7, 8, "ttl")


@both
def test_nothing_expired_is_read_where_an_index_is_not_loaded_and_all_behind_it_is_dead(store: str) -> None:
    world = World(store=store, hot_retain_segments=2)
    world.sim.tick()
    world.create(ttl_ms=60_000, type="queue", lease_ms=86_400_000).write(16)
    assert len(_claimed(world, 16)) == 16
    world.clock.advance(30_000)
    world.write(4).checkpoint().tick().tick()
    world.sim.call(lambda engine: engine.queues.ack("t", node="n", seqs=[13, 14, 15, 16]))
    world = world.snapshot().restart()
    world.clock.advance(50_000)
    assert list(world.read_all()) == [17, 18, 19, 20]


@both
@pytest.mark.parametrize("room", [0, 5_000])
def test_state_after_a_restart_counts_nothing_that_has_expired_in_the_cold_store(store: str, room: int) -> None:
    world = _half_of_it_old(store, room).restart()
    world.clock.advance(50_000)
    state = world.sim.call(lambda engine: engine.topic_state("t"))
    assert (state.count, state.earliest_seq) == (18, 11)


@both
@pytest.mark.parametrize("claimed", [1, 6])
def test_a_claim_after_a_restart_hands_out_nothing_that_has_expired_in_the_cold_store(store: str, claimed: int) -> None:
    world = _half_of_it_old(store, type="queue", lease_ms=86_400_000, leases_durable=True)
    assert _claimed(world, claimed) == list(range(1, claimed + 1))
    world = world.snapshot().restart()
    world.clock.advance(50_000)
    assert _claimed(world, 2) == [11, 12]


@both
def test_a_claim_of_a_serial_tag_looks_behind_the_jobs_that_are_held_up_into_the_cold_store(store: str) -> None:
    world = World(store=store, hot_retain_segments=1, index_cache_bytes=0)
    world.sim.tick()
    world.create(type="queue", ttl_ms=60_000, lease_ms=86_400_000, leases_durable=True, serial_by="tag")
    world.write(24).checkpoint().tick().tick().snapshot()
    world = world.restart()
    world.clock.advance(50_000)
    assert _claimed(world, 2) == [1, 2]
    assert _claimed(world, 1) == []
    world.sim.call(lambda engine: engine.queues.ack("t", node="n", seqs=[2]))
    assert _claimed(world, 1) == [4]


def _claimed(world: World, count: int) -> list[int]:
    return [job.seq for job in world.sim.call(lambda engine: engine.queues.claim("t", node="n", max=count)).jobs]


def _half_of_it_old(store: str, room: int = 5_000, **config: Any) -> World:
    world = World(store=store, index_cache_bytes=room)
    world.sim.tick()
    world.create(ttl_ms=60_000, **config).write(10)
    world.clock.advance(30_000)
    return world.write(18).checkpoint().tick().tick().snapshot()


@both
def test_a_router_copies_nothing_that_expired_in_the_cold_store_before_a_restart(store: str) -> None:
    world = World(store=store)
    world.sim.tick()
    world.create(ttl_ms=60_000)
    small = resolve_config(patch_from({"cap_records": 6, "discard": "reject"}))
    world.sim.call(lambda engine: engine.put_topic("d", small))
    world.sim.call(lambda engine: engine.routers.put(RouterDef(name="r", source="t", dest="d")))
    world.write(10)
    world.clock.advance(30_000)
    world.write(18).checkpoint().tick().tick().snapshot()
    world = world.restart()
    world.clock.advance(50_000)
    world.sim.call(lambda engine: engine.delete_records("d", before_seq=7, match=None))
    outcome = world.read(6, name="d").outcome
    assert outcome.tombstone is not None
    assert (outcome.tombstone.gap_from, outcome.tombstone.gap_to, outcome.tombstone.reason) == (7, 10, "source_trim")


@both
@pytest.mark.parametrize("by_tag", [True, False])
def test_what_was_deleted_rewritten_and_moved_since_the_snapshot_is_not_counted(store: str, by_tag: bool) -> None:
    world = World(store=store, hot_retain_segments=9)
    world.sim.tick()
    world.create(type="queue").write(18).checkpoint().snapshot()
    if by_tag:
        world.sim.call(lambda engine: engine.delete_records("t", before_seq=4, match=parse_match("*")))
    else:
        assert _claimed(world, 3) == [1, 2, 3]
        world.sim.call(lambda engine: engine.queues.ack("t", node="n", seqs=[1, 2, 3]))
    world = world.tick().tick().restart(hot_retain_segments=1).tick().restart()
    assert world.tiers()[1] == "cold"
    found, state = world.read_all(), world.sim.call(lambda engine: engine.topic_state("t"))
    assert (state.count, state.bytes) == (15, sum(len(msgspec.json.encode(token)) for token in found.values()))


@both
def test_a_delete_by_tag_after_a_restart_tells_what_it_removed_from_the_cold_store(store: str) -> None:
    world = World(store=store, rewrite_dead_ratio=0).prepared().tick()
    odd, even = parse_match("odd"), parse_match("even")
    world.sim.call(lambda engine: engine.delete_records("t", before_seq=8, match=odd))
    world = world.tick().snapshot().restart()
    done = world.sim.call(lambda engine: engine.delete_records("t", before_seq=None, match=even))
    assert (done.deleted, done.count) == (9, 5)


@both
@pytest.mark.parametrize("down", [False, True])
def test_a_start_looks_for_what_a_router_had_copied_in_the_cold_store_too(store: str, down: bool) -> None:
    world = World(store=store, rewrite_dead_ratio=0, index_cache_bytes=0)
    world.sim.tick()
    world.create().create("d", cap_records=2, discard="reject")
    world.sim.call(lambda engine: engine.routers.put(RouterDef(name="r", source="t", dest="d")))
    world.write(18).checkpoint().tick().tick()
    world.sim.call(lambda engine: engine.delete_records("t", before_seq=12, match=parse_match("odd")))
    world = world.tick().snapshot().restart()
    world.create("d")
    world.sim.tick()
    head = world.sim.call(lambda engine: engine.topic_state("d")).head_seq
    assert head > 2
    world.sim.call(lambda engine: engine.delete_records("t", before_seq=16, match=parse_match("even")))
    if down:
        world.store_down()
    world = world.restart()
    assert world.sim.call(lambda engine: engine.topic_state("d")).head_seq >= head


@both
def test_an_index_that_is_closed_while_a_delete_looks_at_it_loses_nothing(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another thread does that has no room for its own."""
    world = World(store=store, rewrite_dead_ratio=0).prepared().tick()
    odd, even = parse_match("odd"), parse_match("even")
    world.sim.call(lambda engine: engine.delete_records("t", before_seq=8, match=odd))
    world = world.tick().snapshot().restart()

    def flags(segment: SealedSegment) -> Any:
        found = segment.pair().flags
        if segment.tier == "cold":
            segment.unmap()
        return found

    monkeypatch.setattr(SealedSegment, "flags", property(flags))
    done = world.sim.call(lambda engine: engine.delete_records("t", before_seq=None, match=even))
    assert (done.deleted, done.count) == (9, 5)
    assert list(world.read_all()) == [9, 11, 13, 15, 17]


@both
@pytest.mark.parametrize("requested", [True, False])
def test_a_front_inside_a_cold_segment_whose_index_was_closed_stops_no_start(store: str, requested: bool) -> None:
    """More than 256 segments at a time are mapped by nobody, so that an index may be closed right after it was used."""
    world = World(store=store, rewrite_dead_ratio=0, index_cache_bytes=0)
    world.sim.tick()
    world.create(durability="memory").write(18).checkpoint().snapshot().tick()
    world.delete(match="odd").snapshot()
    if requested:
        world.delete(before_seq=7)
    else:
        resolved = resolve_config(patch_from({"durability": "memory", "cap_records": 6}))
        world.sim.call(lambda engine: engine.put_topic("t", resolved))
    expected = [8, 10, 12, 14, 16, 18]
    assert list(world.read_all()) == expected
    for boot in ("boot-1", "boot-2"):
        world = world.restart(boot=boot)
        assert list(world.read_all()) == expected
        assert world.sim.call(lambda engine: engine.topic_state("t")).count == len(expected)


@both
@pytest.mark.parametrize("look", ["state", "read"])
def test_a_floor_of_a_count_cap_that_was_seen_does_not_fall_while_the_cold_store_is_away(store: str, look: str) -> None:
    world = World(store=store, rewrite_dead_ratio=0).prepared().tick().delete(match="odd").snapshot()
    resolved = resolve_config(patch_from({"durability": "fsync", "cap_records": 6}))
    world.sim.call(lambda engine: engine.put_topic("t", resolved))
    if look == "state":
        assert world.sim.call(lambda engine: engine.topic_state("t")).earliest_seq == 8
    else:
        assert world.read().outcome.earliest_seq == 8
    world.store_down()
    world = world.restart()
    assert world.sim.call(lambda engine: engine.topic_state("t")).earliest_seq == 8
    assert world.read(from_seq=0).outcome.next_from_seq == 7


@both
def test_a_claim_over_more_segments_than_there_is_room_for_indexes_comes_to_an_end(store: str) -> None:
    world = World(store=store, rewrite_dead_ratio=0, index_cache_bytes=0)
    world.sim.tick()
    world.create(type="queue").write(18)
    assert len(_claimed(world, 18)) == 18
    world.sim.call(lambda engine: engine.queues.ack("t", node="n", seqs=[2, 6, 10]))
    world = world.checkpoint().tick().tick().snapshot().restart()
    assert _claimed(world, 8) == [1, 3, 4, 5, 7, 8, 9, 11]


# --- the hard invariant -----------------------------------------------------------------------------------------------


@both
def test_a_store_that_hangs_delays_only_what_needs_it(store: str) -> None:
    world = World(store=store).prepared().tick().restart()
    world.sim.driver.hold_cold = True
    reading = world.sim.submit(lambda engine: engine.read("t", _from(0)))
    world.sim.pump()
    assert not reading.done
    world.write(8)
    assert world.read(12).outcome.records == 7
    world.checkpoint().tick().tick()
    world.delete(match="odd")
    assert not reading.done
    world.snapshot().write(1)
    world.sim.driver.hold_cold = False
    world.sim.pump()
    assert reading.result().cold_segments >= 1
    world.check()


@both
def test_a_store_that_hangs_delays_what_only_counts_for_a_moment(store: str) -> None:
    world = _half_of_it_old(store).restart()
    world.clock.advance(50_000)
    world.sim.driver.hold_cold = True
    asked = world.sim.submit(lambda engine: engine.topic_state("t"))
    world.sim.pump()
    assert not asked.done, "the store may answer"
    world.clock.advance(1_000)
    world.sim.tick()
    assert asked.result().count == 28, "as far as is known"
    assert world.sim.call(lambda engine: engine.topic_state("t")).count == 28, "at once"
    tagged = world.sim.call(lambda engine: engine.delete_records("t", before_seq=None, match=parse_match("odd")))
    assert tagged.deleted <= 14
    world.sim.driver.hold_cold = False
    world.sim.pump()
    world.clock.advance(60_000)
    assert world.sim.call(lambda engine: engine.topic_state("t")).count == 0


def _from(seq: int) -> ReadRequest:
    return ReadRequest(from_seq=seq, limit=8)
