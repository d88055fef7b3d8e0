"""RouterCursors: where all routers stood at one instant, for the mark of a checkpoint that ends later.

Always holds: a router that is gone by the time of asking is left out, because another of its name would otherwise take
up its place after a crash, and copy what was written before it began. Made by `engine.routers`, read by checkpoints.

Router rules: what may be defined (`docs/spec/semantics.md#sec-15-1`; order of checks:
`docs/spec/http-api.md#sec-16-1`).

A refusal raises and has changed nothing. Topics that do not exist yet have no edges, so they close no cycle.

Routers: defining, showing and deleting them; what checkpoints and snapshots keep of them
(`docs/spec/semantics.md#sec-15-1`, 15.9).

Definitions change one at a time (they all hold one name), so two puts cannot close a cycle between them. Missing topics
are created in the same submission as the router where their log group allows it; where not, they are created first and
deleted again if the router fails. Before anything ends that copies could be made again from, a checkpoint makes the
copies durable: so a change of a definition, of a router's life or of its source's life never costs a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from topics.core.apply import apply
from topics.core.capture import deleted_after
from topics.core.effects import Effect
from topics.core.router import RouterProgress, RouterTable
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.lifecycle import Lifecycle
from topics.engine.routers.forwarding import Forwarding
from topics.engine.ticket import Ticket, chain, either_way, failed, gathered, resolved
from topics.engine.writing.encode import submission
from topics.errors import InvalidRequest, RouterCycle, RouterNotFound, Throttled, TopicExistsIncompatible, TopicNotFound
from topics.model.config import DEFAULT_CONFIG
from topics.model.names import check_router_name, check_topic_name
from topics.model.ops import Op, RouterDelete, RouterMark, RouterPut, TopicCreate, TopicDelete
from topics.model.results import RouterSummary
from topics.model.router import RouterDef
from topics.model.submission import Submission


class RouterCursors:
    __slots__ = ("_stood", "_table")

    def __init__(self, table: RouterTable, stood: Sequence[tuple[RouterProgress, RouterMark]]) -> None:
        self._table = table
        self._stood = stood

    def __iter__(self) -> Iterator[RouterMark]:
        """Ask anew each time: routers go between the beginning of a checkpoint and its end."""
        get = self._table.get
        return (mark for router, mark in self._stood if get(mark.name) is router)


def check_router(state: State, definition: RouterDef, *, routers_max: int) -> RouterProgress | None:
    """The router that this definition would update, or None for a new one."""
    check_router_name(definition.name)
    if definition.source == definition.dest:
        raise InvalidRequest("a router's source and dest must differ")
    check_topic_name(definition.source)
    check_topic_name(definition.dest)
    if not definition.create_dest and definition.dest not in state.topics:
        raise TopicNotFound(definition.dest)
    _check_fan_in(state, definition)
    known = state.routers.get(definition.name)
    if known is None:
        if routers_max and len(state.routers) >= routers_max:
            raise Throttled.cap("max_routers", max=routers_max)
    elif (known.definition.source, known.definition.dest) != (definition.source, definition.dest):
        raise TopicExistsIncompatible.repoint(
            definition.name, existing_source=known.definition.source, existing_dest=known.definition.dest
        )
    if known is None and not definition.allow_cycle:  # an update adds no edge, so it closes nothing
        cycle = closed_cycle(state.routers, definition)
        if cycle is not None:
            raise RouterCycle(cycle)
    return known


def _check_fan_in(state: State, definition: RouterDef) -> None:
    dest = state.topics.get(definition.dest)
    if dest is None:
        return
    for other in state.routers.into(dest.id):
        if other.name != definition.name and other.definition.source != definition.source:
            raise TopicExistsIncompatible.fan_in(definition.dest)


def closed_cycle(routers: RouterTable, definition: RouterDef) -> list[str] | None:
    """The shortest way from dest back to source, with the new edge in front; None if there is none."""
    edges: dict[str, list[str]] = {}
    for router in routers:
        edges.setdefault(router.definition.source, []).append(router.definition.dest)
    came_from: dict[str, str] = {definition.dest: definition.source}
    reached = deque([definition.dest])
    while reached:
        topic = reached.popleft()
        if topic == definition.source:
            return _path(came_from, definition)
        for following in edges.get(topic, ()):
            if following not in came_from:
                came_from[following] = topic
                reached.append(following)
    return None


def _path(came_from: dict[str, str], definition: RouterDef) -> list[str]:
    path = [definition.source]
    while path[-1] != definition.dest:
        path.append(came_from[path[-1]])
    return [definition.source, *reversed(path)]


T = TypeVar("T")

ROUTERS = "\0routers"  # held by whoever changes a definition; no topic has such a name


class RouterPutDone(NamedTuple):
    created: bool
    definition: RouterDef


class RouterShown(NamedTuple):
    definition: RouterDef
    forwarded_total: int


class Routers:
    def __init__(self, context: Context, lifecycle: Lifecycle, forwarding: Forwarding) -> None:
        self._ctx = context
        self._lifecycle = lifecycle
        self._forwarding = forwarding
        self._table = context.state.routers
        self._marked: dict[str, RouterMark] = {}
        lifecycle.detach = self._detach
        lifecycle.detached = self._detached
        context.on_removed.append(self._copies_removed)

    # --- put ------------------------------------------------------------------------------------------------------

    def put(self, definition: RouterDef) -> Ticket[RouterPutDone]:
        """Create a router, or replace everything but its endpoints; its progress stays."""
        names = [ROUTERS, *dict.fromkeys((definition.source, definition.dest))]
        return self._lifecycle.exclusively(names, lambda: self._put(definition))

    def _put(self, definition: RouterDef) -> Ticket[RouterPutDone]:
        known = check_router(self._ctx.state, definition, routers_max=self._ctx.settings.max_routers)
        if known is None:
            return self._create_behind(definition)
        if known.definition == definition:
            return resolved(RouterPutDone(False, definition))
        return self._caught_up(
            [known], lambda: self._undisturbed(known.source_id, lambda: self._update(known, definition))
        )

    def _update(self, known: RouterProgress, definition: RouterDef) -> Ticket[RouterPutDone]:
        dest = self._ctx.state.by_id[known.dest_id]
        place = known.mark(dest_head=dest.head)
        op = RouterPut(
            router=definition,
            source_id=known.source_id,
            dest_id=known.dest_id,
            initial_cursor=place.cursor,
            initial_dest_base=place.dest_base,
            created_ts=known.created_ts,
            rev=self._table.last_rev + 1,
        )
        return self._log([op], lambda: RouterPutDone(False, definition))

    def _create_behind(self, definition: RouterDef) -> Ticket[RouterPutDone]:
        """Writes on their way into the destination come first: its copies begin behind them, and no pin says so."""
        dest = self._ctx.state.topics.get(definition.dest)
        if dest is not None and dest.staged_count:
            return chain(self._lifecycle.drain(dest), lambda _: self._create_behind(definition))
        return self._create(definition)

    def _create(self, definition: RouterDef) -> Ticket[RouterPutDone]:
        ctx = self._ctx
        creates: dict[str, TopicCreate] = {}
        try:
            for name in (definition.source, definition.dest):
                if name not in ctx.state.topics:
                    creates[name] = self._lifecycle.create_op(name, DEFAULT_CONFIG)
                    ctx.creating += 1
        except BaseException:
            ctx.creating -= len(creates)
            raise
        op = self._router_op(definition, creates)
        ticket = self._log_with_topics(list(creates.values()), op, lambda: RouterPutDone(True, definition))

        def over(_: Ticket[RouterPutDone]) -> None:
            ctx.creating -= len(creates)

        ticket.then(over)
        return ticket

    def _router_op(self, definition: RouterDef, creates: dict[str, TopicCreate]) -> RouterPut:
        ends = []
        for name in (definition.source, definition.dest):
            topic = self._ctx.state.topics.get(name)
            ends.append((creates[name].topic_id, 0) if topic is None else (topic.id, topic.head))
        (source_id, source_head), (dest_id, dest_head) = ends
        return RouterPut(
            router=definition,
            source_id=source_id,
            dest_id=dest_id,
            initial_cursor=source_head,
            initial_dest_base=dest_head,
            created_ts=self._ctx.clock.now_ms(),
            rev=self._table.last_rev + 1,
        )

    def _log_with_topics(
        self, creates: list[TopicCreate], op: RouterPut, reply: Callable[[], RouterPutDone]
    ) -> Ticket[RouterPutDone]:
        """Topics of the routers' own log group ride along; the others are logged first, and undone if need be."""
        group_of = self._ctx.group_of
        along = [create for create in creates if group_of(create.topic_id) == group_of(0)]
        ahead = [create for create in creates if group_of(create.topic_id) != group_of(0)]
        if not ahead:
            return self._log([*along, op], reply)
        first = gathered([self._log_at(create.topic_id, [create], lambda: None) for create in ahead])

        def then(done: Ticket[None]) -> Ticket[RouterPutDone]:
            if done.error is not None:
                raise done.error
            return self._log([*along, op], reply)

        ticket = chain(either_way(first), lambda _: then(first))
        return self._or_undo(ticket, ahead)

    def _or_undo(self, ticket: Ticket[RouterPutDone], creates: list[TopicCreate]) -> Ticket[RouterPutDone]:
        answer: Ticket[RouterPutDone] = Ticket()

        def over(done: Ticket[RouterPutDone]) -> None:
            if done.error is None:
                answer.resolve(done.result())
                return
            error = done.error
            there = [create for create in creates if create.topic_id in self._ctx.state.by_id]
            gathered([self._undo(create) for create in there]).then(lambda _: answer.fail(error), answer.abandon)

        ticket.then(over, answer.abandon)
        return answer

    def _undo(self, create: TopicCreate) -> Ticket[None]:
        topic = self._ctx.state.by_id[create.topic_id]
        op = TopicDelete(create.topic_id, create.name, create.epoch)
        try:
            return self._log_at(create.topic_id, [op], lambda: self._ctx.deleted(topic))
        except Exception as error:
            return failed(error)

    # --- show -----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Ticket[RouterShown]:
        """A router, brought up to its source's head first."""
        router = self._table.get(name)
        if router is None:
            raise RouterNotFound(name)
        dest = self._ctx.state.by_id.get(router.dest_id)
        feeding = None if dest is None else self._forwarding.bring_up_to_date(dest)
        if feeding is None:
            return resolved(RouterShown(router.definition, router.forwarded_total))
        return chain(feeding, lambda _: resolved(RouterShown(router.definition, router.forwarded_total)))

    def page(
        self,
        *,
        prefix: str = "",
        source: str | None = None,
        dest: str | None = None,
        after: str | None = None,
        page_size: int = 100,
        visible: Callable[[RouterDef], bool] = lambda _: True,
    ) -> tuple[list[RouterSummary], bool]:
        """Routers by name behind `after`, at most a page of visible ones, and whether there are more."""
        page: list[RouterSummary] = []
        for name in sorted(self._table.by_name):
            router = self._table.by_name[name]
            wanted = router.definition
            if (
                not name.startswith(prefix)
                or (after is not None and name <= after)
                or (source is not None and wanted.source != source)
                or (dest is not None and wanted.dest != dest)
                or not visible(wanted)
            ):
                continue
            if len(page) == page_size:
                return page, True
            page.append(RouterSummary(name, wanted.source, wanted.dest, wanted.guarantee, router.forwarded_total))
        return page, False

    # --- delete ---------------------------------------------------------------------------------------------------

    def delete(self, name: str) -> Ticket[bool]:
        """Stop a router; copies stay. An absent one is no error."""
        return self._lifecycle.exclusively([ROUTERS], lambda: self._delete(name))

    def _delete(self, name: str) -> Ticket[bool]:
        router = self._table.get(name)
        if router is None:
            return resolved(False)
        return self._caught_up(
            [router],
            lambda: self._undisturbed(router.source_id, lambda: self._log([RouterDelete(name)], lambda: True)),
        )

    # --- what comes first -----------------------------------------------------------------------------------------

    def _caught_up(self, routers: Iterable[RouterProgress], change: Callable[[], Ticket[T]]) -> Ticket[T]:
        """Run a change when the routers have copied, as far as they can now, what a read of their destinations would
        show: whoever wrote before the change has written under the rules of before."""
        dests = [dest for router in routers if (dest := self._ctx.state.by_id.get(router.dest_id)) is not None]
        chases = [chase for dest in dests if (chase := self._forwarding.bring_up_to_date(dest)) is not None]
        return chain(gathered(chases), lambda _: change())

    # --- what must be durable first -------------------------------------------------------------------------------

    def _undisturbed(self, source_id: int, change: Callable[[], Ticket[T]]) -> Ticket[T]:
        """Run a change while the source's routers stand still and all their copies are durable."""
        source = self._ctx.state.by_id.get(source_id)
        if source is None:
            return change()
        self._ctx.witness.hold(source)
        ticket = chain(self._copies_durable(source), lambda _: change())
        ticket.then(lambda _: self._ctx.witness.let_go(source))
        return ticket

    def _copies_durable(self, source: TopicLog) -> Ticket[None]:
        for router in self._table.from_source(source.id):
            dest = self._ctx.state.by_id.get(router.dest_id)
            if dest is not None and not dest.config.is_ephemeral and router.reserved_cursor > router.marked_cursor:
                return self._ctx.jobs.checkpoint()
        return resolved(None)

    def _detach(self, topic: TopicLog) -> Ticket[list[RouterDef]]:
        return self._caught_up(self._table.from_source(topic.id), lambda: self._detach_now(topic))

    def _detach_now(self, topic: TopicLog) -> Ticket[list[RouterDef]]:
        routers = [router.definition for router in self._table.of_topic(topic.id)]
        self._ctx.witness.hold(topic)
        ticket = chain(self._copies_durable(topic), lambda _: resolved(routers))

        def over(done: Ticket[list[RouterDef]]) -> None:
            if done.error is not None:
                self._ctx.witness.let_go(topic)

        ticket.then(over)
        return ticket

    def _detached(self, topic: TopicLog, routers: list[RouterDef]) -> Ticket[None]:
        """Routers went with their topic, in memory and in the log; frames of their own are only for good measure."""
        self._ctx.witness.let_go(topic)
        gone = [RouterDelete(router.name) for router in routers if self._table.get(router.name) is None]
        for op in gone:
            self._forget(op.name)
        if not gone:
            return resolved(None)
        try:
            return either_way(self._log(gone, lambda: None))
        except Exception:
            return resolved(None)

    def _copies_removed(self, dest: TopicLog, effect: Effect) -> None:
        """Copies that lie in no segment yet were deleted: the log cannot show them, so a checkpoint should."""
        if dest.id in self._ctx.fed and not dest.config.is_ephemeral and dest.head > dest.ckpt_seq:
            self._ctx.jobs.checkpoint_soon()

    # --- checkpoints and snapshots --------------------------------------------------------------------------------

    def marks(self) -> RouterCursors:
        """Where all routers stand, in the same instant as the records of their destinations are collected."""
        by_id = self._ctx.state.by_id
        routers = [router for router in self._table if router.dest_id in by_id]
        return RouterCursors(self._table, [(router, self._mark(router, by_id[router.dest_id])) for router in routers])

    def _mark(self, router: RouterProgress, dest: TopicLog) -> RouterMark:
        """What died before its turn is noted with the place: a start cannot tell it from what was copied and died
        later, because flags and floors on disk are younger than the place. A delete that comes later is in the log."""
        mark, source = router.mark(dest_head=dest.head), self._ctx.state.by_id.get(router.source_id)
        if source is None:
            return mark
        dead = deleted_after(source, router.cursor)
        promised = router.sworn_mark(dest_head=dest.head).cursor
        if dead is not None and any(first <= promised for first, _ in dead):
            dead = None  # copied or not: that depends on whether what is on its way arrives
        return replace(mark, dead=dead)

    def marked(self, marks: RouterCursors) -> None:
        """A checkpoint's mark with these places is synced."""
        self._marked = {mark.name: mark for mark in marks}
        for mark in marks:
            router = self._table.get(mark.name)
            if router is not None and mark.cursor <= router.cursor:
                router.marked_cursor = max(router.marked_cursor, mark.cursor)
        self._forwarding.checkpointed()

    def captured(self) -> list[tuple[RouterProgress, RouterMark]]:
        """What a snapshot keeps: routers with the places of the last checkpoint, never newer ones."""
        return [(router, self._marked[router.name]) for router in self._table if router.name in self._marked]

    def needed_from(self, topic_id: int) -> int | None:
        """The first seq of a source whose bytes a router may need again after a crash; None if none may."""
        routers = self._table.from_source(topic_id)
        return min((router.marked_cursor + 1 for router in routers), default=None)

    # --- logging --------------------------------------------------------------------------------------------------

    def _log(self, ops: Sequence[Op], reply: Callable[[], T]) -> Ticket[T]:
        return self._log_at(0, ops, reply)

    def _log_at(self, topic_id: int, ops: Sequence[Op], reply: Callable[[], T]) -> Ticket[T]:
        ctx = self._ctx
        sub = submission(ops, None, topic_id=topic_id, ts=ctx.clock.now_ms(), durable=True, client_frames=len(ops))
        return ctx.commit.submit(ctx.group_of(topic_id), sub, finish=partial(self._finish, reply))

    def _finish(self, reply: Callable[[], T], sub: Submission) -> T:
        for op in sub.ops:
            apply(self._ctx.state, op)  # type: ignore[arg-type]
            if isinstance(op, RouterDelete):
                self._forget(op.name)
        return reply()

    def _forget(self, name: str) -> None:
        self._marked.pop(name, None)
        self._forwarding.forget(name)
