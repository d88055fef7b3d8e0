"""Copying: what is copied, in which order, and what happens when the destination cannot take it
(`docs/spec/semantics.md#sec-15`)."""

from __future__ import annotations

import pytest
from tests.engine.world import JobList, World, batch

from topics.errors import TopicNotEmpty


@pytest.fixture
def world() -> World:
    world = World()
    world.router("r", "a", "b")
    return world


def test_history_is_not_copied() -> None:
    world = World()
    world.write("a", 1, 2)
    world.router("r", "a", "b")
    world.write("a", 3)
    assert world.rows("b") == [(1, 3)]


def test_a_read_that_follows_an_acked_write_sees_its_copy(world: World) -> None:
    world.write("a", 1)
    assert world.data("b") == [1]
    world.write("a", 2)
    assert world.state("b").count == 2
    world.write("a", 3)
    assert world.forwarded("r") == 3


def test_a_delete_that_follows_an_acked_write_takes_its_copy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.engine.forwarding, "turn", lambda: None)  # nobody steps but who wants to see
    world.write("a", 1, tag="t")
    assert world.delete("b", match="t") == 1
    world.write("a", 2)
    assert world.rows("b") == [(2, 2)]


def test_a_destination_is_not_empty_while_a_copy_is_on_its_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.engine.forwarding, "turn", lambda: None)
    world.write("a", 1)
    with pytest.raises(TopicNotEmpty):
        world.call(world.engine.drop_topic("b", if_empty=True))
    world.delete("b", before=2)
    assert world.call(world.engine.drop_topic("b", if_empty=True)).deleted


