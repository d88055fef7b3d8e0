"""Job spans: a span `process QUEUE` around each job that carries the context of a trace
(`docs/spec/http-api.md#sec-20-4`).

Imported only with TOPICS_OTEL: a worker without it has nothing of this on its way. Where spans go is set up by whoever
starts the process, as `topics worker` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span, SpanKind, StatusCode, get_tracer

from topics.client.jobs.executors import JobCall
from topics.client.jobs.handling import Handling, JobOutcome
from topics.client.tracing import context_of
from topics.model.results import Job


class SpanCall:
    """A call of a thread or a child process within a span of this process."""

    def __init__(self, inner: JobCall, queue: str) -> None:
        self._inner = inner
        self._queue = queue

    def call(self, job: Job) -> JobOutcome:
        with _span(self._queue, job) as span:
            return _noted(span, self._inner.call(job))

    def close(self) -> None:
        self._inner.close()


class SpanHandling(Handling):
    """The same for coroutine functions."""

    def __init__(self, inner: Handling, queue: str) -> None:
        super().__init__(inner.handler, before=inner.before, after=inner.after)
        self._queue = queue

    async def acall(self, job: Job, time_limit_s: float | None) -> JobOutcome:
        with _span(self._queue, job) as span:
            return _noted(span, await super().acall(job, time_limit_s))


@contextmanager
def _span(queue: str, job: Job) -> Iterator[Span | None]:
    context = context_of(job.meta)
    if not context:
        yield None
        return
    attributes: dict[str, str | int] = {
        "messaging.system": "topics",
        "messaging.destination.name": queue,
        "messaging.operation.name": "process",
        "messaging.message.id": str(job.seq),
        "topics.job.deliveries": job.deliveries,
    }
    tracer = get_tracer("topics")
    with tracer.start_as_current_span(f"process {queue}", context, SpanKind.CONSUMER, attributes) as span:
        yield span


def _noted(span: Span | None, outcome: JobOutcome) -> JobOutcome:
    """What a function raised has become text by now, in a child process at the latest."""
    if span is not None and outcome.error is not None:
        kind, _, message = outcome.error.partition(": ")
        raised = {"exception.type": kind, "exception.message": message, "exception.stacktrace": outcome.trace}
        span.add_event("exception", raised)
        span.set_status(StatusCode.ERROR, outcome.error)
    return outcome
