"""Verbs: what a topic and a router can be asked, written once, as coroutines; `queue_verbs` has those of a queue.

A verb checks its arguments and gives a request to its door, which carries it out: a server (`http_door`) or the engine
in this process (`embedded.engine_door`). The asyncio client hands these coroutines to its users; the blocking client
and the embedded library run them over doors that never suspend (`blocking`). Handles are cheap and hold no state;
nothing is created by making one. One suite of tests runs over all doors.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, Protocol, TypeVar, Unpack, overload
from warnings import warn

import msgspec

from topics import limits
from topics.client import routes
from topics.client.readers import (
    CursorVerbs,
    Follow,
    FollowFields,
    ReadFields,
    Reading,
    Stretches,
    following,
    items_of,
    reading,
)
from topics.client.routes import Condition, DropQuery, LatestQuery, ListQuery, Route, StateQuery
from topics.client.tables import TableVerbs
from topics.errors import Forbidden, InvalidRequest, RecordNotFound, TopicNotFound, TopicsWarning
from topics.model.config import ConfigFields, ConfigPatch, TopicConfig, patch_from, resolve_config
from topics.model.names import TagMatch
from topics.model.paging import After, Gap, Gaps
from topics.model.position import checked_position
from topics.model.results import (
    AppendResult,
    CursorState,
    DeleteResult,
    LatestResult,
    ReadResult,
    Record,
    TopicState,
    TopicSummary,
)
from topics.model.router import Guarantee, RouterState, RouterSummary
from topics.model.values import Event, several
from topics.wire.incoming.requests import (
    DeleteRequest,
    PutRouterRequest,
    checked,
    predicate,
    tag_match,
)

Q = TypeVar("Q")
T = TypeVar("T")

COMPARED_MAX = 10_000  # topics whose config a client remembers to have looked at

Match = str | list[str] | TagMatch | None
Items = Iterable[Record | Gap]
"""What one page or one frame of a stream brings to a reader."""
TagSeqs = Mapping[str, int]


class Door(Protocol):
    """Where the verbs of a handle are carried out."""

    compared: set[tuple[str, bytes]]
    """Topics and the config that handles were given for them, once it was held against what the topic has."""

    async def run(self, route: Route[Q, T], name: str, request: Q, part: str = "") -> T:
        """Carry out a request on the topic or router of that name, or on a part of it, such as a cursor."""

    async def append(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        node: str | None,
        key: str | None,
        config: bytes | None,
        condition: Condition | None,
    ) -> AppendResult:
        """Append values or `Event`s as one batch."""

    def follow(self, readings: Mapping[str, Reading], *, gaps: Gaps) -> Stretches:
        """Everything behind these positions, by topic, then whatever comes. All want the same nodes and tags."""


def config_text(config: ConfigFields) -> bytes:
    """Checked as the server will; only what was given is sent, what is left out takes its default there."""
    patch = patch_from(config)
    given = {name: getattr(patch, name) for name in ConfigPatch.__struct_fields__ if name in config}
    return msgspec.json.encode(given)


class TopicVerbs(TableVerbs):
    """A topic by name: cheap and stateless. The first write creates the topic.

    With config, any verb creates a topic that does not exist, with this config. A topic that has another one keeps it,
    and a `TopicsWarning` says so."""

    def __init__(
        self, door: Door, name: str, config: bytes | None = None, *, given: Iterable[str] | None = None
    ) -> None:
        """`config` is what the topic is created with. Those of its fields that were `given` are held against what an
        existing topic has; None: all of them."""
        self._door = door
        self._config = config
        self._given = None if given is None else frozenset(given)
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

    async def _append(
        self, values: Sequence[Any], *, node: str | None, key: str | None, condition: Condition | None = None
    ) -> AppendResult:
        done = await self._door.append(self.name, values, node=node, key=key, config=self._config, condition=condition)
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
        compared = given if self._given is None else [field for field in given if field in self._given]
        differ = [field for field in compared if getattr(state.config, field) != getattr(wanted, field)]
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
        if_head: After | None = None,
        if_tag_seq: int | TagSeqs | None = None,
    ) -> AppendResult:
        """Append one record. When this returns, it is as safe as the topic's class says.

        Without a `key` a call of a server gets one of its own, so that it can be repeated when a connection breaks.
        With `if_head` or `if_tag_seq` it is appended only if the topic's head, or the newest record of a tag, is this
        one, and raises VersionConflict otherwise; 0 is none. A number as `if_tag_seq` is of the record's own tag."""
        condition = condition_of(if_head, if_tag_seq, tag)
        return await self._append([Event(data, tag=tag, node=node, meta=meta)], node=None, key=key, condition=condition)

    async def append_many(
        self,
        records: Iterable[Any],
        *,
        node: str | None = None,
        key: str | None = None,
        if_head: After | None = None,
        if_tag_seq: TagSeqs | None = None,
    ) -> AppendResult:
        """Append values or `Event`s as one batch: all of them, with consecutive seqs, or none. `if_head` and
        `if_tag_seq` as in `append`; the tags of the batch may be several."""
        condition = condition_of(if_head, if_tag_seq)
        return await self._append(list(several(records)), node=node, key=key, condition=condition)

    # --- reading --------------------------------------------------------------------------------------------------

    async def page(
        self,
        after: After = 0,
        *,
        limit: int = limits.DIFF_LIMIT.default,
        max_bytes: int = limits.DIFF_BATCH_BYTES.default,
        wait_ms: int = 0,
        **fields: Unpack[ReadFields],
    ) -> ReadResult:
        """One read: the records behind a position, the next position, and a tombstone if something was lost. With
        `wait_ms` a reader that is caught up waits so long for something to come. The other arguments are those of
        `read`."""
        request = reading(after, fields).request(limit=limit, max_bytes=max_bytes, wait_ms=wait_ms)
        return await self._run(routes.DIFF, request)

    @overload
    def read(
        self,
        after: After = 0,
        *,
        limit: int | None = None,
        gaps: Literal["raise"] = "raise",
        **fields: Unpack[ReadFields],
    ) -> AsyncIterator[Record]: ...
    @overload
    def read(
        self, after: After = 0, *, limit: int | None = None, gaps: Gaps, **fields: Unpack[ReadFields]
    ) -> AsyncIterator[Record | Gap]: ...
    def read(
        self, after: After = 0, *, limit: int | None = None, gaps: Gaps = "raise", **fields: Unpack[ReadFields]
    ) -> AsyncIterator[Any]:
        """Everything behind the position up to the head of this moment, page by page.

        Instead of `after`, `from_ts` begins at a time and `cursor` behind a named cursor, which stays where it is.
        `tag` keeps records of one tag or, with a final `*`, of a prefix; `exclude_nodes` leaves out records of these
        nodes."""
        return each(self._pages(reading(after, fields), limit=limit, gaps=gaps))

    async def _pages(self, wanted: Reading, *, limit: int | None, gaps: Gaps) -> AsyncGenerator[Items, None]:
        """What `read` gives, page by page: whoever drives the coroutines does so once a page, not once a record."""
        walk = wanted.walk(self.name, gaps=gaps, limit=limit)
        while not walk.is_full:
            page = await self._run(routes.DIFF, wanted.request(limit=walk.page_limit(limits.DIFF_LIMIT.high)))
            yield walk.take(page)
            if not walk.has_more(page):
                return
            wanted = wanted.at(walk.position)

    def latest(self, tag: str = "") -> AsyncIterator[Record]:
        """The newest record of each tag that begins so, in the byte order of tags, page by page. A tag whose newest
        record has `null` for data is left out."""
        return each(self._latest(tag))

    async def _latest(self, tag: str) -> AsyncGenerator[Sequence[Record], None]:
        after: str | None = None
        while True:
            page = await self.latest_page(tag, after=after)
            yield page.records
            if page.next is None:
                return
            after = page.next

    async def latest_page(
        self, tag: str = "", *, after: str | None = None, limit: int = limits.DIFF_LIMIT.high
    ) -> LatestResult:
        """One page of `latest`, exact for its `position`: whoever follows from the position of the first page sees
        every change since."""
        return await self._run(routes.LATEST, LatestQuery(tag=tag, after=after, limit=limit))

    @overload
    def follow(
        self, after: After = 0, *, gaps: Literal["raise"] = "raise", **fields: Unpack[FollowFields]
    ) -> AsyncIterator[Record]: ...
    @overload
    def follow(
        self, after: After = 0, *, gaps: Gaps, **fields: Unpack[FollowFields]
    ) -> AsyncIterator[Record | Gap]: ...
    def follow(self, after: After = 0, *, gaps: Gaps = "raise", **fields: Unpack[FollowFields]) -> AsyncIterator[Any]:
        """Everything behind the position, then whatever comes, across broken connections and restarts of the server.

        `from_ts`, `tag` and `exclude_nodes` are those of `read`. With `cursor` it goes on behind this named cursor and
        commits there what was processed: a record is when the loop asks for the next one, and the commit follows when
        a page or frame is processed, within one about every second, or with `commit="record"` each time. A cursor that
        does not exist begins at `after` or `from_ts`. `owner` takes the cursor over first.

        Ends when the client is closed; raises TopicNotFound when the topic is deleted."""
        return each(self._following(after, gaps=gaps, fields=fields, follow=self._door.follow))

    def _following(
        self, after: After, *, gaps: Gaps, fields: FollowFields, follow: Follow
    ) -> AsyncGenerator[Items, None]:
        wanted = reading(after, fields)
        stretches = following(self._door, {self.name: wanted}, gaps=gaps, fields=fields, follow=follow)
        return items_of(self._created_first(stretches))

    async def _created_first(self, stretches: Stretches) -> Stretches:
        async with aclosing(stretches):
            if self._config is not None:
                await self.state(touch=False)  # creates the topic if need be
            async for stretch in stretches:
                yield stretch

    async def get(self, position: After) -> Record:
        """One record, by its seq or position. Raises RecordNotFound, which says whether it was deleted or lost, or does
        not exist yet."""
        return await self._door.run(routes.GET_RECORD, self.name, None, str(checked_position(position)))

    async def newest(self, *, tag: str | None = None) -> Record | None:
        """The newest record, of all or of one tag; a final `*` is every tag with this prefix. None if there is none."""
        tag_match(tag)
        try:
            return await self._run(routes.NEWEST_RECORD, routes.NewestQuery(tag=tag))
        except RecordNotFound:
            return None

    # --- named cursors --------------------------------------------------------------------------------------------

    def cursor(self, name: str) -> CursorVerbs:
        """A handle to a named cursor of this topic; its first commit or reset creates it."""
        return CursorVerbs(self._door, self.name, name)

    async def cursors(self) -> list[CursorState]:
        """Every reader of this topic with its lag: named cursors, the queue, routers."""
        return (await self._run(routes.TOPIC_CURSORS, None)).cursors

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


def condition_of(if_head: After | None, if_tag_seq: int | TagSeqs | None, tag: str | None = None) -> Condition | None:
    """What a write expects, checked as a server does; None if it expects nothing. A number is of the tag."""
    if if_head is None and if_tag_seq is None:
        return None
    if isinstance(if_tag_seq, int):
        if tag is None:
            raise InvalidRequest("if_tag_seq is a number, and the record has no tag; give a tag, or {tag: seq}")
        if_tag_seq = {tag: if_tag_seq}
    head = None if if_head is None else checked_position(if_head).given
    return checked(Condition, if_head=head, if_tag_seq=None if if_tag_seq is None else dict(if_tag_seq))
