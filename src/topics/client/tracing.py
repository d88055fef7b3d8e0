"""Tracing: the context of an OpenTelemetry trace into a record, and out of it again (`docs/spec/http-api.md#sec-20-4`).

    topic.append(order, meta=trace_meta())          # within a span: the record carries its context

    @traced_job                                     # for who calls it in a loop of his own: workers do it by themselves
    def handle(job): ...

Imported only by `jobs.job_spans`: who does not trace does not pay, and needs no OpenTelemetry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, get_tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from topics.model.results import Job

META_KEY = "traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()

F = TypeVar("F", bound=Callable[..., Any])


def trace_meta(meta: dict[str, Any] | None = None) -> dict[str, Any]:
    """`meta` and the context of the current span; only `meta` where there is no span."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return {**(meta or {}), **({META_KEY: carrier[META_KEY]} if META_KEY in carrier else {})}


def context_of(meta: Any) -> Context:
    """The context that a record or job carries in its meta, to begin a span or a link with; empty without one."""
    if isinstance(meta, msgspec.Raw):
        try:
            meta = msgspec.json.decode(meta)
        except msgspec.DecodeError:  # an escaped lone surrogate somewhere
            meta = None
    text = meta.get(META_KEY) if isinstance(meta, dict) else None
    return _PROPAGATOR.extract({META_KEY: text}) if isinstance(text, str) else Context()


def traced_job(handler: F) -> F:
    """A job's function, plain or a coroutine, within a span of its own; what it raises is recorded there."""
    if inspect.iscoroutinefunction(handler):

        @wraps(handler)
        async def traced_later(job: Job) -> object:
            with _span(handler, job):
                return await handler(job)

        return traced_later  # type: ignore[return-value]

    @wraps(handler)
    def traced(job: Job) -> object:
        with _span(handler, job):
            return handler(job)

    return traced  # type: ignore[return-value]


@contextmanager
def _span(handler: Callable[..., Any], job: Job) -> Iterator[None]:
    attributes: dict[str, str | int] = {
        "messaging.system": "topics",
        "messaging.operation.name": "process",
        "messaging.message.id": str(job.seq),
        "topics.job.deliveries": job.deliveries,
    }
    with get_tracer("topics").start_as_current_span(
        f"process {handler.__name__}", context_of(job.meta), SpanKind.CONSUMER, attributes
    ):
        yield
