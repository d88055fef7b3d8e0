"""Readers: where a reader begins, which records it wants, and how far it says it has come. Written once, as coroutines.

`Reading` is one reader's wish in one topic; `following` serves wishes in several topics at once over a door and, for
readers with a named cursor, commits what they have processed. `CursorVerbs` is a named cursor by itself
(`docs/spec/readers.md#sec-1`).

A record counts as processed when its reader asks for the next one: the loop's body is over then. So a reader that ends
in the middle of a record, in whatever way, gets this record again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from topics import limits
from topics.client import routes
from topics.errors import CursorNotFound, InvalidRequest
from topics.model.names import TagMatch
from topics.model.paging import After, Gap, Gaps, Walk, node_names
from topics.model.position import START, Position, checked_position, parse_token
from topics.model.results import CursorState, Record
from topics.model.values import json_text
from topics.wire.incoming.cursor_requests import CommitRequest, PutCursorRequest
from topics.wire.incoming.requests import DiffRequest, Predicate, checked, predicate, tag_match

if TYPE_CHECKING:
    from topics.client.verbs import Door

CommitEvery = Literal["batch", "record"]
COMMIT_S = 1.0
"""Within a batch that takes long, commits are so far apart at most."""


class ReadFields(TypedDict, total=False):
    """What a read may be told beside its position (`docs/spec/readers.md#sec-2`)."""

    from_ts: int | datetime | None
    """Begin with the first record of this time or later, in ms since 1970 or as a datetime with a zone."""
    cursor: str | None
    """Begin behind a named cursor."""
    tag: str | list[str] | TagMatch | None
    """Only records with this tag; `"x*"` is every tag with this prefix."""
    exclude_nodes: Iterable[str]


class FollowFields(ReadFields, total=False):
    """What `follow` may be told beside that. With `cursor` it begins behind this named cursor, at `after` or `from_ts`
    if there is none yet, and commits what was processed."""

    commit: CommitEvery
    """`batch`: when a page or frame is processed, and within one about every second. `record`: after each record."""
    owner: str | None
    """Take the cursor over under this name first: whoever had it gets `CursorFenced` at its next commit."""


class Reading(NamedTuple):
    """One reader's wish in one topic."""

    after: Position = START
    from_ts: int | None = None
    cursor: str | None = None
    tag: Predicate = None
    nodes: tuple[str, ...] = ()

    def at(self, position: Position) -> Reading:
        """The same, from a position on."""
        return self._replace(after=position, from_ts=None, cursor=None)

    def walk(self, topic: str, *, gaps: Gaps, limit: int | None = None) -> Walk:
        walk = Walk(topic, self.after, gaps=gaps, limit=limit)
        if self.from_ts is not None or self.cursor is not None:
            walk.arrive()  # it has a place in the log: what is gone from there is lost to it
        return walk

    def request(self, *, limit: int, max_bytes: int = limits.DIFF_BATCH_BYTES.default, wait_ms: int = 0) -> DiffRequest:
        return checked(
            DiffRequest,
            from_seq=self.after.given,
            limit=limit,
            max_batch_bytes=max_bytes,
            node=self.nodes or None,
            include_tags=True,
            wait_ms=wait_ms,
            from_ts=self.from_ts,
            cursor=self.cursor,
            tag=self.tag,
        )


def reading(after: After, fields: ReadFields | FollowFields) -> Reading:
    """The wish behind the arguments of a read; raises InvalidRequest."""
    tag = predicate(fields.get("tag"))
    tag_match(tag)
    return Reading(
        after=checked_position(after),
        from_ts=from_ts_ms(fields.get("from_ts")),
        cursor=fields.get("cursor"),
        tag=tag,
        nodes=node_names(fields.get("exclude_nodes", ())),
    )


