"""Routers: what each one has dealt with, and who feeds whom (`docs/spec/semantics.md#sec-15`).

A router's position is its `cursor`, the highest source seq dealt with, and `forwarded_total`, which counts copies and
seqs given up as lost. `reserved_*` are the same with what is on its way into the destination; they meet when that has
arrived. What always holds: `cursor <= reserved_cursor`; both only grow; a destination has one source, perhaps through
several routers. The seq of the next copy needs no number of its own: it is the destination's next one, and `dest_base`
(that seq less the copies before it) is computed where the log wants it.

Changed by `RouterPut`, `RouterDelete` and `TopicDelete`, live and in replay; cursors move with the copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from topics.core.effects import Effect, OpResult
from topics.model.ops import RouterDelete, RouterMark, RouterPut

if TYPE_CHECKING:
    from topics.core.router_copy import Copy


class RouterProgress:
    __slots__ = (
        "copies_to_restore",
        "created_ts",
        "cursor",
        "definition",
        "dest_id",
        "forwarded_total",
        "initial_cursor",
        "initial_dest_base",
        "marked_cursor",
        "reserved_cursor",
        "reserved_total",
        "rev",
        "source_id",
    )

    def __init__(self, op: RouterPut) -> None:
        self.definition = op.router
        self.source_id = op.source_id
        self.dest_id = op.dest_id
        self.created_ts = op.created_ts
        self.rev = op.rev
        self.initial_cursor = op.initial_cursor
        self.initial_dest_base = op.initial_dest_base
        self.cursor = self.reserved_cursor = op.initial_cursor
        self.forwarded_total = self.reserved_total = 0
        self.marked_cursor = op.initial_cursor  # as of the last synced mark: what a restart goes on from
        self.copies_to_restore: list[Copy] = []
        """To be made before anything else is read: a crash took them, and their source has lost the records."""

    @property
    def name(self) -> str:
        return self.definition.name

    def reserve(self, *, cursor: int, count: int) -> None:
        """So many copies or lost seqs are on their way."""
        assert cursor >= self.reserved_cursor
        self.reserved_cursor = cursor
        self.reserved_total += count

    def arrived(self) -> None:
        """What was on its way is in the destination."""
        self.cursor = self.reserved_cursor
        self.forwarded_total = self.reserved_total

    def failed(self) -> None:
        """It will never arrive: try again from the cursor."""
        self.reserved_cursor = self.cursor
        self.reserved_total = self.forwarded_total

    def recover(self, *, cursor: int, forwarded_total: int) -> None:
        """Recovery found out where it stood."""
        self.cursor = self.reserved_cursor = cursor
        self.forwarded_total = self.reserved_total = forwarded_total

    def mark(self, *, dest_head: int) -> RouterMark:
        """Its cursor now, for a checkpoint."""
        return RouterMark(
            name=self.name,
            cursor=self.cursor,
            forwarded_total=self.forwarded_total,
            dest_base=max(dest_head - self.forwarded_total, 0),
        )

    def reserved_mark(self, *, dest_head: int) -> RouterMark:
        """Its cursor once everything under way has arrived; `dest_head` is the destination's head then."""
        return RouterMark(
            name=self.name,
            cursor=self.reserved_cursor,
            forwarded_total=self.reserved_total,
            dest_base=max(dest_head - self.reserved_total, 0),
        )

    def evidence_mark(self, *, dest_head: int) -> RouterMark:
        """As `reserved_mark`, for a frame that takes source records away. It counts the copies to restore as made: they
        are in memory and need their source records no more."""
        mark = self.reserved_mark(dest_head=dest_head)
        if self.copies_to_restore:
            return replace(mark, cursor=max(mark.cursor, self.copies_to_restore[-1].source_seq))
        return mark

    def __repr__(self) -> str:
        return f"Router({self.name}, cursor={self.cursor}, forwarded={self.forwarded_total})"


class RouterTable:
    """All routers, by name and by the topics they join. `fed` is the state's set of destinations."""

    __slots__ = ("_by_dest", "by_name", "by_source", "fed", "last_rev")

    def __init__(self, fed: set[int]) -> None:
        self.by_name: dict[str, RouterProgress] = {}
        self.by_source: dict[int, list[RouterProgress]] = {}
        self._by_dest: dict[int, list[RouterProgress]] = {}
        self.fed = fed
        self.last_rev = 0

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[RouterProgress]:
        return iter(self.by_name.values())

    def get(self, name: str) -> RouterProgress | None:
        return self.by_name.get(name)

    def from_source(self, topic_id: int) -> list[RouterProgress]:
        return self.by_source.get(topic_id, _NONE)

    def into(self, topic_id: int) -> list[RouterProgress]:
        return self._by_dest.get(topic_id, _NONE)

    def of_topic(self, topic_id: int) -> list[RouterProgress]:
        """On either side."""
        return [*self.from_source(topic_id), *self.into(topic_id)]

    def put(self, op: RouterPut) -> Effect:
        self.last_rev = max(self.last_rev, op.rev)
        known = self.by_name.get(op.router.name)
        if known is not None and op.rev <= known.rev:
            return Effect(OpResult.DUPLICATE, 0)
        if known is not None and (known.source_id, known.dest_id) == (op.source_id, op.dest_id):
            known.definition = op.router
            known.rev = op.rev
            return Effect(OpResult.APPLIED, 0)
        if known is not None:
            self._remove(known)
        router = RouterProgress(op)
        self.by_name[router.name] = router
        self.by_source[router.source_id] = [*self.from_source(router.source_id), router]
        self._by_dest[router.dest_id] = [*self.into(router.dest_id), router]
        self.fed.add(router.dest_id)
        return Effect(OpResult.APPLIED, 0)

    def delete(self, op: RouterDelete) -> Effect:
        known = self.by_name.get(op.name)
        if known is None:
            return Effect(OpResult.DUPLICATE, 0)
        self._remove(known)
        return Effect(OpResult.APPLIED, 0)

    def drop_topic(self, topic_id: int) -> None:
        for router in self.of_topic(topic_id):
            self._remove(router)

    def _remove(self, router: RouterProgress) -> None:
        del self.by_name[router.name]
        for table, key in ((self.by_source, router.source_id), (self._by_dest, router.dest_id)):
            left = [other for other in table[key] if other is not router]
            if left:
                table[key] = left
            else:
                del table[key]
        if router.dest_id not in self._by_dest:
            self.fed.discard(router.dest_id)


_NONE: list[RouterProgress] = []
