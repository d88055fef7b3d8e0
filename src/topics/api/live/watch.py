"""Watch: the endpoints that make a session and open its stream, and that stream: the server-sent events of one session
on one connection (`docs/spec/http-api.md#sec-17`).

Always holds: frames of one topic are in seq order, a tombstone before what follows the gap; the id of a frame is the
position of every topic after it; a cursor of the session moves when its frame is handed to the transport, so a session
goes on where the transport got to. One batch is one write.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from topics import limits
from topics.api.app import RequestCall
from topics.api.live.batches import Bounds, NextBatch, Options, RenderedBatch
from topics.api.live.broadcast import join_group
from topics.api.live.outbound import Outbound, SlowConsumerLimits
from topics.api.live.sessions import Session, SessionCursor, Sessions
from topics.api.live.sse_frames import SseFrames, frames_of, id_of, piece
from topics.api.live.streams import Streams
from topics.api.live.subscription import Subscription
from topics.core.lineage import epoch_to_read
from topics.core.topic import TopicLog
from topics.engine.delivery.delivery import DeliveryLoop
from topics.engine.engine import Engine
from topics.engine.reading.starts import ReadStart
from topics.engine.ticket import Ticket, chain, gathered, resolved
from topics.errors import Internal, NotAcceptable, TopicNotFound, TopicsError
from topics.model.position import Position, position_of
from topics.model.results import WatchResult, WatchStart
from topics.net.messages import StreamSink
from topics.wire.access.auth import check_session, presented
from topics.wire.access.keys import ClientId, KeyRing
from topics.wire.access.stream_tokens import StreamTokens
from topics.wire.incoming.request_head import bool_param, takes_events
from topics.wire.incoming.requests import TopicStart, WatchRequest, decode_watch, node_set, tag_match
from topics.wire.outgoing import sse
from topics.wire.outgoing import sse as framing
from topics.wire.outgoing.live_json import deferred_json, deleted_json, resumed_json
from topics.wire.outgoing.records import View
from topics.wire.outgoing.sse import STREAM_HEADERS, decode_id


class Mark(NamedTuple):
    """Where a subscription stands once these frames are handed over."""

    subscription: Subscription
    at: int
    epoch: int
    gap_at: int | None = None


class WatchServices(NamedTuple):
    """What every stream works with."""

    engine: Engine
    delivery: DeliveryLoop
    batches: NextBatch
    streams: Streams
    sessions: Sessions
    slow_limits: SlowConsumerLimits


class WatchStream:
    __slots__ = (
        "_client",
        "_heartbeat_ms",
        "_is_ending",
        "_is_leaving",
        "_open_count",
        "_outbound",
        "_pieces",
        "_sent_ms",
        "_services",
        "_session",
        "_sink",
        "_subscriptions",
        "_turn",
        "closed",
    )

    def __init__(self, services: WatchServices, session: Session, sink: StreamSink, client: ClientId = None) -> None:
        self._services = services
        self._session = session
        self._client = client
        self._sink = sink
        self._heartbeat_ms = session.heartbeat_ms
        self._outbound: Outbound[Mark | None] = Outbound(self, sink, services.slow_limits, services.streams.monitor)
        self._subscriptions: list[Subscription] = []
        self._pieces: list[bytes] = []  # `"name":cursor` of each subscription, for ids
        self._open_count = 0
        self._turn = 0  # number of the subscription that is woken first when the client has taken something
        self._sent_ms = services.streams.now_ms()
        self._is_ending = False  # with the last frame that is held
        self._is_leaving = False  # the server stops
        self.closed = False

    # --- beginning ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Register everything, then let services do the rest."""
        services, session = self._services, self._session
        services.streams.enter(self, self._client)
        services.sessions.opened(session)
        self._sink.on_close(self._ended)
        if self.closed:
            return
        self._sink.send(framing.RETRY)
        services.streams.beat_at(self._sent_ms + self._heartbeat_ms, self)
        self._attach()
        if not self._open_count:
            self._end_when_empty()

    def _attach(self) -> None:
        """All subscriptions are made before the first of them is served: each id shows every topic."""
        services, session = self._services, self._session
        for number, place in enumerate(session.places):
            subscription = Subscription(
                self, place.name, session.options, at=place.cursor, epoch=place.epoch, number=number
            )
            self._subscriptions.append(subscription)
            self._pieces.append(piece(place.name, place.cursor, place.epoch))
        self._open_count = len(self._subscriptions)
        now_ms = services.engine.context.clock.now_ms()
        for subscription in self._subscriptions:
            topic = services.engine.state.topics.get(subscription.name)
            if topic is None:
                subscription.topic_deleted()
            else:
                subscription.attach(services.delivery, services.batches, topic, now_ms=now_ms)

    # --- Channel: what subscriptions push ---------------------------------------------------------------------------

    def has_room(self, subscription: Subscription) -> bool:
        """With several topics a subscription waits until its last batch was handed over, so a backlog delays nobody
        else."""
        return self._outbound.has_room and (not subscription.queued or len(self._subscriptions) == 1)

    def grant(self, subscription: Subscription, wanted_bytes: int, *, least_bytes: int = 0) -> int:
        return self._outbound.grant(wanted_bytes, least_bytes=least_bytes) if self.has_room(subscription) else 0

    def making(self, change_bytes: int) -> None:
        self._outbound.making(change_bytes)

    def frames_key(self, subscription: Subscription) -> object:
        return subscription.options.view, subscription.is_first_read, len(self._subscriptions) == 1

    def build(self, subscription: Subscription, batch: RenderedBatch) -> object:
        frames = frames_of(batch, subscription)
        return frames.alone(batch.outcome.caught_up) if len(self._subscriptions) == 1 else frames

    def push(self, subscription: Subscription, batch: RenderedBatch, now_ms: float) -> None:
        outcome, frames = batch.outcome, frames_of(batch, subscription)
        catches_up = outcome.caught_up and (frames.count > 0 or not subscription.is_caught_up)
        self._turn = subscription.number + 1
        subscription.at, subscription.epoch = outcome.next_from_seq, batch.epoch
        subscription.is_first_read = subscription.has_failed = False
        subscription.is_caught_up = catches_up or (subscription.is_caught_up and not frames.count)
        mark = Mark(subscription, subscription.at, subscription.epoch, frames.gap_at)
        if not frames.count and not catches_up:
            self._pass_over(mark)
            return
        data = (
            frames.alone(catches_up)
            if len(self._subscriptions) == 1
            else self._with_ids(subscription, frames, catches_up)
        )
        self._sent_ms = now_ms
        if self._outbound.offer(data, mark, now_ms, frames=frames.count + catches_up):
            self._moved(mark)
            if self._outbound.is_quiet:
                self._join_group()
        else:
            subscription.queued += 1

    def _pass_over(self, mark: Mark) -> None:
        """Nothing to say: the position moves in silence, behind the frames that are still held."""
        subscription = mark.subscription
        self._pieces[subscription.number] = piece(subscription.name, mark.at, mark.epoch)
        if not subscription.queued:
            self._moved(mark)

    def _with_ids(self, subscription: Subscription, frames: SseFrames, catches_up: bool) -> bytes:
        gap_id = b"" if frames.gap_at is None else self._id(subscription, frames.gap_at)
        return frames.joined(gap_id, self._id(subscription, subscription.at), with_caught_up=catches_up)

    def _id(self, subscription: Subscription, at: int) -> bytes:
        """The position of every topic, this one being at `at`."""
        self._pieces[subscription.number] = piece(subscription.name, at, subscription.epoch)
        return id_of(self._pieces)

    def _moved(self, mark: Mark) -> None:
        self._session.places[mark.subscription.number].move(mark.at, mark.epoch, gap_at=mark.gap_at)

    def topic_gone(self, subscription: Subscription) -> None:
        self._open_count -= 1
        frame = framing.frame(
            self._id(subscription, subscription.at), sse.TOPIC_DELETED, deleted_json(subscription.name)
        )
        self._say(frame)
        if not self._open_count:
            self._end_when_empty()

    def topic_deferred(self, subscription: Subscription, wait_ms_max: int) -> bool:
        if not self.has_room(subscription):
            return False
        self._say(framing.frame(None, sse.DEFERRED, deferred_json(subscription.name, max_wait_ms=wait_ms_max)))
        return True

    def topic_resumed(self, subscription: Subscription) -> None:
        if self.has_room(subscription):
            self._say(framing.frame(None, sse.RESUMED, resumed_json(subscription.name)))

    def read_failed(self, subscription: Subscription, error: BaseException) -> None:
        if not subscription.has_failed:
            subscription.has_failed = True
            shown = error if isinstance(error, TopicsError) else Internal()
            self._say(framing.frame(None, sse.ERROR, sse.error_data(shown.code, shown.message)))
        self._services.streams.retry(subscription)

    def _say(self, frame: bytes) -> None:
        """Something that is no batch: it moves no cursor, and is not dropped for a slow client."""
        self._sent_ms = self._services.streams.now_ms()
        self._outbound.offer(frame, None, self._sent_ms, keep=True)

    # --- Owner: what becomes of it ----------------------------------------------------------------------------------

    def handed_over(self, mark: Mark | None) -> None:
        if mark is not None:
            subscription = mark.subscription
            subscription.queued -= 1
            if not subscription.closed:
                self._moved(mark)
                if not subscription.queued and len(self._subscriptions) > 1 and self._outbound.has_room:
                    subscription.wake()
        if self._is_ending:
            self._end_when_empty()

    def dropped(self, marks: list[Mark | None]) -> None:
        self._services.streams.shed_total += 1
        of_batches = [mark for mark in marks if mark is not None]
        for subscription in {mark.subscription for mark in of_batches}:
            place = self._session.places[subscription.number]
            subscription.at, subscription.epoch = place.cursor, place.epoch
            subscription.is_caught_up = False
            self._pieces[subscription.number] = piece(subscription.name, subscription.at, subscription.epoch)
        for mark in of_batches:
            mark.subscription.queued -= 1

    def has_budget_again(self) -> None:
        """In name order, beginning after the one that was served last: so a backlog keeps nobody else waiting."""
        for subscription in self._subscriptions[self._turn :] + self._subscriptions[: self._turn]:
            subscription.wake()

    def all_taken(self) -> None:
        if self._is_leaving:
            self._outbound.end_if_taken()
        else:
            self._join_group()

    def too_slow(self) -> None:
        self._services.streams.too_slow_total += 1
        data = sse.error_data("slow_consumer", "nothing was taken from this stream for too long")
        self._outbound.give_up(framing.frame(None, sse.ERROR, data))

    # --- Listener: served together with others ----------------------------------------------------------------------

    def _join_group(self) -> None:
        """With one topic, ids are the same for all who stand at one place, and so is everything else."""
        if len(self._subscriptions) != 1 or self._is_ending:
            return
        subscription, place = self._subscriptions[0], self._session.places[0]
        if (
            not subscription.is_at_rest
            or not place.is_plain
            or place.cursor != subscription.at
            or place.epoch != subscription.epoch
        ):
            return
        line = self._sink.line()
        if line is not None:
            services = self._services
            join_group(
                subscription,
                line,
                place,
                self,
                batches=services.batches,
                monitor=services.streams.monitor,
                bytes_max=services.slow_limits.hand_over_bytes,
            )

    def left(self, *, sent_bytes: int, sent_ms: float) -> None:
        self._sent_ms = max(self._sent_ms, sent_ms)
        self._outbound.sent_elsewhere(sent_bytes, sent_ms)

    def _silent_since_ms(self) -> float:
        group = self._subscriptions[0].group if len(self._subscriptions) == 1 else None
        return self._sent_ms if group is None else max(self._sent_ms, group.sent_ms)

    # --- time and end -----------------------------------------------------------------------------------------------

    def beat(self, now_ms: float) -> float:
        sent_ms = self._silent_since_ms()
        if now_ms - sent_ms >= self._heartbeat_ms and self._outbound.is_empty:
            sent_ms = self._sent_ms = now_ms
            self._sink.send(framing.HEARTBEAT)
        return max(sent_ms, now_ms - self._heartbeat_ms + 1) + self._heartbeat_ms

    def shut_down(self) -> None:
        """The last words come behind what the client was sent already; nothing else does."""
        for subscription in self._subscriptions:
            subscription.close()
        self._outbound.clear()
        self._say(framing.frame(None, sse.ERROR, sse.shutdown_data()))
        self._is_leaving = True
        self._outbound.end_if_taken()

    def cut_off(self) -> None:
        self._sink.abort()

    def _end_when_empty(self) -> None:
        self._is_ending = True
        self._outbound.end_if_empty()

    def _ended(self) -> None:
        """The client has gone, or we ended it."""
        if self.closed:
            return
        self.closed = True
        for subscription in self._subscriptions:
            subscription.close()
        self._outbound.clear()
        self._services.streams.leave(self)
        self._services.sessions.stream_ended(self._session)


