"""Priorities, bands and the ready set: `docs/spec/delivery.md#sec-17`, properties 1 to 7, 9 and 10; property 8 needs
streams and is in `test_no_lost_wakeups`."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.delivery.bench_of_topics import Bench, Item

from topics import limits
from topics.core.topic import TopicLog
from topics.engine.delivery.ready import B0, B1, B2, B3, B4, IDLE, QUEUED, band_of, base_priority, effective_priority
from topics.model.config import TopicConfig

NOW = 1_755_000_000_000
CENTRES = {B4: 900, B3: 600, B2: 300, B1: 100, B0: -100}


def topic_with(**config: object) -> TopicLog:
    return TopicLog(topic_id=1, name="t", epoch=1, config=TopicConfig(**config), created_ts=NOW)  # type: ignore[arg-type]


# --- property 1 -------------------------------------------------------------------------------------------------------


@given(st.integers(-(2**31), 2**31 - 1), st.lists(st.integers(0, 400_000), max_size=5))
def test_a_set_priority_is_the_base_whatever_was_consumed(priority: int, consumed_before_ms: list[int]) -> None:
    topic = topic_with(priority=priority)
    for idle_ms in sorted(consumed_before_ms, reverse=True):
        topic.touch(NOW - idle_ms, read=True)
    assert base_priority(topic, NOW) == min(max(priority, -1000), 1000)


@given(st.lists(st.integers(0, 400_000), max_size=5))
def test_without_priority_and_recency_the_base_is_0(consumed_before_ms: list[int]) -> None:
    topic = topic_with(priority=None, auto_priority=False)
    for idle_ms in sorted(consumed_before_ms, reverse=True):
        topic.touch(NOW - idle_ms, read=False)
    assert base_priority(topic, NOW) == 0


# --- property 2 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("idle_s", "base"), [(0, 500), (15, 354), (30, 250), (60, 125), (120, 31), (300, 0), (301, 0), (9000, 0)]
)
def test_the_recency_bonus_halves_every_30_seconds_and_ends_at_300(idle_s: int, base: int) -> None:
    topic = topic_with()
    topic.touch(NOW - idle_s * 1000, read=True)
    assert abs(base_priority(topic, NOW) - base) <= 1
    assert abs(effective_priority(topic, NOW) - base) <= 1
    assert idle_s < 300 or effective_priority(topic, NOW) == 0


def test_a_topic_that_was_never_consumed_has_no_bonus() -> None:
    assert base_priority(topic_with(), NOW) == 0


# --- property 3 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priority", "band"),
    [(1000, B4), (750, B4), (749, B3), (500, B3), (499, B2), (250, B2), (249, B1), (0, B1), (-1, B0), (-1000, B0)],
)
def test_bands_begin_at_their_floors(priority: float, band: int) -> None:
    assert band_of(priority, limits.BAND_FLOORS) == band


@pytest.mark.parametrize(
    ("priority", "band"), [(749.4, B3), (749.5, B4), (-0.4, B1), (-0.6, B0), (249.49, B1), (499.5, B3)]
)
def test_a_priority_counts_as_the_nearest_integer(priority: float, band: int) -> None:
    assert band_of(priority, limits.BAND_FLOORS) == band


# --- property 4 -------------------------------------------------------------------------------------------------------


def band_counts(items: list[Item]) -> dict[int, int]:
    return dict(Counter(band_of(item.priority, limits.BAND_FLOORS) for item in items))


def test_a_round_of_16_services_is_shared_8_4_2_1_1() -> None:
    bench = Bench()
    for band, priority in CENTRES.items():
        items = [Item(f"b{band}-{number}", priority) for number in range(20)]
        for item in items:
            item.backlog = 1000
        bench.mark(*items)
    for _ in range(10):
        assert band_counts(bench.run(16)) == {B4: 8, B3: 4, B2: 2, B1: 1, B0: 1}


def test_an_empty_band_keeps_no_credit() -> None:
    bench = Bench()
    low = [Item(f"low-{number}", 100) for number in range(100)]
    bench.mark(*low)
    bench.run(50)
    high = [Item(f"high-{number}", 900) for number in range(100)]
    bench.mark(*high)
    assert band_counts(bench.run(18)) == {B4: 16, B1: 2}


def test_a_top_topic_waits_for_at_most_8_services_of_others() -> None:
    bench = Bench()
    for band in (B3, B2, B1, B0):
        for number in range(50):
            item = Item(f"b{band}-{number}", CENTRES[band])
            item.backlog = 1000
            bench.mark(item)
    for _ in range(40):
        late = Item("late", 900)
        bench.mark(late)
        before = len(bench.served)
        while not late.served_at:
            bench.step()
        assert len(bench.served) - before <= 9
        bench.step()


# --- property 5 -------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(sorted(CENTRES.values())), min_size=1, max_size=40), st.randoms())
def test_within_a_band_the_oldest_goes_first(priorities: list[int], chance: object) -> None:
    bench = Bench()
    items = []
    for number, priority in enumerate(priorities):
        item = Item(f"i{number}", priority)
        items.append(item)
        bench.mark(item)
        bench.now += 0.01
    bench.drain()
    for priority in set(priorities):
        mine = [item for item in bench.served if item.priority == priority]
        assert mine == [item for item in items if item.priority == priority]


# --- property 7 -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 50))
def test_any_number_of_marks_while_queued_is_one_service(marks: int) -> None:
    bench, item = Bench(), Item("a")
    bench.mark(*[item] * marks)
    bench.drain()
    assert bench.served == [item]
    assert item.state == IDLE


@given(st.integers(1, 50))
def test_any_number_of_marks_during_a_service_is_exactly_one_more(marks: int) -> None:
    bench, item = Bench(service_ms=3), Item("a")
    left = [marks]

    def during(served: Item) -> None:
        for _ in range(left[0]):
            bench.now += 0.25
            bench.mark(served)
        left[0] = 0

    bench.during = during
    bench.mark(item)
    bench.drain()
    assert bench.served == [item, item]


def test_after_a_mark_during_a_service_the_wait_counts_from_that_mark() -> None:
    bench, item = Bench(service_ms=7), Item("a")

    def during(served: Item) -> None:
        bench.now += 2
        bench.mark(served)
        bench.now += 1
        bench.mark(served)

    bench.during = during
    bench.mark(item)
    bench.step()
    assert item.state == QUEUED
    assert item.enqueued_at == 2


# --- property 9 -------------------------------------------------------------------------------------------------------


def test_an_endless_backlog_does_not_starve_its_neighbours() -> None:
    bench = Bench(service_ms=1)
    endless = Item("endless", 300)
    endless.backlog = 10_000
    others = [Item(f"other-{number}", 300) for number in range(10)]
    bench.mark(endless, *others)
    bench.run(11)
    assert all(item.served_at for item in others)
    assert len(endless.served_at) == 1


def test_a_topic_written_without_pause_takes_turns() -> None:
    bench = Bench(service_ms=1)
    busy, quiet = Item("busy"), Item("quiet")
    bench.during = lambda _: bench.mark(busy)
    bench.mark(busy, quiet)
    bench.run(6)
    assert quiet.served_at == [1]
    assert len(busy.served_at) == 5


# --- property 10 ------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_a_mark_on_a_queued_topic_changes_neither_time_nor_rank(marks: list[int]) -> None:
    bench = Bench()
    items = [Item(f"i{number}") for number in range(10)]
    for item in items:
        bench.mark(item)
        bench.now += 1
    times = [item.enqueued_at for item in items]
    for number in marks:
        bench.now += 1
        bench.mark(items[number])
    assert [item.enqueued_at for item in items] == times
    bench.drain()
    assert bench.served == items


# --- holds ------------------------------------------------------------------------------------------------------------


def test_a_held_topic_waits_for_the_end_of_its_hold_and_not_longer() -> None:
    bench, item = Bench(), Item("a")
    bench.mark(item, hold_ms=12)
    assert bench.step() is None
    assert bench.ready.next_release_ms() == 12
    bench.now = 11.9
    assert not bench.ready.release_holds()
    bench.now = 12
    assert bench.ready.release_holds()
    assert bench.step() is item


def test_a_hold_ends_early_for_a_mark_that_cannot_wait() -> None:
    bench, item = Bench(), Item("a")
    bench.mark(item, hold_ms=12)
    bench.mark(item, hold_ms=12)
    assert bench.step() is None
    bench.now = 3
    bench.mark(item)
    assert bench.step() is item
    bench.now = 20
    assert not bench.ready.release_holds()
    assert bench.step() is None


def test_neither_holds_nor_deferred_entries_count_as_depth() -> None:
    bench = Bench()
    bench.ready.pause_b0(True)
    bench.mark(Item("held"), hold_ms=10)
    bench.mark(Item("deferred", -500))
    assert bench.ready.depth() == 0
    assert len(bench.ready) == 2
    bench.mark(Item("plain"))
    assert bench.ready.depth() == 1


def test_time_spent_held_is_no_waiting_for_a_worker() -> None:
    bench, item = Bench(), Item("a")
    bench.mark(item, hold_ms=12)
    bench.now = 12
    bench.ready.release_holds()
    assert item.ready_at == 12
    assert item.enqueued_at == 0