def from_ts_ms(when: int | datetime | None) -> int | None:
    """A time to begin at, as the server takes it."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidRequest("from_ts is a datetime without a zone; give it one, or milliseconds since 1970")
        return int(when.timestamp() * 1000)
    if when is not None and not isinstance(when, int):
        raise InvalidRequest(f"from_ts is a datetime, or whole milliseconds since 1970, not {when!r}")
    return when


# --- following -------------------------------------------------------------------------------------------------------


class Stretch(NamedTuple):
    """What one page or one frame of a stream brings to a reader, and where it stands behind that."""

    topic: str
    items: Iterable[Record | Gap]
    end: Position


Stretches = AsyncGenerator[Stretch, None]
Follow = Callable[..., Stretches]
"""`Door.follow`, or what a door has beside it: takes readings by topic, and `gaps`."""


def follow_fields(fields: FollowFields) -> tuple[CommitEvery, str | None]:
    commit, owner = fields.get("commit", "batch"), fields.get("owner")
    if commit not in ("batch", "record"):
        raise InvalidRequest(f'commit is "batch" or "record", not {commit!r}')
    if owner is not None and fields.get("cursor") is None:
        raise InvalidRequest("an owner takes over a cursor; name the cursor")
    return commit, owner


async def following(
    door: Door, readings: Mapping[str, Reading], *, gaps: Gaps, fields: FollowFields, follow: Follow
) -> Stretches:
    """What comes in these topics. A reader with a cursor has committed what came before by the time it gets more."""
    commit, owner = follow_fields(fields)
    cursors: dict[str, _Committer] = {}
    begun: dict[str, Reading] = {}
    for topic, wanted in readings.items():
        begin = wanted
        if wanted.cursor is not None:
            cursor = CursorVerbs(door, topic, wanted.cursor)
            begin, fence = await _resumed(cursor, wanted, owner)
            cursors[topic] = _Committer(cursor, fence, each=commit == "record")
        begun[topic] = begin
    async with aclosing(_from_times(door, begun, gaps=gaps, follow=follow)) as stretches:
        async for stretch in stretches:
            if stretch.topic not in cursors:
                yield stretch
                continue
            portions = cursors[stretch.topic].portions(stretch)
            async with aclosing(portions):
                async for portion in portions:
                    yield portion


async def _resumed(cursor: CursorVerbs, wanted: Reading, owner: str | None) -> tuple[Reading, int | None]:
    """Where a reader with a cursor begins, and the fence it commits under."""
    try:
        state = await cursor.get()
    except CursorNotFound:
        begin = wanted._replace(cursor=None)
    else:
        begin = wanted.at(parse_token(state.position))
    if owner is None:
        return begin, None
    taken = await cursor.take_over(owner)
    return begin, taken.fence


async def _from_times(door: Door, readings: Mapping[str, Reading], *, gaps: Gaps, follow: Follow) -> Stretches:
    """A reader that begins at a time reads one page from there; what comes behind it is followed by position."""
    begun = dict(readings)
    for topic, wanted in readings.items():
        if wanted.from_ts is not None:
            page = await door.run(routes.DIFF, topic, wanted.request(limit=limits.DIFF_LIMIT.high))
            walk = wanted.walk(topic, gaps=gaps)
            items = list(walk.take(page))
            yield Stretch(topic, items, walk.position)
            begun[topic] = wanted.at(walk.position)
    async with aclosing(follow(begun, gaps=gaps)) as stretches:
        async for stretch in stretches:
            yield stretch


class _Committer:
    """Commits what a reader has processed."""

    def __init__(self, cursor: CursorVerbs, fence: int | None, *, each: bool) -> None:
        self._cursor = cursor
        self._fence = fence
        self._interval_s = 0.0 if each else COMMIT_S
        self._last_s = time.monotonic()
        self._committed = START

    async def portions(self, stretch: Stretch) -> Stretches:
        """The items of a stretch in portions. Whoever asks for the next portion has processed the one before."""
        rest = iter(stretch.items)
        while True:
            portion = _Portion(rest, lambda: time.monotonic() - self._last_s >= self._interval_s)
            yield stretch._replace(items=portion)
            if portion.is_last:
                break
            assert portion.seen is not None
            await self._commit(checked_position(portion.seen))
        await self._commit(stretch.end)

    async def _commit(self, position: Position) -> None:
        if position != self._committed:
            await self._cursor.commit(position, fence=self._fence)
            self._committed = position
        self._last_s = time.monotonic()


class _Portion:
    """Items up to the next commit. `seen` is the last that was handed out; all of them are processed when the iteration
    ends."""

    def __init__(self, items: Iterator[Record | Gap], is_due: Callable[[], bool]) -> None:
        self._items = items
        self._is_due = is_due
        self.seen: Record | Gap | None = None
        self.is_last = False

    def __iter__(self) -> Iterator[Record | Gap]:
        for item in self._items:
            self.seen = item
            yield item
            if self._is_due():
                return
        self.is_last = True


# --- one named cursor ------------------------------------------------------------------------------------------------


class CursorVerbs:
    """A named cursor of a topic: a durable position under a name. Cheap and stateless; the first commit or reset
    creates the cursor."""

    def __init__(self, door: Door, topic: str, name: str) -> None:
        self._door = door
        self.topic = topic
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, {self.name!r})"

    async def get(self) -> CursorState:
        """Where it stands, whose it is, and its lag in records, bytes and milliseconds. Raises CursorNotFound."""
        return await self._door.run(routes.GET_CURSOR, self.topic, None, self.name)

    async def commit(
        self, position: After, *, fence: int | None = None, meta: Any = None, sync: bool = False
    ) -> CursorState:
        """Everything up to here is done. It only moves forward: what lies behind the cursor changes nothing.

        `position` is a record, a position or a seq. `fence` is that of `take_over`; without one, a cursor that has an
        owner raises CursorFenced. With `sync` it is on disk when this returns; otherwise a power cut may set
        it back."""
        request = checked(
            CommitRequest, position=checked_position(position).given, fence=fence, sync=sync, **_meta(meta)
        )
        return await self._door.run(routes.COMMIT_CURSOR, self.topic, request, self.name)

    async def reset(
        self,
        to: After | Literal["start", "end"] | None = None,
        *,
        from_ts: int | datetime | None = None,
        meta: Any = None,
    ) -> CursorState:
        """Set it anywhere: `"start"`, `"end"`, behind a position, or before the first record of a time or later."""
        if (to is None) == (from_ts is None):
            raise InvalidRequest("a cursor is reset to a position or to a time: give `to` or `from_ts`")
        return await self._put(to=_target(to, from_ts_ms(from_ts)), **_meta(meta))

    async def take_over(self, owner: str, *, meta: Any = None) -> CursorState:
        """Make it the owner's alone: commits need the `fence` of this answer from now on. A cursor that does not exist
        is created at the start."""
        return await self._put(owner=owner, **_meta(meta))

    async def hold(self, *, records: int | None = None, bytes: int | None = None) -> CursorState:
        """Keep records behind it from cap and TTL while the topic has at most so many; without a bound, no longer."""
        bounds = {name: bound for name, bound in (("records", records), ("bytes", bytes)) if bound is not None}
        return await self._put(hold=bounds or None)

    async def delete(self) -> bool:
        """Forget it; False if there was none."""
        return (await self._door.run(routes.DELETE_CURSOR, self.topic, None, self.name)).deleted

    async def _put(self, **fields: Any) -> CursorState:
        return await self._door.run(routes.PUT_CURSOR, self.topic, checked(PutCursorRequest, **fields), self.name)


def _target(to: After | Literal["start", "end"] | None, from_ts: int | None) -> Any:
    if from_ts is not None:
        return {"ts": from_ts}
    if to in ("start", "end"):
        return to
    given = checked_position(to).given
    return given if isinstance(given, str) else {"seq": given}


def _meta(meta: Any) -> dict[str, Any]:
    return {} if meta is None else {"meta": json_text(meta)}


async def cursor_pages(door: Door, prefix: str) -> AsyncGenerator[list[CursorState], None]:
    """Every reader of the topics whose names begin so: named cursors, routers and queues."""
    cursor: str | None = ""
    while cursor is not None:
        page = await door.run(routes.CURSORS, "", routes.ListQuery(prefix=prefix, cursor=cursor))
        yield page.cursors
        cursor = page.next_cursor


def several_readings(topics: Iterable[str] | Mapping[str, After], fields: FollowFields) -> dict[str, Reading]:
    """Wishes by topic, of names or of names with positions."""
    if isinstance(topics, str):
        raise InvalidRequest("follow takes a list of topics; put a single one into brackets")
    starts = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 0)
    if not starts:
        raise InvalidRequest("follow needs at least one topic")
    return {name: reading(after, fields) for name, after in starts.items()}


async def several_followed(
    door: Door, topics: Iterable[str] | Mapping[str, After], *, gaps: Gaps, fields: FollowFields
) -> AsyncGenerator[Iterable[tuple[str, Any]], None]:
    """What comes in several topics, each item with the name of its topic."""
    readings = several_readings(topics, fields)
    stretches = following(door, readings, gaps=gaps, fields=fields, follow=door.follow)
    async with aclosing(stretches):
        async for topic, items, _ in stretches:
            yield ((topic, item) for item in items)


async def items_of(stretches: Stretches) -> AsyncGenerator[Iterable[Record | Gap], None]:
    async with aclosing(stretches):
        async for stretch in stretches:
            yield stretch.items
