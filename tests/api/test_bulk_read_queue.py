"""Bulk reads take turns: one page at a time, rests while others write, and nobody waits for a page that hangs."""

from __future__ import annotations

from collections.abc import Callable

from topics.api.endpoints.bulk import REST_MS_MAX, REST_RATIO, TURN_MS_MAX, BulkReadQueue


class Bench:
    """A clock and a timetable by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.writes = 0
        self.pressure = 0.0
        self.turns = BulkReadQueue(
            later=lambda ms, step: self.timers.append((self.now_s + ms / 1e3, step)),
            monotonic=lambda: self.now_s,
            traffic=lambda: self.writes,
            pressure=lambda: self.pressure,
        )
        self.begun: list[str] = []
        self.overs: dict[str, Callable[[], None]] = {}

    def ask(self, name: str) -> None:
        def step(over: Callable[[], None]) -> None:
            self.begun.append(name)
            self.overs[name] = over

        self.turns.take(step)

    def advance(self, ms: float) -> None:
        self.now_s += ms / 1e3
        due = [timer for timer in self.timers if timer[0] <= self.now_s + 1e-9]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, step in sorted(due, key=lambda timer: timer[0]):
            step()


def test_one_page_at_a_time_in_the_order_they_came() -> None:
    bench = Bench()
    for name in "abc":
        bench.ask(name)
    assert bench.begun == ["a"]
    bench.overs["a"]()
    assert bench.begun == ["a", "b"]
    bench.overs["a"]()  # twice does no harm
    assert bench.begun == ["a", "b"]
    bench.overs["b"]()
    bench.overs["c"]()
    bench.ask("d")
    assert bench.begun == ["a", "b", "c", "d"]


def test_a_page_rests_as_long_as_writes_come_in() -> None:
    bench = Bench()
    bench.ask("a")
    bench.ask("b")
    bench.writes += 1
    bench.advance(4)
    bench.overs["a"]()
    assert bench.begun == ["a"]
    bench.advance(4 * REST_RATIO - 0.1)
    assert bench.begun == ["a"]
    bench.advance(0.1)
    assert bench.begun == ["a", "b"]
    bench.ask("c")
    bench.advance(4)
    bench.overs["b"]()  # nobody wrote meanwhile
    assert bench.begun == ["a", "b", "c"]
    bench.ask("d")
    bench.pressure = 0.9
    bench.advance(49)
    bench.overs["c"]()
    assert bench.begun == ["a", "b", "c"]
    bench.advance(REST_MS_MAX)
    assert bench.begun == ["a", "b", "c", "d"]


def test_a_page_that_hangs_keeps_nobody_waiting() -> None:
    bench = Bench()
    bench.ask("cold")
    bench.ask("hot")
    bench.advance(TURN_MS_MAX)
    assert bench.begun == ["cold", "hot"]
    bench.overs["cold"]()  # late: the turn is another's by now
    bench.ask("next")
    assert bench.begun == ["cold", "hot"]
    bench.overs["hot"]()
    assert bench.begun == ["cold", "hot", "next"]
