"""Sockets: the WebSocket endpoint, and one socket: its commands, in order, and its subscriptions
(`docs/spec/http-api.md#sec-18`).

Always holds: a command is taken up only when a place for its reply is free and the one before it was answered; its
reply comes before every frame it gave rise to; after `unsubscribed` nothing of that topic is sent; at most four
messages wait for the client, and while they do no command is read, so its own socket slows the client down.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from topics.api.app import RequestCall
from topics.api.live.batches import Bounds, Options, RenderedBatch
from topics.api.live.outbound import Messages
from topics.api.live.subscription import Subscription
from topics.api.live.watch import FoundStart, WatchServices, find_starts
from topics.engine.ticket import Ticket
from topics.errors import Internal, InvalidRequest, TopicsError
from topics.model.config import resolve_config
from topics.model.results import Appended
from topics.net.messages import WsSink
from topics.net.websocket import GOING_AWAY, POLICY_VIOLATION, handshake_problem
from topics.wire.access.auth import check_config_on_write, check_names, check_scope, seen_by
from topics.wire.access.keys import READ, WRITE, ClientId, Key
from topics.wire.incoming.json import Unknown, warnings_of, with_warnings
from topics.wire.incoming.requests import node_set, tag_match
from topics.wire.outgoing import ws_messages as ws
from topics.wire.outgoing.live_json import (
    caught_up_json,
    deferred_json,
    deleted_json,
    record_json,
    resumed_json,
    tombstone_json,
)
from topics.wire.outgoing.records import View
from topics.wire.outgoing.replies import append_performance

log = logging.getLogger("topics.api")

T = TypeVar("T")
Reply = Callable[[], bytes]


class Socket:
    commands: ClassVar[dict[type, tuple[int, Callable[[Any, Any], None]]]]
    """By kind: the scopes that a command needs, and who carries it out."""

    __slots__ = (
        "_gone",
        "_is_busy",
        "_key",
        "_messages",
        "_services",
        "_sink",
        "_subscriptions",
        "_warnings",
        "closed",
    )

    def __init__(self, services: WatchServices, sink: WsSink, key: Key | None) -> None:
        self._services = services
        self._sink = sink
        self._key = key
        self._messages = Messages(self, sink, services.slow_limits, services.streams.monitor)
        self._subscriptions: dict[str, Subscription] = {}  # whoever was served longest ago comes first
        self._gone: deque[str] = deque()  # deleted topics whose news has no place yet
        self._is_busy = False  # a command is being carried out
        self._warnings: Sequence[str] = ()  # about it
        self.closed = False

    def begin(self, client: ClientId = None) -> None:
        self._services.streams.enter(self, client)
        self._sink.on_close(self._ended)
        self._sink.on_message(self._received)

    # --- commands -------------------------------------------------------------------------------------------------

    def _received(self, payload: bytes, is_text: bool) -> None:
        self._begin_command()
        if not is_text:
            self._reply(ws.error_frame(None, ws.UNSUPPORTED_MESSAGE, "messages are JSON text"))
            return
        unknown: list[Unknown] = []
        try:
            command = ws.decode_command(payload, unknown)
        except InvalidRequest as error:
            self._reply(ws.error_frame(ws.NO_REQUEST_ID, ws.INVALID_JSON, error.message))
            return
        self._warnings = warnings_of(unknown) if unknown else ()
        scopes, carry_out = self.commands[type(command)]
        try:
            check_scope(self._key, scopes)
            check_names(self._key, command)
            carry_out(self, command)
        except Exception as error:
            self._refuse(command.request_id, error)

    def _begin_command(self) -> None:
        """One at a time: no further command is read until this one is answered."""
        self._is_busy = True
        self._messages.reserve()
        self._sink.pause_reading()

    def _reply(self, frame: bytes) -> None:
        if self._warnings:
            frame, self._warnings = with_warnings(frame, self._warnings), ()
        self._messages.send_reserved(frame, self._now_ms())
        self._is_busy = False
        self._read_on()

    def _refuse(self, request_id: msgspec.Raw, error: BaseException) -> None:
        if not isinstance(error, TopicsError):
            log.error("a WebSocket command failed", exc_info=error)
            error = Internal()
        self._warnings = ()  # an error says what has to be changed first
        self._reply(ws.refusal_frame(request_id, seen_by(self._key, error)))

    def _read_on(self) -> None:
        if not self._is_busy and not self.closed and self._messages.places() > 0:
            self._sink.resume_reading()

    def _when(self, ticket: Ticket[T], request_id: msgspec.Raw, answer: Callable[[T], None]) -> None:
        ticket.then(partial(self._answer_with, request_id, answer))

    def _answer_with(self, request_id: msgspec.Raw, answer: Callable[[Any], None], done: Ticket[Any]) -> None:
        if self.closed:
            return
        if done.error is not None:
            self._refuse(request_id, done.error)
            return
        try:
            answer(done.value)
        except Exception as error:
            self._refuse(request_id, error)

    # --- subscriptions --------------------------------------------------------------------------------------------

    def _subscribe(self, command: ws.Subscribe) -> None:
        tag_match(command.tag)
        starts = find_starts(self._services.engine, command.starts(), lenient=command.lenient)
        self._when(starts, command.request_id, partial(self._subscribed, command))

    def _subscribed(self, command: ws.Subscribe, starts: list[FoundStart]) -> None:
        services, options = self._services, _options(command)
        for start in starts:
            self._drop(start.topic.name)
        self._reply(ws.subscribed_frame(command.request_id, {start.topic.name: start.shown for start in starts}))
        now_ms = services.engine.context.clock.now_ms()
        for topic, shown, epoch in sorted(starts, key=lambda start: start.topic.name):
            subscription = Subscription(self, topic.name, options, at=shown.from_seq, epoch=epoch)
            self._subscriptions[topic.name] = subscription
            subscription.attach(services.delivery, services.batches, topic, now_ms=now_ms)

    def _unsubscribe(self, command: ws.Unsubscribe) -> None:
        names = command.names()
        for name in names:
            self._drop(name)
        self._reply(ws.unsubscribed_frame(command.request_id, names))

    def _drop(self, name: str) -> None:
        subscription = self._subscriptions.pop(name, None)
        if subscription is not None:
            subscription.close()
        if name in self._gone:
            self._gone.remove(name)

    # --- publish, ping --------------------------------------------------------------------------------------------

    def _publish(self, command: ws.Publish) -> None:
        if command.config is not None:
            check_config_on_write(self._key, command.topic)
        began_ms = self._now_ms()
        batch = command.batch()
        config = None if command.config is None else resolve_config(command.config)
        may_refuse = not command.disable_backpressure
        ticket = self._services.engine.write(
            command.topic, batch, create=command.create, config=config, may_refuse=may_refuse
        )
        self._when(ticket, command.request_id, partial(self._published, command, began_ms, ticket))

    def _published(self, command: ws.Publish, began_ms: float, ticket: Ticket[Appended], done: Appended) -> None:
        spent = append_performance(self._now_ms() - began_ms, done, throttle_wait_ms=ticket.wait_ms)
        frame = ws.ack_frame(
            command.request_id, command.topic, done, return_seqs=command.return_seqs, performance=spent
        )
        self._reply(frame)

    def _ping(self, command: ws.Ping) -> None:
        self._reply(ws.pong_frame(command.request_id))

    # --- Channel: what subscriptions push -------------------------------------------------------------------------

    def has_room(self, subscription: Subscription) -> bool:
        return not self.closed and not self._gone and self._messages.places() > 0

    def grant(self, subscription: Subscription, wanted_bytes: int, *, least_bytes: int = 0) -> int:
        return self._messages.grant(wanted_bytes, least_bytes=least_bytes) if self.has_room(subscription) else 0

    def making(self, change_bytes: int) -> None:
        self._messages.making(change_bytes)

    def frames_key(self, subscription: Subscription) -> object:
        return "ws", subscription.options.view

    def build(self, subscription: Subscription, batch: RenderedBatch) -> object:
        return _frames_of(batch, subscription)

    def push(self, subscription: Subscription, batch: RenderedBatch, now_ms: float) -> None:
        """As many of the batch's messages as there are places; the subscription goes on from the last one sent."""
        outcome, frames = batch.outcome, _frames_of(batch, subscription)
        self._subscriptions[subscription.name] = self._subscriptions.pop(subscription.name)
        subscription.epoch = batch.epoch
        subscription.has_failed = False
        if frames.tombstone:
            subscription.at, subscription.is_caught_up = frames.gap_at, False
            self._send(frames.tombstone, now_ms)
        if frames.record:
            if frames.tombstone and not self._messages.places() > 0:
                return
            subscription.is_caught_up = False
            self._send(frames.record, now_ms)
        subscription.at = outcome.next_from_seq
        if outcome.caught_up and not subscription.is_caught_up and self._messages.places() > 0:
            subscription.is_caught_up = True
            self._send(
                caught_up_json(subscription.name, head_seq=outcome.head_seq, epoch=outcome.epoch, op=ws.CAUGHT_UP),
                now_ms,
            )

    def _send(self, payload: bytes, now_ms: float) -> None:
        """Into a free place; when it was the last one, commands wait too."""
        self._messages.send(payload, now_ms)
        if self._messages.places() <= 0:
            self._sink.pause_reading()

    def topic_gone(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription.name, None)
        self._gone.append(subscription.name)
        self._tell_gone()

    def _tell_gone(self) -> None:
        while self._gone and self._messages.places() > 0:
            self._send(deleted_json(self._gone.popleft(), op=ws.TOPIC_DELETED), self._now_ms())

    def topic_deferred(self, subscription: Subscription, wait_ms_max: int) -> bool:
        if not self.has_room(subscription):
            return False
        self._send(deferred_json(subscription.name, max_wait_ms=wait_ms_max, op=ws.DEFERRED), self._now_ms())
        return True

    def topic_resumed(self, subscription: Subscription) -> None:
        if self.has_room(subscription):
            self._send(resumed_json(subscription.name, op=ws.RESUMED), self._now_ms())

    def read_failed(self, subscription: Subscription, error: BaseException) -> None:
        if not subscription.has_failed and self._messages.places() > 0:
            subscription.has_failed = True
            shown = error if isinstance(error, TopicsError) else Internal()
            shown = seen_by(self._key, shown)
            self._send(ws.error_frame(ws.NO_REQUEST_ID, shown.code, shown.message), self._now_ms())
        self._services.streams.retry(subscription)

    # --- Owner: what becomes of it --------------------------------------------------------------------------------

    def handed_over(self, mark: None) -> None:
        return

    def dropped(self, marks: list[None]) -> None:
        return

    def has_budget_again(self) -> None:
        """Commands come first: a client that cannot keep up must be able to unsubscribe."""
        if self.closed:
            return
        self._tell_gone()
        self._read_on()
        for subscription in list(self._subscriptions.values()):
            subscription.wake()

    def all_taken(self) -> None:
        return

    def too_slow(self) -> None:
        """Last words if there is a place for them; whoever does not take those either is cut off a little later."""
        self._services.streams.too_slow_total += 1
        if self._messages.places() > 0:
            words = "nothing was taken from this socket for too long"
            self._sink.send_text(ws.error_frame(None, ws.SLOW_CONSUMER, words))
            self._sink.close(POLICY_VIOLATION)
        else:
            self._sink.abort()

    # --- the end --------------------------------------------------------------------------------------------------

    def shut_down(self) -> None:
        self._sink.send_text(ws.error_frame(None, ws.SHUTTING_DOWN, "the server is shutting down"))
        self._sink.close(GOING_AWAY)

    def cut_off(self) -> None:
        self._sink.abort()

    def _ended(self) -> None:
        if self.closed:
            return
        self.closed = True
        for subscription in self._subscriptions.values():
            subscription.close()
        self._subscriptions.clear()
        self._services.streams.leave(self)

    def _now_ms(self) -> float:
        return self._services.streams.now_ms()


