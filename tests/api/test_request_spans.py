"""A trace from a write through a router and a queue to the worker (`docs/spec/http-api.md#sec-20-4`), with
OpenTelemetry's own SDK."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.api.server import LiveServer
from websockets.sync.client import connect

import topics
from topics.api.request_spans import with_context
from topics.client.tracing import context_of, trace_meta, traced_job
from topics.errors import ConfigError
from topics.limits import META_BYTES_MAX
from topics.model.record import RecordIn
from topics.model.results import Job
from topics.server import span_export
from topics.wire.incoming.requests import WriteRequest, decode_write

EXPORTER = InMemorySpanExporter()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


@pytest.fixture
def spans() -> InMemorySpanExporter:
    if trace.get_tracer_provider() is not PROVIDER:
        trace.set_tracer_provider(PROVIDER)
    EXPORTER.clear()
    return EXPORTER


@pytest.fixture
def live(tmp_path: Path, spans: InMemorySpanExporter) -> Iterator[LiveServer]:
    with LiveServer(tmp_path, otel=True) as server:
        yield server


def url(live: LiveServer) -> str:
    return f"http://127.0.0.1:{live.port}"


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def ids(span: ReadableSpan) -> tuple[str, str, str]:
    """Of the trace, the span and its parent."""
    assert span.context is not None
    parent = 0 if span.parent is None else span.parent.span_id
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}", f"{parent:016x}"


def test_a_trace_goes_from_the_write_through_router_and_queue_to_the_worker(
    live: LiveServer, spans: InMemorySpanExporter
) -> None:
    with topics.connect(url(live)) as db:
        queue = db.queue("jobs")
        queue.configure()
        db.topic("orders").append("not traced")
        db.router("r").put(source="orders", dest="jobs")
        with httpx.Client(base_url=url(live), headers=HEADER) as caller:  # the second and third repeat a head
            for at in range(3):
                caller.post("/v0/topics/orders", json={"records": [{"data": at}]})
        job, *more = queue.claim("w", max=3).claimed
        assert all(TRACE.encode() in bytes(other.meta) for other in more)  # type: ignore[arg-type]

        @traced_job
        def handle(job: Job) -> None:
            pass

        handle(job)
    found = by_name(spans)
    wrote, worked = (
        next(span for span in spans.get_finished_spans() if span.name == "write orders"),
        found["process handle"],
    )
    assert ids(wrote)[0] == ids(worked)[0] == TRACE
    assert ids(wrote)[2] == CALLER
    assert ids(worked)[2] == ids(wrote)[1]
    assert wrote.attributes is not None
    assert (wrote.attributes["messaging.destination.name"], wrote.attributes["http.response.status_code"]) == (
        "orders",
        200,
    )


def test_reads_and_refusals_with_a_context_are_spans_and_others_are_not(
    live: LiveServer, spans: InMemorySpanExporter
) -> None:
    httpx.post(f"{url(live)}/v0/topics/a", json={"records": [{"data": 1}]})
    httpx.post(f"{url(live)}/v0/topics/a/diff", json={}, headers=HEADER)
    httpx.post(f"{url(live)}/v0/topics/absent/diff", json={}, headers=HEADER)
    httpx.post(f"{url(live)}/v0/topics/a/diff", json={}, headers={"traceparent": "broken"})
    found = [(span.name, (span.attributes or {})["http.response.status_code"]) for span in spans.get_finished_spans()]
    assert found == [("diff a", 200), ("diff absent", 404), ("diff a", 200)]


def finished(spans: InMemorySpanExporter, name: str, count: int = 1) -> list[ReadableSpan]:
    """The spans of this name, once there are so many."""
    deadline = time.monotonic() + 10
    while len(found := [span for span in spans.get_finished_spans() if span.name == name]) < count:
        assert time.monotonic() < deadline, [span.name for span in spans.get_finished_spans()]
        time.sleep(0.01)
    return found


def test_a_record_that_is_delivered_to_streams_and_sockets_is_one_span_below_its_write(
    live: LiveServer, spans: InMemorySpanExporter
) -> None:
    with topics.connect(url(live)) as db, connect(f"ws://127.0.0.1:{live.port}/v0/ws") as socket:
        db.topic("a").append("not traced")
        socket.send('{"op":"subscribe","topics":{"a":{"from_seq":1}}}')
        assert json.loads(socket.recv())["op"] == "subscribed"
        assert json.loads(socket.recv())["op"] == "caught_up"
        watch = httpx.post(f"{url(live)}/v0/watch", json={"topics": {"a": {"from_seq": 1}}}).json()
        with httpx.stream("GET", f"{url(live)}{watch['stream_url']}", headers={"accept": "text/event-stream"}) as sse:
            lines = sse.iter_lines()
            assert next(line for line in lines if line == "event: caught-up")
            httpx.post(f"{url(live)}/v0/topics/a", json={"records": [{"data": 1}, {"data": 2}]}, headers=HEADER)
            db.topic("a").append("not traced")
            assert next(line for line in lines if line == "event: record")
        found = finished(spans, "deliver a", 2)
    wrote = by_name(spans)["write a"]
    assert [ids(span)[2] for span in found] == [ids(wrote)[1]] * 2
    assert [(span.attributes or {})["messaging.message.id"] for span in found] == ["2", "3"]
    assert {(span.attributes or {})["topics.delivery.watchers"] for span in found} == {2}
    assert all((span.start_time or 0) <= (span.end_time or 0) for span in found)


def test_a_job_that_is_pushed_to_a_work_stream_is_a_span(live: LiveServer, spans: InMemorySpanExporter) -> None:
    httpx.put(f"{url(live)}/v0/topics/jobs", json={"type": "queue"}).raise_for_status()
    with httpx.stream(
        "GET", f"{url(live)}/v0/topics/jobs/work?node=w", headers={"accept": "text/event-stream"}
    ) as stream:
        httpx.post(f"{url(live)}/v0/topics/jobs", json={"records": [{"data": 1}]}, headers=HEADER)
        assert next(line for line in stream.iter_lines() if line == "event: job")
    [pushed] = finished(spans, "deliver jobs")
    assert ids(pushed)[2] == ids(by_name(spans)["write jobs"])[1]


def test_a_publish_with_a_context_is_a_span_and_its_records_carry_it_on(
    live: LiveServer, spans: InMemorySpanExporter
) -> None:
    def publish(socket: Any, topic: str, **fields: Any) -> dict[str, Any]:
        socket.send(json.dumps({"op": "publish", "topic": topic, "records": [{"data": 1}], **fields}))
        answer: dict[str, Any] = json.loads(socket.recv())
        return answer

    with connect(f"ws://127.0.0.1:{live.port}/v0/ws") as socket:
        assert publish(socket, "a")["op"] == "ack"
        assert publish(socket, "a", **HEADER)["op"] == "ack"
        assert publish(socket, "absent", create=False, **HEADER)["code"] == "topic_not_found"
    [wrote], [refused] = finished(spans, "publish a"), finished(spans, "publish absent")
    assert (ids(wrote)[0], ids(wrote)[2]) == (TRACE, CALLER)
    assert (refused.attributes or {})["error.type"] == "topic_not_found"
    records = httpx.post(f"{url(live)}/v0/topics/a/diff", json={"from_seq": 0}).json()["records"]
    assert [record.get("meta") for record in records] == [None, {"traceparent": f"00-{TRACE}-{ids(wrote)[1]}-01"}]


def test_without_the_setting_the_header_is_ignored_and_nothing_is_imported(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live:
        httpx.post(f"{url(live)}/v0/topics/a", json={"records": [{"data": 1}]}, headers=HEADER)
        answer = httpx.post(f"{url(live)}/v0/topics/a/diff", json={}).json()
    assert "meta" not in answer["records"][0]
    code = (
        "import sys, topics, topics.client, topics.server.process, topics.embedded\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def metas(*sent: Any) -> list[Any]:
    """Of records with these metas, after a context was added to them; `...` is a record without one."""
    records = [
        RecordIn(msgspec.Raw(b"1")) if meta is ... else RecordIn(msgspec.Raw(b"1"), meta=msgspec.Raw(json.dumps(meta)))
        for meta in sent
    ]
    found = with_context(WriteRequest(records), "tp").records
    return [... if isinstance(record.meta, msgspec.UnsetType) else json.loads(bytes(record.meta)) for record in found]


def test_a_meta_keeps_what_it_has_and_stays_within_its_limits() -> None:
    full, large = {str(at): 1 for at in range(64)}, {"x": "y" * (META_BYTES_MAX - 20)}
    assert metas(..., None, {}, {"a": 1}) == [
        {"traceparent": "tp"},
        {"traceparent": "tp"},
        {"traceparent": "tp"},
        {"a": 1, "traceparent": "tp"},
    ]
    kept = [{"traceparent": "mine"}, [1], "text", full, large]
    assert metas(*kept) == kept


def test_a_write_of_payloads_alone_keeps_its_records_and_fields() -> None:
    plain = decode_write(b'{"records":[{"data":1},{"data":{"a":2}}]}', [])
    found = with_context(plain, "tp")
    assert [bytes(record.data) for record in found.records] == [b"1", b'{"a":2}']
    assert found.batch("key").count == 2


def test_a_producer_passes_the_current_span_on_and_a_failing_job_is_an_error(spans: InMemorySpanExporter) -> None:
    with trace.get_tracer("test").start_as_current_span("produce") as span:
        meta = trace_meta({"a": 1})
        outer = span.get_span_context()
    assert meta["a"] == 1
    assert trace.get_current_span(context_of(meta)).get_span_context().span_id == outer.span_id
    assert trace_meta() == {}

    @traced_job
    def handle(job: Job) -> None:
        raise ValueError("no")

    job = Job(1, "l", 0, 0, 1, msgspec.Raw(b"1"), None, msgspec.Raw(json.dumps(meta)))
    with pytest.raises(ValueError, match="no"):
        handle(job)
    failed = by_name(spans)["process handle"]
    assert (failed.status.status_code, ids(failed)[2]) == (trace.StatusCode.ERROR, f"{outer.span_id:016x}")


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name=name)

    monkeypatch.setattr(span_export, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'topicsdb\[otel\]'"):
        span_export.export_spans()


def test_a_worker_makes_spans_of_its_jobs_by_itself(
    live: LiveServer, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_OTEL", "1")
    with topics.connect(url(live)) as db:
        queue = db.queue("jobs")
        queue.append("not traced")
        for data in ("good", "bad"):
            queue.append(data, meta={"traceparent": HEADER["traceparent"]})

        @queue.worker(until_empty=True)
        def work(job: Job) -> None:
            if job.value == "bad":
                raise topics.GiveUp("no such address")

        work.run(signals=False)
    worked = [span for span in spans.get_finished_spans() if span.name == "process jobs"]
    assert [ids(span)[0::2] for span in worked] == [(TRACE, CALLER)] * 2
    good, bad = worked
    assert not good.events
    assert (bad.status.status_code, bad.status.description) == (trace.StatusCode.ERROR, "GiveUp: no such address")
    assert [event.name for event in bad.events] == ["exception"]
