"""Copies after a crash: they come back with the seqs they had, or are announced (`docs/spec/storage.md#sec-9-6`)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.world import World, batch

from topics.formats.wal import scan_wal
from topics.formats.wal.frame import FrameType
from topics.model.ops import Pin


@pytest.fixture(params=["fsync", "disk"])
def world(request: pytest.FixtureRequest) -> World:
    world = World(wal_shards=2)
    world.topic("a", durability=request.param)
    world.topic("b", durability=request.param)
    world.router("r", "a", "b")
    return world


def again(world: World) -> World:
    """After a kill, and after a second one right behind it, everything reads the same."""
    before = {name: (world.rows(name), world.gaps(name)) for name in world.engine.state.topics}
    once = world.killed()
    assert {name: (once.rows(name), once.gaps(name)) for name in once.engine.state.topics} == before
    twice = once.killed()
    assert {name: (twice.rows(name), twice.gaps(name)) for name in twice.engine.state.topics} == before
    return twice


def test_copies_that_are_in_no_segment_come_back(world: World) -> None:
    world.write("a", 1, 2, 3)
    assert world.rows("b") == [(1, 1), (2, 2), (3, 3)]
    world = again(world)
    world.write("a", 4)
    assert world.rows("b")[3:] == [(4, 4)]
    assert world.forwarded("r") == 4


def test_copies_in_segments_are_not_made_twice(world: World) -> None:
    world.write("a", 1, 2)
    world.rows("b")
    world.checkpoint()
    world.write("a", 3)
    world.rows("b")
    world = again(world)
    world.snapshot()
    world.write("a", 4)
    world.rows("b")
    again(world)


def test_a_checkpoint_that_ends_late_does_not_give_a_new_router_the_place_of_an_old_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a", 1, 2)
    assert len(world.rows("b")) == 2
    begun = world.engine.router_checkpoints.cursors()
    world.drop_router("r")
    world.write("a", 3)
    world.router("r", "a", "b")
    world.write("a", 4)
    monkeypatch.setattr(world.engine.router_checkpoints, "cursors", lambda: begun)
    world.checkpoint()
    monkeypatch.undo()
    assert world.rows("b") == [(1, 1), (2, 2), (3, 4)]
    world = again(world)
    assert world.forwarded("r") == 1
    world.snapshot()
    assert again(world).forwarded("r") == 1


def test_a_router_begins_behind_the_writes_that_are_on_their_way(world: World) -> None:
    """Otherwise a start that finds the router but not those writes gives their seqs to copies."""
    world.write("e", 1)
    tickets = [world.engine.write("e", batch(2)), world.engine.write("e", batch(3, 4))]
    world.router("q", "a", "e")
    assert [ticket.result().first_seq for ticket in tickets] == [2, 3]
    begun = world.engine.state.routers.get("q")
    assert begun is not None
    assert begun.initial_dest_base == 4


def test_direct_writes_keep_their_places_between_copies(world: World) -> None:
    world.write("a", 1, 2)
    world.rows("b")
    world.write("b", "x")
    world.write("a", 3)
    world.rows("b")
    world.write("b", "y", "z")
    world.write("a", 4)
    assert world.data("b") == [1, 2, "x", 3, "y", "z", 4]
    world = again(world)
    world.write("a", 5)
    assert world.data("b")[-1] == 5


def test_a_copy_outlives_the_delete_of_its_source_record(world: World) -> None:
    world.write("a", 1, 2, 3, tag="t")
    world.rows("b")
    world.delete("a", before=3)
    world.delete("a", match="t")
    assert world.rows("a") == []
    world.write("a", 4)
    assert world.data("b") == [1, 2, 3, 4]
    again(world)


def test_what_was_deleted_before_its_turn_is_not_copied_later(world: World) -> None:
    world.topic("b", cap_records=1, discard="reject", durability=world.state("b").config.durability)
    world.write("a", 1, 2, 3)
    assert world.data("b") == [1]
    world.delete("a", before=3)
    assert world.delete("b", before=2) == 1
    assert world.data("b") == [3]
    again(world)


def test_deletes_in_the_destination_stay_deleted(world: World) -> None:
    world.write("a", 1, 2, 3, 4, tag="t")
    world.rows("b")
    world.delete("b", before=2)
    world.write("a", 5, tag="u")
    world.rows("b")
    world.delete("b", match="u")
    assert world.data("b") == [2, 3, 4]
    again(world)


def test_a_chain_comes_back_source_first(world: World) -> None:
    world.router("r2", "b", "c")
    world.write("a", 1, 2)
    assert world.data("c") == [1, 2]
    world.write("b", "x")
    assert world.data("c") == [1, 2, "x"]
    world = again(world)
    world.write("a", 3)
    assert world.data("c") == [1, 2, "x", 3]


def test_a_mirror_comes_back(world: World) -> None:
    world.router("back", "b", "a", allow_cycle=True)
    world.write("a", 1)
    world.write("b", 2)
    world.rest()
    assert len(world.rows("a")) + len(world.rows("b")) == 2 + 8 + 8
    again(world)


def test_a_cap_on_the_source_does_not_break_the_mapping(world: World) -> None:
    world.topic("a", cap_records=2, durability=world.state("a").config.durability)
    for value in range(6):
        world.write("a", value)
        world.rows("b")
    assert world.data("b") == list(range(6))
    again(world)


def test_lost_source_records_stay_announced_at_their_place(world: World) -> None:
    durability = world.state("a").config.durability
    world.topic("a", cap_records=2, durability=durability)
    world.topic("b", cap_records=1, discard="reject", durability=durability)
    world.write("a", 1)
    world.rows("b")
    world.write("a", 2, 3, 4, 5)
    world.delete("b", before=2)
    world.advance(2000)
    assert world.data("b") == [4]
    assert world.gaps("b", 1) == [(2, 3, "source_trim")]
    world.delete("b", before=5)
    world.advance(2000)
    assert world.data("b") == [5]
    again(world)


def test_a_power_cut_announces_what_it_took() -> None:
    world = World()
    world.topic("a", durability="disk")
    world.router("r", "a", "b")
    world.write("a", 1)
    world.rows("b")
    world.kernel.sync_all()
    for value in (2, 3, 4):
        world.write("a", value)
    assert world.data("b") == [1, 2, 3, 4]
    head = world.state("b").head_seq
    cut = world.cut()
    assert cut.data("a") == [1]
    assert cut.data("b") == [1]
    assert cut.gaps("b")
    cut.write("a", 5)
    assert cut.data("b") == [1, 5]
    assert cut.rows("b")[-1][0] > head


def test_two_routers_into_one_destination_repeat_rather_than_lose() -> None:
    world = World()
    world.topic("a", durability="fsync")
    world.topic("b", durability="fsync")
    world.router("r1", "a", "b", filter="x*")
    world.router("r2", "a", "b")
    world.write("a", 1, tag="x1")
    world.write("a", 2)
    assert sorted(world.data("b")) == [1, 1, 2]
    head = world.state("b").head_seq
    again = world.killed()
    assert sorted(again.data("b")) == [1, 1, 2]
    assert again.rows("b")[0][0] > head
    assert again.gaps("b")[0][2] == "restart"


def test_exactly_once_repeats_nothing_that_is_still_there() -> None:
    world = World()
    world.topic("a", durability="fsync")
    world.router("r1", "a", "b", guarantee="exactly_once")
    world.router("r2", "a", "b", guarantee="exactly_once", filter="x*")
    world.write("a", 1, tag="x")
    world.rows("b")
    world.checkpoint()
    again = world.killed()
    assert again.data("b") == [1, 1]
    again.write("a", 2)
    assert again.data("b") == [1, 1, 2]


def test_routers_and_totals_survive_a_clean_stop(world: World) -> None:
    world.write("a", 1, 2)
    world.rows("b")
    before = world.rows("b"), world.forwarded("r"), world.state("b").head_seq
    world = world.stopped()
    assert (world.rows("b"), world.forwarded("r"), world.state("b").head_seq) == before
    assert world.gaps("b") == []
    world.write("a", 3)
    assert world.rows("b")[-1] == (3, 3)


def test_a_deleted_router_leaves_its_copies(world: World) -> None:
    world.write("a", 1, 2)
    world.rows("b")
    assert world.drop_router("r")
    world.write("a", 3)
    world = again(world)
    assert world.data("b") == [1, 2]
    world.router("r", "a", "b")
    world.write("a", 4)
    assert world.data("b") == [1, 2, 4]
    again(world)


def test_a_deleted_source_leaves_its_copies(world: World) -> None:
    world.write("a", 1, 2)
    world.rows("b")
    assert [router.name for router in world.drop("a").routers_removed] == ["r"]
    world = again(world)
    assert world.data("b") == [1, 2]
    assert len(world.engine.state.routers) == 0


def test_an_updated_router_keeps_its_progress(world: World) -> None:
    world.write("a", 1)
    world.rows("b")
    world.router("r", "a", "b", filter="keep*", preserve_tag=False)
    world.write("a", 2, tag="no")
    world.write("a", 3, tag="keep")
    assert world.data("b") == [1, 3]
    world = again(world)
    assert world.forwarded("r") == 2


def test_a_direct_write_pins_the_routers_in_front_of_its_records(world: World) -> None:
    """The pin says where the router stands behind the write; it is logged before the records it belongs to."""
    world.write("a", 1, 2)
    world.rows("b")
    world.write("b", "x", "y")
    logged = [frame for frame in frames(world) if frame[0] == world.engine.state.topic("b").id]
    at = [body for _, body, _ in logged].index(Pin(router="r", cursor=2, forwarded_total=2, dest_base=2))
    assert [seq for _, _, seq in logged[at + 1 :]] == [3, 4]


def frames(world: World) -> list[tuple[int, Pin | None, int]]:
    """Topic, pin if it is one, and seq of every append and pin in the log, in order."""
    found: list[tuple[int, Pin | None, int]] = []
    for path, data in world.disk.dump().items():
        if "wal-" in path:
            columns = scan_wal(data)
            for row in range(len(columns)):
                pin = getattr(columns.bodies.get(row), "pin", None)
                if pin is not None or columns.type[row] == FrameType.APPEND:
                    found.append((int(columns.topic_id[row]), pin, int(columns.seq[row])))
    return found


@pytest.mark.parametrize("in_a_segment", [False, True])
def test_a_deleted_destination_is_not_looked_for(in_a_segment: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Its mark speaks of a segment, perhaps of empty slots only, in a directory that is gone."""
    world = World()
    for name in "abd":
        world.topic(name, durability="fsync")
    world.router("ab", "a", "b")
    world.router("bd", "b", "d")
    world.write("a", 1)
    if in_a_segment:
        world.rows("d")
        world.checkpoint()
    world.delete("d", before=world.state("d").head_seq + 1)
    world.advance(1100)
    world.drop("d")
    for _ in range(3):
        world.advance(1100)  # its directory goes
    world = world.killed()
    assert (world.data("b"), sorted(world.engine.state.topics)) == ([1], ["a", "b"])
    assert "missing" not in caplog.text


