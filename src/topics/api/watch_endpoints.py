"""Watch endpoints: make a session, open its stream (http-api.md section 17)."""

from __future__ import annotations

from topics import limits
from topics.api.batches import Bounds, Options
from topics.api.call import Call
from topics.api.sessions import Place
from topics.api.watch import WatchServices, WatchStream
from topics.core.lineage import epoch_to_read
from topics.core.topic import TopicState
from topics.errors import NotAcceptable, TopicNotFound
from topics.model.position import position_of
from topics.model.results import WatchResult, WatchStart
from topics.net.sse import STREAM_HEADERS
from topics.wire.accept import takes_events
from topics.wire.auth import check_session, presented_secret
from topics.wire.keys import KeyRing
from topics.wire.query import bool_param
from topics.wire.records import View
from topics.wire.requests import TopicStart, WatchRequest, decode_watch, node_set
from topics.wire.sse import decode_id


class WatchEndpoints:
    """`heartbeat_low_ms` lowers the floor of heartbeats, for tests."""

    def __init__(self, services: WatchServices, *, keys: KeyRing | None, heartbeat_low_ms: int | None) -> None:
        self._services = services
        self._keys = keys
        self._heartbeat_low_ms = heartbeat_low_ms

    # --- POST /v0/watch -------------------------------------------------------------------------------------------

    def create_watch(self, call: Call) -> None:
        request = call.take(decode_watch)
        lenient = bool_param(call.query(), "lenient", default=False)
        topics = self._known_topics(request, lenient=lenient)
        settled = self._services.engine.settling.settle_shown(topics)
        call.when(settled, lambda _: self._created(call, request, still_there(self._services, topics, lenient)))

    def _known_topics(self, request: WatchRequest, *, lenient: bool) -> list[TopicState]:
        known = self._services.engine.state.topics
        missing = [name for name in request.topics if name not in known]
        if missing and not lenient:
            raise TopicNotFound(missing[0])
        return [known[name] for name in request.topics if name in known]

    def _created(self, call: Call, request: WatchRequest, topics: list[TopicState]) -> None:
        sure_earliest = self._services.engine.settling.sure_earliest
        starts = {topic.name: start_of(topic, request.topics[topic.name], sure_earliest(topic)) for topic in topics}
        places = [
            Place(topic.name, cursor=starts[topic.name].from_seq, epoch=epoch_of_start(topic, request.topics))
            for topic in topics
        ]
        session = self._services.sessions.add(
            places,
            _options(request),
            heartbeat_ms=request.heartbeat(low_ms=self._heartbeat_low_ms),
            owner=None if call.key is None else call.key.digest,
            holder=call.holder,
        )
        result = WatchResult(
            wid=session.wid,
            stream_url=f"/v0/watch/{session.wid}",
            session_ttl_ms=limits.SESSION_TTL_MS,
            topics=starts,
        )
        call.answer(result)

    # --- GET /v0/watch/{wid} --------------------------------------------------------------------------------------

    def watch_stream(self, call: Call) -> None:
        request, services = call.request, self._services
        if not takes_events(request.header(b"accept")):
            raise NotAcceptable
        session = services.sessions.find(call.name)
        secret = presented_secret(call.target, request.header(b"authorization"), request.query)
        check_session(self._keys, session.owner, secret)
        holder = session.owner or call.holder
        services.streams.check_room(holder)
        session.resume(decode_id(request.header(b"last-event-id")), services.engine.state.topics)
        call.end()
        sink = call.responder.stream(200, STREAM_HEADERS)
        WatchStream(services, session, sink, holder).begin()


def still_there(services: WatchServices, topics: list[TopicState], lenient: bool) -> list[TopicState]:
    """After a wait: topics that were dropped meanwhile do not exist, as if they never had."""
    context = services.engine.context
    if lenient:
        return [topic for topic in topics if context.state.by_id.get(topic.id) is topic]
    for topic in topics:
        context.check_exists(topic)
    return topics


def start_of(topic: TopicState, start: TopicStart, earliest_seq: int) -> WatchStart:
    """Where a subscription begins, and what there is."""
    from_seq = topic.head if start.tail else position_of(start.from_seq).seq
    return WatchStart(from_seq=from_seq, head_seq=topic.head, earliest_seq=earliest_seq)


def epoch_of_start(topic: TopicState, starts: dict[str, TopicStart]) -> int:
    """The life of the topic that the start belongs to."""
    start = starts[topic.name]
    return topic.epoch if start.tail else epoch_to_read(topic, position_of(start.from_seq))


def _options(request: WatchRequest) -> Options:
    return Options(
        bounds=Bounds(request.limit, request.max_batch_bytes, request.consistency == "strong"),
        view=View(data=request.include_data, tags=request.include_tags, meta=request.include_meta),
        nodes=node_set(request.node),
    )
