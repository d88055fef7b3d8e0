"""A scheduler's bench: topics with a fixed priority, a clock moved by hand, services that take a chosen time."""

from __future__ import annotations

from collections.abc import Callable

from topics import limits
from topics.engine.delivery.pressure import Tuning
from topics.engine.delivery.ready import Entry, ReadySet


class Item(Entry):
    """A topic that is nothing but a priority. `backlog` is how many services it still needs."""

    __slots__ = ("backlog", "name", "priority", "served_at")

    def __init__(self, name: str, priority: float = 0.0) -> None:
        super().__init__()
        self.name = name
        self.priority = priority
        self.backlog = 0
        self.served_at: list[float] = []

    def __repr__(self) -> str:
        return f"{self.name}({self.priority:g})"


class Bench:
    """One ready set, and whoever serves it."""

    def __init__(self, tuning: Tuning | None = None, *, service_ms: float = 0.0) -> None:
        self.now = 0.0
        self.service_ms = service_ms
        self.tuning = tuning or Tuning()
        self.ready = ReadySet(self.tuning, now_ms=lambda: self.now, base=self._base, deferred=lambda _: None)
        self.served: list[Item] = []
        self.during: Callable[[Item], None] = lambda _: None
        self._aged_at = 0.0

    @staticmethod
    def _base(entry: Entry) -> float:
        assert isinstance(entry, Item)
        return entry.priority

    def mark(self, *items: Item, hold_ms: float = 0.0) -> None:
        for item in items:
            self.ready.mark(item, hold_ms=hold_ms)

    def step(self) -> Item | None:
        """One service; time passes while it lasts, and ageing goes on."""
        entry = self.ready.begin()
        if entry is None:
            return None
        assert isinstance(entry, Item)
        entry.served_at.append(self.now)
        self.served.append(entry)
        self.during(entry)
        self.pass_time(self.service_ms)
        entry.backlog = max(entry.backlog - 1, 0)
        self.ready.finish(entry, more=entry.backlog > 0)
        return entry

    def pass_time(self, elapsed_ms: float) -> None:
        """Move the clock, with an ageing tick every 50 ms."""
        until = self.now + elapsed_ms
        while self._aged_at + limits.AGE_TICK_MS <= until:
            self._aged_at += limits.AGE_TICK_MS
            self.now = self._aged_at
            self.ready.age()
            self.ready.release_holds()
        self.now = until

    def run(self, services: int) -> list[Item]:
        return [item for _ in range(services) if (item := self.step()) is not None]

    def drain(self) -> None:
        while self.step() is not None:
            assert len(self.served) < 1_000_000, "the ready set never drains"
