"""App: the way of one request through the api, the same for every protocol (`docs/spec/http-api.md#sec-3`).

    head      host and origin, authenticate, running requests of the key, rights, route    403 401 429 403 404 405
    handle    body, parsing, the endpoint; the endpoint answers through its `RequestCall`

What a head alone decides is kept on the head, which a connection shares between requests that repeat it. While
recovery runs, and while the server drains, everything but the probes and metrics is refused. Always holds: a request
that was counted is uncounted once; a call is answered once; whatever an endpoint raises becomes the one error envelope.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from topics.api.metrics.request_stats import RequestStats
from topics.api.refusal_log import RefusalLog
from topics.engine.ticket import Ticket
from topics.errors import (
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    NotReady,
    ShuttingDown,
    Throttled,
    TopicsError,
    Unauthorized,
    UnsupportedMediaType,
)
from topics.net.messages import BodyFault, Headers, Request, RequestHead, Responder, Response, StreamSink, WsSink
from topics.wire.access.auth import PageRules, authenticate, check_names, check_rights, seen_by
from topics.wire.access.keys import ClientId, Key, KeyRing, client_of
from topics.wire.access.stream_tokens import StreamTokens
from topics.wire.access.visible_names import cut
from topics.wire.endpoints import ENDPOINTS
from topics.wire.incoming.json import Unknown, warnings_of, with_warnings
from topics.wire.incoming.request_head import Query, Routes, Target, body_text, parse_query
from topics.wire.outgoing.replies import error_body, performance, struct_reply

log = logging.getLogger("topics.api")

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)

OPEN_WHILE_RECOVERING = frozenset({"health", "ready", "metrics"})
_RETRY_AFTER: Headers = ((b"retry-after", b"1"),)


class RouteDecision(msgspec.Struct, frozen=True):
    """What a head alone decides: the endpoint, whose key asks for it, and whether that is refused."""

    target: Target
    key: Key | None
    refusal: TopicsError | None
    page_headers: Headers
    """Header fields of every answer: by them a browser shows the answer to the page that asked."""
    preflight: Headers | None
    is_lasting: bool = True
    """It holds for every request with this head. What a token opens it opens for a while."""
    """The whole answer, if a browser asks whether a page may send a request."""

    @property
    def handler(self) -> str | None:
        return None if self.target.endpoint is None else self.target.endpoint.handler

    def refuse(self, error: TopicsError) -> Response:
        response = error_response(error)
        if isinstance(error, MethodNotAllowed):
            response.headers = ((b"allow", self.target.allow.encode()),)
        response.headers += self.page_headers
        return response


class FastPath(Protocol):
    """The short way of small writes (`topics.api.fast_append`)."""

    def offer(self, head: RequestHead, topic: str, key: Key | None) -> None:
        """Have requests that repeat this head, a write to `topic`, taken without `App.head` and `App.handle`."""


class App:
    def __init__(
        self,
        *,
        keys: KeyRing | None,
        pages: PageRules,
        probe_auth: bool,
        inflight_max: int,
        monotonic: Callable[[], float],
    ) -> None:
        self.handlers: dict[str, Handler] = {}
        """By the names of the endpoint table. Those of the probes are there from the start, the others when recovery is
        over."""
        self._routes = Routes(ENDPOINTS)
        self._keys = keys
        self.tokens = StreamTokens(keys, monotonic=monotonic)
        self._pages = pages
        self._probe_auth = probe_auth
        self._monotonic = monotonic
        self.inflight = InFlight(inflight_max)
        self.requests = RequestStats()
        self._refusals = RefusalLog(keys, monotonic=monotonic)
        self.progress: float | None = 0.0
        """How far recovery is; None once it is over."""
        self.draining = False
        self.fast_path: FastPath | None = None
        self.on_shutdown: list[Callable[[], None]] = []

    # --- the head -------------------------------------------------------------------------------------------------

    def head(self, request: Request) -> Response | None:
        decision: RouteDecision | None = request.head.memo
        if decision is None or self._is_outdated(decision):
            decision = self._decide(request)
            request.head.memo = decision if decision.is_lasting else None
        if decision.preflight is not None:
            return Response(200, b"", b"text/plain", decision.preflight)
        if decision.key is not None:
            try:
                self.inflight.enter(decision.key)
            except TopicsError as error:
                return self._refuse(request, decision, error)
        request.context = decision
        if decision.refusal is not None:
            self.abandon(request)
            return self._refuse(request, decision, decision.refusal)
        return None

    def _is_outdated(self, decision: RouteDecision) -> bool:
        """Keys end and come while connections stay."""
        if decision.key is None:
            return isinstance(decision.refusal, Unauthorized)
        assert self._keys is not None
        return not self._keys.is_current(decision.key)

    def _refuse(self, request: Request, decision: RouteDecision, error: TopicsError) -> Response:
        self.requests.refused(decision.handler, error.status)
        self._refusals.refused(request, decision.target, error)
        return decision.refuse(error)

    def _decide(self, request: Request) -> RouteDecision:
        headers = request.headers
        target = self._routes.find(request.method, request.raw_path)
        page_headers = self._pages.shown_to(headers)
        key: Key | None = None
        preflight: Headers | None = None
        refusal: TopicsError | None = None
        try:
            self._pages.check(request.method, headers, target)
            preflight = self._pages.preflight(request.method, headers)
            if preflight is None:
                key = authenticate(
                    self._keys,
                    target,
                    authorization=headers.get(b"authorization"),
                    raw_query=request.query,
                    probe_auth=self._probe_auth,
                    tokens=self.tokens,
                    protocols=headers.get(b"sec-websocket-protocol"),
                )
                check_rights(key, target)
                if target.endpoint is None or target.is_bad_text:
                    target.require()
        except TopicsError as error:
            refusal = error
        is_write = target.endpoint is not None and target.endpoint.handler == "write"
        if self.fast_path is not None and is_write and refusal is None and not page_headers:
            self.fast_path.offer(request.head, target.name, key)
        is_lasting = target.endpoint is None or not target.endpoint.takes_stream_token
        return RouteDecision(target, key, refusal, page_headers, preflight, is_lasting)

    # --- the whole request ----------------------------------------------------------------------------------------

    def handle(self, request: Request, responder: Responder) -> None:
        decision: RouteDecision = request.context
        if decision.page_headers:
            responder = PageResponder(responder, decision.page_headers)
        row = decision.target.endpoint
        assert row is not None
        call = RequestCall(request, responder, decision, self._monotonic, self.inflight, self.requests, self._refusals)
        try:
            if self.progress is not None or self.draining:
                self._check_open(row.handler)
            self.handlers[row.handler](call)
        except Exception as error:
            call.fail(error)

    def _check_open(self, handler: str) -> None:
        """Before and after the time in which everything is served, the probes and metrics still are."""
        if handler in OPEN_WHILE_RECOVERING:
            return
        if self.progress is not None:
            raise NotReady(self.progress)
        raise ShuttingDown()

    def abandon(self, request: Request) -> None:
        decision: RouteDecision | None = request.context
        if decision is not None and decision.key is not None:
            self.inflight.leave(decision.key)

    def shutdown(self) -> None:
        self.draining = True
        for stop in self.on_shutdown:
            stop()


class InFlight:
    """How many requests of each key are running, and the cap on that; 0 is no cap."""

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


class RequestCall:
    """One request on its way through an endpoint, and the ways to answer it."""

    __slots__ = (
        "_inflight",
        "_monotonic",
        "_refusals",
        "_requests",
        "key",
        "name",
        "part",
        "request",
        "responder",
        "target",
        "warnings",
    )

    def __init__(
        self,
        request: Request,
        responder: Responder,
        decision: RouteDecision,
        monotonic: Callable[[], float],
        inflight: InFlight,
        requests: RequestStats,
        refusals: RefusalLog,
    ) -> None:
        target, key = decision.target, decision.key
        self.request = request
        self.responder = responder
        self.target = target
        self.key = key
        self.name = target.name
        self.part = target.part
        self.warnings: Sequence[str] = ()
        self._monotonic = monotonic
        self._requests = requests
        self._refusals = refusals
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
    def client(self) -> ClientId:
        """Whose share of countable things this call takes from."""
        return client_of(self.key, self.request.peer)

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
        self._count(status)
        if self.warnings:
            body = with_warnings(body, self.warnings)
        if status == 200:
            self.responder.reply_ok(body)
        else:
            self.responder.reply(Response(status, body))

    def _count(self, status: int) -> None:
        assert self.target.endpoint is not None
        self._requests.answered(self.target.endpoint.handler, status, self._monotonic() - self.request.started_s)

    def answer(
        self, result: msgspec.Struct, spent: bytes | None = None, *, status: int = 200, hidden: Sequence[str] = ()
    ) -> None:
        """Reply with a result, without the names that the key may not see; `spent` is its performance object,
        `hidden` what was left out already."""
        if self.key is not None and self.key.is_bound:
            result, more = cut(result, self.key.permits_name)
            hidden = (*hidden, *more)
        spent = performance(self.elapsed_ms()) if spent is None else spent
        self.reply(status, struct_reply(result, spent, hidden=hidden))

    def respond(self, response: Response) -> None:
        self.end()
        self._count(response.status)
        self.responder.reply(response)

    def fail(self, error: BaseException) -> None:
        self._refusals.refused(self.request, self.target, error)
        self.respond(error_response(error, self.key))

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


Handler = Callable[[RequestCall], None]


def within_budget(handler: Handler) -> Handler:
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


class PageResponder:
    """A `Responder` around the connection's own: answers to a web page of a listed origin carry the header fields by
    which its browser shows them to it."""

    __slots__ = ("_inner", "_shown")

    def __init__(self, inner: Responder, shown: Headers) -> None:
        self._inner = inner
        self._shown = shown

    def reply(self, response: Response) -> None:
        response.headers += self._shown
        self._inner.reply(response)

    def reply_ok(self, body: bytes) -> None:
        self.reply(Response(200, body))

    def stream(self, status: int, headers: Headers) -> StreamSink:
        return self._inner.stream(status, headers + self._shown)

    def upgrade_websocket(self) -> WsSink:
        return self._inner.upgrade_websocket()

    def on_close(self, callback: Callable[[], None]) -> None:
        self._inner.on_close(callback)

    def keep_order(self) -> None:
        self._inner.keep_order()

    def has_budget(self, size_bytes: int) -> bool:
        return self._inner.has_budget(size_bytes)

    def when_budget(self, read: Callable[[], None], dropped: Callable[[], None], *, size_bytes: int = 0) -> None:
        self._inner.when_budget(read, dropped, size_bytes=size_bytes)

    def expect(self, size_bytes: int) -> None:
        self._inner.expect(size_bytes)