class WatchEndpoints:
    """`heartbeat_low_ms` lowers the floor of heartbeats, for tests."""

    def __init__(
        self,
        services: WatchServices,
        *,
        keys: KeyRing | None,
        tokens: StreamTokens | None = None,
        heartbeat_low_ms: int | None,
    ) -> None:
        self._services = services
        self._keys = keys
        self._tokens = tokens
        self._heartbeat_low_ms = heartbeat_low_ms

    # --- POST /v0/watch -------------------------------------------------------------------------------------------

    def create_watch(self, call: RequestCall) -> None:
        request = call.take(decode_watch)
        tag_match(request.tag)
        lenient = bool_param(call.query(), "lenient", default=False)
        starts = find_starts(self._services.engine, request.topics, lenient=lenient)
        call.when(starts, partial(self._created, call, request))

    def _created(self, call: RequestCall, request: WatchRequest, starts: list[FoundStart]) -> None:
        places = [SessionCursor(start.topic.name, cursor=start.shown.from_seq, epoch=start.epoch) for start in starts]
        session = self._services.sessions.add(
            places,
            _options(request),
            heartbeat_ms=request.heartbeat(low_ms=self._heartbeat_low_ms),
            owner=None if call.key is None else call.key.digest,
            client=call.client,
        )
        result = WatchResult(
            wid=session.wid,
            stream_url=f"/v0/watch/{session.wid}",
            session_ttl_ms=limits.SESSION_TTL_MS,
            topics={start.topic.name: start.shown for start in starts},
        )
        call.answer(result)

    # --- GET /v0/watch/{wid} --------------------------------------------------------------------------------------

    def watch_stream(self, call: RequestCall) -> None:
        request, services = call.request, self._services
        if not takes_events(request.header(b"accept")):
            raise NotAcceptable
        session = services.sessions.find(call.name)
        shown = presented(call.target, request.header(b"authorization"), request.query)
        watched = (place.name for place in session.places)
        check_session(self._keys, session.owner, shown, tokens=self._tokens, topics=watched)
        client = session.owner or call.client
        services.streams.check_cap(client)
        session.resume(decode_id(request.header(b"last-event-id")), services.engine.state.topics)
        call.end()
        sink = call.responder.stream(200, STREAM_HEADERS)
        WatchStream(services, session, sink, client).begin()


