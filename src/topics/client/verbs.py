"""Verbs: what a topic, a queue and a router can be asked, written once, as coroutines.

A verb checks its arguments and gives a request to its door, which carries it out: a server (`http_door`) or the engine
in this process (`embedded.engine_door`). The asyncio client hands these coroutines to its users; the blocking client
and the embedded library run them over doors that never suspend (`blocking`). Handles are cheap and hold no state;
nothing is created by making one. One suite of tests runs over all doors.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Literal, Protocol, TypeVar, Unpack, overload
from warnings import warn

import msgspec

from topics import limits
from topics.client import routes
from topics.client.routes import DropQuery, ListQuery, Route, StateQuery
from topics.errors import Forbidden, InvalidRequest, TopicNotFound, TopicsWarning
from topics.model.config import ConfigFields, ConfigPatch, TopicConfig, patch_from, resolve_config
from topics.model.names import TagMatch
from topics.model.paging import After, Gap, Gaps, Walk, node_names
from topics.model.position import checked_position
from topics.model.results import (
    AckResult,
    AppendResult,
    ClaimResult,
    DeleteResult,
    ExtendResult,
    Job,
    NackResult,
    ReadResult,
    Record,
    RouterState,
    RouterSummary,
    TopicState,
    TopicSummary,
)
from topics.model.router import Guarantee
from topics.model.values import Event, several
from topics.wire.incoming.queue_requests import (
    AckRequest,
    ClaimRequest,
    ExtendRequest,
    NackRequest,
)
from topics.wire.incoming.requests import (
    DeleteRequest,
    DiffRequest,
    PutRouterRequest,
    checked,
    predicate,
)

Q = TypeVar("Q")
T = TypeVar("T")

COMPARED_MAX = 10_000  # topics whose config a client remembers to have looked at

Match = str | list[str] | TagMatch | None
Seqs = Iterable[int | Job]
"""Jobs by their seqs. A `Job` brings its lease id along, so that a lease which has passed on is left alone."""
Items = Iterable[Record | Gap]
"""What one page or one frame of a stream brings to a reader."""


class Door(Protocol):
    """Where the verbs of a handle are carried out."""

    compared: set[tuple[str, bytes]]
    """Topics and the config that handles were given for them, once it was held against what the topic has."""

    async def run(self, route: Route[Q, T], name: str, request: Q) -> T:
        """Carry out a request on the topic or router of that name."""

    async def append(
        self, topic: str, values: Sequence[Any], *, node: str | None, key: str | None, config: bytes | None
    ) -> AppendResult:
        """Append values or `Event`s as one batch."""

    def follow(self, topic: str, after: After, *, nodes: tuple[str, ...], gaps: Gaps) -> AsyncGenerator[Items, None]:
        """Everything behind the position, then whatever comes."""


def config_text(config: ConfigFields) -> bytes:
    """Checked as the server will; only what was given is sent, what is left out takes its default there."""
    patch = patch_from(config)
    given = {name: getattr(patch, name) for name in ConfigPatch.__struct_fields__ if name in config}
    return msgspec.json.encode(given)


class TopicVerbs:
    """A topic by name: cheap and stateless. The first write creates the topic.

    With config, any verb creates a topic that does not exist, with this config. A topic that has another one keeps it,
    and a `TopicsWarning` says so."""

    def __init__(self, door: Door, name: str, config: bytes | None = None) -> None:
        self._door = door
        self._config = config
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # --- with config ----------------------------------------------------------------------------------------------

    async def _run(self, route: Route[Q, T], request: Q) -> T:
        if self._config is None:
            return await self._door.run(route, self.name, request)
        try:
            done = await self._door.run(route, self.name, request)
        except TopicNotFound:
            await self._door.run(routes.CONFIGURE, self.name, self._config)
            return await self._door.run(route, self.name, request)
        await self._compare(self._config)
        return done

    async def _append(self, values: Sequence[Any], *, node: str | None, key: str | None) -> AppendResult:
        done = await self._door.append(self.name, values, node=node, key=key, config=self._config)
        if self._config is not None and not done.created:
            await self._compare(self._config)
        return done

    async def _compare(self, config: bytes) -> None:
        """Warn if the topic has another config than the handle. Asked once by a client."""
        if (self.name, config) in self._door.compared:
            return
        if len(self._door.compared) >= COMPARED_MAX:
            self._door.compared.clear()
        self._door.compared.add((self.name, config))
        try:
            state = await self._door.run(routes.STATE, self.name, StateQuery(touch=False))
        except (Forbidden, TopicNotFound):  # a key that may only write; a topic that was just deleted
            return
        given = msgspec.json.decode(config, type=dict[str, Any])
        wanted = resolve_config(patch_from(given))
        differ = [field for field in given if getattr(state.config, field) != getattr(wanted, field)]
        if differ:
            has = ", ".join(f"{field}={getattr(state.config, field)!r}" for field in differ)
            asked = ", ".join(f"{field}={given[field]!r}" for field in differ)
            told = f"{self.name!r} exists with {has} and keeps it; {asked} has no effect, `configure` changes a topic"
            warn(told, TopicsWarning, stacklevel=2)

    # --- writing --------------------------------------------------------------------------------------------------

    async def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        key: str | None = None,
    ) -> AppendResult:
        """Append one record. When this returns, it is as safe as the topic's class says.

        Without a `key` a call of a server gets one of its own, so that it can be repeated when a connection breaks."""
        return await self._append([Event(data, tag=tag, node=node, meta=meta)], node=None, key=key)

    async def append_many(
        self, records: Iterable[Any], *, node: str | None = None, key: str | None = None
    ) -> AppendResult:
        """Append values or `Event`s as one batch: all of them, with consecutive seqs, or none."""
        return await self._append(list(several(records)), node=node, key=key)

    # --- reading --------------------------------------------------------------------------------------------------

    async def page(
        self,
        after: After = 0,
        *,
        limit: int = limits.DIFF_LIMIT.default,
        max_bytes: int = limits.DIFF_BATCH_BYTES.default,
        exclude_nodes: Iterable[str] = (),
        wait_ms: int = 0,
    ) -> ReadResult:
        """One read: the records behind a position, the next position, and a tombstone if something was lost. With
        `wait_ms` a reader that is caught up waits so long for something to come."""
        request = diff_request(
            after, limit=limit, max_bytes=max_bytes, nodes=node_names(exclude_nodes), wait_ms=wait_ms
        )
        return await self._run(routes.DIFF, request)

    @overload
    def read(
        self,
        after: After = 0,
        *,
        limit: int | None = None,
        exclude_nodes: Iterable[str] = (),
        gaps: Literal["raise"] = "raise",
    ) -> AsyncIterator[Record]: ...
    @overload
    def read(
        self, after: After = 0, *, limit: int | None = None, exclude_nodes: Iterable[str] = (), gaps: Gaps
    ) -> AsyncIterator[Record | Gap]: ...
    def read(
        self, after: After = 0, *, limit: int | None = None, exclude_nodes: Iterable[str] = (), gaps: Gaps = "raise"
    ) -> AsyncIterator[Any]:
        """Everything behind the cursor up to the head of this moment, page by page."""
        return each(self._pages(after, limit=limit, exclude_nodes=exclude_nodes, gaps=gaps))

    async def _pages(
        self, after: After, *, limit: int | None, exclude_nodes: Iterable[str], gaps: Gaps
    ) -> AsyncGenerator[Items, None]:
        """What `read` gives, page by page: whoever drives the coroutines does so once a page, not once a record."""
        nodes, walk = node_names(exclude_nodes), Walk(self.name, after, gaps=gaps, limit=limit)
        while not walk.is_full:
            page = await self.page(walk.position, limit=walk.page_limit(limits.DIFF_LIMIT.high), exclude_nodes=nodes)
            yield walk.take(page)
            if not walk.has_more(page):
                return

    @overload
    def follow(
        self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Literal["raise"] = "raise"
    ) -> AsyncIterator[Record]: ...
    @overload
    def follow(
        self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Gaps
    ) -> AsyncIterator[Record | Gap]: ...
    def follow(
        self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Gaps = "raise"
    ) -> AsyncIterator[Any]:
        """Everything behind the cursor, then whatever comes, across broken connections and restarts of the server.

        Ends when the client is closed; raises TopicNotFound when the topic is deleted."""
        return each(self._following(self._door.follow(self.name, after, nodes=node_names(exclude_nodes), gaps=gaps)))

    async def _following(self, pages: AsyncGenerator[Items, None]) -> AsyncGenerator[Items, None]:
        async with aclosing(pages):
            if self._config is not None:
                await self.state(touch=False)  # creates the topic if need be
            async for items in pages:
                yield items

    # --- the rest -------------------------------------------------------------------------------------------------

    async def delete(self, *, before_seq: int | None = None, match: Match = None) -> DeleteResult:
        """Delete records on request: below a seq, by tag (`"x"`, `"x*"`), or both. Permanent, and no gap to readers."""
        request = checked(DeleteRequest, before_seq=before_seq, match=predicate(match))
        request.selector()
        return await self._run(routes.DELETE, request)

    async def state(self, *, touch: bool = True) -> TopicState:
        """Head, counts and config. With `touch` it counts as a read."""
        return await self._run(routes.STATE, StateQuery(touch=touch))

    async def configure(self, /, **config: Unpack[ConfigFields]) -> TopicConfig:
        """Create the topic, or replace its config as a whole: what is left out goes back to its default."""
        return await self._door.run(routes.CONFIGURE, self.name, config_text(config))

    async def drop(self, *, if_empty: bool = False) -> bool:
        """Delete the topic with everything in it; False if there was none."""
        return await self._door.run(routes.DROP, self.name, DropQuery(if_empty=if_empty))


def queue_config(config: ConfigFields) -> ConfigFields:
    return {"type": "queue", **config}


class QueueVerbs(TopicVerbs):
    """A topic of type `queue`. Its first use creates it as one."""

    async def configure(self, /, **config: Unpack[ConfigFields]) -> TopicConfig:
        """Create the queue, or replace its config as a whole: what is left out goes back to its default."""
        return await super().configure(**queue_config(config))

    async def claim(self, node: str, *, max: int = 1, lease_ms: int | None = None, wait_ms: int = 0) -> ClaimResult:
        """Lease up to `max` jobs to a node; none is an empty list. With `wait_ms` it waits up to so long for one."""
        request = checked(ClaimRequest, node=node, max=max, lease_ms=lease_ms, wait_ms=wait_ms)
        return await self._run(routes.CLAIM, request)

    async def ack(self, jobs: Seqs, *, node: str) -> AckResult:
        """Done: the jobs are deleted."""
        request = checked(AckRequest, node=node, **_seqs_and_leases(jobs))
        return await self._run(routes.ACK, request)

    async def nack(
        self,
        jobs: Seqs,
        *,
        node: str,
        delay_ms: int | None = None,
        error: str | None = None,
        final: bool = False,
    ) -> NackResult:
        """Not done: somebody may claim them again, after this delay or as the queue's `retry` says. `final`: they go to
        the dead letters at once."""
        request = checked(NackRequest, node=node, delay_ms=delay_ms, error=error, final=final, **_seqs_and_leases(jobs))
        return await self._run(routes.NACK, request)

    async def extend(self, jobs: Seqs, *, node: str, lease_ms: int) -> ExtendResult:
        """Hold the jobs until `lease_ms` from now."""
        request = checked(ExtendRequest, node=node, lease_ms=lease_ms, **_seqs_and_leases(jobs))
        return await self._run(routes.EXTEND, request)


class RouterVerbs:
    """A router by name: copies what is written to one topic into another."""

    def __init__(self, door: Door, name: str) -> None:
        self._door = door
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def put(
        self,
        source: str,
        dest: str,
        *,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        filter: Match = None,
        allow_cycle: bool = False,
        guarantee: Guarantee = "at_least_once",
    ) -> RouterState:
        """Copy what is committed to `source` from now on into `dest`. All but the ends of a router may be replaced."""
        request = checked(
            PutRouterRequest,
            source=source,
            dest=dest,
            preserve_node=preserve_node,
            preserve_tag=preserve_tag,
            create_dest=create_dest,
            filter=predicate(filter),
            allow_cycle=allow_cycle,
            guarantee=guarantee,
        )
        return await self._door.run(routes.PUT_ROUTER, self.name, request)

    async def get(self) -> RouterState:
        """Settings and progress."""
        return await self._door.run(routes.GET_ROUTER, self.name, None)

    async def delete(self) -> bool:
        """Forwarding stops; the copies stay. False if there was no such router."""
        return await self._door.run(routes.DELETE_ROUTER, self.name, None)


# --- lists -----------------------------------------------------------------------------------------------------------


async def topic_pages(door: Door, prefix: str) -> AsyncGenerator[list[TopicSummary], None]:
    """All topics whose names begin so, in byte order of their names."""
    cursor: str | None = ""
    while cursor is not None:
        page = await door.run(routes.TOPICS, "", ListQuery(prefix=prefix, cursor=cursor))
        yield page.topics
        cursor = page.next_cursor


async def router_pages(
    door: Door, prefix: str, source: str | None, dest: str | None
) -> AsyncGenerator[list[RouterSummary], None]:
    """All routers whose names begin so, and of these ends if given."""
    cursor: str | None = ""
    while cursor is not None:
        asked = ListQuery(prefix=prefix, source=source, dest=dest, cursor=cursor)
        page = await door.run(routes.ROUTERS, "", asked)
        yield page.routers
        cursor = page.next_cursor


async def each(groups: AsyncGenerator[Iterable[T], None]) -> AsyncIterator[T]:
    """The items of pages, one by one."""
    async for items in groups:
        for item in items:
            yield item


# --- requests --------------------------------------------------------------------------------------------------------


def diff_request(after: After, *, limit: int, max_bytes: int, nodes: tuple[str, ...], wait_ms: int = 0) -> DiffRequest:
    return checked(
        DiffRequest,
        from_seq=checked_position(after).given,
        limit=limit,
        max_batch_bytes=max_bytes,
        node=nodes or None,
        include_tags=True,
        wait_ms=wait_ms,
    )


def _seqs_and_leases(jobs: Seqs) -> dict[str, list[Any]]:
    """Seqs, and the lease ids of those that came as a `Job`: no lease ids at all if none did."""
    if isinstance(jobs, int | Job):
        raise InvalidRequest("ack, nack and extend take a list of jobs or seqs; put a single one into brackets")
    given = list(jobs)
    leases = [job.lease_id if isinstance(job, Job) else "" for job in given]
    return {
        "seqs": [job.seq if isinstance(job, Job) else job for job in given],
        "lease_ids": leases if any(leases) else [],
    }
