"""`docs/spec/delivery.md#sec-17`, properties 1 to 6."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.delivery.bench_of_topics import Bench, Item

from topics import limits
from topics.core.topic import TopicLog
from topics.engine.delivery.ready import B0, B1, B2, B3, B4, band_of, base_priority, effective_priority
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
