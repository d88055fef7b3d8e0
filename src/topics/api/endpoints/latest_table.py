"""The table of a topic: the newest record of each tag (`docs/spec/readers.md#sec-7`)."""

from __future__ import annotations

from functools import partial

from topics import limits
from topics.api.app import RequestCall
from topics.api.live.batches import OffLoop
from topics.engine.engine import Engine
from topics.engine.reading.latest import LatestPage, LatestRequest
from topics.errors import InvalidRequest
from topics.wire.incoming.request_head import unsigned
from topics.wire.incoming.requests import tag_prefix
from topics.wire.outgoing.records import View, render_runs
from topics.wire.outgoing.replies import latest_reply, performance

VIEW = View(data=True, tags=True, meta=True)


class TableEndpoints:
    def __init__(self, engine: Engine, *, off_loop: OffLoop) -> None:
        self._engine = engine
        self._off_loop = off_loop

    def latest(self, call: RequestCall) -> None:
        query = call.query()
        given, after = query.get("limit"), query.get("after")
        if given and unsigned(given) is None:
            raise InvalidRequest(f"limit must be a number, not {given!r}")
        request = LatestRequest(
            prefix=tag_prefix(query.get("tag", "")),
            after=None if after is None else after.encode(),
            limit=limits.DIFF_LIMIT(unsigned(given)),
            budget_bytes=limits.DIFF_BATCH_BYTES.default,
        )
        topic = self._engine.state.topic(call.name)
        expected = min(request.limit * (topic.bytes // topic.count), request.budget_bytes) if topic.count else 0
        read = partial(self._read, call, request)
        if expected <= limits.RENDER_INLINE_BYTES_MAX:
            call.when_budget(read)
        else:
            call.when_budget(read, size_bytes=expected)

    def _read(self, call: RequestCall, request: LatestRequest) -> None:
        call.when(self._engine.latest.page(call.name, request), partial(self._answer, call))

    def _answer(self, call: RequestCall, page: LatestPage) -> None:
        if page.size_bytes > limits.RENDER_INLINE_BYTES_MAX:
            call.responder.expect(page.size_bytes)
            self._off_loop(partial(_body, call, page), call.rendered)
        else:
            call.reply(200, _body(call, page))


def _body(call: RequestCall, page: LatestPage) -> bytes:
    return latest_reply(
        call.name,
        render_runs(page.runs, VIEW),
        next_tag=page.next,
        head_seq=page.head_seq,
        epoch=page.epoch,
        performance=performance(call.elapsed_ms()),
    )
