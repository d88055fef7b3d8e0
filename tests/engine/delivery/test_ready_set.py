"""`docs/spec/delivery.md#sec-17`, properties 7, 9 and 10; property 8 needs streams and is in `test_no_lost_wakeups`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.engine.delivery.bench_of_topics import Bench, Item

from topics.engine.delivery.ready import IDLE, QUEUED

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
