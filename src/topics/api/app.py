"""App: the order of a request's steps, the same for every protocol (`docs/spec/http-api.md#sec-3`).

    head      host and origin, authenticate, running requests of the key, rights, route    403 401 429 403 404 405
    handle    body, parsing, the endpoint

What a head alone decides is kept on the head, which a connection shares between requests that repeat it. While
recovery runs, everything but the probes and metrics is refused. Always holds: a request that was counted is uncounted
once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from topics.api.call import InFlight, RequestCall, error_response
from topics.api.fast_append import FastAppends, admits_express
from topics.api.page_responder import PageResponder
from topics.engine.engine import Engine
from topics.errors import MethodNotAllowed, NotReady, ShuttingDown, TopicsError
from topics.net.messages import Headers, Request, RequestHead, Responder, Response
from topics.wire.access.auth import authenticate, check_rights
from topics.wire.access.keys import Key, KeyRing
from topics.wire.access.page_rules import PageRules
from topics.wire.endpoints import implemented
from topics.wire.incoming.paths import Routes, Target

Handler = Callable[[RequestCall], None]

OPEN_WHILE_RECOVERING = frozenset({"health", "ready", "metrics"})


class RouteDecision:
    """What a head alone decides: the endpoint, who asks for it, and whether that is refused."""

    __slots__ = ("handler", "key", "preflight", "refusal", "shown", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.key: Key | None = None
        self.handler = "" if target.endpoint is None else target.endpoint.handler
        self.refusal: TopicsError | None = None
        self.shown: Headers = ()
        """What every answer carries, so that the browser shows it to the page that asked."""
        self.preflight: Headers | None = None

    def refuse(self, error: TopicsError) -> Response:
        response = error_response(error)
        if isinstance(error, MethodNotAllowed):
            response.headers = ((b"allow", self.target.allow.encode()),)
        response.headers += self.shown
        return response


class App:
    """`handlers` are by the names of the endpoint table; a row without one does not exist."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        keys: KeyRing | None,
        pages: PageRules,
        probe_auth: bool,
        inflight_max: int,
        monotonic: Callable[[], float],
    ) -> None:
        self._handlers = dict(handlers)
        self._routes = Routes(implemented(self._handlers))
        self._keys = keys
        self._pages = pages
        self._probe_auth = probe_auth
        self._inflight = InFlight(inflight_max)
        self._monotonic = monotonic
        self.progress: float | None = 0.0
        """How far recovery is; None once it is over."""
        self.draining = False
        self._express: FastAppends | None = None
        self.on_shutdown: list[Callable[[], None]] = []

    def serve_directly(self, handlers: Mapping[str, Handler]) -> None:
        """Put the real endpoints in place of their stand-ins; the routes stay."""
        assert self._handlers.keys() >= handlers.keys(), "an endpoint came that has no route"
        self._handlers.update(handlers)

    @property
    def handler_names(self) -> frozenset[str]:
        return frozenset(self._handlers)

    # --- the two steps --------------------------------------------------------------------------------------------

    def head(self, request: Request) -> Response | None:
        found: RouteDecision | None = request.head.memo
        if found is None:
            found = request.head.memo = self._find(request)
            self._offer_express(found, request.head)
        if found.preflight is not None:
            return Response(200, b"", b"text/plain", found.preflight)
        if found.key is not None:
            try:
                self._inflight.enter(found.key)
            except TopicsError as error:
                return found.refuse(error)
        request.context = found
        if found.refusal is not None:
            self.abandon(request)
            return found.refuse(found.refusal)
        return None

    def _offer_express(self, found: RouteDecision, head: RequestHead) -> None:
        express = self._express
        is_plain = found.handler == "write" and found.refusal is None and not found.shown
        if express is not None and is_plain and admits_express(head):
            head.fast_append = express.writes(found.target.name, head, found.key).take

    def write_express(self, engine: Engine) -> FastAppends:
        """Offer the short way to writes that repeat a head; it is to be told of the end of each turn."""
        self._express = FastAppends(engine, monotonic=self._monotonic, inflight=self._inflight)
        return self._express

    def _find(self, request: Request) -> RouteDecision:
        target = self._routes.find(request.method, request.raw_path)
        found = RouteDecision(target)
        found.shown = self._pages.shown_to(request.headers)
        try:
            self._pages.check(request.method, request.headers, target)
            found.preflight = self._pages.preflight(request.method, request.headers)
            if found.preflight is None:
                found.key = authenticate(
                    self._keys,
                    target,
                    authorization=request.header(b"authorization"),
                    raw_query=request.query,
                    probe_auth=self._probe_auth,
                )
                check_rights(found.key, target)
                target.require()
        except TopicsError as error:
            found.refusal = error
        return found

    def handle(self, request: Request, responder: Responder) -> None:
        found: RouteDecision = request.context
        if found.shown:
            responder = PageResponder(responder, found.shown)
        call = RequestCall(request, responder, found.target, found.key, self._monotonic, self._inflight)
        try:
            if self.progress is not None or self.draining:
                self._check_open(found.handler)
            self._handlers[found.handler](call)
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
        found: RouteDecision | None = request.context
        if found is not None and found.key is not None:
            self._inflight.leave(found.key)

    def shutdown(self) -> None:
        self.draining = True
        for stop in self.on_shutdown:
            stop()