def test_copies_behind_a_loss_outlive_their_source_records(world: World) -> None:
    """The router had come past what it lost, as later frames of the source say: what died then had been copied."""
    world.topic("a", cap_bytes=3, durability=world.state("b").config.durability)
    world.write("a", 1, 2, 3, 4, 5)
    assert (world.data("b"), world.gaps("b")) == ([3, 4, 5], [(1, 2, "source_trim")])
    world.write("a", 6, 7)
    assert world.data("b") == [3, 4, 5, 6, 7]
    world.delete("a", before=7)
    world = again(world)
    world.write("b", "x")
    world.write("a", 8)
    assert world.data("b") == [3, 4, 5, 6, 7, "x", 8]
    again(world)


def test_copies_behind_a_gap_of_the_source_outlive_their_source_records(world: World) -> None:
    """The same where the source itself has lost what its own source had lost."""
    world.topic("a", cap_bytes=3, durability=world.state("b").config.durability)
    world.router("s", "b", "c")
    world.write("a", 1)
    assert world.data("c") == [1]
    world.write("a", 2, 3, 4, 5, 6)
    assert (world.rows("c"), world.gaps("c")) == ([(1, 1), (4, 4), (5, 5), (6, 6)], [(2, 3, "source_trim")])
    world.delete("b", before=6)
    world.write("a", 7)
    assert (world.data("b"), world.data("c")) == ([6, 7], [1, 4, 5, 6, 7])
    again(world)


