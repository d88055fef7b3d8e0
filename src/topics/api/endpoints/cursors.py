"""Endpoints of named cursors (`docs/spec/readers.md#sec-1-7`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from topics import limits
from topics.api.app import RequestCall
from topics.engine.engine import Engine
from topics.engine.ticket import Ticket
from topics.errors import BatchTooLarge, InvalidRequest, TopicsError
from topics.model.results import CommitResult, CommitResults, CursorPage, CursorState
from topics.wire.access.auth import check_scope, permits_router, seen_by
from topics.wire.access.keys import ADMIN
from topics.wire.incoming.cursor_requests import (
    CommitItem,
    decode_commit,
    decode_commits,
    decode_put_cursor,
)
from topics.wire.incoming.request_head import int_param
from topics.wire.page_tokens import decode_cursor, encode_cursor

READERS_A_TURN = 500
COMMITS_MAX = 1000
"""Of one call."""
_BETWEEN = "\0"  # of the parts of a page token; in no name


class CursorEndpoints:
    def __init__(self, engine: Engine, *, soon: Callable[[Callable[[], None]], None]) -> None:
        self._engine = engine
        self._soon = soon
        self._cursors = engine.cursors

    # --- one cursor -----------------------------------------------------------------------------------------------

    def commit_cursor(self, call: RequestCall) -> None:
        commit = call.take(decode_commit).commit()
        name, cursor = call.name, call.part
        ticket = self._engine.admit(name, lambda: self._cursors.commit(name, cursor, commit))
        call.when(ticket, partial(self._changed, call))

    def put_cursor(self, call: RequestCall) -> None:
        request = call.take(decode_put_cursor)
        if request.hold is not msgspec.UNSET:
            check_scope(call.key, ADMIN)
        put = request.put()
        name, cursor = call.name, call.part
        ticket = self._engine.admit(name, lambda: self._cursors.put(name, cursor, put))
        call.when(ticket, partial(self._changed, call))

    @staticmethod
    def _changed(call: RequestCall, state: CursorState) -> None:
        call.answer(state, status=201 if state.created is True else 200)

    def get_cursor(self, call: RequestCall) -> None:
        call.answer(self._cursors.get(call.name, call.part))

    def delete_cursor(self, call: RequestCall) -> None:
        name, cursor = call.name, call.part
        call.when(self._engine.admit(name, lambda: self._cursors.drop(name, cursor)), call.answer)

    # --- many -----------------------------------------------------------------------------------------------------

    def topic_cursors(self, call: RequestCall) -> None:
        self._collect(call, [])

    def _collect(self, call: RequestCall, found: list[CursorState]) -> None:
        """In several turns: a topic may have thousands."""
        after = (found[-1].kind, found[-1].cursor) if found else None
        seen = partial(self._router_seen, call)
        step = self._cursors.of_topic(call.name, seen, after=after, size=READERS_A_TURN)
        found += step
        if len(step) < READERS_A_TURN:
            call.answer(CursorPage(cursors=found, next_cursor=None))
        else:
            next_turn: Ticket[None] = Ticket()
            self._soon(lambda: next_turn.resolve(None))
            call.when(next_turn, lambda _: self._collect(call, found))

    def list_cursors(self, call: RequestCall) -> None:
        query = call.query()
        after = decode_cursor(query.get("cursor"))
        parts = None if after is None else tuple(after.split(_BETWEEN))
        if parts is not None and len(parts) != 3:
            raise InvalidRequest("the cursor is not one of ours")
        found, more = self._cursors.page(
            prefix=query.get("prefix", ""),
            after=parts,
            page_size=int_param(query, "page_size", clamp=limits.PAGE_SIZE),
            visible=lambda name: call.key is None or call.key.permits_name(name),
            router_visible=partial(self._router_seen, call),
        )
        last = found[-1] if more else None
        token = None if last is None else encode_cursor(_BETWEEN.join((last.topic, last.kind, last.cursor)))
        call.answer(CursorPage(cursors=found, next_cursor=token))

    def _router_seen(self, call: RequestCall, name: str) -> bool:
        router = self._engine.state.routers.get(name)
        return router is not None and permits_router(call.key, router.definition)

    def commit_cursors(self, call: RequestCall) -> None:
        """Each for itself: one that is refused costs the others nothing."""
        commits = call.take(decode_commits).commits
        if not commits:
            raise InvalidRequest("commits is empty")
        if len(commits) > COMMITS_MAX:
            raise BatchTooLarge(f"a call has at most {COMMITS_MAX} commits")
        results: list[CommitResult | None] = [None] * len(commits)
        open_commits = len(commits)

        def done(at: int, ticket: Ticket[CursorState]) -> None:
            nonlocal open_commits
            results[at] = _result(call, commits[at], ticket)
            open_commits -= 1
            if not open_commits:
                call.answer(CommitResults([result for result in results if result is not None]))

        for at, item in enumerate(commits):
            self._begin(item).then(partial(done, at))

    def _begin(self, item: CommitItem) -> Ticket[CursorState]:
        commit = item.commit()
        try:
            return self._engine.admit(item.topic, lambda: self._cursors.commit(item.topic, item.cursor, commit))
        except TopicsError as error:
            refused: Ticket[CursorState] = Ticket()
            refused.fail(error)
            return refused


def _result(call: RequestCall, item: CommitItem, done: Ticket[CursorState]) -> CommitResult:
    if done.error is None:
        assert done.value is not None
        return CommitResult(topic=item.topic, cursor=item.cursor, seq=done.value.seq, moved=done.value.moved is True)
    if not isinstance(done.error, TopicsError):
        raise done.error
    told = seen_by(call.key, done.error).envelope()["error"]
    return CommitResult(topic=item.topic, cursor=item.cursor, error=told)