@pytest.mark.parametrize("change", ["delete the router", "change its filter", "drop the source"])
def test_what_was_acked_before_a_router_changes_is_copied_by_the_rules_of_before(
    world: World, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(world.engine.forwarding, "turn", lambda: None)
    world.write("a", 1, tag="x")
    if change == "delete the router":
        assert world.drop_router("r")
    elif change == "change its filter":
        world.router("r", "a", "b", filter="y")
    else:
        assert [router.name for router in world.drop("a").routers_removed] == ["r"]
    world.write("a", 2, tag="x")
    assert world.rows("b") == [(1, 1)]


def test_a_router_that_is_blocked_changes_all_the_same() -> None:
    world = World()
    world.topic("b", cap_records=1, discard="reject")
    world.router("r", "a", "b")
    world.write("a", 1, 2)
    world.router("r", "a", "b", preserve_tag=False)
    assert world.drop_router("r")
    assert world.rows("b") == [(1, 1)]


def test_without_readers_copies_appear_by_themselves(world: World) -> None:
    world.write("a", 1)
    assert world.engine.state.topic("b").head == 1


def test_a_copy_has_its_own_seq_and_time_and_everything_else_unchanged(world: World) -> None:
    world.write("b", "first")
    world.advance(500)
    world.write("a", {"x": 1.50}, tag="t", node="n", meta={"k": "v"})
    world.advance(1)
    copy = world.records("b")[1]
    assert copy == {
        "$seq": 2,
        "$ts": world.clock.wall_ms() - 1,
        "$node": b"n",
        "$tag": b"t",
        "data": {"x": 1.5},
        "meta": {"k": "v"},
    }


def test_node_and_tag_may_be_left_behind() -> None:
    world = World()
    world.router("r", "a", "b", preserve_node=False, preserve_tag=False)
    world.write("a", 1, tag="t", node="n")
    [copy] = world.records("b")
    assert (copy["$node"], copy["$tag"]) == (None, None)


def test_a_filter_passes_over_what_does_not_match() -> None:
    world = World()
    world.router("r", "a", "b", filter="pub:*")
    world.write("a", 1, tag="pub:x")
    world.write("a", 2)
    world.write("a", 3, tag="pub")
    world.write("a", 4, tag="pub:")
    assert world.rows("b") == [(1, 1), (2, 4)]
    assert world.forwarded("r") == 2


def test_deleted_and_expired_records_are_not_copied() -> None:
    world = World()
    world.topic("a", ttl_ms=1000)
    world.topic("b", cap_records=1, discard="reject")
    world.router("r", "a", "b")
    world.write("a", 1, 2, 3)
    world.delete("a", before=3)
    world.advance(2000)
    world.delete("b", before=2)
    assert world.data("b") == []
    assert world.gaps("b", 1) == [(2, 3, "source_trim")]


def test_a_router_tries_again_in_time_when_the_wall_clock_is_turned_back() -> None:
    world = World(max_total_bytes=10)
    world.router("r", "a", "b")
    world.write("other", 12345)
    world.write("a", 12345)
    world.rest()
    world.drop("other")
    world.clock.set_wall_ms(world.clock.wall_ms() - 3_600_000)
    world.advance(1000)
    assert world.data("b") == [12345]


def test_one_source_feeds_many_at_the_cost_of_one_append(world: World) -> None:
    for at in range(20):
        world.router(f"r{at}", "a", f"dest{at}")
    world.write("a", 0)
    world.rows("dest7")
    world.rest()
    before = world.kernel.kernel.store.groups[0].stats.frames
    for value in range(10):
        world.write("a", value)
    world.rest()
    assert world.kernel.kernel.store.groups[0].stats.frames - before == 10
    assert len(world.rows("dest19")) == 11


def test_routers_of_one_source_each_copy_what_they_are_to() -> None:
    """They step in one turn and share what they read of the source, and nothing else."""
    world = World()
    world.topic("a")
    world.router("all", "a", "all")
    world.router("all-2", "a", "all-2")
    world.router("tagged", "a", "tagged", filter="k*")
    world.router("bare", "a", "bare", preserve_node=False, preserve_tag=False)
    world.router("once", "a", "once", guarantee="exactly_once")
    world.router("once-2", "a", "once-2", guarantee="exactly_once")
    world.write("a", 1, tag="k", node="n")
    world.write("a", 2, node="n")
    world.rest()
    epoch = world.engine.state.topic("a").epoch
    whole = [(1, b"k", b"n"), (2, None, b"n")]
    for dest, copies in {
        "all": whole,
        "all-2": whole,
        "tagged": whole[:1],
        "bare": [(1, None, None), (2, None, None)],
        "once": whole,
        "once-2": whole,
    }.items():
        found = world.records(dest)
        assert [(record["data"], record["$tag"], record["$node"]) for record in found] == copies
        if dest.startswith("once"):
            keys = [record["meta"]["_topics_router"]["idempotency_key"] for record in found]
            assert keys == [f"router:{dest}:1:{epoch}:1", f"router:{dest}:1:{epoch}:2"]


def test_a_chain_is_read_through_at_once(world: World) -> None:
    world.router("r2", "b", "c")
    world.router("r3", "c", "d")
    world.write("a", 1)
    assert world.data("d") == [1]


def test_a_copy_in_a_queue_is_a_job() -> None:
    world = World()
    world.queue("q")
    world.router("r", "a", "q")
    got = JobList()
    world.engine.queues.open_stream("q", node="s", max=5).start(got)
    world.write("a", 1, 2)
    assert [job.seq for job in got] == [1, 2]
    world.write("a", 3)
    world.ack(1, 2, name="q", node="s")
    assert [job.seq for job in got] == [1, 2, 3]


def test_a_claim_sees_what_was_written_to_the_source() -> None:
    world = World()
    world.queue("q")
    world.router("r", "a", "q")
    world.write("a", 1)
    assert world.seqs("q") == [1]


def test_more_than_one_step_of_records_is_copied_in_order(world: World) -> None:
    world.write("a", *range(3000))
    assert world.data("b") == list(range(3000))


def test_records_in_segments_are_copied_too() -> None:
    world = World(recent_cache_bytes=0, segment_max_events=50)
    world.topic("b", cap_records=1, discard="reject")
    world.router("r", "a", "b")
    world.write("a", *range(200))
    world.checkpoint()
    world.snapshot()
    world.topic("b")
    assert world.data("b") == list(range(200))


# --- cycles ----------------------------------------------------------------------------------------------------------


def test_a_mirror_comes_to_rest_after_eight_copies(world: World) -> None:
    world.router("back", "b", "a", allow_cycle=True)
    world.write("a", 1, node="n")
    world.rest()
    assert (len(world.rows("a")), len(world.rows("b"))) == (5, 4)
    assert {record["$node"] for record in world.records("a")} == {b"n"}


def test_a_ring_of_three_comes_to_rest() -> None:
    world = World()
    world.router("ab", "a", "b")
    world.router("bc", "b", "c")
    world.router("ca", "c", "a", allow_cycle=True)
    world.write("a", 1)
    world.rest()
    assert sum(len(world.rows(name)) for name in "abc") == 1 + 8


def test_hops_are_counted_through_segments() -> None:
    world = World(segment_max_events=1)
    world.topic("b", cap_records=1, discard="reject")
    world.router("ab", "a", "b")
    world.router("ba", "b", "a", allow_cycle=True)
    world.write("a", 1)
    for _ in range(20):
        world.checkpoint()
        world.delete("b", before=10**6)
        world.advance(2000)
    assert world.state("a").head_seq == 5
    assert world.state("b").head_seq == 4


# --- back-pressure ---------------------------------------------------------------------------------------------------


def test_a_full_destination_holds_the_router_and_nobody_else() -> None:
    world = World()
    world.topic("b", cap_records=2, discard="reject")
    world.router("r", "a", "b")
    world.router("other", "a", "c")
    world.write("a", 1, 2, 3, 4)
    assert world.data("b") == [1, 2]
    assert world.data("c") == [1, 2, 3, 4]
    assert world.forwarded("r") == 2


def test_room_starts_the_router_at_once_with_the_blocked_record() -> None:
    world = World()
    world.topic("b", cap_records=2, discard="reject")
    world.router("r", "a", "b")
    world.write("a", 1, 2, 3, 4)
    world.advance(10_000)
    world.delete("b", before=2)
    assert world.engine.state.topic("b").head == 3
    assert world.data("b") == [2, 3]


def test_an_ack_makes_room() -> None:
    world = World()
    world.queue("q", cap_records=1, discard="reject")
    world.router("r", "a", "q")
    world.write("a", 1, 2)
    world.claim("q")
    world.ack(1, name="q")
    assert world.data("q") == [2]


def test_retries_wait_longer_and_longer() -> None:
    world = World()
    world.topic("b", cap_records=1, discard="reject")
    world.router("r", "a", "b")
    world.write("a", 1, 2)
    waits = world.engine.forwarding._backoffs
    seen = []
    for _ in range(7):
        seen.append(waits["r"].wait_ms)
        world.advance(waits["r"].until_ms - world.engine.context.clock.running_ms())
    assert seen == [50, 100, 200, 400, 800, 1000, 1000]


def test_a_bigger_cap_is_room_too() -> None:
    world = World()
    world.topic("b", cap_records=1, discard="reject")
    world.router("r", "a", "b")
    world.write("a", 1, 2)
    world.topic("b", cap_records=5, discard="reject")
    assert world.engine.state.topic("b").head == 2


def test_what_can_never_fit_leaves_an_announced_place() -> None:
    world = World()
    world.topic("b", cap_bytes=10)
    world.router("r", "a", "b")
    world.write("a", 1, "x" * 50, 2)
    assert world.rows("b") == [(1, 1), (3, 2)]
    assert world.gaps("b", 1) == [(2, 2, "cap")]
    assert world.forwarded("r") == 3


@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
def test_a_read_sees_the_copy_that_took_the_place_of_an_expired_one(durability: str) -> None:
    """A blocked router waits, but not for longer than its destination is full."""
    world = World()
    world.topic("b", cap_records=1, discard="reject", ttl_ms=1000, durability=durability)
    world.router("r", "a", "b")
    world.write("a", 1)
    assert world.data("b") == [1]
    world.clock.advance(990)
    world.write("a", 2)
    assert world.data("b") == [1]
    world.clock.advance(11)
    assert world.data("b") == [2]


@pytest.mark.parametrize("expired", ["b", "other"])
@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
def test_what_has_expired_makes_room_for_copies_at_once(durability: str, expired: str) -> None:
    """The quota counts live bytes, for copies as for writes: nobody looks at the topics between."""
    world = World(max_total_bytes=100)
    world.topic("b", durability=durability)
    world.router("r", "a", "b")
    world.topic(expired, ttl_ms=1000, durability=durability)
    world.write(expired, "x" * 48)
    world.clock.advance(1001)
    world.write("a", "y" * 30)
    assert world.forwarded("r") == 1


def test_a_byte_cap_blocks_a_reject_destination() -> None:
    world = World()
    world.topic("b", cap_bytes=10, discard="reject")
    world.router("r", "a", "b")
    world.write("a", "xxxx", "yyyy")
    assert world.data("b") == ["xxxx"]
    world.delete("b", before=2)
    assert world.data("b") == ["yyyy"]


def test_an_evicting_destination_keeps_the_newest() -> None:
    world = World()
    world.topic("b", cap_records=3)
    world.router("r", "a", "b")
    world.write("a", *range(10))
    assert world.rows("b") == [(8, 7), (9, 8), (10, 9)]


def test_what_the_source_lost_before_its_turn_is_announced() -> None:
    world = World()
    world.topic("a", cap_records=2)
    world.topic("b", cap_records=1, discard="reject")
    world.router("r", "a", "b")
    world.write("a", 1)
    world.rows("b")
    world.write("a", 2, 3, 4)
    world.topic("b")
    assert world.rows("b") == [(1, 1), (3, 3), (4, 4)]
    assert world.gaps("b", 1) == [(2, 2, "source_trim")]
    assert world.forwarded("r") == 4


# --- with direct writes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_direct_writes_and_copies_share_one_line_of_seqs(durability: str) -> None:
    world = World()
    world.topic("b", durability=durability)
    world.router("r", "a", "b")
    tickets = []
    for value in range(6):
        world.write("a", value)
        tickets.append(world.engine.write("b", batch(f"d{value}")))
        world.engine.forwarding.tick()
    world.kernel.pump()
    rows = world.rows("b")
    assert [seq for seq, _ in rows] == list(range(1, 13))
    assert [data for _, data in rows if isinstance(data, int)] == list(range(6))
    assert [data for _, data in rows if isinstance(data, str)] == [f"d{value}" for value in range(6)]


def test_exactly_once_signs_its_copies() -> None:
    world = World()
    world.router("r", "a", "b", guarantee="exactly_once")
    world.router("r2", "b", "c", guarantee="exactly_once")
    world.write("a", 1, meta={"k": 1})
    topic = world.engine.state.topic("a")
    key = f"router:r:{topic.id}:{topic.epoch}:1"
    [copy] = world.records("b")
    assert copy["meta"] == {
        "k": 1,
        "_topics_router": {
            "idempotency_key": key,
            "router": "r",
            "source_topic": "a",
            "source_topic_id": topic.id,
            "source_epoch": topic.epoch,
            "source_seq": 1,
        },
    }
    [second] = world.records("c")
    assert second["meta"]["k"] == 1
    assert second["meta"]["_topics_router"]["router"] == "r2"


def test_a_meta_with_64_keys_moves_aside() -> None:
    world = World()
    world.router("r", "a", "b", guarantee="exactly_once")
    full = {f"k{at}": at for at in range(64)}
    world.write("a", 1, meta=full)
    world.write("a", 2, meta="text")
    first, second = world.records("b")
    assert first["meta"]["_topics_original_meta"] == full
    assert set(first["meta"]) == {"_topics_router", "_topics_original_meta"}
    assert second["meta"]["_topics_original_meta"] == "text"


def test_deletes_do_not_travel(world: World) -> None:
    world.write("a", 1, 2, tag="t")
    world.rows("b")
    world.delete("a", match="t")
    world.write("a", 3)
    assert world.data("b") == [1, 2, 3]


def test_a_router_deleted_and_made_again_starts_at_the_head(world: World) -> None:
    world.write("a", 1)
    world.rows("b")
    world.drop_router("r")
    world.write("a", 2)
    world.router("r", "a", "b")
    world.write("a", 3)
    assert world.data("b") == [1, 3]


def test_a_source_made_again_is_another_source(world: World) -> None:
    world.write("a", 1)
    world.rows("b")
    world.drop("a")
    world.topic("a")
    world.write("a", 2)
    assert world.data("b") == [1]


def test_much_in_memory_asks_for_a_checkpoint() -> None:
    world = World(wal_file_bytes=1 << 20, checkpoint_interval_ms=10**9, snapshot_interval_ms=10**9)
    world.topic("a")
    for at in range(8):
        world.router(f"r{at}", "a", f"b{at}")
    runs = world.kernel.kernel.checkpointer.runs_total
    for _ in range(10):
        world.write("a", "x" * 1_000_000)
    world.rest()
    world.rest()
    assert world.kernel.kernel.checkpointer.runs_total > runs
    assert sum(topic.resident.bytes for topic in world.engine.state.topics.values()) < 40 << 20