def test_copies_behind_the_floor_of_the_source_outlive_their_source_records(world: World) -> None:
    """The same where the gap is at the front, and part of the source's floor."""
    durability = world.state("b").config.durability
    world.topic("a", cap_records=2, durability=durability)
    world.topic("b", cap_bytes=3, durability=durability)
    world.router("s", "b", "c")
    world.write("a", 1, 2, 3, 4, 5)
    assert (world.rows("c"), world.gaps("c")) == ([(4, 4), (5, 5)], [(1, 3, "source_trim")])
    world.write("a", 6, 7)
    assert (world.data("b"), world.data("c")) == ([5, 6, 7], [4, 5, 6, 7])
    again(world)


def test_what_a_router_passed_over_is_not_announced_as_lost_after_a_kill(world: World) -> None:
    """Nothing was for the destination, so no seq of it was ever reserved; the source has evicted some since."""
    world.topic("a", cap_records=2, durability=world.state("b").config.durability)
    world.drop_router("r")
    world.router("r", "a", "b", filter="wanted")
    for value in range(4):
        world.write("a", value, tag="other")
        assert world.rows("b") == []
    world = again(world)
    assert (world.state("b").head_seq, world.forwarded("r")) == (0, 0)


def test_copies_that_are_lost_before_an_announced_gap_are_announced_too(world: World) -> None:
    """Nothing brings copies of an ephemeral source back; the destination's log knows only the gap behind them."""
    world.topic("a", cap_bytes=3, durability="ephemeral")
    world.write("a", 1, 2, 3)
    assert world.rows("b") == [(1, 1), (2, 2), (3, 3)]
    world.write("a", 4, 5, 6, 7, 8)
    assert world.rows("b")[3:] == [(6, 6), (7, 7), (8, 8)]
    world = world.killed()
    assert world.rows("b") == []
    announced = {seq for lo, hi, _ in world.gaps("b") for seq in range(lo, hi + 1)}
    assert announced.issuperset(range(1, 9))
    again(world)


