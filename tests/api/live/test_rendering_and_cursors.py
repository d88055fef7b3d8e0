"""`docs/spec/delivery.md#sec-17`, properties 31 to 35."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.delivery.rig import Frame, Rig, bodies_of, last_id, parse_frames, records_of
from tests.engine.world import JobList

from topics.wire.outgoing.records import View, render
from topics.wire.outgoing.render_cache import BodyPool, TopicBodies, seqs_of
from topics.wire.page_tokens import encode_base64url

VIEWS = [View(data=data, tags=tags, meta=meta) for data, tags, meta in product((False, True), repeat=3)]

records = st.fixed_dictionaries(
    {"data": st.one_of(st.none(), st.integers(), st.text(max_size=20), st.lists(st.integers(), max_size=3))},
    optional={
        "tag": st.text(max_size=8),
        "node": st.text(max_size=8),
        "meta": st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    },
)


def cache_of(rig: Rig) -> TopicBodies:
    bodies = rig.live.delivery._of(rig.topic("a")).bodies
    assert isinstance(bodies, TopicBodies)
    return bodies


# --- property 31 ------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(records, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_cached_and_private_renderings_are_equal_in_all_eight_variants(
    data: list[dict[str, Any]], chance: random.Random
) -> None:
    rig = Rig()
    rig.write("a", *data)
    cache = TopicBodies(BodyPool(), seqs_max=12)
    for _ in range(4):
        runs = rig.diff("a", chance.randrange(len(data)), limit=chance.randint(1, 30)).runs
        for view in VIEWS:
            for run in runs:
                assert cache.render(run, view) == render(run, None, view).each()


def test_level_watchers_of_one_variant_cause_one_rendering_per_record() -> None:
    rig = Rig()
    rig.put("a")
    streams = [rig.watch({"a": 0}) for _ in range(20)]
    streams += [rig.watch({"a": 0}, limit=100) for _ in range(5)]
    streams += [rig.watch({"a": 0}, node=f"n{number}") for number in range(20)]
    for number in range(30):
        rig.write("a", {"data": number, "node": f"n{number % 20}"})
    assert cache_of(rig).rendered_total == 30
    assert all(stream.records("a") == list(range(30)) for stream in streams[:25])
    assert streams[25].records("a") == [number for number in range(30) if number % 20]


def test_streams_and_sockets_share_renderings() -> None:
    rig = Rig()
    rig.put("a")
    stream, socket = rig.watch({"a": 0}), rig.socket()
    socket.say("subscribe", topic="a")
    rig.pump()
    rig.write("a", 1, 2, 3)
    assert cache_of(rig).rendered_total == 3
    assert stream.records("a") == socket.records("a") == [1, 2, 3]


# --- property 32 ------------------------------------------------------------------------------------------------------


def test_a_record_deleted_after_it_was_cached_is_not_sent() -> None:
    rig = Rig()
    rig.put("a")
    early = [rig.watch({"a": 0}) for _ in range(2)]
    rig.write("a", {"data": 1, "tag": "x"}, {"data": 2, "tag": "y"}, {"data": 3, "tag": "x"})
    assert cache_of(rig).rendered_total == 3
    rig.delete("a", match="x")
    assert rig.watch({"a": 0}).records("a") == [2]
    assert early[0].records("a") == [1, 2, 3]


def test_neither_is_one_that_expired() -> None:
    rig = Rig()
    rig.put("a", ttl_ms=1000)
    for _ in range(2):
        rig.watch({"a": 0})
    rig.write("a", 1)
    rig.clock.advance(1001)
    late = rig.watch({"a": 0})
    assert late.records("a") == []
    assert late.events() == ["tombstone", "caught-up"]


# --- property 33 ------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 299), st.integers(1, 60), st.sampled_from(VIEWS)), max_size=20))
def test_the_cache_keeps_the_highest_seqs_it_saw_and_never_more_than_its_bound(
    reads: list[tuple[int, int, View]],
) -> None:
    rig, cache = Rig(), TopicBodies(BodyPool(), seqs_max=50)
    rig.write("a", *range(300))
    seen: set[int] = set()
    for from_seq, limit, view in reads:
        for run in rig.diff("a", from_seq, limit=limit).runs:
            cache.render(run, view)
            seen |= set(seqs_of(run))
            assert len(cache) <= 50
    kept = set(cache._seqs)
    assert kept == set(cache._by_seq)
    assert not kept or kept <= seen


def test_the_bound_is_1024_seqs_and_a_lagging_reader_adds_nothing() -> None:
    rig = Rig()
    for _ in range(3):
        rig.write("a", *range(1000))
    cache = TopicBodies(BodyPool())
    for from_seq in range(0, 3000, 500):
        for run in rig.diff("a", from_seq, limit=1000, budget=1 << 23).runs:
            cache.render(run, View())
            assert len(cache) <= 1024
    assert cache._seqs == list(range(3000 - 1023, 3001))
    for run in rig.diff("a", 0, limit=1000).runs:
        cache.render(run, View())
    assert cache._seqs[0] == 3000 - 1023


def test_the_cache_is_bounded_in_bytes_too_and_goes_with_the_last_watcher() -> None:
    rig = Rig()
    rig.put("a")
    streams = [rig.watch({"a": 0}), rig.watch({"a": 0})]
    cache = TopicBodies(BodyPool(), bytes_max=10_000)
    for number in range(30):
        rig.write("a", "x" * 1000)
        for run in rig.diff("a", number).runs:
            cache.render(run, View())
            assert cache.bytes <= 10_000
    assert len(cache_of(rig)) == 30
    for stream in streams:
        stream.cut()
    assert not rig.live.delivery._watched


def test_the_bodies_of_all_topics_are_bounded_together_and_the_idle_ones_go_first() -> None:
    rig, pool = Rig(), BodyPool(bytes_max=20_000)
    caches = {name: TopicBodies(pool) for name in map(str, range(12))}
    for number in range(3):
        for name, cache in caches.items():
            rig.write(name, "x" * 1000)
            for run in rig.diff(name, number).runs:
                assert cache.render(run, View()) == render(run, None, View()).each()
                assert len(cache), "who renders keeps what it made"
            assert sum(cache.bytes for cache in caches.values()) <= 20_000
    assert not len(caches["0"])
    assert len(caches["11"])
    del caches, cache
    assert not len(pool)


def test_one_topic_may_fill_the_pool_but_not_more() -> None:
    rig, pool = Rig(), BodyPool(bytes_max=5_000)
    cache = TopicBodies(pool)
    for number in range(20):
        rig.write("a", "x" * 1000)
        for run in rig.diff("a", number).runs:
            assert cache.render(run, View()) == render(run, None, View()).each()
            assert cache.bytes <= 5_000
    assert len(cache)


# --- property 34 ------------------------------------------------------------------------------------------------------


def _history(rig: Rig) -> None:
    rig.put("a", cap_records=4)
    rig.put("b")
    rig.write("a", *range(7))
    rig.write("b", "x", {"data": "y", "tag": "dead"}, "z")
    rig.delete("b", match="dead")


def _outline(frames: list[Frame]) -> list[Any]:
    """What a client knows after these frames."""
    return [
        (frame.event, frame.data["topic"], [record["$seq"] for record in frame.data.get("records", ())])
        for frame in frames
        if frame.event in ("record", "tombstone")
    ]


def test_cutting_at_any_byte_and_resuming_by_id_skips_nothing_and_repeats_nothing() -> None:
    rig = Rig()
    _history(rig)
    whole = rig.watch({"a": 0, "b": 0}, limit=2)
    expected = [records_of(whole.frames(), name) for name in "ab"]
    gaps = [frame for frame in whole.frames() if frame.event == "tombstone"]
    assert len(gaps) == 1
    for cut in range(len(whole.received) + 1):
        session = rig.session({"a": 0, "b": 0}, limit=2)
        first = rig.open(session)
        part = first.received[:cut]
        first.cut()
        if last_id(part) is None:
            session = rig.session({"a": 0, "b": 0}, limit=2)
        second = rig.open(session, last_id=last_id(part))
        frames = parse_frames(part) + second.frames()
        assert [records_of(frames, name) for name in "ab"] == expected
        assert len([frame for frame in frames if frame.event == "tombstone"]) == 1


def test_an_id_is_the_position_of_every_topic_after_its_frame() -> None:
    rig = Rig()
    _history(rig)
    stream = rig.watch({"a": 0, "b": 0}, limit=2)
    at = {"a": 0, "b": 0}
    for frame in stream.frames():
        if frame.event == "tombstone":
            at[frame.data["topic"]] = frame.data["gap_to"]
        elif frame.event == "record":
            at[frame.data["topic"]] = frame.data["to_seq"]
        assert frame.cursors == at


@pytest.mark.parametrize("cut_after", range(1, 9))
def test_a_recreated_topic_is_not_confused_with_the_old_one(cut_after: int) -> None:
    """Numbers of an id may belong to either life of a topic; whatever was received, nothing is skipped."""
    rig = Rig()
    rig.write("a", "old-1", "old-2", "old-3")
    session = rig.session({"a": 0}, limit=1)
    first = rig.open(session)
    old = first.received
    first.cut()
    rig.drop("a")
    rig.write("a", *[f"new-{number}" for number in range(1, 6)])
    second = rig.open(session, last_id=last_id(old))
    frames = second.received.split(b"\n\n")
    part = b"\n\n".join(frames[:cut_after]) + b"\n\n"
    second.cut()
    third = rig.open(session, last_id=last_id(part) or last_id(old))
    repeats = last_id(part) == last_id(old)  # the one number that both lives used
    seen = parse_frames(old) + ([] if repeats else parse_frames(part)) + third.frames()
    assert [record["data"] for record in records_of(seen, "a")][3:] == [f"new-{number}" for number in range(1, 6)]
    assert [frame.data["reason"] for frame in seen if frame.event == "tombstone"] == ["recreated"]


@settings(max_examples=60)
@given(st.data())
def test_over_random_histories_with_cuts_at_random_bytes(data: st.DataObject) -> None:
    rig = Rig()
    names = ["a", "b"]
    rig.put("a", cap_records=data.draw(st.sampled_from([0, 3])), ttl_ms=data.draw(st.sampled_from([0, 500])))
    rig.put("b")
    session = rig.session({"a": 0, "b": 0}, limit=data.draw(st.integers(1, 3)))
    witness = {name: rig.watch({name: 0}) for name in names}
    stream, seen, resume = rig.open(session), b"", None
    for number in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["write", "write", "cut", "wait", "delete"]))
        if action == "write":
            rig.write(data.draw(st.sampled_from(names)), *[number] * data.draw(st.integers(1, 3)))
        elif action == "wait":
            rig.advance(300)
        elif action == "delete":
            rig.delete("b", before_seq=data.draw(st.integers(1, 20)))
        else:
            part = stream.received[: data.draw(st.integers(0, len(stream.received)))]
            seen += part[: part.rfind(b"\n\n") + 2] if b"\n\n" in part else b""
            resume = last_id(part) or resume
            stream.cut()
            if resume is None:
                for place in session.places:
                    place.cursor = 0
            stream = rig.open(session, last_id=resume)
    frames = parse_frames(seen + stream.received)
    for name in names:
        got = [record["$seq"] for record in records_of(frames, name)]
        assert got == sorted(set(got))
        gaps = [
            range(frame.data["gap_from"], frame.data["gap_to"] + 1)
            for frame in frames
            if frame.event == "tombstone" and frame.data["topic"] == name
        ]
        alive = {record["$seq"] for record in bodies_of(rig.diff(name, 0))}
        missing = set(witness[name].seqs(name)) - set(got)
        assert not missing & alive
        if name == "a":
            assert all(any(seq in gap for gap in gaps) for seq in missing)


# --- property 35 ------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.integers(1, 4),
    st.lists(st.sampled_from(["write", "ack", "nack", "expire", "claim", "pause", "go_on"]), max_size=30),
)
def test_a_work_stream_never_holds_more_than_its_max_and_nothing_once_it_has_ended(
    most: int, script: list[str]
) -> None:
    rig = Rig()
    rig.put("q", type="queue", lease_ms=1_000)
    jobs = JobList()
    stream = rig.engine.queues.open_stream("q", node="w", max=most)
    stream.start(jobs)
    queue = rig.topic("q").queue
    assert queue is not None

    for action in script:
        if action == "write":
            rig.write("q", 1, 2)
        elif action == "expire":
            rig.advance(1_100, tick_ms=100)
        elif action == "claim":
            rig.sim.call(lambda engine: engine.queues.claim("q", node="other", max=1))
        elif action == "pause":
            stream.pause()
        elif action == "go_on":
            stream.go_on()
            rig.pump()
        elif jobs:
            act = rig.engine.queues.ack if action == "ack" else rig.engine.queues.nack
            rig.sim.call(lambda _, act=act: act("q", node="w", seqs=[jobs[-1].seq]))  # type: ignore[misc]
        assert queue.held(stream.number) <= most
    stream.close()
    rig.pump()
    assert queue.held(stream.number) == 0


def test_frames_of_a_stream_are_what_the_contract_shows() -> None:
    rig = Rig()
    rig.write("invoices", *range(7))
    stream = rig.watch({"invoices": 6})
    ts, epoch = rig.clock.wall_ms(), rig.topic("invoices").epoch
    id = encode_base64url(f'{{"invoices":"7-e{epoch:x}","invoices":7}}'.encode()).decode()
    assert stream.received.decode() == (
        "retry: 2000\n\n"
        f"id: {id}\nevent: record\n"
        'data: {"topic":"invoices","from_seq":6,"head_seq":7,"records":[{"$seq":7,"$ts":'
        f'{ts},"data":6}}],"to_seq":7,"next":"7-e{epoch:x}"}}\n\n'
        f'id: {id}\nevent: caught-up\ndata: {{"topic":"invoices","head_seq":7,"next":"7-e{epoch:x}"}}\n\n'
    )
