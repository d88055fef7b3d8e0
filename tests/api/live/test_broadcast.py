"""Level streams that are served together hear what each would hear alone, and part when one is unlike the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.delivery.rig import Rig, Stream

from topics.api.live.broadcast import BroadcastGroup
from topics.api.live.history_throttle import CatchUp
from topics.api.live.outbound import SlowConsumerLimits
from topics.api.live.watch import WatchStream

SMALL = SlowConsumerLimits(frames_max=8, bytes_max=2_000, hand_over_bytes=400)


def groups(rig: Rig, name: str = "a") -> list[BroadcastGroup]:
    return [
        group for group in rig.live.delivery._of(rig.topic(name)).groups.values() if isinstance(group, BroadcastGroup)
    ]


def seated(rig: Rig, name: str = "a") -> int:
    return sum(map(len, groups(rig, name)))


def open_alone(rig: Rig, starts: dict[str, int | str]) -> Stream:
    """A stream that is never served together with others."""
    stream = Stream(rig.room)
    stream.shares = False
    WatchStream(rig.live.services, rig.session(starts), stream).begin()
    rig.pump()
    return stream


# --- the same bytes ---------------------------------------------------------------------------------------------------

happenings = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 12)),
        st.tuples(st.just("large"), st.integers(1, 3)),
        st.tuples(st.just("quick"), st.integers(1, 3)),
        st.tuples(st.just("delete"), st.integers(1, 40)),
        st.tuples(st.just("wait"), st.sampled_from([50, 700, 16_000])),
        st.tuples(st.just("take"), st.integers(1, 500)),
        st.tuples(st.just("another"), st.booleans()),
        st.tuples(st.just("forget"), st.none()),
    ),
    max_size=25,
)


def happen(rig: Rig, number: int, action: str, what: Any, slow: Stream) -> None:
    if action == "write":
        rig.write("a", *[f"{number}-{at}" for at in range(what)])
    elif action == "large":
        rig.write("a", *["x" * 300] * what)
    elif action == "quick":
        for at in range(what):
            rig.write("a", f"{number}-{at}", deliver=False)
        rig.pump()
    elif action == "delete":
        rig.delete("a", before_seq=what)
    elif action == "wait":
        rig.advance(what)
    elif action == "take":
        slow.take(what)
    elif action == "another":
        rig.watch({"a": "tail"}, reads=bool(what))
    else:
        rig.sim.checkpoint()
        rig.sim.engine.state.recent.drop_topic(rig.topic("a").id)


@given(happenings, st.sampled_from([0, 0, 7]), st.sampled_from([0, 0, 600]))
def test_streams_in_an_audience_are_sent_what_a_stream_alone_is_sent(
    script: list[tuple[str, Any]], cap_records: int, ttl_ms: int
) -> None:
    rig = Rig(slow_limits=SMALL)
    rig.put("a", cap_records=cap_records, ttl_ms=ttl_ms)
    together = [rig.watch({"a": 0}) for _ in range(3)]
    slow = rig.watch({"a": 0}, reads=False)
    alone = open_alone(rig, {"a": 0})
    for number, (action, what) in enumerate(script):
        happen(rig, number, action, what, slow)
    while slow.buffered_bytes():
        slow.take()
        rig.pump()
    assert all(stream.received == alone.received for stream in together)
    nothing_died = not cap_records and not ttl_ms and all(action != "delete" for action, _ in script)
    if nothing_died and not slow.closed and not rig.live.streams.shed_total:
        assert slow.seqs("a") == alone.seqs("a")


# --- who is seated ----------------------------------------------------------------------------------------------------


def test_level_streams_of_one_kind_sit_together_and_others_do_not() -> None:
    rig = Rig()
    rig.put("a")
    rig.put("b")
    for _ in range(3):
        rig.watch({"a": 0})
    rig.watch({"a": 0, "b": 0})
    rig.watch({"a": 0}, node="me")
    rig.watch({"a": 0}, strong=True)
    rig.watch({"a": 0}, limit=5)
    assert sorted(map(len, groups(rig))) == [1, 3]


def test_everyone_has_the_position_of_the_session_after_each_push() -> None:
    rig = Rig()
    rig.put("a")
    sessions = [rig.session({"a": 0}) for _ in range(3)]
    for session in sessions:
        rig.open(session)
    rig.write("a", 1, 2)
    assert seated(rig) == 3
    assert [session.places[0].cursor for session in sessions] == [2, 2, 2]


def test_a_member_whose_pause_is_over_does_not_read_what_the_group_has_sent() -> None:
    """A stream that caught up from files joins while the pause before its next read is still running."""
    rig = Rig()
    rig.put("a")
    stream = rig.watch({"a": 0})
    rig.write("a", 1)
    (group,) = groups(rig)
    (subscription,) = group._members
    subscription._catch_up = CatchUp(rig.live.services.batches.throttle, 1)
    rig.write("a", 2)
    subscription._delay_over()
    rig.pump()
    assert stream.records("a") == [1, 2]


def test_a_second_stream_of_a_session_begins_where_the_first_is() -> None:
    rig = Rig()
    rig.put("a")
    session = rig.session({"a": 0})
    rig.open(session)
    rig.write("a", 1, 2)
    second = rig.open(session)
    rig.write("a", 3)
    assert second.records("a") == [3]


def test_a_session_goes_on_behind_what_its_closed_stream_was_sent_in_an_audience() -> None:
    rig = Rig()
    rig.put("a")
    session = rig.session({"a": 0})
    first = rig.open(session)
    rig.watch({"a": 0})
    rig.write("a", 1)
    first.cut()
    rig.write("a", 2)
    assert first.records("a") == [1]
    assert rig.open(session).records("a") == [2]


def test_the_last_one_to_leave_takes_the_audience_with_it() -> None:
    rig = Rig()
    rig.put("a")
    streams = [rig.watch({"a": 0}) for _ in range(3)]
    rig.write("a", 1)
    for stream in streams:
        stream.cut()
    assert rig.live.delivery._watched == {}


def test_a_deleted_topic_is_told_to_everyone_seated() -> None:
    rig = Rig()
    rig.put("a")
    streams = [rig.watch({"a": 0}) for _ in range(3)]
    rig.write("a", 1)
    rig.drop("a")
    rig.pump()
    assert [stream.events()[-1] for stream in streams] == ["topic-deleted"] * 3
    assert all(stream.closed for stream in streams)


# --- slow clients -----------------------------------------------------------------------------------------------------


def test_a_client_that_stops_reading_gets_up_and_the_others_stay() -> None:
    rig = Rig()
    rig.put("a")
    streams = [rig.watch({"a": 0}) for _ in range(3)]
    streams[1].reads = False
    rig.write("a", 1)
    rig.write("a", 2)
    assert seated(rig) == 3
    rig.advance(50)
    assert seated(rig) == 2
    assert [stream.records("a") for stream in streams] == [[1, 2], [], [1, 2]]
    streams[1].reads = True
    streams[1].take()
    rig.advance(100)
    assert seated(rig) == 3
    rig.write("a", 3)
    assert [stream.records("a") for stream in streams] == [[1, 2, 3]] * 3


def test_between_two_looks_a_client_is_sent_no_more_than_it_may_be_ahead_of() -> None:
    rig = Rig(slow_limits=SMALL)
    rig.put("a")
    streams = [rig.watch({"a": "tail"}) for _ in range(2)]
    streams[0].reads = False
    for number in range(40):
        rig.write("a", number)
        assert streams[0].buffered_bytes() <= SMALL.hand_over_bytes + 400
    assert seated(rig) == 1
    assert streams[1].records("a") == list(range(40))


def test_a_stream_that_cannot_be_written_to_takes_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.put("a")
    streams = [rig.watch({"a": 0}) for _ in range(3)]
    [group] = groups(rig)

    def broken(data: bytes) -> None:
        raise RuntimeError("the handle is closed")

    subscription = list(group._lines)[1]
    group._lines[subscription] = broken, group._lines[subscription][1]
    rig.write("a", 1)
    assert [stream.records("a") for stream in streams] == [[1], [], [1]]
    assert "writing to a stream" in caplog.text
    rig.write("a", 2)
    assert [stream.records("a") for stream in streams] == [[1, 2]] * 3


def test_a_stuck_client_is_cut_off_30000_ms_after_the_push_it_did_not_take() -> None:
    rig = Rig()
    rig.put("a")
    streams = [rig.watch({"a": 0}) for _ in range(2)]
    rig.advance(100)
    streams[0].reads = False
    rig.write("a", 1)
    rig.advance(29_950)
    assert [stream.closed for stream in streams] == [False, False]
    rig.advance(50)
    assert [stream.closed for stream in streams] == [True, False]
    assert rig.live.streams.too_slow_total == 1
    assert seated(rig) == 1


def test_a_heartbeat_comes_after_silence_counted_from_the_last_push_to_all() -> None:
    rig = Rig()
    rig.put("a")
    stream = rig.watch({"a": 0}, heartbeat_ms=1000)
    rig.advance(800)
    rig.write("a", 1)
    rig.advance(900)
    assert b": hb" not in stream.received
    rig.advance(150)
    assert stream.received.endswith(b": hb\n\n")
    rig.write("a", 2)
    assert stream.records("a") == [1, 2]