def test_what_copies_of_an_ephemeral_source_evicted_does_not_come_back_with_a_kill(world: World) -> None:
    world.topic("a", durability="ephemeral")
    world.topic("b", cap_records=2, durability=world.state("b").config.durability)
    world.write("b", "x", "y")
    world.write("a", 1)
    assert world.data("b") == ["y", 1]
    world = world.killed()
    assert world.data("b") == ["y"]
    assert world.state("b").earliest_seq == 2
    again(world)


def test_the_time_of_the_last_write_survives_a_kill_right_behind_a_seal() -> None:
    """Neither the destination's copies nor the source's known frames say when they were written: the segments do."""
    world = World(segment_max_events=3)
    world.router("r", "a", "b")
    world.snapshot()
    world.clock.advance(5_000)
    world.write("a", 1, 2, 3)
    before = {name: world.state(name).last_write_ts for name in ("a", "b")}
    world.checkpoint()
    assert [len(world.engine.state.topics[name].sealed) for name in ("a", "b")] == [1, 1]
    world = world.killed()
    assert {name: world.state(name).last_write_ts for name in ("a", "b")} == before


def test_seqs_of_copies_are_not_used_again_where_their_segments_were_dropped() -> None:
    """The router is gone, too, so nothing but the checkpoint's mark tells how far the destination had come."""
    world = World(segment_max_events=4)
    world.write("b", "direct")
    world.router("r", "a", "b")
    world.write("a", *range(7), tag="copy")
    assert world.state("b").head_seq == 8
    world.delete("b", match="copy")
    world.checkpoint()
    world.drop_router("r")
    world.checkpoint()
    world.advance(1000)
    world = world.killed()
    assert (world.rows("b"), world.gaps("b")) == ([(1, "direct")], [])
    assert world.write("b", "next").first_seq == 9


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_copies_of_two_routers_outlive_their_source_records(durability: str, guarantee: str) -> None:
    """Nobody can tell their seqs, so they are repeated; that their source records are gone is no reason not to."""
    world = two_routers(durability, guarantee=guarantee)
    world.write("a", 1, 2, tag="x1")
    world.write("a", 3)
    world.write("a", 4, tag="x2")
    assert sorted(world.data("b")) == [1, 1, 2, 2, 3, 4, 4]
    world.delete("a", match="x1")
    world.write("a", 5)
    for _ in range(2):
        world = world.killed()
        assert sorted(world.data("b")) == [1, 1, 2, 2, 3, 4, 4, 5]
        assert world.data("a") == [3, 4, 5]
        assert {reason for _, _, reason in world.gaps("b")} == {"restart"}
    by_all = [value for value in world.data("b") if value in (3, 5)]
    assert by_all == [3, 5]


