"""Shared read: what the routers of one source read in one turn.

Under a fan-out most of them stand at the same place and want the same copies, so the source is read once and its
records are taken apart once. Used by `engine.router_step` for steps that begin in the same moment, never later."""

from __future__ import annotations

from collections.abc import Callable

from topics.core.read import ReadOutcome
from topics.core.router import Router
from topics.core.router_copy import Copy


class SharedRead:
    """The newest read of one source. A place is the router's cursor and what a change of the source would change."""

    def __init__(self) -> None:
        self._place: tuple[int, ...] = ()
        self._outcome: ReadOutcome | None = None
        self._copies: dict[tuple[object, ...], list[Copy]] = {}

    def outcome(self, place: tuple[int, ...]) -> ReadOutcome | None:
        return self._outcome if self._place == place else None

    def keep(self, place: tuple[int, ...], outcome: ReadOutcome) -> None:
        self._place, self._outcome = place, outcome
        self._copies.clear()

    def copies(self, router: Router, choose: Callable[[], list[Copy]]) -> list[Copy]:
        """A copy of an `exactly_once` router is signed, so it is its own."""
        wanted = router.definition
        if wanted.guarantee == "exactly_once":
            return choose()
        key = (wanted.filter, wanted.preserve_node, wanted.preserve_tag)
        found = self._copies.get(key)
        if found is None:
            found = self._copies[key] = choose()
        return found
