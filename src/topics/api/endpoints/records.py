"""Record endpoints: write, diff with long poll, delete (`docs/spec/http-api.md#sec-13` and
`docs/spec/http-api.md#sec-15`)."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from topics import limits
from topics.api.app import RequestCall
from topics.api.live.batches import OffLoop
from topics.core.reading.walk import ReadRequest
from topics.engine.engine import Engine
from topics.engine.reading.long_polls import LongPolls
from topics.engine.reading.reads import ReadDone
from topics.engine.reading.starts import ReadStart
from topics.engine.ticket import Ticket, forward
from topics.engine.writing.quota import QuotaTicket
from topics.errors import Forbidden, TopicNotFound
from topics.model.config import ConfigPatch, TopicConfig, resolve_config
from topics.model.position import position_of
from topics.model.results import Appended
from topics.wire.access.auth import check_config_on_write, may_configure
from topics.wire.incoming.request_head import bool_param
from topics.wire.incoming.requests import (
    DiffRequest,
    WriteRequest,
    decode_delete,
    decode_diff,
    decode_write,
    node_set,
    tag_match,
)
from topics.wire.outgoing.records import View
from topics.wire.outgoing.render_cache import RenderCache
from topics.wire.outgoing.replies import (
    append_performance,
    append_reply,
    diff_performance,
    diff_reply,
)


class _Written:
    """Answers one write when its ticket is done. An object and not a closure in a closure: there is one per write."""

    __slots__ = ("_call",)

    def __init__(self, call: RequestCall) -> None:
        self._call = call

    def __call__(self, ticket: Ticket[Appended]) -> None:
        call = self._call
        if ticket.error is not None:
            call.fail(ticket.error)
            return
        try:
            done: Appended = ticket.value  # type: ignore[assignment]
            return_seqs = not call.request.query or bool_param(call.query(), "return_seqs", default=True)
            spent = append_performance(call.elapsed_ms(), done, throttle_wait_ms=ticket.wait_ms)
            body = append_reply(call.name, done, return_seqs=return_seqs, performance=spent)
        except Exception as error:
            call.fail(error)
        else:
            call.reply(201 if done.created else 200, body)


def _forbidden_if_absent(ticket: Ticket[Appended], topic: str) -> Ticket[Appended]:
    """The topic went while the write waited, and whoever sent it may not create it with the config it brings."""
    target: Ticket[Appended] = Ticket()

    def pass_on(done: Ticket[Appended]) -> None:
        if isinstance(done.error, TopicNotFound):
            target.fail(Forbidden.for_topic(topic))
        else:
            forward(done, target)

    ticket.then(pass_on)
    return target


class RecordEndpoints:
    def __init__(self, engine: Engine, long_polls: LongPolls, cache: RenderCache, *, off_loop: OffLoop) -> None:
        self._engine = engine
        self._long_polls = long_polls
        self._off_loop = off_loop
        self._cache = cache

    # --- write ----------------------------------------------------------------------------------------------------

    def write(self, call: RequestCall) -> None:
        request: WriteRequest = call.take(decode_write)
        config = None if request.config is None else self._inline_config(call, request.config)
        is_bound = config is not None and not may_configure(call.key)
        header_key = call.request.headers.get(b"idempotency-key")
        batch = request.batch(None if header_key is None else header_key.decode("utf-8", "surrogateescape"))
        if batch.key is not None and self._is_busy(call.name, batch.key):
            call.responder.keep_order()
        ticket = self._engine.write(
            call.name,
            batch,
            create=False if is_bound else request.create,  # a topic that is there may be on its way out
            config=config,
            may_refuse=not request.disable_backpressure,
        )
        if isinstance(ticket, QuotaTicket) and not ticket.done:
            call.responder.keep_order()
        if is_bound:
            ticket = _forbidden_if_absent(ticket, call.name)
        ticket.then(_Written(call))

    def _inline_config(self, call: RequestCall, patch: ConfigPatch) -> TopicConfig:
        if call.name not in self._engine.state.topics:
            check_config_on_write(call.key, call.name)
        return resolve_config(patch)

    def _is_busy(self, name: str, key: bytes) -> bool:
        """Is another write with this key being committed? This one appends later then, if that one fails."""
        topic = self._engine.state.topics.get(name)
        return topic is not None and key in topic.idem.staged

    # --- diff -----------------------------------------------------------------------------------------------------

    def diff(self, call: RequestCall) -> None:
        self._diff(call, call.take(decode_diff))

    def _diff(self, call: RequestCall, request: DiffRequest) -> None:
        start = position_of(request.from_seq)
        wanted = ReadRequest(
            from_seq=start.seq,
            epoch=start.epoch,
            limit=request.limit,
            budget_bytes=request.max_batch_bytes,
            nodes=node_set(request.node),
            tag=tag_match(request.tag),
            in_turn=True,
        )
        if request.from_ts is None and request.cursor is None:
            self._begin(call, request, wanted)
            return
        elsewhere = ReadStart(from_ts=request.from_ts, cursor=request.cursor)
        found = self._engine.starts.find(self._engine.state.topic(call.name), elsewhere)
        call.when(found, lambda at: self._begin(call, request, replace(wanted, from_seq=at.seq, epoch=at.epoch)))

    def _begin(self, call: RequestCall, request: DiffRequest, wanted: ReadRequest) -> None:
        view = View(data=True, tags=request.include_tags, meta=request.include_meta)
        if request.wait_ms:
            poll = self._long_polls.read(call.name, wanted, wait_ms=request.wait_ms)
            call.responder.on_close(poll.cancel)
            call.when(poll.ticket, partial(self._found, call, view, wanted))
            return
        size_bytes = self._expected_bytes(call.name, wanted)
        if size_bytes <= limits.RENDER_INLINE_BYTES_MAX:
            call.when_budget(partial(self._read, call, view, wanted))
        else:  # budget is kept for it: many large pages are not read to find that only some can be answered
            self._read_within(call, view, wanted, size_bytes)

    def _expected_bytes(self, name: str, wanted: ReadRequest) -> int:
        """About how large a page will be; 0 if a cold store has to be asked, which may take for ever."""
        topic = self._engine.state.topics.get(name)
        if topic is None or not topic.count:
            return 0
        block = topic.sealed.find(wanted.from_seq + 1)
        if block is not None and block.view.tier == "cold":
            return 0
        records = min(max(topic.head - wanted.from_seq, 0), wanted.limit, topic.count)
        return min(records * (topic.bytes // topic.count), wanted.budget_bytes)

    def _read(self, call: RequestCall, view: View, wanted: ReadRequest) -> None:
        """The budget has admitted a small answer. One that is there at once needs to ask no second time."""
        ticket = self._engine.read(call.name, wanted)
        done = ticket.value
        if done is not None and done.outcome.size_bytes <= limits.RENDER_INLINE_BYTES_MAX:
            self._answer(call, view, done)
        else:
            call.when(ticket, partial(self._found, call, view, wanted))

    def _read_within(self, call: RequestCall, view: View, wanted: ReadRequest, size_bytes: int) -> None:
        """Read once the budget has this much for the answer."""

        def read() -> None:
            call.when(self._engine.read(call.name, wanted), partial(self._answer, call, view))

        call.when_budget(read, size_bytes=size_bytes)

    def _found(self, call: RequestCall, view: View, wanted: ReadRequest, done: ReadDone) -> None:
        """A read that took a while, as a long poll does, may find the budget gone. What it found is read again then:
        pages that nobody takes are not kept."""
        size_bytes = done.outcome.size_bytes
        if call.responder.has_budget(size_bytes):
            self._answer(call, view, done)
        else:
            self._read_within(call, view, wanted, size_bytes)

    def _answer(self, call: RequestCall, view: View, done: ReadDone) -> None:
        size_bytes = done.outcome.size_bytes
        if size_bytes > limits.RENDER_INLINE_BYTES_MAX:  # `docs/spec/delivery.md#sec-11`
            call.responder.expect(size_bytes)
            self._off_loop(partial(self._diff_body, call, view, done), call.rendered)
        else:
            call.reply(200, self._diff_body(call, view, done))

    def _diff_body(self, call: RequestCall, view: View, done: ReadDone) -> bytes:
        outcome = done.outcome
        records = self._cache.join(outcome.runs, view)
        return diff_reply(
            call.name,
            records,
            next_from_seq=outcome.next_from_seq,
            head_seq=outcome.head_seq,
            earliest_seq=outcome.earliest_seq,
            tombstone=outcome.tombstone,
            epoch=outcome.epoch,
            performance=diff_performance(
                call.elapsed_ms(), records_scanned=outcome.scanned, cold_segments_read=done.cold_segments
            ),
        )

    # --- delete ---------------------------------------------------------------------------------------------------

    def delete_records(self, call: RequestCall) -> None:
        before_seq, match = call.take(decode_delete).selector()
        ticket = self._engine.delete_records(call.name, before_seq=before_seq, match=match)
        call.when(ticket, call.answer)
