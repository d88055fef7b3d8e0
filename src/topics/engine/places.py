"""Places: where all routers stood at one instant, for the mark of a checkpoint that ends later.

Always holds: a router that is gone by the time of asking is left out, because another of its name would otherwise take
up its place after a crash, and copy what was written before it began. Made by `engine.routers`, read by checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topics.core.router import Router, RouterTable
from topics.model.ops import RouterMark


class Places:
    __slots__ = ("_stood", "_table")

    def __init__(self, table: RouterTable, stood: Sequence[tuple[Router, RouterMark]]) -> None:
        self._table = table
        self._stood = stood

    def __iter__(self) -> Iterator[RouterMark]:
        """Ask anew each time: routers go between the beginning of a checkpoint and its end."""
        get = self._table.get
        return (mark for router, mark in self._stood if get(mark.name) is router)
