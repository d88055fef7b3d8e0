"""Watch streams and sessions on the simulated clock (`docs/spec/http-api.md#sec-17`)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.delivery.rig import Rig, Stream, bodies_of, last_id

from topics.api.live.outbound import SlowConsumerLimits
from topics.api.live.sessions import SessionCursor
from topics.api.live.sse_frames import id_of, piece
from topics.api.live.streams import FAREWELL_MS
from topics.api.live.watch import WatchStream
from topics.errors import NotFound, Throttled
from topics.model.position import Position, token
from topics.model.router import RouterDef
from topics.testing import SimHost
from topics.testing.driver import SimKernel
from topics.wire.incoming.requests import (
    decode_write,
)
from topics.wire.outgoing.records import View
from topics.wire.outgoing.sse import decode_id, encode_id


@pytest.fixture
def rig() -> Rig:
    return Rig()


# --- frames -----------------------------------------------------------------------------------------------------------


def test_a_stream_begins_with_the_retry_line_at_once(rig: Rig) -> None:
    rig.put("a")
    assert rig.open(rig.session({"a": 0}), pump=False).received == b"retry: 2000\n\n"


def test_caught_up_comes_once_per_change_and_afresh_on_every_connection(rig: Rig) -> None:
    rig.put("a")
    session = rig.session({"a": 0})
    stream = rig.open(session)
    assert stream.events() == ["caught-up"]
    rig.write("a", 1)
    rig.write("a", 2)
    assert stream.events() == ["caught-up", "record", "caught-up", "record", "caught-up"]
    stream.cut()
    assert rig.open(session).events() == ["caught-up"]


def test_what_is_hidden_or_deleted_produces_no_frame_and_moves_the_cursor(rig: Rig) -> None:
    rig.put("a")
    stream = rig.watch({"a": 0}, node="me")
    rig.write("a", {"data": 1, "node": "me"})
    assert stream.events() == ["caught-up"]
    rig.write("a", {"data": 2, "node": "you"})
    assert stream.records("a") == [2]
    frame = stream.frames()[1]
    assert (frame.data["from_seq"], frame.data["to_seq"]) == (1, 2)
    late = rig.watch({"a": 0}, node="you")
    assert [(frame.data["from_seq"], frame.data["to_seq"]) for frame in late.frames()[:1]] == [(0, 2)]
    rig.delete("a", before_seq=3)
    assert rig.watch({"a": 0}).events() == ["caught-up"]


def test_a_reader_that_hides_nodes_gets_what_its_diff_gets(rig: Rig) -> None:
    rig.put("a")
    streams = [rig.watch({"a": 0}, node=node) for node in ("n0", "n1", "other")]
    everyone = rig.watch({"a": 0})
    for number in range(12):
        rig.write("a", *[{"data": number, "node": f"n{at}"} for at in range(3)], {"data": "nobody"})
    for stream, node in zip(streams, ("n0", "n1", "other"), strict=True):
        shown = [record["data"] for record in bodies_of(rig.diff("a", 0, node=node))]
        assert stream.records("a") == shown
    assert len(everyone.records("a")) == 48


def test_with_dedupe_node_off_nothing_is_hidden(rig: Rig) -> None:
    rig.put("a", dedupe_node=False)
    stream = rig.watch({"a": 0}, node="me")
    rig.write("a", {"data": 1, "node": "me"})
    assert stream.records("a") == [1]


def test_only_the_first_read_calls_retention_too_old(rig: Rig) -> None:
    rig.put("a", cap_records=2)
    rig.write("a", *range(5))
    stream = rig.watch({"a": 0})
    gap = stream.frames()[0]
    assert gap.event == "tombstone"
    assert gap.data == {
        "topic": "a", "reason": "from_seq_too_old", "gap_from": 1, "gap_to": 3, "earliest_seq": 4, "head_seq": 5,
        "next": token(3, rig.topic("a").epoch),
    }  # fmt: skip
    rig.write("a", *range(5))
    assert [frame.data["reason"] for frame in stream.frames() if frame.event == "tombstone"] == [
        "from_seq_too_old",
        "cap",
    ]


def test_a_record_frame_after_a_gap_shows_the_cursor_before_the_read(rig: Rig) -> None:
    rig.put("a", cap_records=2)
    rig.write("a", *range(5))
    record = rig.watch({"a": 0}).frames()[1]
    assert (record.data["from_seq"], record.data["to_seq"]) == (0, 5)


def test_line_breaks_in_payloads_are_sent_as_one_space_each(rig: Rig) -> None:
    rig.put("a")
    stream, socket = rig.watch({"a": 0}), rig.socket()
    socket.say("subscribe", topic="a")
    rig.pump()
    batch = decode_write(b'{"records":[{"data":{"k" :\r\n[1,\n2]}}]}').batch()
    rig.sim.call(lambda engine: engine.write("a", batch))
    rig.pump()
    assert b'"data":{"k" :  [1, 2]}' in stream.received
    assert b'"data":{"k" :\r\n[1,\n2]}' in socket.received


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("meta", [False, True])
def test_records_show_what_was_asked_for(rig: Rig, data: bool, tags: bool, meta: bool) -> None:
    rig.put("a")
    streams = [rig.watch({"a": 0}, view=View(data=data, tags=tags, meta=meta)) for _ in range(2)]
    rig.write("a", {"data": 1, "tag": "t", "node": "n", "meta": {"k": 1}})
    wanted = {"$seq", "$ts", "$node"} | ({"data"} if data else set())
    wanted |= ({"$tag"} if tags else set()) | ({"meta"} if meta else set())
    for stream in streams:
        assert stream.frames()[1].data["records"][0].keys() == wanted


def test_a_batch_ends_before_the_record_that_would_exceed_its_budget(rig: Rig) -> None:
    rig.write("a", "x" * 50, "y" * 50, "z" * 200, "w")
    stream = rig.watch({"a": 0}, budget=110)
    batches = [len(frame.data["records"]) for frame in stream.frames() if frame.event == "record"]
    assert batches == [2, 1, 1]


def test_large_batches_are_rendered_off_the_loop_and_arrive_in_order(rig: Rig) -> None:
    rig.put("a")
    streams = [rig.watch({"a": 0}, budget=8 << 20), rig.watch({"a": 0}, budget=8 << 20, node="x")]
    off_loop: list[object] = []
    run_read = rig.live.services.batches.off_loop

    def counted(job: Any, done: Any) -> None:
        off_loop.append(job)
        run_read(job, done)

    rig.live.services.batches.off_loop = counted
    rig.write("a", *["x" * 100_000] * 5)
    rig.write("a", "small")
    assert off_loop
    for stream in streams:
        assert [len(data) for data in stream.records("a")] == [100_000] * 5 + [5]
        assert stream.seqs("a") == [1, 2, 3, 4, 5, 6]


# --- heartbeats -------------------------------------------------------------------------------------------------------


def beats(received: bytes) -> int:
    return received.count(b": hb\n\n")


def test_a_heartbeat_comes_after_so_much_silence_and_not_before(rig: Rig) -> None:
    rig.put("a")
    stream = rig.watch({"a": 0}, heartbeat_ms=1000)
    rig.advance(950)
    assert beats(stream.received) == 0
    rig.advance(50)
    assert beats(stream.received) == 1
    rig.advance(3000)
    assert beats(stream.received) == 4
    assert last_id(stream.received) == encode_id({"a": Position(0, rig.topic("a").epoch)})


def test_any_frame_restarts_the_silence(rig: Rig) -> None:
    rig.put("a")
    stream = rig.watch({"a": 0}, heartbeat_ms=1000)
    for number in range(10):
        rig.advance(900)
        rig.write("a", number)
    assert beats(stream.received) == 0
    rig.advance(1000)
    assert beats(stream.received) == 1


def test_many_idle_streams_beat_when_they_should(rig: Rig) -> None:
    rig.put("a")
    streams = [rig.watch({"a": "tail"}, heartbeat_ms=1000 + number * 7 % 500) for number in range(300)]
    rig.advance(6_000)
    for number, stream in enumerate(streams):
        period = 1000 + number * 7 % 500
        rounded = -(-period // 50) * 50  # beats are noticed at ticks
        assert beats(stream.received) in (6_000 // rounded, 6_000 // period)


# --- strong watches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_a_strong_watch_shows_only_what_is_synced(rig: Rig, durability: str) -> None:
    rig.put("a", durability=durability)
    rig.write("a", 0)
    rig.sim.sync_all()
    strong, eventual = rig.watch({"a": 0}, strong=True), rig.watch({"a": 0})
    rig.write("a", 1)
    rig.write("a", 2)
    assert eventual.records("a") == [0, 1, 2]
    assert strong.records("a") == [0]
    assert strong.frames()[-1].data == {"topic": "a", "head_seq": 1, "next": token(1, rig.topic("a").epoch)}
    rig.sim.sync_all()
    rig.pump()
    assert strong.records("a") == [0, 1, 2]
    assert strong.frames()[-1].data == {"topic": "a", "head_seq": 3, "next": token(3, rig.topic("a").epoch)}


def test_a_strong_watch_that_comes_before_the_sync_waits_for_it(rig: Rig) -> None:
    rig.put("a")
    rig.write("a", 0)  # comes with its ceiling, and so with a sync
    rig.sim.sync_all()
    rig.write("a", 1)
    from_start, tail = rig.watch({"a": 0}, strong=True), rig.watch({"a": "tail"}, strong=True)
    assert (from_start.records("a"), tail.records("a")) == ([], [])
    assert tail.events() == []
    rig.sim.sync_all()
    rig.pump()
    assert from_start.records("a") == [0, 1]
    assert tail.events() == ["caught-up"]


@pytest.mark.parametrize("durability", ["fsync", "ephemeral"])
def test_on_fsync_and_ephemeral_topics_strong_equals_eventual(rig: Rig, durability: str) -> None:
    rig.put("a", durability=durability)
    strong = rig.watch({"a": 0}, strong=True)
    rig.write("a", 1)
    assert strong.records("a") == [1]


@pytest.mark.parametrize("durability", ["disk", "fsync", "ephemeral"])
def test_a_strong_watch_from_beyond_the_head_is_told_that_the_topic_is_new(rig: Rig, durability: str) -> None:
    rig.put("a", durability=durability)
    rig.write("a", 1)
    rig.sim.sync_all()
    strong = rig.watch({"a": 40}, strong=True)
    assert strong.events() == ["tombstone", "record", "caught-up"]
    assert strong.frames()[0].data["reason"] == "recreated"


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["write", "sync", "open", "cut", "turn"]), max_size=20))
def test_a_strong_watch_never_shows_what_a_power_cut_could_take(script: list[str]) -> None:
    rig = Rig()
    rig.put("a")
    streams = []
    for number, action in enumerate(script):
        if action == "write":
            rig.write("a", number, deliver=False)
        elif action == "sync":
            rig.sim.sync_all()
        elif action == "open":
            streams.append(rig.open(rig.session({"a": 0}, strong=True), pump=False))
        elif action == "cut" and streams:
            streams.pop().cut()
        else:
            rig.sim.driver.turn()
        survives = _after_power_cut(rig)
        for stream in streams:
            assert set(stream.seqs("a")) <= survives
    rig.sim.sync_all()
    rig.pump()
    for stream in streams:
        assert stream.seqs("a") == list(range(1, rig.topic("a").head + 1))


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("source", ["disk", "memory", "fsync"])
@pytest.mark.parametrize("dest", ["disk", "fsync"])
def test_a_strong_watch_shows_no_copy_whose_original_a_power_cut_could_take(
    shards: int, source: str, dest: str
) -> None:
    rig = Rig(wal_shards=shards)
    rig.put("source", durability=source)
    rig.put("between", durability="fsync")
    rig.put("a", durability=dest)
    _route(rig, "source", "between")
    _route(rig, "between", "a")
    strong = rig.watch({"a": 0}, strong=True)
    for number in range(3):  # the first one also reserves seqs, which syncs the log
        rig.write("source", number)
        assert set(strong.seqs("a")) <= _after_power_cut(rig)
        rig.sim.sync_all()
        rig.pump()
        assert strong.records("a") == list(range(number + 1))


def _route(rig: Rig, source: str, dest: str) -> None:
    definition = RouterDef(name=f"{source}->{dest}", source=source, dest=dest)
    rig.sim.call(lambda engine: engine.routers.put(definition))


def _after_power_cut(rig: Rig) -> set[int]:
    """The seqs that are there when the power goes now."""
    disk, host = rig.fs.clone(), SimHost()
    disk.power_cut()
    host.reboot()
    sim = SimKernel.open(disk.reboot(), host=host)
    topic = sim.engine.state.topics["a"]
    return {seq for seq in range(1, topic.head + 1) if topic.live(seq)}


# --- deleted and recreated topics -------------------------------------------------------------------------------------


def test_a_deleted_topic_is_told_at_once_and_the_others_go_on(rig: Rig) -> None:
    rig.write("a", 1)
    rig.write("b", 1)
    stream = rig.watch({"a": 0, "b": 0})
    rig.drop("a")
    assert stream.frames()[-1].event == "topic-deleted"
    assert stream.frames()[-1].data == {"topic": "a", "head_seq": 0, "reason": "deleted"}
    assert stream.frames()[-1].cursors == {"a": 1, "b": 1}
    rig.write("b", 2)
    assert stream.records("b") == [1, 2]
    assert len(rig.live.streams) == 1
    rig.drop("b")
    assert stream.closed
    assert stream.events()[-1] == "topic-deleted"


def test_a_topic_recreated_under_an_open_stream_stays_final_for_it(rig: Rig) -> None:
    rig.write("a", 1)
    rig.put("b")
    stream = rig.watch({"a": 0, "b": 0})
    rig.drop("a")
    rig.write("a", "new")
    assert stream.records("a") == [1]


@pytest.mark.parametrize("cursor", [0, 1, 2])
def test_a_session_recognises_recreation_at_any_position(rig: Rig, cursor: int) -> None:
    rig.write("a", 1, 2)
    session = rig.session({"a": cursor})
    rig.drop("a")
    rig.write("a", "n1", "n2", "n3")
    stream = rig.open(session)
    gap = stream.frames()[0]
    assert (gap.data["reason"], gap.data["gap_from"], gap.data["gap_to"]) == ("recreated", 1, 3)
    assert gap.cursors == {"a": 0}
    assert stream.records("a") == ["n1", "n2", "n3"]


def test_a_session_whose_topic_is_gone_is_told_when_it_opens(rig: Rig) -> None:
    rig.write("a", 1)
    session = rig.session({"a": 0})
    rig.drop("a")
    stream = rig.open(session)
    assert stream.events() == ["topic-deleted"]
    assert stream.closed


def test_a_lagging_stream_is_told_of_a_deletion_when_it_has_read_the_rest() -> None:
    rig = Rig(slow_limits=SlowConsumerLimits(frames_max=4, bytes_max=500, hand_over_bytes=100))
    rig.put("a")
    stream = rig.watch({"a": 0}, reads=False)
    for number in range(10):
        rig.write("a", "x" * 50 + str(number))
    rig.drop("a")
    rig.advance(6_000)
    while stream.buffered_bytes():
        stream.take()
        rig.pump()
    assert stream.events()[-1] == "topic-deleted"
    assert stream.closed


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_reconnecting_without_an_id_goes_on_after_the_last_frame_handed_over(rig: Rig) -> None:
    rig.write("a", 1, 2)
    session = rig.session({"a": 0})
    first = rig.open(session)
    assert first.records("a") == [1, 2]
    first.cut()
    rig.write("a", 3)
    assert rig.open(session).records("a") == [3]


@pytest.mark.parametrize(
    ("given", "sent"), [({"a": 1}, [2, 3]), ({"a": 30}, []), ({"b": 1}, []), ({"a": 0, "z": 9}, [1, 2, 3]), ({}, [])]
)
def test_an_id_only_moves_cursors_back(rig: Rig, given: dict[str, int], sent: list[int]) -> None:
    rig.write("a", 1, 2, 3)
    session = rig.session({"a": 0})
    rig.open(session).cut()
    assert rig.open(session, last_id=encode_id({**given})).records("a") == sent


@pytest.mark.parametrize(
    "header",
    [
        b"", b"x", b"====", b"\xff\xfe", b"null", encode_id({"a": 1})[:-1] + b"!", b"eyJhIjotMX0", b"eyJhIjoiMSJ9",
        b"eyJhIjoxLjB9", b"W10", b"eyJhIjp0cnVlfQ", b"A" * 5000, b"eyJhIjoxODQ0Njc0NDA3MzcwOTU1MTYxNn0",
    ],
)  # fmt: skip
def test_an_id_that_is_none_of_ours_is_ignored(rig: Rig, header: bytes) -> None:
    rig.write("a", 1, 2, 3)
    session = rig.session({"a": 0})
    rig.open(session).cut()
    assert rig.open(session, last_id=header).records("a") == []


def test_two_streams_of_one_session_share_its_cursors(rig: Rig) -> None:
    rig.put("a")
    session = rig.session({"a": 0})
    first, second = rig.open(session), rig.open(session)
    rig.write("a", 1)
    first.cut()
    rig.write("a", 2)
    assert sorted(first.records("a") + second.records("a")) in ([1, 1, 2], [1, 2])
    assert session.streams == 1
    second.cut()
    assert session.streams == 0


def test_a_session_lives_300000_ms_without_a_stream_and_as_long_as_one_is_open(rig: Rig) -> None:
    rig.put("a")
    sessions = rig.live.sessions
    unopened, opened = rig.session({"a": 0}), rig.session({"a": 0})
    stream = rig.open(opened)
    rig.clock.advance(299_999)
    assert sessions.find(unopened.wid) is unopened
    rig.clock.advance(1)
    with pytest.raises(NotFound):
        sessions.find(unopened.wid)
    assert sessions.find(opened.wid) is opened
    stream.cut()
    rig.clock.advance(299_999)
    assert sessions.find(opened.wid) is opened
    rig.clock.advance(1)
    with pytest.raises(NotFound):
        sessions.find(opened.wid)
    assert len(sessions) == 0


def test_sessions_that_are_never_opened_are_bounded_and_make_room_when_they_expire() -> None:
    rig = Rig(max_watch_sessions=1000)
    rig.put("a")
    for _ in range(1000):
        rig.session({"a": 0})
    with pytest.raises(Throttled) as refused:
        rig.session({"a": 0})
    assert refused.value.detail == {"limit": "max_watch_sessions", "max": 1000}
    rig.clock.advance(300_000)
    rig.session({"a": 0})
    assert len(rig.live.sessions) == 1


def test_a_wid_is_wid_and_22_characters(rig: Rig) -> None:
    rig.put("a")
    wids = {rig.session({"a": 0}).wid for _ in range(50)}
    assert len(wids) == 50
    assert all(len(wid) == 26 and wid.startswith("wid_") for wid in wids)


@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True), st.integers(0, 2**64 - 1)))
def test_ids_built_from_pieces_are_those_of_the_contract(cursors: dict[str, int]) -> None:
    built = id_of([piece(name, cursor, 7) for name, cursor in cursors.items()])
    positions = {name: Position(cursor, 7) for name, cursor in cursors.items()}
    assert built == encode_id(positions)
    assert decode_id(built) == positions


def test_a_place_forgets_the_old_life_after_enough_ids() -> None:
    place = SessionCursor("a", cursor=7, epoch=1)
    place.move(0, 2)
    for cursor in range(1, 2000):
        place.move(cursor, 2)
    place.go_back(Position(1998), None)
    assert (place.cursor, place.epoch) == (1998, 2)


# --- caps -------------------------------------------------------------------------------------------------------------


def test_places_are_taken_and_given_back_on_every_kind_of_end() -> None:
    rig = Rig(max_sse_connections=2)
    rig.write("a", 1)
    stream, socket = rig.watch({"a": 0}), rig.socket()
    with pytest.raises(Throttled) as refused:
        rig.live.streams.check_cap(None)
    assert refused.value.detail == {"limit": "max_sse_connections", "max": 2}
    stream.cut()
    rig.live.streams.check_cap(None)
    socket.cut()
    assert len(rig.live.streams) == 0
    stream.cut()
    assert len(rig.live.streams) == 0


def test_the_cap_per_key_counts_each_key_alone() -> None:
    rig = Rig(max_sse_connections_per_key=1)
    streams = rig.live.streams

    class Quiet:
        def shut_down(self) -> None:
            return

        def cut_off(self) -> None:
            return

    mine, yours = Quiet(), Quiet()
    streams.enter(mine, b"me")
    streams.check_cap(b"you")
    streams.check_cap(None)
    with pytest.raises(Throttled) as refused:
        streams.check_cap(b"me")
    assert refused.value.detail == {"limit": "max_sse_connections_per_key", "max": 1}
    streams.enter(yours, b"you")
    streams.leave(mine)
    streams.check_cap(b"me")
    streams.leave(yours)
    assert not streams._by_client


def test_a_stream_that_was_closed_before_it_began_holds_no_place(rig: Rig) -> None:
    """As with HEAD, which gets the head and a sink that is closed."""
    rig.put("a")
    sink = Stream(rig.room)
    sink.cut()
    session = rig.session({"a": 0})
    WatchStream(rig.live.services, session, sink).begin()
    assert len(rig.live.streams) == 0
    assert session.streams == 0
    assert not rig.live.delivery._watched


# --- the end of the server --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topics", [1, 2])
def test_a_stream_that_is_behind_when_the_server_stops_still_hears_the_last_words(rig: Rig, topics: int) -> None:
    for name in "ab"[:topics]:
        rig.write(name, *["x" * 50_000] * 20)
    stream = rig.watch(dict.fromkeys("ab"[:topics], 0), reads=False)
    rig.live.streams.shut_down()
    assert not stream.closed
    for _ in range(2):
        stream.take()
        rig.advance(50)
    assert (stream.closed, stream.was_aborted) == (True, False)
    last = stream.frames()[-1]
    assert (last.event, last.data["code"]) == ("error", "server_shutting_down")


@pytest.mark.parametrize("size", [10, 50_000])
def test_a_stream_that_is_stuck_when_the_server_stops_is_cut_off(rig: Rig, size: int) -> None:
    rig.write("a", *["x" * size] * 20)
    stream = rig.watch({"a": 0}, reads=False)
    rig.live.streams.shut_down()
    rig.advance(int(FAREWELL_MS) - 100)
    assert not stream.closed
    rig.advance(200)
    assert stream.was_aborted
    assert len(rig.live.streams) == 0
