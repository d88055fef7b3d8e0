"""Cursor commands: commit, put, drop, show and list named cursors (`docs/spec/readers.md#sec-1`).

A commit is one control frame in the log of its topic. Whether it counts is decided when it is applied
(`core.reading.named_cursors`), and the answer says what stands then. So commits under way together need no lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Literal

import msgspec

from topics.core.apply import apply
from topics.core.lineage import epoch_of, is_foreign
from topics.core.reading.named_cursors import TopicLags
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.floor_log import FloorLog
from topics.engine.reading.queries import names_from
from topics.engine.reading.starts import Starts
from topics.engine.ticket import Ticket, chain, resolved
from topics.errors import CursorFenced, CursorForeign, CursorNotFound, Throttled
from topics.model.cursor import CURSORS_MAX, CursorPut, NamedCursor, PositionCommit, check_cursor_name
from topics.model.ops import CURSOR_COMMIT, CURSOR_DROP, CURSOR_PUT, CursorChange
from topics.model.position import Position, token
from topics.model.results import CursorDropped, CursorLag, CursorState
from topics.model.submission import Submission

ReaderKind = Literal["cursor", "router", "queue"]
READERS_MAX = 1 << 30


class CursorCommands:
    def __init__(self, context: Context, floor_log: FloorLog, starts: Starts) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._starts = starts

    # --- changing -------------------------------------------------------------------------------------------------

    def commit(self, name: str, cursor: str, request: PositionCommit) -> Ticket[CursorState]:
        topic = self._ctx.state.topic(name)
        self._check_new(topic, cursor)
        seq, epoch = request.position
        if is_foreign(topic, seq, epoch):
            raise CursorForeign(name, cursor, position=str(request.position), head_seq=topic.head)
        self._check_fence(topic, cursor, request.fence)
        op = CursorChange(
            topic_id=topic.id,
            name=cursor,
            event=CURSOR_COMMIT,
            ts=self._ctx.clock.now_ms(),
            seq=seq,
            fence=request.fence,
            meta=request.meta,
        )
        return self._log(topic, op, fence=request.fence, durable=request.sync)

    def put(self, name: str, cursor: str, request: CursorPut) -> Ticket[CursorState]:
        topic = self._ctx.state.topic(name)
        self._check_new(topic, cursor)
        if request.from_ts is None:
            return self._put(topic, cursor, request, self._target(topic, cursor, request))
        found = self._starts.seq_before(topic, request.from_ts)
        return chain(found, lambda seq: self._put(topic, cursor, request, seq))

    def _put(self, topic: TopicLog, cursor: str, request: CursorPut, seq: int | None) -> Ticket[CursorState]:
        known = topic.cursors.get(cursor)
        fence = None if request.owner is None else (0 if known is None else known.fence) + 1
        op = CursorChange(
            topic_id=topic.id,
            name=cursor,
            event=CURSOR_PUT,
            ts=self._ctx.clock.now_ms(),
            seq=seq,
            fence=fence,
            owner=request.owner,
            meta=request.meta,
            hold=request.hold,
        )
        return self._log(topic, op, fence=None, durable=True)

    def drop(self, name: str, cursor: str) -> Ticket[CursorDropped]:
        topic = self._ctx.state.topic(name)
        existed = cursor in topic.cursors
        op = CursorChange(topic_id=topic.id, name=cursor, event=CURSOR_DROP, ts=self._ctx.clock.now_ms())
        done = self._ctx.log(topic.id, [op], finish=partial(self._finish, topic, op), client_frames=1)
        return chain(done, lambda _: resolved(CursorDropped(topic=name, cursor=cursor, deleted=existed)))

    def _target(self, topic: TopicLog, cursor: str, request: CursorPut) -> int | None:
        """The seq that a put resets the cursor to; None leaves it where it is."""
        if isinstance(request.to, Position):
            seq, epoch = request.to
            if is_foreign(topic, seq, epoch):
                raise CursorForeign(topic.name, cursor, position=str(request.to), head_seq=topic.head)
            return seq
        if request.to == "end":
            return topic.head
        if request.to == "start" or cursor not in topic.cursors:
            return topic.earliest_seq - 1
        return None

    def _check_new(self, topic: TopicLog, cursor: str) -> None:
        if cursor not in topic.cursors:
            check_cursor_name(cursor)
            if len(topic.cursors) >= CURSORS_MAX:
                raise Throttled.cap("max_cursors", max=CURSORS_MAX)

    def _check_fence(self, topic: TopicLog, cursor: str, fence: int | None) -> None:
        known = topic.cursors.get(cursor) or NamedCursor(name=cursor)
        if (fence or 0) != known.fence:
            raise CursorFenced(topic.name, cursor, owner=known.owner, fence=known.fence)

    def _log(self, topic: TopicLog, op: CursorChange, *, fence: int | None, durable: bool) -> Ticket[CursorState]:
        before = topic.cursors.get(op.name)
        # In the order of the log: a commit that overtook a reset live would undo it in a replay.
        done = self._ctx.log(topic.id, [op], finish=partial(self._finish, topic, op), durable=durable, client_frames=1)

        def answer(_: None) -> Ticket[CursorState]:
            known = topic.cursors.get(op.name)
            if known is None or (op.event == CURSOR_COMMIT and (fence or 0) != known.fence):
                owner, stands = (None, 0) if known is None else (known.owner, known.fence)
                raise CursorFenced(topic.name, op.name, owner=owner, fence=stands)
            moved = before is None or known.seq != before.seq
            return resolved(self._shown_alone(topic, known, moved=moved, created=before is None))

        return chain(done, answer)

    def _finish(self, topic: TopicLog, op: CursorChange, _sub: Submission) -> None:
        effect = apply(self._ctx.state, op)
        if effect.removal is not None:
            self._ctx.removed(topic, effect, flag_after=self._floor_log.log_floors(topic))

    # --- showing --------------------------------------------------------------------------------------------------

    def get(self, name: str, cursor: str) -> CursorState:
        topic = self._ctx.state.topic(name)
        known = topic.cursors.get(cursor)
        if known is None:
            raise CursorNotFound(name, cursor)
        return self._shown_alone(topic, known)

    def page(
        self,
        *,
        prefix: str = "",
        after: tuple[str, str, str] | None = None,
        page_size: int = 100,
        visible: Callable[[str], bool] = lambda _: True,
        router_visible: Callable[[str], bool] = lambda _: True,
    ) -> tuple[list[CursorState], bool]:
        """Readers of all visible topics in order of topic, kind and name, after `after`; and whether there are more."""
        found = islice(self._from(prefix, after, visible, router_visible), page_size + 1)
        shown = list(found)
        return shown[:page_size], len(shown) > page_size

    def of_topic(
        self,
        name: str,
        router_visible: Callable[[str], bool] = lambda _: True,
        *,
        after: tuple[str, str] | None = None,
        size: int = READERS_MAX,
    ) -> list[CursorState]:
        """Readers of a topic, after one of this kind and name."""
        return list(islice(self._readers(self._ctx.state.topic(name), router_visible, after), size))

    def _from(
        self,
        prefix: str,
        after: tuple[str, str, str] | None,
        visible: Callable[[str], bool],
        router_visible: Callable[[str], bool],
    ) -> Iterator[CursorState]:
        state = self._ctx.state
        if after is not None and after[0] in state.topics and visible(after[0]):
            yield from self._readers(state.topics[after[0]], router_visible, after[1:])
        for name in filter(visible, names_from(state, prefix=prefix, after=None if after is None else after[0])):
            yield from self._readers(state.topics[name], router_visible)

    def _readers(
        self, topic: TopicLog, router_visible: Callable[[str], bool], after: tuple[str, str] | None = None
    ) -> Iterator[CursorState]:
        """In order of kind, then name: cursors, the queue, routers. What stands before them costs nothing."""
        cursors = sorted(name for name in topic.cursors if after is None or ("cursor", name) > after)
        routers = sorted(
            (router for router in self._ctx.state.routers.from_source(topic.id) if router_visible(router.name)),
            key=lambda router: router.name,
        )
        if not cursors and not routers and topic.queue is None:
            return
        lags = TopicLags(topic, now=self._ctx.clock.now_ms())
        for name in cursors:
            yield self._shown(topic, topic.cursors[name], lags)
        if topic.queue is not None and (after is None or ("queue", topic.name) > after):
            yield self._reader(topic, topic.name, "queue", topic.earliest_seq - 1, lags)
        for router in routers:
            if after is None or ("router", router.name) > after:
                yield self._reader(topic, router.name, "router", router.cursor, lags)

    def _reader(self, topic: TopicLog, name: str, kind: ReaderKind, seq: int, lags: TopicLags) -> CursorState:
        return CursorState(
            topic=topic.name,
            cursor=name,
            kind=kind,
            seq=seq,
            position=token(seq, epoch_of(topic, seq)),
            lag=CursorLag(*lags.of(seq)),
            updated_ts=None,
        )

    def _shown_alone(self, topic: TopicLog, cursor: NamedCursor, **more: bool) -> CursorState:
        return self._shown(topic, cursor, TopicLags(topic, now=self._ctx.clock.now_ms(), from_seq=cursor.seq), **more)

    def _shown(self, topic: TopicLog, cursor: NamedCursor, lags: TopicLags, **more: bool) -> CursorState:
        seq = min(cursor.seq, topic.head)
        hold = None if cursor.hold is None else dict(zip(("records", "bytes"), cursor.hold, strict=True))
        return CursorState(
            topic=topic.name,
            cursor=cursor.name,
            kind="cursor",
            seq=seq,
            position=token(seq, epoch_of(topic, seq)),
            lag=CursorLag(*lags.of(seq)),
            updated_ts=cursor.updated_ts,
            fence=cursor.fence,
            owner=cursor.owner,
            hold=None if hold is None else {key: value for key, value in hold.items() if value},
            meta=msgspec.UNSET if cursor.meta is None else msgspec.Raw(cursor.meta),
            **more,
        )
