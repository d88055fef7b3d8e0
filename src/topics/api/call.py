"""InFlight: how many requests of each key are running, and the cap on that.

Call: one request on its way through an endpoint, and the ways to answer it.

Always holds: a call is answered once; whatever an endpoint raises becomes the one error envelope.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import msgspec

from topics.engine.ticket import Ticket
from topics.errors import Internal, InvalidRequest, Throttled, TopicsError, UnsupportedMediaType
from topics.net.messages import BodyFault, Headers, Request, Responder, Response
from topics.wire.access.auth import check_names, seen_by
from topics.wire.access.keys import Holder, Key, holder_of
from topics.wire.access.visible_names import cut
from topics.wire.incoming.json import Unknown
from topics.wire.incoming.media import body_text
from topics.wire.incoming.paths import Target
from topics.wire.incoming.query import Query, parse_query
from topics.wire.incoming.warnings import warnings_of, with_warnings
from topics.wire.outgoing.replies import error_body, performance, struct_reply


class InFlight:
    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._running: dict[bytes, int] = {}

    def enter(self, key: Key) -> None:
        running = self._running.get(key.digest, 0)
        if self._cap and running >= self._cap:
            raise Throttled.cap("max_inflight_per_key", max=self._cap)
        self._running[key.digest] = running + 1

    def leave(self, key: Key) -> None:
        left = self._running[key.digest] - 1
        if left:
            self._running[key.digest] = left
        else:
            del self._running[key.digest]


log = logging.getLogger("topics.api")

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)

_RETRY_AFTER: Headers = ((b"retry-after", b"1"),)


class RequestCall:
    __slots__ = ("_inflight", "_monotonic", "key", "name", "request", "responder", "target", "warnings")

    def __init__(
        self,
        request: Request,
        responder: Responder,
        target: Target,
        key: Key | None,
        monotonic: Callable[[], float],
        inflight: InFlight,
    ) -> None:
        self.request = request
        self.responder = responder
        self.target = target
        self.key = key
        self.name = target.name
        self.warnings: Sequence[str] = ()
        self._monotonic = monotonic
        self._inflight = None if key is None else inflight  # None: nobody counts, or no longer

    # --- what came ------------------------------------------------------------------------------------------------

    def body(self) -> bytes:
        """The JSON text, after the checks that come before parsing."""
        request = self.request
        if request.body_fault is not None:
            self._refuse_coding(request.body_fault)
        assert self.target.endpoint is not None
        return body_text(
            self.target.endpoint.body, content_type=request.headers.get(b"content-type"), body=request.body or b""
        )

    def _refuse_coding(self, fault: BodyFault) -> NoReturn:
        """A coding we do not know is refused with the content type; a broken one is a fault of the body, and later."""
        if fault is BodyFault.BROKEN_CODING:
            assert self.target.endpoint is not None
            body_text(self.target.endpoint.body, content_type=self.request.header(b"content-type"), body=b"")
            raise InvalidRequest("the compressed body is broken")
        raise UnsupportedMediaType("this content encoding is not supported; send gzip or none")

    @property
    def holder(self) -> Holder:
        """Whose share of countable things this call takes from."""
        return holder_of(self.key, self.request.peer)

    def take(self, decode: Callable[[bytes, list[Unknown]], R]) -> R:
        """The body as a value, once the key may name every topic in it. What nobody knows of it, the answer names."""
        unknown: list[Unknown] = []
        request = decode(self.body(), unknown)
        if unknown:
            self.warnings = warnings_of(unknown)
        if self.key is not None:
            check_names(self.key, request)
        return request

    def query(self) -> Query:
        return parse_query(self.request.query)

    # --- answers --------------------------------------------------------------------------------------------------

    def elapsed_ms(self) -> float:
        return max((self._monotonic() - self.request.started_s) * 1e3, 0.0)

    def reply(self, status: int, body: bytes) -> None:
        if self._inflight is not None:
            self.end()
        if self.warnings:
            body = with_warnings(body, self.warnings)
        if status == 200:
            self.responder.reply_ok(body)
        else:
            self.responder.reply(Response(status, body))

    def answer(
        self, result: msgspec.Struct, spent: bytes | None = None, *, status: int = 200, hidden: Sequence[str] = ()
    ) -> None:
        """Reply with a result, without the names that the key may not see; `spent` is its performance object,
        `hidden` what was left out already."""
        if self.key is not None and self.key.prefixes:
            result, more = cut(result, self.key.permits_name)
            hidden = (*hidden, *more)
        spent = performance(self.elapsed_ms()) if spent is None else spent
        self.reply(status, struct_reply(result, spent, hidden=hidden))

    def respond(self, response: Response) -> None:
        self.end()
        self.responder.reply(response)

    def fail(self, error: BaseException) -> None:
        self.end()
        self.responder.reply(error_response(error, self.key))

    def rendered(self, body: bytes | None, error: BaseException | None) -> None:
        """Answer with what a thread has rendered, or with its error."""
        if error is not None:
            self.fail(error)
        else:
            assert body is not None
            self.reply(200, body)

    def when_budget(self, step: Callable[[], None], *, size_bytes: int = 0) -> None:
        """Go on, towards an answer that may be large, when the client has taken enough of those before."""
        self.responder.when_budget(partial(self._go_on, step), self.end, size_bytes=size_bytes)

    def _go_on(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            self.fail(error)

    def when(self, ticket: Ticket[T], answer: Callable[[T], None]) -> None:
        """Answer with the value of a ticket, or with its error."""
        ticket.then(partial(self._answer_with, answer))

    def _answer_with(self, answer: Callable[[Any], None], done: Ticket[Any]) -> None:
        if done.error is not None:
            self.fail(done.error)
            return
        try:
            answer(done.value)
        except Exception as error:
            self.fail(error)

    def end(self) -> None:
        """The request no longer runs: streams call this when they begin, everything else when it is answered."""
        if self._inflight is not None and self.key is not None:
            self._inflight.leave(self.key)
            self._inflight = None


def with_room(handler: Callable[[RequestCall], None]) -> Callable[[RequestCall], None]:
    """The endpoint, waiting for room first: its answers grow with what the server has."""
    return lambda call: call.when_budget(partial(handler, call))


def error_response(error: BaseException, key: Key | None = None) -> Response:
    """The one place where errors become responses. What is no refusal of ours is a bug: logged, and not explained."""
    if not isinstance(error, TopicsError):
        log.error("a request failed", exc_info=error)
        error = Internal()
    error = seen_by(key, error)
    headers = _RETRY_AFTER if error.status in (429, 503) else ()
    return Response(error.status, error_body(error), headers=headers)