@pytest.mark.parametrize("config", [{"cap_records": 2}, {"cap_bytes": 2}, {"ttl_ms": 1000}], ids=str)
def test_copies_of_two_routers_outlive_the_caps_and_the_age_of_their_source(config: dict[str, Any]) -> None:
    world = two_routers("fsync", **config)
    for value in (1, 2, 3, 4):
        world.write("a", value, tag="x")
        world.rows("b")
    world.advance(2000)
    world.rows("a")
    for _ in range(2):
        world = world.killed()
        assert sorted(world.data("b")) == [1, 1, 2, 2, 3, 3, 4, 4]
        assert {reason for _, _, reason in world.gaps("b")} == {"restart"}


@pytest.mark.parametrize("seen", [True, False], ids=["repeated", "not repeated yet"])
@pytest.mark.parametrize("how", ["expired", "deleted"])
def test_copies_that_have_to_be_repeated_outlive_their_source_records_too(how: str, seen: bool) -> None:
    """They are to be restored since the first kill; their source records die before the second start has done so."""
    config: dict[str, Any] = {"ttl_ms": 1000} if how == "expired" else {}
    world = two_routers("fsync", **config)
    world.write("a", 1, 2, tag="x")
    assert world.data("b") == [1, 2, 1, 2]
    if how == "deleted":
        world.delete("a", match="x")
    else:
        world.clock.advance(1001)
    world = world.killed()
    world.engine.forwarding.turn = lambda: None  # type: ignore[method-assign]  # nobody steps but who wants to see
    world.write("a", 3, tag="x")
    world.delete("a", match="x")
    assert world.data("a") == []
    for _ in range(2):
        if seen:
            assert set(world.data("b")) >= {1, 2}
        world = world.killed()
    assert sorted(value for value in world.data("b") if value < 3) == [1, 1, 2, 2]


def test_what_two_routers_lost_in_their_source_is_not_found_again_by_a_start() -> None:
    world = two_routers("fsync", cap_records=2)
    world.write("a", 1, 2, 3, 4, tag="x")
    assert world.data("b") == [3, 4, 3, 4]
    assert world.killed().data("b") == [3, 4, 3, 4]


def test_what_was_deleted_before_its_turn_is_not_repeated_by_two_routers() -> None:
    world = two_routers("fsync")
    world.topic("b", durability="fsync", cap_records=2, discard="reject")
    world.write("a", 1, tag="x")
    world.write("a", 2, 3, tag="y")
    assert world.data("b") == [1, 1]
    world.delete("a", match="y")
    world = world.killed()
    assert world.data("b") == [1, 1]
    world.delete("b", before=1 << 40)
    world.write("a", 4)
    assert world.data("b") == [4]


def two_routers(durability: str, *, guarantee: str = "at_least_once", **config: Any) -> World:
    world = World()
    world.topic("a", durability=durability, **config)
    world.topic("b", durability=durability)
    world.router("r1", "a", "b", filter="x*", guarantee=guarantee)
    world.router("r2", "a", "b", guarantee=guarantee)
    return world
