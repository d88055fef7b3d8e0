"""What may be defined, and what a refusal leaves behind (`docs/spec/semantics.md#sec-15-1`)."""

from __future__ import annotations

import pytest
from tests.engine.world import World

from topics.errors import CommitFailed, InvalidRequest, RouterCycle, Throttled, TopicExistsIncompatible, TopicNotFound
from topics.model.router import RouterDef


@pytest.fixture(params=[1, 4])
def world(request: pytest.FixtureRequest) -> World:
    return World(wal_shards=request.param)


def names(world: World) -> tuple[list[str], list[str]]:
    return list(world.engine.state.topics), sorted(world.engine.state.routers.by_name)


def test_missing_topics_are_created_with_the_router(world: World) -> None:
    assert world.router("r", "a", "b").created
    assert names(world) == (["a", "b"], ["r"])
    assert not world.router("r", "a", "b").created
    assert names(world.killed()) == (["a", "b"], ["r"])


def test_a_source_is_created_even_where_a_dest_must_exist(world: World) -> None:
    world.topic("b")
    assert world.router("r", "a", "b", create_dest=False).created
    assert names(world) == (["a", "b"], ["r"])


@pytest.mark.parametrize(
    ("definition", "error"),
    [
        (("bad name", "a", "b"), InvalidRequest),
        (("r", "a", "a"), InvalidRequest),
        (("r", "a b", "c"), InvalidRequest),
        (("r", "a", "_c"), InvalidRequest),
    ],
)
def test_bad_names_are_refused(world: World, definition: tuple[str, str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        world.router(*definition)
    assert names(world) == ([], [])


def test_a_dest_that_must_exist_and_does_not_is_refused(world: World) -> None:
    with pytest.raises(TopicNotFound):
        world.router("r", "a", "b", create_dest=False)
    assert names(world) == ([], [])


def test_a_cycle_is_refused_with_its_path(world: World) -> None:
    world.router("ab", "a", "b")
    world.router("bc", "b", "c")
    with pytest.raises(RouterCycle) as refused:
        world.router("ca", "c", "a")
    assert refused.value.detail == {"cycle": ["c", "a", "b", "c"]}
    with pytest.raises(RouterCycle) as refused:
        world.router("ba", "b", "a")
    assert refused.value.detail == {"cycle": ["b", "a", "b"]}
    assert names(world) == (["a", "b", "c"], ["ab", "bc"])


def test_a_cycle_may_be_permitted_and_put_again(world: World) -> None:
    world.router("ab", "a", "b")
    world.router("ba", "b", "a", allow_cycle=True)
    assert not world.router("ba", "b", "a", allow_cycle=True, preserve_tag=False).created
    assert not world.router("ab", "a", "b", filter="x*").created


def test_the_edge_of_the_router_itself_closes_no_cycle(world: World) -> None:
    world.router("ab", "a", "b")
    assert not world.router("ab", "a", "b", preserve_node=False).created


def test_a_second_source_into_one_dest_is_refused(world: World) -> None:
    world.router("ab", "a", "b")
    with pytest.raises(TopicExistsIncompatible) as refused:
        world.router("zb", "z", "b")
    assert refused.value.detail == {"topic": "b", "reason": "router_dest_fan_in"}
    assert world.router("ab2", "a", "b").created
    assert names(world) == (["a", "b"], ["ab", "ab2"])


def test_a_router_cannot_be_pointed_elsewhere(world: World) -> None:
    world.router("r", "a", "b")
    for source, dest in (("a", "c"), ("c", "d")):
        with pytest.raises(TopicExistsIncompatible) as refused:
            world.router("r", source, dest)
        assert (refused.value.detail or {})["reason"] == "router_repoint_forbidden"
    assert names(world) == (["a", "b"], ["r"])


def test_caps_leave_nothing_behind() -> None:
    world = World(max_topics=3, max_routers=1)
    world.topic("x")
    world.topic("y")
    with pytest.raises(Throttled) as refused:
        world.router("r", "a", "b")
    assert refused.value.detail == {"limit": "max_topics", "max": 3}
    assert names(world) == (["x", "y"], [])
    world.router("r", "x", "y")
    with pytest.raises(Throttled) as refused:
        world.router("r2", "y", "z")
    assert refused.value.detail == {"limit": "max_routers", "max": 1}
    assert names(world) == (["x", "y"], ["r"])


def test_a_router_that_cannot_be_logged_takes_its_new_topics_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(wal_shards=4)
    ticket = world.engine.routers.put(RouterDef(name="r", source="a", dest="b"))
    failing = world.kernel.kernel.store.groups[0]

    def fail() -> None:
        raise CommitFailed("unknown", cause="sync")

    monkeypatch.setattr(failing, "sync", fail)
    world.kernel.pump()
    assert ticket.error is not None
    assert names(world) == ([], [])


def test_puts_that_would_close_a_cycle_between_them_take_turns(world: World) -> None:
    from topics.model.router import RouterDef

    first = world.engine.routers.put(RouterDef(name="ab", source="a", dest="b"))
    second = world.engine.routers.put(RouterDef(name="ba", source="b", dest="a"))
    world.kernel.pump()
    assert first.result().created
    assert isinstance(second.error, RouterCycle)


def test_a_list_is_sorted_filtered_and_paged(world: World) -> None:
    for name, source, dest in (("c", "a", "x"), ("a", "a", "y"), ("b", "b", "z"), ("ab", "a", "w")):
        world.router(name, source, dest)
    page = world.engine.routers.page
    assert [entry.router for entry in page()[0]] == ["a", "ab", "b", "c"]
    assert [entry.router for entry in page(prefix="a")[0]] == ["a", "ab"]
    assert [entry.router for entry in page(source="a", dest="x")[0]] == ["c"]
    first, more = page(page_size=3)
    assert [entry.router for entry in first] == ["a", "ab", "b"]
    assert more
    assert [entry.router for entry in page(after="b")[0]] == ["c"]


def test_deleting_an_absent_router_is_no_error(world: World) -> None:
    assert not world.drop_router("r")


def test_no_router_outlives_its_topics(world: World) -> None:
    world.router("ab", "a", "b")
    world.router("bc", "b", "c")
    world.router("cd", "c", "d")
    dropped = world.drop("b")
    assert sorted(router.name for router in dropped.routers_removed) == ["ab", "bc"]
    assert names(world) == (["a", "c", "d"], ["cd"])
    world = world.killed()
    assert names(world) == (["a", "c", "d"], ["cd"])
    world.topic("b")
    world.write("a", 1)
    assert world.rows("b") == []