class _Frames(NamedTuple):
    """The messages of a batch, empty where there is none."""

    tombstone: bytes
    record: bytes
    gap_at: int


def _frames_of(batch: RenderedBatch, subscription: Subscription) -> _Frames:
    key = "ws", subscription.options.view
    frames: _Frames | None = batch.memo.get(key)
    if frames is None:
        frames = batch.memo[key] = _make_frames(batch, subscription)
    return frames


def _make_frames(batch: RenderedBatch, subscription: Subscription) -> _Frames:
    outcome, tombstone, record, gap_at = batch.outcome, b"", b"", 0
    if outcome.tombstone is not None:
        gap = outcome.tombstone
        gap_at = gap.earliest_seq - 1 if gap.reason == "recreated" else gap.gap_to
        tombstone = tombstone_json(subscription.name, gap, gap.reason, at=gap_at, epoch=outcome.epoch, op=ws.TOMBSTONE)
    if batch.records:
        text = batch.text(subscription.options.view)
        to_seq, head_seq, epoch = outcome.next_from_seq, outcome.head_seq, outcome.epoch
        record = record_json(
            subscription.name,
            text,
            from_seq=subscription.at,
            to_seq=to_seq,
            head_seq=head_seq,
            epoch=epoch,
            op=ws.RECORD,
        )
    return _Frames(tombstone, record, gap_at)


def _options(command: ws.Subscribe) -> Options:
    return Options(
        bounds=Bounds(command.limit, command.max_batch_bytes, tag=tag_match(command.tag)),
        view=View(data=command.include_data, tags=command.include_tags, meta=command.include_meta),
        nodes=node_set(command.node),
    )


Socket.commands = {
    ws.Subscribe: (READ, Socket._subscribe),
    ws.Unsubscribe: (0, Socket._unsubscribe),
    ws.Publish: (WRITE, Socket._publish),
    ws.Ping: (0, Socket._ping),
}


class WsEndpoint:
    def __init__(self, services: WatchServices, socket: type[Socket] = Socket) -> None:
        self._services = services
        self._socket = socket

    def websocket(self, call: RequestCall) -> None:
        problem = handshake_problem(call.request)
        if problem is not None:
            raise InvalidRequest(problem)
        client = call.client
        self._services.streams.check_cap(client)
        sink = call.responder.upgrade_websocket()
        call.end()
        self._socket(self._services, sink, call.key).begin(client)
