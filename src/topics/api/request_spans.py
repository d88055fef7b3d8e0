"""Request spans: requests that carry a trace context are spans, and their records carry it on
(`docs/spec/http-api.md#sec-20-4`).

Imported only with TOPICS_OTEL, and wrapped around the endpoints then: a server without it has nothing of this on its
way. What OpenTelemetry does with spans is configured by whoever starts the process (`topics.server.span_export`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, get_tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from topics.api.app import App, FastPath, Handler, RequestCall
from topics.core.meta import with_keys
from topics.limits import META_BYTES_MAX, META_KEYS_MAX, RECORD_BYTES_MAX
from topics.model.record import RecordIn
from topics.net.messages import RequestHead
from topics.wire.access.keys import Key
from topics.wire.incoming.json import Unknown
from topics.wire.incoming.requests import PayloadWrite, WriteRequest

HEADER = b"traceparent"
META_KEY = "traceparent"
TRACED = ("write", "diff", "claim", "ack", "nack", "extend")
_PROPAGATOR = TraceContextTextMapPropagator()
_ADDED_BYTES = 96  # what the key adds to a meta, generously

R = TypeVar("R", bound=msgspec.Struct)


class _Carrier(msgspec.Struct):
    traceparent: str | None = None


def trace_requests(app: App, tracer: Tracer | None = None) -> None:
    """Wrap the endpoints, and keep requests with a context off the short way of writes, which makes no calls."""
    tracer = tracer or get_tracer("topics")
    for name in TRACED:
        app.handlers[name] = _traced(name, app.handlers[name], tracer)
    if app.fast_path is not None:
        app.fast_path = _UntracedOnly(app.fast_path)


def _traced(name: str, handler: Handler, tracer: Tracer) -> Handler:
    def handle(call: RequestCall) -> None:
        header = call.request.header(HEADER)
        if header is None:
            handler(call)
            return
        context = context_from(header.decode("latin-1"))
        attributes = {
            "messaging.system": "topics",
            "messaging.destination.name": call.name,
            "messaging.operation.name": name,
        }
        span = tracer.start_span(f"{name} {call.name}", context, SpanKind.SERVER, attributes)
        traced = TracedCall(call, span, is_valid=bool(context))
        try:
            handler(traced)
        except Exception as error:
            traced.fail(error)

    return handle


class _UntracedOnly:
    """A `FastPath` that is offered only heads without a context."""

    def __init__(self, inner: FastPath) -> None:
        self._inner = inner

    def offer(self, head: RequestHead, topic: str, key: Key | None) -> None:
        if HEADER not in head.headers:
            self._inner.offer(head, topic, key)


class TracedCall(RequestCall):
    """A call whose span ends with its answer, and whose records are written with the span's context."""

    __slots__ = ("_is_valid", "_span")

    def __init__(self, call: RequestCall, span: Span, *, is_valid: bool) -> None:
        for name in RequestCall.__slots__:
            setattr(self, name, getattr(call, name))
        self._span = span
        self._is_valid = is_valid  # the caller's header was one

    def take(self, decode: Callable[[bytes, list[Unknown]], R]) -> R:
        request = super().take(decode)
        if not self._is_valid or not isinstance(request, WriteRequest):
            return request
        traceparent = traceparent_of(self._span)
        return request if traceparent is None else with_context(request, traceparent)  # type: ignore[return-value]

    def _count(self, status: int) -> None:
        super()._count(status)
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


def context_from(traceparent: str) -> Context:
    """Empty if it is none."""
    return _PROPAGATOR.extract({META_KEY: traceparent})


def traceparent_of(span: Span) -> str | None:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span))
    return carrier.get(META_KEY)


def carried_by(meta: bytes | None) -> str | None:
    """The context in the text of a meta."""
    try:
        found = None if meta is None else msgspec.json.decode(meta, type=_Carrier).traceparent
    except msgspec.DecodeError:  # it is no object, or the key holds something else
        return None
    return found


def with_context(request: WriteRequest, traceparent: str) -> WriteRequest:
    """The same write, with a context in the meta of every record that has none and room for it."""
    records = [RecordIn(data) for data in request.datas] if isinstance(request, PayloadWrite) else request.records
    fields = {name: getattr(request, name) for name in WriteRequest.__struct_fields__ if name != "records"}
    return WriteRequest(_with_metas(records, traceparent), **fields)


def records_with_context(records: list[RecordIn], span: Span) -> list[RecordIn]:
    """As `with_context`, with that of a span."""
    traceparent = traceparent_of(span)
    return records if traceparent is None else _with_metas(records, traceparent)


def _with_metas(records: Sequence[RecordIn], traceparent: str) -> list[RecordIn]:
    added = {META_KEY: msgspec.json.encode(traceparent)}
    return [_with_meta(record, added) for record in records]


def _with_meta(record: RecordIn, added: dict[str, bytes]) -> RecordIn:
    meta = b"" if isinstance(record.meta, msgspec.UnsetType) else bytes(record.meta)
    if meta in (b"", b"null"):
        meta = b"{}"
    elif not meta.lstrip().startswith(b"{"):
        return record
    size_bytes = len(meta) + _ADDED_BYTES
    if size_bytes > META_BYTES_MAX or len(bytes(record.data)) + size_bytes > RECORD_BYTES_MAX:
        return record
    try:
        keys = msgspec.json.decode(meta, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:  # an escaped lone surrogate somewhere
        return record
    if META_KEY in keys or len(keys) >= META_KEYS_MAX:
        return record
    return msgspec.structs.replace(record, meta=msgspec.Raw(with_keys(meta, added)))
