"""`docs/spec/delivery.md#sec-17`, properties 11 to 16."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.delivery.bench_of_topics import Bench, Item

from topics import limits
from topics.engine.delivery.ready import B0, B1, B4, band_of

PRIORITIES = (-1000, -999, -500, -5, -1, 0, 1, 249, 250, 499, 500, 749, 750, 1000)


def endless(name: str, priority: float) -> Item:
    item = Item(name, priority)
    item.backlog = 10**9
    return item


# --- property 11 ------------------------------------------------------------------------------------------------------


@given(st.floats(-1000, 1000), st.integers(1, 11_000))
def test_the_band_of_a_waiting_topic_never_falls(priority: float, waits_ms: int) -> None:
    bench, item = Bench(), Item("a", priority)
    bench.mark(item)
    bands = [item.band]
    for _ in range(0, waits_ms, 50):
        bench.pass_time(50)
        bands.append(item.band)
    assert bands == sorted(bands)


@given(st.integers(0, 299_999), st.integers(1, 11_000))
def test_not_even_while_its_recency_bonus_decays(idle_ms: int, waits_ms: int) -> None:
    bench, item = Bench(), Item("a")

    def bonus() -> float:
        idle = idle_ms + bench.now
        return 0.0 if idle >= 300_000 else 500 * 2 ** (-idle / 30_000)

    item.priority = bonus()
    bench.mark(item)
    bands = [item.band]
    for _ in range(0, waits_ms, 50):
        item.priority = bonus()
        bench.pass_time(50)
        bands.append(item.band)
    assert bands == sorted(bands)


# --- property 12 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", PRIORITIES)
def test_after_10_seconds_every_topic_is_in_the_top_band(priority: int) -> None:
    bench, item = Bench(), Item("a", priority)
    bench.mark(item)
    bench.pass_time(9_950)
    assert item.band < B4 or priority > -250
    bench.pass_time(50)
    assert item.band == B4


# --- property 13 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [-1000, -250, 0, 400])
@pytest.mark.parametrize(("older", "service_ms"), [(0, 40.0), (7, 25.0), (30, 11.0)])
def test_an_overdue_topic_waits_only_for_older_ones_and_a_round(priority: int, older: int, service_ms: float) -> None:
    bench = Bench(service_ms=service_ms)
    ahead = [Item(f"older-{number}", -1000) for number in range(older)]
    bench.mark(*ahead)
    bench.now += 0.5
    item = Item("late", priority)
    bench.mark(item)
    load = [endless(f"load-{number}", 1000) for number in range(40)]
    bench.now += 0.5
    bench.mark(*load)
    while not item.served_at:
        bench.step()
    bound_ms = 10_000 + 50 + (2 * older + 16) * service_ms
    assert item.served_at[0] - item.enqueued_at <= bound_ms
    overdue_at = item.enqueued_at + 10_050
    after = [served for served in bench.served if any(at > overdue_at for at in served.served_at)]
    assert len([served for served in after if served is not item]) <= older + 16


# --- property 14 ------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([900, 600, 300, 100, -100]), min_size=1, max_size=30))
def test_every_band_gets_a_service_in_each_round(priorities: list[int]) -> None:
    bench = Bench()
    for number, priority in enumerate(priorities):
        bench.mark(endless(f"i{number}", priority))
    wanted = {band_of(priority, limits.BAND_FLOORS) for priority in priorities}
    for _ in range(5):
        served = bench.run(16)
        assert {band_of(item.priority, limits.BAND_FLOORS) for item in served} == wanted


# --- property 15 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [-1, -5, -100, -500, -1000])
def test_a_deferred_topic_is_served_in_the_end_although_deferral_never_ends(priority: int) -> None:
    bench = Bench(service_ms=20)
    bench.ready.pause_b0(True)
    item = Item("deferred", priority)
    bench.mark(item)
    bench.mark(*[endless(f"load-{number}", 800) for number in range(20)])
    while not item.served_at:
        bench.step()
    assert item.served_at[0] <= 10_000 + 50 + 16 * 20


def test_deferral_lasts_as_long_as_the_priority_says() -> None:
    bench = Bench()
    bench.ready.pause_b0(True)
    item = Item("a", -5)
    bench.mark(item)
    bench.pass_time(49)
    assert bench.step() is None
    bench.pass_time(1)
    assert item.band == B1
    assert bench.step() is item


def test_credit_from_before_the_deferral_is_not_used_in_it() -> None:
    bench = Bench()
    items = [Item(f"i{number}", -100) for number in range(4)]
    bench.mark(*items)
    bench.step()
    bench.ready.pause_b0(True)
    assert bench.step() is None
    bench.ready.pause_b0(False)
    assert bench.step() is items[1]


def test_time_spent_deferred_is_no_waiting_for_a_worker() -> None:
    bench = Bench()
    bench.ready.pause_b0(True)
    item = Item("a", -20)
    bench.mark(item)
    bench.pass_time(200)
    assert item.band == B1
    assert item.ready_at == 200
    other = Item("b", -1000)
    bench.mark(other)
    bench.pass_time(100)
    assert other.band == B0
    bench.ready.pause_b0(False)
    assert other.ready_at == 300


# --- property 16 ------------------------------------------------------------------------------------------------------


def test_under_endless_top_load_the_lower_band_gets_one_of_16() -> None:
    bench = Bench(service_ms=0.001)
    bench.mark(*[endless(f"top-{number}", 1000) for number in range(20)])
    bench.mark(*[endless(f"low-{number}", 100) for number in range(20)])
    served = bench.run(16 * 20)
    for start in range(len(served) - 16):
        assert any(item.priority == 100 for item in served[start : start + 16])
