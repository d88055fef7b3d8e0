"""Work streams: jobs pushed as server-sent events (`docs/spec/http-api.md#sec-19-6`).

Always holds: a job's frame is offered right after its lease is recorded; a connection that lags claims nothing more;
frames dropped for a slow client give their leases back, and the end of a connection gives back all of them."""

from __future__ import annotations

from topics import limits
from topics.api.app import RequestCall
from topics.api.endpoints.queues import rendered
from topics.api.live.outbound import Outbound, SlowConsumerLimits
from topics.api.live.streams import Streams
from topics.engine.engine import Engine
from topics.engine.queues.claim_pass import ClaimedJob
from topics.engine.queues.work_streams import WorkStream
from topics.errors import NotAcceptable, TopicsError
from topics.net.messages import StreamSink
from topics.wire.access.keys import ClientId
from topics.wire.incoming.queue_requests import (
    check_worker,
)
from topics.wire.incoming.request_head import int_param, takes_events, unsigned
from topics.wire.outgoing import sse
from topics.wire.outgoing import sse as framing
from topics.wire.outgoing.sse import STREAM_HEADERS

HEARTBEAT_MS = float(limits.HEARTBEAT_MS.default)
QUEUE_GONE = 409


class WorkEndpoint:
    def __init__(
        self,
        engine: Engine,
        streams: Streams,
        slow_limits: SlowConsumerLimits,
        connection: type[WorkConnection] | None = None,
    ) -> None:
        self._connection = connection or WorkConnection
        self._engine = engine
        self._streams = streams
        self._slow_limits = slow_limits

    def work(self, call: RequestCall) -> None:
        if not takes_events(call.request.header(b"accept")):
            raise NotAcceptable
        query = call.query()
        node = query.get("node", "")
        check_worker(node)
        queues = self._engine.queues
        queues.queue(call.name)
        client = call.client
        self._streams.check_cap(client)
        stream = queues.open_stream(
            call.name,
            node=node,
            max=int_param(query, "max", clamp=limits.CLAIM_MAX),
            lease_ms=unsigned(query.get("lease_ms")),
        )
        call.end()
        connection = self._connection(
            self._streams, stream, call.responder.stream(200, STREAM_HEADERS), self._slow_limits
        )
        connection.begin(client)


class WorkConnection:
    __slots__ = ("_is_ending", "_is_leaving", "_outbound", "_sent_ms", "_sink", "_streams", "_work", "closed")

    def __init__(self, streams: Streams, work: WorkStream, sink: StreamSink, slow_limits: SlowConsumerLimits) -> None:
        self._streams = streams
        self._work = work
        self._sink = sink
        self._outbound: Outbound[ClaimedJob | None] = Outbound(self, sink, slow_limits, streams.monitor)
        self._sent_ms = streams.now_ms()
        self._is_ending = False  # with the last frame that is held
        self._is_leaving = False  # the server stops
        self.closed = False

    def begin(self, client: ClientId) -> None:
        self._streams.enter(self, client)
        self._work.start(self)
        self._sink.on_close(self._ended)
        if self.closed:
            return
        self._sink.send(framing.RETRY)
        self._streams.beat_at(self._sent_ms + HEARTBEAT_MS, self)

    # --- JobConsumer ------------------------------------------------------------------------------------------------

    def grant(self, wanted_bytes: int, least_bytes: int) -> int:
        """For jobs that are about to be claimed; they count from now on."""
        granted_bytes = self._outbound.grant(max(wanted_bytes, least_bytes), least_bytes=least_bytes)
        if granted_bytes:
            self._outbound.making(granted_bytes)
        return granted_bytes

    def claim_over(self, granted_bytes: int) -> None:
        self._outbound.making(-granted_bytes)

    def jobs_leased(self, jobs: list[ClaimedJob]) -> None:
        """One frame per job, all in one go; the queue is told to wait when the client does not take them."""
        now_ms = self._sent_ms = self._streams.now_ms()
        topic = self._work.topic.name
        for job, body in zip(jobs, rendered(jobs), strict=True):
            frame = framing.frame(b"%d" % job.seq, sse.JOB, sse.job_data(topic, body))
            self._outbound.offer(frame, job, now_ms)
        if not self._outbound.has_room:
            self._work.pause()

    # --- Owner ------------------------------------------------------------------------------------------------------

    def handed_over(self, mark: ClaimedJob | None) -> None:
        if self._is_ending:
            self._end_when_empty()

    def dropped(self, marks: list[ClaimedJob | None]) -> None:
        self._streams.shed_total += 1
        self._work.give_back([job for job in marks if job is not None])

    def has_budget_again(self) -> None:
        if not self._is_ending and not self._is_leaving:
            self._work.go_on()

    def all_taken(self) -> None:
        if self._is_leaving:
            self._outbound.end_if_taken()

    def too_slow(self) -> None:
        self._streams.too_slow_total += 1
        error = "nothing was taken from this stream for too long"
        self._outbound.give_up(self._last_frame(code="slow_consumer", error=error))

    # --- time and end -----------------------------------------------------------------------------------------------

    def beat(self, now_ms: float) -> float:
        if now_ms - self._sent_ms >= HEARTBEAT_MS and self._outbound.is_empty:
            self._sent_ms = now_ms
            self._sink.send(framing.HEARTBEAT)
        return max(self._sent_ms, now_ms - HEARTBEAT_MS + 1) + HEARTBEAT_MS

    def shut_down(self) -> None:
        self._say_last(code=sse.SHUTTING_DOWN, error="the server is shutting down")
        self._is_leaving = True
        self._outbound.end_if_taken()

    def cut_off(self) -> None:
        self._sink.abort()

    def queue_gone(self, error: TopicsError) -> None:
        self._say_last(code=QUEUE_GONE, error=error.message)
        self._end_when_empty()

    def _say_last(self, *, code: int | str, error: str) -> None:
        """The last words come behind what the client was sent already; nothing else does."""
        self._work.pause()
        self._outbound.clear()
        self._outbound.offer(self._last_frame(code=code, error=error), None, self._streams.now_ms(), keep=True)

    def _last_frame(self, *, code: int | str, error: str) -> bytes:
        return framing.frame(None, sse.ERROR, sse.work_error_data(self._work.topic.name, code=code, error=error))

    def _end_when_empty(self) -> None:
        self._is_ending = True
        self._outbound.end_if_empty()

    def _ended(self) -> None:
        """The client has gone, or we ended it: its leases head the line again."""
        if self.closed:
            return
        self.closed = True
        self._outbound.clear()
        self._streams.leave(self)
        self._work.close()
