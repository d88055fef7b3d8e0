"""RouterCheckpoints: what checkpoints and snapshots keep of the routers, and the changes that wait for a checkpoint.

Copies have no log frames of their own: until a checkpoint has them in segments, they can only be made again, from the
records of their source and the cursor of their router (`engine.recovery`). So whoever ends a router, changes its
definition or deletes its source waits until the copies are durable, and its routers stand still meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from topics.core.apply import apply
from topics.core.capture import deleted_after
from topics.core.effects import Effect
from topics.core.router import RouterProgress, RouterTable
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.routers.forwarding import Forwarding
from topics.engine.ticket import Ticket, chain, either_way, gathered, resolved
from topics.model.ops import Op, RouterDelete, RouterMark
from topics.model.router import RouterDef
from topics.model.submission import Submission

T = TypeVar("T")


class RouterCursors:
    """Where all routers stood when a checkpoint began, for the mark that it writes when it ends.

    Always holds: a router that is gone by then is left out. Otherwise another of its name would take up its cursor
    after a crash, and copy what was written before it began."""

    __slots__ = ("_marks", "_table")

    def __init__(self, table: RouterTable, marks: Sequence[tuple[RouterProgress, RouterMark]]) -> None:
        self._table = table
        self._marks = marks

    def __iter__(self) -> Iterator[RouterMark]:
        """Ask anew each time: routers go between the beginning of a checkpoint and its end."""
        get = self._table.get
        return (mark for router, mark in self._marks if get(mark.name) is router)


class RouterCheckpoints:
    def __init__(self, context: Context, forwarding: Forwarding) -> None:
        self._ctx = context
        self._forwarding = forwarding
        self._table = context.state.routers
        self._marked: dict[str, RouterMark] = {}
        context.on_removed.append(self._copies_removed)

    # --- what checkpoints and snapshots ask for -------------------------------------------------------------------

    def cursors(self) -> RouterCursors:
        """Where all routers stand, in the same instant as the records of their destinations are collected."""
        by_id = self._ctx.state.by_id
        routers = [router for router in self._table if router.dest_id in by_id]
        return RouterCursors(self._table, [(router, self._mark(router, by_id[router.dest_id])) for router in routers])

    def _mark(self, router: RouterProgress, dest: TopicLog) -> RouterMark:
        """The cursor, and which records above it are dead already. A start could not tell those from records that were
        copied and died later, because flags and floors on disk may be younger than the cursor. A delete that comes
        later is in the log."""
        mark, source = router.mark(dest_head=dest.head), self._ctx.state.by_id.get(router.source_id)
        if source is None:
            return mark
        dead = deleted_after(source, router.cursor)
        promised = router.evidence_mark(dest_head=dest.head).cursor
        if dead is not None and any(first <= promised for first, _ in dead):
            dead = None  # copied or not: that depends on whether the copies under way arrive
        return replace(mark, dead=dead)

    def marked(self, cursors: RouterCursors) -> None:
        """A checkpoint's mark with these cursors is synced."""
        self._marked = {mark.name: mark for mark in cursors}
        for mark in self._marked.values():
            router = self._table.get(mark.name)
            if router is not None and mark.cursor <= router.cursor:
                router.marked_cursor = max(router.marked_cursor, mark.cursor)
        self._forwarding.checkpointed()

    def captured(self) -> list[tuple[RouterProgress, RouterMark]]:
        """What a snapshot keeps: routers with the cursors of the last checkpoint, never newer ones."""
        return [(router, self._marked[router.name]) for router in self._table if router.name in self._marked]

    def needed_from(self, topic_id: int) -> int | None:
        """The first seq of a source whose bytes a router may need again after a crash; None if none may."""
        routers = self._table.from_source(topic_id)
        return min((router.marked_cursor + 1 for router in routers), default=None)

    def _copies_removed(self, dest: TopicLog, effect: Effect) -> None:
        """Copies that lie in no segment yet were deleted: the log cannot show them, so a checkpoint should."""
        if dest.id in self._ctx.fed and not dest.config.is_ephemeral and dest.head > dest.ckpt_seq:
            self._ctx.files.checkpoint_soon()

    # --- changes that wait for a checkpoint -----------------------------------------------------------------------

    def when_durable(self, router: RouterProgress, change: Callable[[], Ticket[T]]) -> Ticket[T]:
        """Run a change of a router when it has caught up and its copies are durable, while its source's routers stand
        still."""
        return chain(self._catch_up([router]), lambda _: self._when_copies_durable(router.source_id, change))

    def _when_copies_durable(self, source_id: int, change: Callable[[], Ticket[T]]) -> Ticket[T]:
        source = self._ctx.state.by_id.get(source_id)
        if source is None:
            return change()
        self._ctx.evidence.hold(source)
        ticket = chain(self._copies_durable(source), lambda _: change())
        ticket.then(lambda _: self._ctx.evidence.release(source))
        return ticket

    def _catch_up(self, routers: Iterable[RouterProgress]) -> Ticket[None]:
        """The routers copy, as far as they can now, what a read of their destinations would show: whoever wrote before
        the change has written under the rules of before."""
        dests = [dest for router in routers if (dest := self._ctx.state.by_id.get(router.dest_id)) is not None]
        return gathered([ticket for dest in dests if (ticket := self._forwarding.bring_up_to_date(dest)) is not None])

    def _copies_durable(self, source: TopicLog) -> Ticket[None]:
        for router in self._table.from_source(source.id):
            dest = self._ctx.state.by_id.get(router.dest_id)
            if dest is not None and not dest.config.is_ephemeral and router.reserved_cursor > router.marked_cursor:
                return self._ctx.files.checkpoint()
        return resolved(None)

    # --- the end of a topic ---------------------------------------------------------------------------------------

    def detach(self, topic: TopicLog) -> Ticket[list[RouterDef]]:
        """A topic is about to be deleted: stop its routers and make their copies durable. Gives those routers."""
        return chain(self._catch_up(self._table.from_source(topic.id)), lambda _: self._detach_now(topic))

    def _detach_now(self, topic: TopicLog) -> Ticket[list[RouterDef]]:
        routers = [router.definition for router in self._table.of_topic(topic.id)]
        self._ctx.evidence.hold(topic)
        ticket = chain(self._copies_durable(topic), lambda _: resolved(routers))

        def over(done: Ticket[list[RouterDef]]) -> None:
            if done.error is not None:
                self._ctx.evidence.release(topic)

        ticket.then(over)
        return ticket

    def detached(self, topic: TopicLog, routers: list[RouterDef]) -> Ticket[None]:
        """The topic is gone and its routers with it, or its deletion failed. The TopicDelete ends the routers in memory
        and in a replay; their own RouterDelete frames are written too, but nothing depends on them."""
        self._ctx.evidence.release(topic)
        gone = [RouterDelete(name=router.name) for router in routers if self._table.get(router.name) is None]
        for op in gone:
            self._forget(op.name)
        if not gone:
            return resolved(None)
        try:
            return either_way(self.log(gone, lambda: None))
        except Exception:
            return resolved(None)

    # --- logging --------------------------------------------------------------------------------------------------

    def log(self, ops: Sequence[Op], reply: Callable[[], T], *, topic_id: int = 0) -> Ticket[T]:
        """Commit and apply ops of routers and of topics that are created or deleted with them."""
        return self._ctx.log(topic_id, ops, finish=partial(self._finish, reply), client_frames=len(ops))

    def _finish(self, reply: Callable[[], T], sub: Submission) -> T:
        for op in sub.ops:
            apply(self._ctx.state, op)  # type: ignore[arg-type]
            if isinstance(op, RouterDelete):
                self._forget(op.name)
        return reply()

    def _forget(self, name: str) -> None:
        self._marked.pop(name, None)
        self._forwarding.forget(name)
