"""Who watches a topic that the ladder defers is told, once, and told when it is over
(`docs/spec/delivery.md#sec-8`)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.delivery.rig import Rig, Stream
from tests.engine.delivery.test_under_pressure import hold_at

from topics.client.following import Following, Frame


def news(stream: Stream) -> list[str]:
    return [frame.event for frame in stream.frames() if frame.event in ("deferred", "resumed", "record")]


def deferring(priority: int = -1000) -> Rig:
    rig = Rig()
    rig.put("low", priority=priority)
    return rig


def test_a_watcher_of_a_deferred_topic_is_told_once_and_told_when_it_is_over() -> None:
    rig = deferring()
    stream = rig.watch({"low": 0})
    hold_at(rig, 0.9)
    assert news(stream) == [], "there is nothing that waits"
    for number in range(3):
        rig.write("low", number)
        rig.advance(100)
    assert news(stream) == ["deferred"]
    (told,) = [frame for frame in stream.frames() if frame.event == "deferred"]
    assert told.data == {"topic": "low", "reason": "pressure", "max_wait_ms": 9_950}, "it was held for a moment"
    assert told.cursors is None, "it moves no cursor"
    hold_at(rig, 0.5, samples=1)
    rig.advance(50)
    assert news(stream) == ["deferred", "resumed", "record"]
    assert stream.records("low") == [0, 1, 2]


def test_what_waited_when_the_pause_began_is_told_too_and_age_ends_it() -> None:
    rig = deferring(-5)
    stream = rig.watch({"low": 0})
    hold_at(rig, 0.9)
    rig.write("low", 1)
    rig.advance(25, tick_ms=25)
    (told,) = [frame for frame in stream.frames() if frame.event == "deferred"]
    assert told.data["max_wait_ms"] == 25
    rig.advance(100)
    assert news(stream) == ["deferred", "resumed", "record"]


def test_each_deferral_is_told_anew() -> None:
    rig = deferring()
    stream = rig.watch({"low": 0})
    for number in range(3):
        hold_at(rig, 0.9)
        rig.write("low", number)
        rig.advance(50)
        hold_at(rig, 0.5, samples=1)
        rig.advance(50)
    assert news(stream) == ["deferred", "resumed", "record"] * 3


def test_all_streams_of_a_broadcast_group_are_told() -> None:
    rig = deferring()
    rig.write("low", 0)
    streams = [rig.watch({"low": 0}) for _ in range(3)]
    rig.write("low", 1)
    hold_at(rig, 0.9)
    rig.write("low", 2)
    rig.advance(50)
    hold_at(rig, 0.5, samples=1)
    rig.advance(50)
    for stream in streams:
        assert news(stream)[-3:] == ["deferred", "resumed", "record"]
        assert stream.records("low") == [0, 1, 2]


def test_whoever_comes_during_a_deferral_is_told_at_once() -> None:
    rig = deferring()
    first = rig.watch({"low": 0})
    hold_at(rig, 0.9)
    rig.write("low", 1)
    rig.advance(50)
    late = rig.watch({"low": 0})
    assert news(late) == ["deferred"]
    hold_at(rig, 0.5, samples=1)
    rig.advance(50)
    assert news(first) == news(late) == ["deferred", "resumed", "record"]


def test_topics_that_are_not_deferred_bring_no_news() -> None:
    rig = deferring()
    rig.put("high", priority=900)
    stream = rig.watch({"high": 0})
    hold_at(rig, 0.9)
    rig.write("high", 1)
    rig.advance(100)
    assert news(stream) == ["record"]


def test_a_client_that_takes_nothing_is_not_told_and_holds_no_more_for_it() -> None:
    rig = deferring()
    stream = rig.watch({"low": 0})
    stream.reads = False
    for number in range(200):
        hold_at(rig, 0.9)
        rig.write("low", number)
        rig.advance(50)
        hold_at(rig, 0.5, samples=1)
        rig.advance(50)
    stream.reads = True
    stream.take()
    rig.advance(100)
    assert stream.records("low") == list(range(200))


def test_a_socket_is_told_in_frames_of_its_own() -> None:
    rig = deferring()
    socket = rig.socket()
    socket.say("subscribe", topic="low")
    rig.pump()
    hold_at(rig, 0.9)
    rig.write("low", 1)
    rig.advance(50)
    hold_at(rig, 0.5, samples=1)
    rig.advance(50)
    told = [frame for frame in socket.messages() if frame["op"] in ("deferred", "resumed", "record")]
    assert told[0] == {"op": "deferred", "topic": "low", "reason": "pressure", "max_wait_ms": 9_950}
    assert told[1] == {"op": "resumed", "topic": "low"}
    assert [frame["op"] for frame in told] == ["deferred", "resumed", "record"]


@given(st.lists(st.sampled_from(["write", "press", "relax", "wait", "come"]), max_size=25))
def test_whatever_happens_news_come_in_turn_and_records_in_order(script: list[str]) -> None:
    rig = deferring()
    streams = [rig.watch({"low": 0})]
    written = 0
    for step in script:
        if step == "write":
            rig.write("low", written)
            written += 1
        elif step == "press":
            hold_at(rig, 0.9)
        elif step == "relax":
            hold_at(rig, 0.5, samples=1)
        elif step == "wait":
            rig.advance(600)
        else:
            streams.append(rig.watch({"low": 0}))
    hold_at(rig, 0.1, samples=1)
    rig.advance(100)
    for stream in streams:
        assert stream.records("low") == list(range(written))
        turns = [event for event in news(stream) if event != "record"]
        assert turns == ["deferred", "resumed"] * (len(turns) // 2)


@pytest.mark.parametrize("event", ["deferred", "resumed", "something-new"])
def test_a_follower_of_ours_passes_over_news(event: str) -> None:
    following = Following.__new__(Following)
    assert following.frame(Frame(event.encode(), b'{"topic":"low"}', None)) is None
