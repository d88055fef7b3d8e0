"""Feeds in old history rest while others write, and lose nothing by it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.delivery.rig import Rig, Stream

from topics.api.live import batches
from topics.api.live.history_throttle import (
    CLOSING_IN,
    DELAY_MS_MAX,
    DELAY_RATIO,
    LIVE_MS,
    WORK_MS_MAX,
    CatchUp,
    HistoryThrottle,
)
from topics.api.live.subscription import Subscription
from topics.core.slots.extent import Extent, RecordPlace
from topics.core.topic import TopicLog
from topics.engine.context import FetchedRecords
from topics.engine.ticket import Ticket

REST_MS = 100


class Hand:
    """A clock and a counter of writes, by hand."""

    def __init__(self) -> None:
        self.now_ms = 1000.0
        self.writes = 0
        self.throttle = HistoryThrottle(
            soon=lambda step: None,
            later=lambda ms, step: None,
            now_ms=lambda: self.now_ms,
            traffic=lambda: self.writes,
        )

    def write(self) -> None:
        self.writes += 1
        self.throttle.tick()

    def batch(self, took_ms: float) -> float:
        began_ms = self.now_ms
        self.now_ms += took_ms
        return self.throttle.delay_ms(began_ms)


# --- how long ---------------------------------------------------------------------------------------------------------


def test_nobody_rests_while_nobody_writes() -> None:
    assert Hand().batch(1.0) == 0


def test_a_batch_is_followed_by_a_rest_in_proportion_while_somebody_writes() -> None:
    hand = Hand()
    hand.write()
    assert hand.batch(1.0) == pytest.approx(DELAY_RATIO)


def test_a_write_counts_for_a_while_and_no_longer() -> None:
    hand = Hand()
    hand.write()
    hand.now_ms += LIVE_MS - 2
    assert hand.batch(1.0) > 0
    assert hand.batch(1.0) == 0


def test_waiting_for_a_store_hardly_counts() -> None:
    hand = Hand()
    hand.write()
    assert hand.batch(300.0) == pytest.approx(WORK_MS_MAX * DELAY_RATIO)


@given(st.lists(st.floats(0.1, 20.0), min_size=1, max_size=400))
def test_rests_of_many_feeds_follow_each_other_and_none_is_endless(batches: list[float]) -> None:
    hand = Hand()
    paid_ms, began_ms = 0.0, hand.now_ms
    for took_ms in batches:
        hand.write()
        delay_ms = hand.batch(took_ms)
        paid_ms += min(took_ms, WORK_MS_MAX) * DELAY_RATIO
        assert delay_ms <= DELAY_MS_MAX
        if began_ms + paid_ms < hand.now_ms + DELAY_MS_MAX:
            assert hand.now_ms + delay_ms + 1.0 >= began_ms + paid_ms


@pytest.mark.parametrize("written_per_ms", [0, 1, 10, 100])
def test_a_feed_closes_in_on_a_head_that_moves_away(written_per_ms: int) -> None:
    hand, head, at = Hand(), 1_000_000, 0
    catch_up = CatchUp(hand.throttle, head)
    for _ in range(20):
        hand.write()
        catch_up.begin()
        hand.now_ms += 1.0
        delay_ms = catch_up.delay_ms(head=head + written_per_ms, read=256)
        hand.now_ms += delay_ms
        at, head = at + 256, head + round(written_per_ms * (1 + delay_ms))
    share = (head - 1_000_000) / at
    assert share <= max(1.3 / CLOSING_IN, written_per_ms * 1.1 / 256)
    assert (delay_ms == 0) is (written_per_ms == 100)


# --- feeds that rest --------------------------------------------------------------------------------------------------


def in_files(records: int, *, segment_max_events: int) -> Rig:
    """A topic whose records are not in memory."""
    rig = Rig(segment_max_events=segment_max_events)
    rig.put("a")
    for number in range(records):
        rig.write("a", number)
    rig.sim.checkpoint()
    rig.engine.state.recent.drop_topic(rig.topic("a").id)
    return rig


def old_history(records: int, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """In files, and read by feeds that rest after each batch."""
    monkeypatch.setattr(HistoryThrottle, "delay_ms", lambda throttle, began_ms, most_ms: REST_MS)
    return in_files(records, segment_max_events=4)


def test_a_feed_goes_on_when_its_rest_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = old_history(12, monkeypatch)
    stream = rig.watch({"a": 0}, limit=4)
    assert stream.records("a") == [0, 1, 2, 3]
    rig.advance(50)
    assert stream.records("a") == [0, 1, 2, 3]
    rig.advance(50)
    assert stream.records("a") == list(range(8))
    rig.advance(100)
    assert stream.records("a") == list(range(12))
    assert stream.events()[-1] == "caught-up"


def test_level_streams_are_served_while_another_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = old_history(12, monkeypatch)
    level, resting = rig.watch({"a": "tail"}), rig.watch({"a": 0}, limit=4)
    rig.write("a", "new")
    assert level.records("a") == ["new"]
    assert resting.records("a") == [0, 1, 2, 3]
    rig.advance(1000)
    assert resting.records("a") == [*range(12), "new"]


def test_a_feed_that_ends_while_it_rests_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = old_history(12, monkeypatch)
    gone, told = rig.watch({"a": 0}, limit=4), rig.watch({"a": 0}, limit=4)
    gone.cut()
    rig.drop("a")
    rig.advance(1000)
    assert gone.records("a") == told.records("a") == [0, 1, 2, 3]
    assert told.events()[-1] == "topic-deleted"


# --- trips and bites --------------------------------------------------------------------------------------------------


def count_trips(rig: Rig) -> list[int]:
    """How many records each trip to the files brings, from now on."""
    jobs, brought = rig.sim.kernel.jobs, []
    fetch = jobs.fetch

    def counted(topic: TopicLog, extent: Extent) -> Ticket[FetchedRecords]:
        if extent.place is not RecordPlace.INDEX:
            brought.append(len(extent.seqs))
        return fetch(topic, extent)

    jobs.fetch = counted  # type: ignore[method-assign]
    return brought


def test_one_trip_serves_many_batches() -> None:
    rig = in_files(100, segment_max_events=100)
    trips = count_trips(rig)
    stream = rig.watch({"a": 0}, limit=5)
    assert stream.records("a") == list(range(100))
    assert trips == [5, 95]


def test_what_is_deleted_after_the_trip_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HistoryThrottle, "delay_ms", lambda throttle, began_ms, most_ms: REST_MS)
    rig = in_files(20, segment_max_events=20)
    trips = count_trips(rig)
    stream = rig.watch({"a": 0}, limit=4)
    rig.advance(REST_MS)
    assert stream.seqs("a") == list(range(1, 9))
    rig.delete("a", before_seq=15)
    rig.advance(1000)
    assert stream.seqs("a") == [*range(1, 9), *range(15, 21)]
    assert trips == [4, 16]


def test_nothing_is_kept_once_a_feed_is_level() -> None:
    rig = in_files(100, segment_max_events=100)
    rig.watch({"a": 0}, limit=5, node="me")
    (watched,) = rig.live.delivery._watched.values()
    (subscription,) = watched.watchers
    assert isinstance(subscription, Subscription)
    assert subscription._catch_up is None


def test_batches_from_files_are_small_while_somebody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = in_files(500, segment_max_events=500)
    monkeypatch.setattr(HistoryThrottle, "is_live", True)
    monkeypatch.setattr(batches, "SMALL_BATCH_RECORDS", 90)
    stream = rig.watch({"a": 0}, limit=150)
    rig.advance(5000)
    sizes = [len(frame.data["records"]) for frame in stream.frames() if frame.event == "record"]
    assert sizes == [150, 90, 90, 90, 80]


def test_batches_from_files_are_whole_while_nobody_writes() -> None:
    rig = in_files(400, segment_max_events=400)
    stream = rig.watch({"a": 0}, limit=150)
    sizes = [len(frame.data["records"]) for frame in stream.frames() if frame.event == "record"]
    assert sizes == [150, 150, 100]


@given(st.lists(st.tuples(st.sampled_from(["write", "wait", "take", "delete"]), st.integers(1, 8)), max_size=20))
def test_whoever_rests_gets_what_others_get(script: list[tuple[str, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        rig = old_history(12, patch)
        fast, slow = rig.watch({"a": 0}, limit=3), rig.watch({"a": 0}, limit=3, reads=False)
        for action, what in script:
            if action == "write":
                rig.write("a", *range(what))
            elif action == "wait":
                rig.advance(50 * what)
            elif action == "take":
                slow.take(what * 100)
            else:
                rig.delete("a", before_seq=what)
        _drain(rig, slow)
        rig.advance(5000)
        _drain(rig, slow)
        topic = rig.topic("a")
        for stream in (fast, slow):
            seqs = stream.seqs("a")
            assert seqs == sorted(set(seqs))
            assert not set(range(topic.earliest_seq, topic.head + 1)) - set(seqs)


def _drain(rig: Rig, stream: Stream) -> None:
    while stream.buffered_bytes():
        stream.take()
        rig.pump()
