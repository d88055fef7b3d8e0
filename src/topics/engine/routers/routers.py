"""Routers: defining, showing and deleting them (`docs/spec/semantics.md#sec-15-1`, 15.9; order of checks:
`docs/spec/http-api.md#sec-16-1`).

Definitions change one at a time (they all hold one name), so two puts cannot close a cycle between them. A refusal
raises and has changed nothing. Missing topics are created in the same submission as the router if their log group
allows it; if not, they are created first and deleted again if the router fails. Before anything ends that copies could
be made again from, a checkpoint makes the copies durable (`routers.checkpoints`): so a change of a definition, of a
router's life or of its source's life never costs a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from topics.core.router import RouterProgress, RouterTable
from topics.core.state import State
from topics.engine.context import Context
from topics.engine.lifecycle import Lifecycle
from topics.engine.routers.checkpoints import RouterCheckpoints
from topics.engine.routers.forwarding import Forwarding
from topics.engine.ticket import Ticket, chain, failed, gathered, resolved
from topics.errors import InvalidRequest, RouterCycle, RouterNotFound, Throttled, TopicExistsIncompatible, TopicNotFound
from topics.model.config import DEFAULT_CONFIG
from topics.model.names import check_router_name, check_topic_name
from topics.model.ops import RouterDelete, RouterPut, TopicCreate, TopicDelete
from topics.model.router import RouterDef, RouterSummary


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
    def __init__(
        self, context: Context, lifecycle: Lifecycle, forwarding: Forwarding, checkpoints: RouterCheckpoints
    ) -> None:
        self._ctx = context
        self._lifecycle = lifecycle
        self._forwarding = forwarding
        self._checkpoints = checkpoints
        self._table = context.state.routers

    # --- put ------------------------------------------------------------------------------------------------------

    def put(self, definition: RouterDef) -> Ticket[RouterPutDone]:
        """Create a router, or replace everything but its endpoints; its progress stays."""
        names = [ROUTERS, *dict.fromkeys((definition.source, definition.dest))]
        return self._lifecycle.exclusively(names, lambda: self._put(definition))

    def _put(self, definition: RouterDef) -> Ticket[RouterPutDone]:
        known = check_router(self._ctx.state, definition, routers_max=self._ctx.settings.max_routers)
        if known is None:
            return self._create_after_writes(definition)
        if known.definition == definition:
            return resolved(RouterPutDone(False, definition))
        return self._checkpoints.when_durable(known, lambda: self._update(known, definition))

    def _update(self, known: RouterProgress, definition: RouterDef) -> Ticket[RouterPutDone]:
        dest = self._ctx.state.by_id[known.dest_id]
        mark = known.mark(dest_head=dest.head)
        op = RouterPut(
            router=definition,
            source_id=known.source_id,
            dest_id=known.dest_id,
            initial_cursor=mark.cursor,
            initial_dest_base=mark.dest_base,
            created_ts=known.created_ts,
            rev=self._table.last_rev + 1,
        )
        return self._checkpoints.log([op], lambda: RouterPutDone(False, definition))

    def _create_after_writes(self, definition: RouterDef) -> Ticket[RouterPutDone]:
        """Writes submitted to the destination are applied first: its copies begin after them, and no pin says so."""
        dest = self._ctx.state.topics.get(definition.dest)
        if dest is not None and dest.staged_count:
            return chain(self._lifecycle.drain(dest), lambda _: self._create_after_writes(definition))
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
        """Topics of the routers' own log group are created in the router's submission. The others are created first,
        and deleted again if the router fails."""
        group_of = self._ctx.group_of
        along = [create for create in creates if group_of(create.topic_id) == group_of(0)]
        ahead = [create for create in creates if group_of(create.topic_id) != group_of(0)]
        if not ahead:
            return self._checkpoints.log([*along, op], reply)
        created = gathered(
            [self._checkpoints.log([create], lambda: None, topic_id=create.topic_id) for create in ahead]
        )
        return self._or_undo(chain(created, lambda _: self._checkpoints.log([*along, op], reply)), ahead)

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
        op = TopicDelete(topic_id=create.topic_id, name=create.name, epoch=create.epoch)
        try:
            return self._checkpoints.log([op], lambda: self._ctx.deleted(topic), topic_id=create.topic_id)
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
        return chain(
            feeding or resolved(None), lambda _: resolved(RouterShown(router.definition, router.forwarded_total))
        )

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
        """Routers by name after `after`, at most a page of visible ones, and whether there are more."""
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
        return self._checkpoints.when_durable(
            router, lambda: self._checkpoints.log([RouterDelete(name=name)], lambda: True)
        )
