"""`docs/spec/delivery.md#sec-17`, properties 25 to 30: slow and cold readers harm nobody."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.delivery.rig import Rig, Stream, WsClient, last_id

from topics import limits
from topics.api.live.outbound import SlowConsumerLimits
from topics.core.slots.extent import Extent
from topics.core.topic import TopicLog
from topics.engine.context import FetchedRecords
from topics.engine.ticket import Ticket
from topics.errors import StorageIo

SMALL = SlowConsumerLimits(frames_max=8, bytes_max=2_000, hand_over_bytes=400)


def text(number: int, size: int = 60) -> str:
    return f"{number:04}" + "x" * size


# --- property 25 ------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), min_size=1, max_size=40))
def test_a_client_that_never_reads_changes_nothing_for_others(script: list[int]) -> None:
    seen: list[Any] = []
    for with_stuck in (False, True):
        rig = Rig(slow_limits=SMALL)
        rig.put("a")
        fast = rig.watch({"a": 0})
        stuck = rig.watch({"a": 0}, reads=False) if with_stuck else None
        services = []
        before = rig.live.delivery.services_total
        for number, count in enumerate(script):
            rig.write("a", *[text(number)] * count)
            services.append(rig.live.delivery.services_total - before)
            rig.advance(1000, tick_ms=500)
        seen.append(([(frame.event, frame.data) for frame in fast.frames()], services))
        if stuck is not None and not stuck.closed:
            assert stuck.buffered_bytes() <= SMALL.bytes_max + 4 * 200
    assert _without_ts(seen[0][0]) == _without_ts(seen[1][0])
    assert seen[0][1] == seen[1][1]


def _without_ts(frames: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    for _, data in frames:
        for record in data.get("records", ()):
            record.pop("$ts")
    return frames


@pytest.mark.parametrize("topics", [1, 3])
def test_a_stuck_client_holds_at_most_its_bound_and_one_frame(topics: int) -> None:
    rig = Rig(slow_limits=SMALL)
    names = [f"t{number}" for number in range(topics)]
    for name in names:
        rig.put(name)
    session = rig.session(dict.fromkeys(names, 0), limit=2)
    stuck = rig.open(session, reads=False)
    stream = next(iter(rig.live.streams._open))
    for number in range(100):
        for name in names:
            rig.write(name, text(number))
        frame_bytes = 800
        assert stream._outbound.held_bytes() <= SMALL.bytes_max + frame_bytes  # type: ignore[attr-defined]
    assert stuck.received == b""


# --- property 26 ------------------------------------------------------------------------------------------------------

actions = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 5)),
        st.tuples(st.just("take"), st.integers(1, 900)),
        st.tuples(st.just("wait"), st.sampled_from([50, 900, 5_000, 31_000])),
        st.tuples(st.just("cut"), st.just(0)),
        st.tuples(st.just("delete"), st.integers(1, 30)),
    ),
    max_size=40,
)


def _replay(rig: Rig, script: list[tuple[str, int]]) -> tuple[Stream, list[Any]]:
    """A slow reader goes through the script and then reads everything; a fast one watches beside it."""
    fast = rig.watch({"a": 0})
    session = rig.session({"a": 0}, limit=3)
    slow = rig.open(session, reads=False)
    frames: list[Any] = []
    number = 0
    for action, size in script:
        if slow.closed:
            frames += slow.frames()
            slow = rig.open(session, reads=False)
        if action == "write":
            rig.write("a", *[text(number + at) for at in range(size)])
            number += size
        elif action == "take":
            slow.take(size)
            rig.pump()
        elif action == "cut":
            slow.take()
            slow.cut()
        elif action == "delete" and number:
            rig.delete("a", before_seq=size)
        else:
            rig.advance(size, tick_ms=max(size // 20, 50))
    if slow.closed:
        frames += slow.frames()
        slow = rig.open(session, reads=False)
    while slow.buffered_bytes():
        slow.take()
        rig.pump()
    return fast, frames + slow.frames()


def _seqs(frames: list[Any]) -> list[int]:
    return [record["$seq"] for frame in frames if frame.event == "record" for record in frame.data["records"]]


@given(actions)
def test_a_slow_reader_gets_what_a_fast_one_gets_except_inside_announced_gaps(
    script: list[tuple[str, int]],
) -> None:
    rig = Rig(slow_limits=SMALL)
    rig.put("a", cap_records=25)
    fast, frames = _replay(rig, [step for step in script if step[0] != "delete"])
    gaps = [(frame.data["gap_from"], frame.data["gap_to"]) for frame in frames if frame.event == "tombstone"]
    got = _seqs(frames)
    # A cut connection may have been given frames that its client never took: those are not repeated.
    given_up = set(fast.seqs("a")) - set(got)
    if not any(action in ("cut", "wait") for action, _ in script):
        assert all(any(lo <= seq <= hi for lo, hi in gaps) for seq in given_up)
    assert got == sorted(set(got))
    assert set(got) <= set(fast.seqs("a"))


@given(actions)
def test_resuming_by_id_a_cut_reader_misses_nothing_outside_gaps(script: list[tuple[str, int]]) -> None:
    rig = Rig(slow_limits=SMALL)
    rig.put("a", cap_records=25)
    fast = rig.watch({"a": 0})
    session = rig.session({"a": 0}, limit=3)
    slow, resume = rig.open(session, reads=False), None
    number = 0
    frames: list[Any] = []

    def reopen() -> Stream:
        nonlocal resume, frames
        frames += slow.frames()
        resume = last_id(slow.received) or resume
        if resume is None:
            for place in session.places:  # a client that got nothing begins anew
                place.cursor = 0
        return rig.open(session, reads=False, last_id=resume)

    for action, size in script:
        if slow.closed:
            slow = reopen()
        if action == "write":
            rig.write("a", *[text(number + at) for at in range(size)])
            number += size
        elif action == "take":
            slow.take(size)
            rig.pump()
        elif action == "cut":
            slow.cut()
        elif action == "wait":
            rig.advance(size, tick_ms=max(size // 20, 50))
    if slow.closed:
        slow = reopen()
    while slow.buffered_bytes():
        slow.take()
        rig.pump()
    frames += slow.frames()
    gaps = [(frame.data["gap_from"], frame.data["gap_to"]) for frame in frames if frame.event == "tombstone"]
    got = _seqs(frames)
    assert got == sorted(set(got))
    missing = set(fast.seqs("a")) - set(got)
    assert all(any(lo <= seq <= hi for lo, hi in gaps) for seq in missing)


# --- property 27 ------------------------------------------------------------------------------------------------------


@given(actions)
def test_without_retention_a_lagged_reader_never_sees_a_tombstone(script: list[tuple[str, int]]) -> None:
    rig = Rig(slow_limits=SMALL)
    rig.put("a")
    _, frames = _replay(rig, script)
    assert "tombstone" not in {frame.event for frame in frames}


# --- property 28 ------------------------------------------------------------------------------------------------------


class Lagging:
    """A stream at its bound since time 0."""

    def __init__(self) -> None:
        self.rig = Rig(slow_limits=SMALL)
        self.rig.put("a")
        self.session = self.rig.session({"a": 0})
        self.stream = self.rig.open(self.session, reads=False)
        while not self.is_lagged():
            self.rig.write("a", text(self.rig.topic("a").head))

    @property
    def _outbound(self) -> Any:
        return next(iter(self.rig.live.streams._open))._outbound  # type: ignore[attr-defined]

    def is_lagged(self) -> bool:
        return self._outbound.lagged_ms is not None

    def is_shed(self) -> bool:
        return bool(self._outbound.is_shed)

    def is_closed(self) -> bool:
        return self.stream.closed


def test_a_lagged_stream_is_shed_after_5000_ms_and_closed_after_30000() -> None:
    lagging = Lagging()
    held = lagging._outbound.held_bytes()
    lagging.rig.advance(4_950)
    assert lagging.is_lagged()
    assert not lagging.is_shed()
    lagging.rig.advance(50)
    assert lagging.is_shed()
    assert lagging._outbound.held_bytes() < held
    assert lagging.rig.live.streams.shed_total == 1
    lagging.rig.advance(24_950)
    assert not lagging.is_closed()
    lagging.rig.advance(50)
    assert lagging.is_closed()
    assert len(lagging.rig.live.streams) == 0
    assert lagging.rig.live.streams.too_slow_total == 1


def test_progress_starts_both_clocks_anew() -> None:
    lagging = Lagging()
    for _ in range(10):
        lagging.rig.advance(4_900, tick_ms=700)
        lagging.stream.take(1)
        lagging.rig.advance(50)
        assert not lagging.is_shed()
    lagging.rig.advance(4_950)
    assert not lagging.is_shed()
    lagging.rig.advance(50)
    assert lagging.is_shed()
    for _ in range(5):
        lagging.rig.advance(24_000, tick_ms=1_000)
        assert not lagging.is_closed()
        lagging.stream.take(1)
        lagging.rig.advance(50)
    lagging.rig.advance(29_950, tick_ms=50)
    assert not lagging.is_closed()
    lagging.rig.advance(50)
    assert lagging.is_closed()


def test_a_shed_stream_goes_on_from_where_the_transport_got_to() -> None:
    lagging = Lagging()
    lagging.rig.advance(5_000)
    assert lagging.is_shed()
    head = lagging.rig.topic("a").head
    lagging.rig.write("a", text(head))
    while lagging.stream.buffered_bytes():
        lagging.stream.take()
        lagging.rig.pump()
    assert lagging.stream.records("a") == [text(number) for number in range(head + 1)]
    assert lagging.stream.events()[-1] == "caught-up"


def test_a_client_that_has_nothing_to_take_is_never_cut_off() -> None:
    rig = Rig()
    rig.put("a")
    stream = rig.watch({"a": 0}, heartbeat_ms=60_000)
    rig.advance(120_000, tick_ms=500)
    assert not stream.closed


def test_a_stream_below_its_bound_is_closed_too_if_it_takes_nothing() -> None:
    rig = Rig(slow_limits=SMALL)
    rig.put("a")
    session = rig.session({"a": 0})
    stream = rig.open(session)
    stream.reads = False
    rig.write("a", 1)
    rig.advance(29_950)
    assert len(rig.live.streams) == 1
    rig.advance(50)
    assert stream.closed
    stream.taken_bytes = stream.sent_bytes
    assert stream.frames()[-1].data["code"] == "slow_consumer"
    assert rig.open(session).events() == ["caught-up"]


@pytest.mark.parametrize("takes", [False, True])
def test_a_stuck_socket_is_cut_off_after_30000_ms(takes: bool) -> None:
    rig = Rig()
    rig.put("a")
    socket = rig.socket()
    socket.reads = False
    socket.say("subscribe", topic="a")
    rig.pump()
    rig.advance(29_900)
    if takes:
        socket.take(1)
    rig.advance(100)
    assert socket.closed != takes
    socket.taken_bytes = socket.sent_bytes
    assert (socket.messages()[-1].get("code") == "slow_consumer") != takes


def test_a_stuck_socket_without_a_place_is_cut_off_without_words() -> None:
    rig = Rig()
    rig.put("a")
    socket = rig.socket()
    socket.reads = False
    for _ in range(4):
        socket.say("ping")
    rig.pump()
    rig.advance(30_000)
    assert (socket.closed, socket.was_aborted) == (True, True)


# --- property 29 ------------------------------------------------------------------------------------------------------


class Cold:
    """A rig in which reads below a seq need files that answer only when told to."""

    def __init__(
        self, *names: str, backlog: int = 200, cold_below: int = 100, slow_limits: SlowConsumerLimits | None = None
    ) -> None:
        self.rig = Rig(recent_cache_bytes=1 << 20, slow_limits=slow_limits)
        self.waiting: list[tuple[Ticket[FetchedRecords], TopicLog, Extent]] = []
        self._cold_below = cold_below
        for name in names:
            self.rig.write(name, *range(backlog))
        state = self.rig.sim.engine.state
        for name in names:
            state.recent.drop_topic(state.topics[name].id)
            self.rig.write(name, "resident")
        jobs = self.rig.sim.kernel.jobs
        self._fetch = jobs.fetch
        jobs.fetch = self._slow_fetch  # type: ignore[method-assign]

    def _slow_fetch(self, topic: TopicLog, extent: Extent) -> Ticket[FetchedRecords]:
        if int(extent.seqs[0]) > self._cold_below:
            return self._fetch(topic, extent)
        ticket: Ticket[FetchedRecords] = Ticket()
        self.waiting.append((ticket, topic, extent))
        return ticket

    def answer(self) -> None:
        """The cold store answers one read."""
        ticket, topic, extent = self.waiting.pop(0)
        self._fetch(topic, extent).then(lambda done: ticket.resolve(done.result()))
        self.rig.pump()


def test_cold_reads_that_never_return_hold_up_nothing_else() -> None:
    seen: list[Any] = []
    for with_cold in (False, True):
        cold = Cold("a")
        rig = cold.rig
        live = rig.watch({"a": "tail"})
        if with_cold:
            frozen = [rig.watch({"a": 0}), rig.watch({"a": 0})]
        for number in range(20):
            rig.write("a", number)
            rig.advance(100)
        rig.delete("a", before_seq=150)
        outcome = rig.diff("a", 201)
        seen.append((live.records("a"), live.events(), outcome.records, rig.live.delivery.pressure))
        if with_cold:
            assert cold.waiting
            assert [stream.events() for stream in frozen] == [[], []]
    assert seen[0] == seen[1]


def test_a_watcher_in_cold_history_catches_up_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AHEAD_RECORDS", 10)
    cold = Cold("a")
    stream = cold.rig.watch({"a": 0}, limit=10)
    services = cold.rig.live.delivery.services_total
    cold.answer()
    for number in range(1, 10):
        assert stream.records("a") == list(range(10 * number))
        assert cold.rig.live.delivery.services_total == services
        cold.answer()
    assert not cold.waiting
    assert stream.records("a") == [*range(200), "resident"]
    assert stream.events()[-1] == "caught-up"


def test_a_read_that_fails_is_told_once_and_tried_again() -> None:
    cold = Cold("a")
    stream = cold.rig.watch({"a": 0})
    for _ in range(3):
        cold.waiting.pop()[0].fail(StorageIo("the disk is tired"))
        assert stream.events() == ["error"]
        cold.rig.advance(1_000)
        assert len(cold.waiting) == 1
    cold.answer()
    assert stream.records("a") == [*range(200), "resident"]


def test_the_news_of_a_failed_read_moves_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AHEAD_RECORDS", 10)
    cold = Cold("a", slow_limits=SMALL)
    session = cold.rig.session({"a": 0}, limit=10)
    stream = cold.rig.open(session, reads=False)
    cold.answer()
    cold.answer()
    cold.waiting.pop()[0].fail(StorageIo("the disk is tired"))
    while "error" not in stream.events():
        stream.take()
    assert session.places[0].cursor == len(stream.records("a")) == 20


def test_a_stream_that_ends_during_a_cold_read_leaves_nothing_behind() -> None:
    cold = Cold("a")
    session = cold.rig.session({"a": 0})
    stream = cold.rig.open(session)
    stream.cut()
    cold.answer()
    assert stream.events() == []
    assert session.places[0].cursor == 0
    assert not cold.rig.live.delivery._watched


# --- property 30 ------------------------------------------------------------------------------------------------------


def test_a_topic_in_cold_catch_up_does_not_delay_the_others_on_its_stream() -> None:
    cold = Cold("a", "b")
    stream = cold.rig.watch({"a": 0, "b": "tail"})
    for number in range(5):
        cold.rig.write("b", number)
        assert stream.records("b") == list(range(number + 1))
    assert stream.records("a") == []
    cold.answer()
    assert stream.records("a") == [*range(200), "resident"]


def test_with_a_long_backlog_the_others_wait_for_at_most_one_batch() -> None:
    rig = Rig()
    rig.write("a", *range(500))
    rig.put("b")
    stream = rig.open(rig.session({"a": 0, "b": 0}, limit=10), pump=False)
    for number in range(5):
        for _ in range(2):
            rig.live.delivery.step()
        rig.write("b", number, deliver=False)
        before = len(stream.events("a"))
        while len(stream.records("b")) <= number:
            rig.live.delivery.step()
        assert len(stream.events("a")) - before <= 1


def test_also_when_the_client_is_slow() -> None:
    rig = Rig(slow_limits=SMALL)
    rig.write("a", *[text(number) for number in range(200)])
    rig.put("b")
    stream = rig.open(rig.session({"a": 0, "b": 0}, limit=2), reads=False)
    stream.take()
    rig.write("b", "live")
    behind = 0
    while "live" not in stream.records("b"):
        before = len(stream.events("a"))
        stream.take(300)
        rig.pump()
        behind += len(stream.events("a")) - before
    assert behind <= 4  # one batch held, and what the transport had been given


@pytest.mark.parametrize("door", ["stream", "socket"])
def test_topics_of_a_slow_client_take_turns_however_many_have_a_backlog(door: str) -> None:
    small = SlowConsumerLimits(frames_max=8, bytes_max=4_000, hand_over_bytes=400)  # ids of eight topics are long
    rig, names = Rig(slow_limits=small), list("abcdefgh")
    for name in names:
        rig.write(name, *[text(number, 400) for number in range(4)])
    client = rig.watch(dict.fromkeys(names, 0), reads=False, limit=1) if door == "stream" else rig.socket()
    if isinstance(client, WsClient):
        client.reads = False
        client.say("subscribe", topics={name: {} for name in names}, limit=1)
    for _ in range(140):
        rig.advance(50)
        client.take(300)
    assert b"".join(re.findall(rb'"topic":"(.)","from_seq"', client.received)) == b"abcdefgh" * 4


def test_topics_of_a_stream_are_served_in_name_order_batch_by_batch() -> None:
    rig = Rig()
    for name in ("c", "a", "b"):
        rig.write(name, *range(3))
    stream = rig.watch({"c": 0, "b": 0, "a": 0}, limit=1)
    records = [frame.data["topic"] for frame in stream.frames() if frame.event == "record"]
    assert records == ["a", "b", "c"] * 3
