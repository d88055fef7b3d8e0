"""Live spans: deliveries and WebSocket commands that carry a trace context are spans
(`docs/spec/http-api.md#sec-20-4`).

Imported only with TOPICS_OTEL: then the three parts below stand in for the plain ones when `Live` is put together, so a
server without it has nothing of this on its way."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec
from opentelemetry.trace import Span, SpanKind, StatusCode, get_tracer

from topics.api.live.live import LiveParts
from topics.api.live.sockets import Socket
from topics.api.live.watch import WatchServices
from topics.api.live.work_endpoint import WorkConnection
from topics.api.request_spans import META_KEY, carried_by, context_from, records_with_context
from topics.core.reading.walk import ReadRequest
from topics.engine.delivery.delivery import DeliveryLoop
from topics.engine.delivery.ready import Entry
from topics.engine.delivery.watched import Watched
from topics.engine.queues.claim_pass import ClaimedJob
from topics.errors import TopicsError
from topics.limits import MIB
from topics.model.payload import split_blob
from topics.model.run import StoredRecord
from topics.net.messages import WsSink
from topics.wire.access.keys import WRITE, Key
from topics.wire.outgoing import ws_messages as ws

SPANS_PER_SERVICE_MAX = 100
"""So many records of one push are looked at: a burst must not make tracing the work of the loop."""
_MARK = b'"' + META_KEY.encode() + b'"'


def traced_parts() -> LiveParts:
    return LiveParts(delivery=TracedDelivery, socket=TracedSocket, work=TracedWorkConnection)


class TracedDelivery(DeliveryLoop):
    """A span for each record with a context that was just published, from its publication to the hand-over to those
    who watch its topic, however many they are. Reading history is not traced."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._unserved: dict[int, int] = {}  # by topic id: the seq before the first record that waits for a service

    def _mark_published(self, watched: Watched) -> None:
        self._unserved.setdefault(watched.topic.id, watched.seen_seq)
        super()._mark_published(watched)

    def _serve(self, entry: Entry, now: float) -> bool:
        if not isinstance(entry, Watched):
            return super()._serve(entry, now)
        before = self._unserved.pop(entry.topic.id, entry.topic.head)
        since_ms, watchers = entry.enqueued_at, _watchers(entry)
        more = super()._serve(entry, now)
        if watchers and not entry.deleted and before < entry.topic.head:
            waited_ns = round((self.now_ms() - since_ms) * 1e6)
            end_spans(entry.topic.name, self._published_after(entry, before), waited_ns, watchers=watchers)
        return more

    def _published_after(self, entry: Watched, seq: int) -> list[StoredRecord]:
        """Those that are in memory, as records just written are."""
        request = ReadRequest(
            from_seq=seq,
            limit=SPANS_PER_SERVICE_MAX,
            budget_bytes=MIB,
            epoch=entry.topic.epoch,
            touch=False,
            shows_floor=False,
        )
        ticket = self._reads.read(entry.topic, request)
        if not ticket.done or ticket.error is not None:
            return []
        return [record for run in ticket.result().outcome.runs for record in run.records()]


def _watchers(entry: Watched) -> int:
    groups = list(entry.groups.values())
    return len(entry.watchers) - len(groups) + sum(map(len, groups))


def end_spans(topic: str, records: Iterable[StoredRecord], took_ns: int, *, watchers: int) -> None:
    """A span `deliver TOPIC` that ends now, for each of the records that carries a context."""
    tracer, now_ns = get_tracer("topics"), time.time_ns()
    for record in records:
        if _MARK not in record.blob or (traceparent := carried_by(split_blob(record.blob)[1])) is None:
            continue
        attributes: dict[str, str | int] = {
            "messaging.system": "topics",
            "messaging.destination.name": topic,
            "messaging.operation.name": "deliver",
            "messaging.message.id": str(record.seq),
            "topics.delivery.watchers": watchers,
        }
        tracer.start_span(
            f"deliver {topic}",
            context_from(traceparent),
            SpanKind.PRODUCER,
            attributes,
            start_time=now_ns - took_ns,
        ).end(now_ns)


class TracedWorkConnection(WorkConnection):
    """A span for each job with a context that is pushed to a work stream."""

    __slots__ = ()

    def jobs_leased(self, jobs: list[ClaimedJob]) -> None:
        began_ns = time.time_ns()
        super().jobs_leased(jobs)
        records = (job.run.record(job.at) for job in jobs)
        end_spans(self._work.topic.name, records, time.time_ns() - began_ns, watchers=1)


class TracedSocket(Socket):
    """A `publish` with a `traceparent` is a span, and its records are written with the span's context."""

    __slots__ = ("_span",)

    def __init__(self, services: WatchServices, sink: WsSink, key: Key | None) -> None:
        super().__init__(services, sink, key)
        self._span: Span | None = None  # of the command that is being carried out

    def _publish_traced(self, command: ws.Publish) -> None:
        if command.traceparent is None:
            self._publish(command)
            return
        context = context_from(command.traceparent)
        attributes = {
            "messaging.system": "topics",
            "messaging.destination.name": command.topic,
            "messaging.operation.name": "publish",
        }
        self._span = get_tracer("topics").start_span(f"publish {command.topic}", context, SpanKind.SERVER, attributes)
        if context:
            records = records_with_context(command.records, self._span)
            command = msgspec.structs.replace(command, records=records)
        self._publish(command)

    def _refuse(self, request_id: msgspec.Raw, error: BaseException) -> None:
        span = self._span
        if span is not None:
            status = error.status if isinstance(error, TopicsError) else 500
            span.set_attribute("error.type", error.code if isinstance(error, TopicsError) else type(error).__name__)
            if status >= 500:
                span.set_status(StatusCode.ERROR)
        super()._refuse(request_id, error)

    def _reply(self, frame: bytes) -> None:
        super()._reply(frame)
        self._end_span()

    def _ended(self) -> None:
        super()._ended()
        self._end_span()

    def _end_span(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.end()


TracedSocket.commands = {**Socket.commands, ws.Publish: (WRITE, TracedSocket._publish_traced)}
