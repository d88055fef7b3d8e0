"""Record endpoints: write, diff with long poll, delete (`docs/spec/http-api.md#sec-13` and
`docs/spec/http-api.md#sec-15`)."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from topics import limits
from topics.api.app import RequestCall
from topics.api.live.batches import OffLoop
from topics.core.reading.request import ReadOutcome, ReadRequest
from topics.engine.engine import Engine
from topics.engine.reading.long_polls import LongPolls
from topics.engine.reading.reads import ReadDone
from topics.engine.reading.starts import ReadStart
from topics.engine.ticket import Ticket, forward
from topics.engine.writing.quota import QuotaTicket
from topics.errors import Forbidden, InvalidRequest, TopicNotFound
from topics.model.config import ConfigPatch, TopicConfig, check_u64, resolve_config
from topics.model.position import Position, position_of
from topics.model.results import Appended
from topics.net.messages import Headers, Response
from topics.wire.access.auth import check_config_on_write, may_configure
from topics.wire.incoming.record_query import diff_query
from topics.wire.incoming.request_head import ARROW_MEDIA, bool_param, wants_table
from topics.wire.incoming.requests import (
    DiffRequest,
    TableColumn,
    TableRequest,
    WriteRequest,
    decode_delete,
    decode_diff,
    decode_table,
    decode_write,
    node_set,
    tag_match,
)
from topics.wire.outgoing import record_table
from topics.wire.outgoing.records import View, render_runs
from topics.wire.outgoing.replies import (
    append_performance,
    append_reply,
    diff_performance,
    diff_reply,
    record_reply,
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


class TableView(NamedTuple):
    """What a reader that takes a table wants to see of each record; None is every column."""

    columns: list[TableColumn] | None


class CacheableView(NamedTuple):
    """A page that a cache may keep and ask about again; `wanted` is the read that it answers."""

    view: View
    wanted: ReadRequest


Shown = View | TableView | CacheableView
CACHE_CONTROL = (b"Cache-Control", b"private, max-age=0, must-revalidate")


class RecordEndpoints:
    def __init__(self, engine: Engine, long_polls: LongPolls, *, off_loop: OffLoop) -> None:
        self._engine = engine
        self._long_polls = long_polls
        self._off_loop = off_loop

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
        wants = wants_table(call.request.headers.get(b"accept"))
        self._diff(call, call.take(decode_table if wants else decode_diff))

    def get_records(self, call: RequestCall) -> None:
        wants = wants_table(call.request.headers.get(b"accept"))
        self._diff(call, diff_query(call.query(), TableRequest if wants else DiffRequest), is_cacheable=not wants)

    def _diff(self, call: RequestCall, request: DiffRequest, *, is_cacheable: bool = False) -> None:
        start = position_of(request.from_seq)
        wanted = ReadRequest(
            from_seq=start.seq,
            epoch=start.epoch,
            limit=request.limit,
            budget_bytes=request.max_batch_bytes,
            nodes=node_set(request.node),
            tag=tag_match(request.tag),
            in_turn=True,
            examined_max=0 if request.node else request.limit,
        )
        if request.from_ts is None and request.cursor is None:
            self._begin(call, request, wanted, is_cacheable)
            return
        elsewhere = ReadStart(from_ts=request.from_ts, cursor=request.cursor)
        found = self._engine.starts.find(self._engine.state.topic(call.name), elsewhere)

        def begin(at: Position) -> None:
            self._begin(call, request, replace(wanted, from_seq=at.seq, epoch=at.epoch), is_cacheable)

        call.when(found, begin)

    def _begin(self, call: RequestCall, request: DiffRequest, wanted: ReadRequest, is_cacheable: bool) -> None:
        as_json = View(data=True, tags=request.include_tags, meta=request.include_meta)
        view: Shown = CacheableView(as_json, wanted) if is_cacheable else as_json
        if isinstance(request, TableRequest):
            view = TableView(request.columns)
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

    def _read(self, call: RequestCall, view: Shown, wanted: ReadRequest) -> None:
        """The budget has admitted a small answer. One that is there at once needs to ask no second time."""
        ticket = self._engine.read(call.name, wanted)
        done = ticket.value
        if done is not None and done.outcome.size_bytes <= limits.RENDER_INLINE_BYTES_MAX:
            self._answer(call, view, done)
        else:
            call.when(ticket, partial(self._found, call, view, wanted))

    def _read_within(self, call: RequestCall, view: Shown, wanted: ReadRequest, size_bytes: int) -> None:
        """Read once the budget has this much for the answer."""

        def read() -> None:
            call.when(self._engine.read(call.name, wanted), partial(self._answer, call, view))

        call.when_budget(read, size_bytes=size_bytes)

    def _found(self, call: RequestCall, view: Shown, wanted: ReadRequest, done: ReadDone) -> None:
        """A read that took a while, as a long poll does, may find the budget gone. What it found is read again then:
        pages that nobody takes are not kept."""
        size_bytes = done.outcome.size_bytes
        if call.responder.has_budget(size_bytes):
            self._answer(call, view, done)
        else:
            self._read_within(call, view, wanted, size_bytes)

    def _answer(self, call: RequestCall, view: Shown, done: ReadDone) -> None:
        headers: Headers = ()
        if isinstance(view, CacheableView):
            tag = page_tag(view.wanted, done.outcome)
            if tag is not None:
                headers = ((b"ETag", tag), CACHE_CONTROL)
                if tag in (call.request.headers.get(b"if-none-match") or b""):
                    call.respond(Response(304, b"", headers=headers))
                    return
            view = view.view
        size_bytes = done.outcome.size_bytes
        if size_bytes > limits.RENDER_INLINE_BYTES_MAX:  # `docs/spec/delivery.md#sec-11`
            call.responder.expect(size_bytes)
            if isinstance(view, TableView):
                self._off_loop(partial(_table_body, call, view, done), partial(_table_rendered, call))
            else:
                self._off_loop(partial(self._diff_body, call, view, done), partial(_json_rendered, call, headers))
        elif isinstance(view, TableView):
            _table_rendered(call, _table_body(call, view, done), None)
        else:
            _json_rendered(call, headers, self._diff_body(call, view, done), None)

    def _diff_body(self, call: RequestCall, view: View, done: ReadDone) -> bytes:
        outcome = done.outcome
        records = render_runs(outcome.runs, view)
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

    # --- one record -----------------------------------------------------------------------------------------------

    def get_record(self, call: RequestCall) -> None:
        try:
            position = position_of(int(call.part) if call.part.isascii() and call.part.isdigit() else call.part)
            check_u64(position.seq)
        except ValueError as error:
            raise InvalidRequest(f"the address of a record ends in its seq or position: {error}") from None
        call.when(self._engine.single_reads.get(call.name, position), partial(self._one, call))

    def newest_record(self, call: RequestCall) -> None:
        match = tag_match(call.query().get("tag"))
        call.when(self._engine.single_reads.newest(call.name, match), partial(self._one, call))

    def _one(self, call: RequestCall, done: ReadDone) -> None:
        outcome = done.outcome
        record = render_runs(outcome.runs, View(data=True, tags=True, meta=True))
        spent = diff_performance(
            call.elapsed_ms(), records_scanned=outcome.scanned, cold_segments_read=done.cold_segments
        )
        seq = outcome.next_from_seq
        call.reply(200, record_reply(call.name, record, seq=seq, epoch=outcome.epoch, performance=spent))

    # --- delete ---------------------------------------------------------------------------------------------------

    def delete_records(self, call: RequestCall) -> None:
        before_seq, match = call.take(decode_delete).selector()
        ticket = self._engine.delete_records(call.name, before_seq=before_seq, match=match)
        call.when(ticket, call.answer)


def page_tag(wanted: ReadRequest, outcome: ReadOutcome) -> bytes | None:
    """The entity tag of a page that ends below the head. Records do not change, so a page over the same range that has
    as many of them has the same ones."""
    if not outcome.records or outcome.tombstone is not None or outcome.next_from_seq >= outcome.head_seq:
        return None
    return b'W/"%x-%d-%d-%d"' % (outcome.epoch, wanted.from_seq, outcome.next_from_seq, outcome.records)


def _json_rendered(call: RequestCall, headers: Headers, body: bytes | None, error: BaseException | None) -> None:
    if error is not None or not headers:
        call.rendered(body, error)
    else:
        assert body is not None
        call.respond(Response(200, body, headers=headers))


def _table_body(call: RequestCall, view: TableView, done: ReadDone) -> bytes:
    outcome = done.outcome
    metadata = record_table.table_metadata(
        call.name,
        next_from_seq=outcome.next_from_seq,
        head_seq=outcome.head_seq,
        earliest_seq=outcome.earliest_seq,
        tombstone=outcome.tombstone,
        epoch=outcome.epoch,
    )
    if call.warnings:
        metadata["topics.warnings"] = msgspec.json.encode(call.warnings).decode()
    return record_table.table_stream(outcome.runs, view.columns, metadata)


def _table_rendered(call: RequestCall, body: bytes | None, error: BaseException | None) -> None:
    if error is not None:
        call.fail(error)
    else:
        assert body is not None
        call.respond(Response(200, body, ARROW_MEDIA))