class FoundStart(NamedTuple):
    """Where a subscription begins: what the client is told about it, and the life of the topic that it belongs to."""

    topic: TopicLog
    shown: WatchStart
    epoch: int


def find_starts(engine: Engine, starts: dict[str, TopicStart], *, lenient: bool) -> Ticket[list[FoundStart]]:
    """The topics that are to be watched, once the floors that the client will be shown are logged. One that does not
    exist is left out if `lenient`, else it is a TopicNotFound."""
    known = engine.state.topics
    missing = [name for name in starts if name not in known]
    if missing and not lenient:
        raise TopicNotFound(missing[0])
    topics = [known[name] for name in starts if name in known]

    def found(_: None) -> Ticket[list[FoundStart]]:
        """Topics that were dropped meanwhile do not exist, as if they never had."""
        if not lenient:
            for topic in topics:
                engine.context.check_exists(topic)
        there = [topic for topic in topics if engine.context.exists(topic)]
        begun = [_start_of(engine, topic, starts[topic.name]) for topic in there]
        return chain(gathered(begun), lambda _: resolved([start.result() for start in begun]))

    return chain(engine.floor_log.ensure_shown_logged(topics), found)


def _start_of(engine: Engine, topic: TopicLog, start: TopicStart) -> Ticket[FoundStart]:
    if start.tail:
        return resolved(_found_at(engine, topic, Position(topic.head, topic.epoch), topic.epoch))
    given = ReadStart(position_of(start.from_seq), start.from_ts, start.cursor)
    return chain(
        engine.starts.find(topic, given),
        lambda at: resolved(_found_at(engine, topic, at, epoch_to_read(topic, at))),
    )


def _found_at(engine: Engine, topic: TopicLog, position: Position, epoch: int) -> FoundStart:
    earliest_seq = engine.floor_log.durable_earliest(topic)
    return FoundStart(topic, WatchStart(position.seq, topic.head, earliest_seq), epoch)


def _options(request: WatchRequest) -> Options:
    return Options(
        bounds=Bounds(request.limit, request.max_batch_bytes, request.consistency == "strong", tag_match(request.tag)),
        view=View(data=request.include_data, tags=request.include_tags, meta=request.include_meta),
        nodes=node_set(request.node),
    )
