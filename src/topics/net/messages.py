"""What passes between a protocol and the application: requests, responses, and the ways to answer.

The application (`topics.api`) knows no protocol, the connections (`topics.server`) know no endpoint; both know this
file. Everything here is called on the loop's thread, and no call of it waits.

For each request the connection calls `Application.head` once the head is there, so that a refusal need not wait for
the body. If that returns None, then exactly one of two calls follows: `Application.handle` with the whole body, or
`Application.abandon` if the body will never come. A handler answers through its `Responder` exactly once, during
`handle` or at any later time; an answer to a peer that has gone is dropped in silence.

`error_response` makes the error envelope for refusals that the transport itself has to give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from topics.errors import RETRY_AFTER_S, TopicsError

Headers = tuple[tuple[bytes, bytes], ...]
HttpVersion = Literal["1.0", "1.1", "2"]

JSON = b"application/json"


class BodyFault(Enum):
    """Why `Request.body` is empty although a body came; the endpoint reports it at its step
    (`docs/spec/http-api.md#sec-3`)."""

    UNSUPPORTED_CODING = "unsupported_coding"  # 415, with the content type (step 6)
    BROKEN_CODING = "broken_coding"  # 400, with the JSON syntax (step 7)


class RequestHead:
    """What a head says. Requests that repeat a head on one connection share one object, so nobody changes it.

    `headers` has lower-case names; the values of a repeated field are joined by a comma. The framing fields
    (`content-length`, `transfer-encoding`) are the protocol's business and are left out. `memo` is for the application:
    what it derives from the head alone may be kept there and is found again when the head is repeated. `fast_append` is
    its offer to take a whole request that repeats the head at once, in place of `head` and `handle`.
    """

    __slots__ = (
        "chunked",
        "expects_continue",
        "fast_append",
        "headers",
        "is_plain",
        "keep_alive",
        "memo",
        "method",
        "query",
        "raw_path",
        "version",
    )

    def __init__(
        self,
        *,
        method: str,
        raw_path: bytes,
        query: bytes,
        headers: Mapping[bytes, bytes],
        version: HttpVersion,
        keep_alive: bool = True,
        chunked: bool = False,
        expects_continue: bool = False,
    ) -> None:
        self.method = method
        self.raw_path = raw_path
        self.query = query
        self.headers = headers
        self.version: HttpVersion = version
        self.keep_alive = keep_alive
        self.chunked = chunked
        self.expects_continue = expects_continue
        self.is_plain = version == "1.1" and method != "HEAD"  # its answer is framed in the one usual way
        self.memo: Any = None
        self.fast_append: FastAppend | None = None


class Request:
    """One request. `raw_path` is not percent-decoded; `query` is what follows the first `?`, empty if nothing does.

    `body` is None until the body is complete, and decoded if it was compressed. `content_length` is what the client
    declared, None if it did not. `context` is the application's, to carry what `head` found out to `handle`.
    """

    __slots__ = (
        "body",
        "body_fault",
        "content_length",
        "context",
        "head",
        "headers",
        "method",
        "peer",
        "query",
        "raw_path",
        "started_s",
    )

    def __init__(
        self, head: RequestHead, content_length: int | None = None, peer: str = "", started_s: float = 0.0
    ) -> None:
        self.head = head
        self.method = head.method
        self.raw_path = head.raw_path
        self.query = head.query
        self.headers = head.headers
        self.content_length = content_length
        self.peer = peer
        self.started_s = started_s  # the clock's monotonic time when the head was complete
        self.body: bytes | None = None
        self.body_fault: BodyFault | None = None
        self.context: Any = None

    @property
    def http_version(self) -> HttpVersion:
        return self.head.version

    def header(self, name: bytes) -> bytes | None:
        """The value of a field by its lower-case name."""
        return self.headers.get(name)


class Response:
    """A complete answer. The protocol adds the length, the date and what its framing needs."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers

    def __repr__(self) -> str:
        return f"Response({self.status}, {self.body!r}, {self.content_type!r}, {self.headers!r})"


_RETRY_AFTER: Headers = ((b"Retry-After", b"%d" % RETRY_AFTER_S),)


def error_response(error: TopicsError) -> Response:
    """The envelope of `docs/spec/http-api.md#sec-5`, from the error tree: it reads like an endpoint's own answer."""
    envelope: dict[str, object] = {"code": error.code, "message": error.message}
    if error.detail is not None:
        envelope["detail"] = error.detail
    headers = _RETRY_AFTER if error.status in (429, 503) else ()
    return Response(error.status, msgspec.json.encode({"error": envelope}), headers=headers)


class AllowanceOwner(Protocol):
    """Who fills a sink, as the budget for everything that waits to be sent sees it."""

    def sent_bytes(self) -> int:
        """Handed to the sink, ever."""

    def queued_bytes(self) -> int:
        """Made, and not handed to the sink yet."""

    def making_bytes(self) -> int:
        """Being rendered."""

    def has_budget_again(self) -> None:
        """It was refused; now it may ask again."""

    def too_slow(self) -> None:
        """Its client takes nothing, and others wait: end it at once."""


class Allowance(Protocol):
    """A sink's part of the budget of all connections."""

    def grant(self, wanted_bytes: int, *, least_bytes: int = ...) -> int:
        """How much may be made for the client now: as much as is wanted, or a little, or 0. Less than `least_bytes` is
        0, and after 0 the owner is told when to ask again."""

    def measure(self) -> None:
        """Something was made, sent or dropped."""


class Sink(Protocol):
    """The sending side that streams and sockets share."""

    @property
    def closed(self) -> bool:
        """No more can be sent: ended, aborted, or the peer has gone."""

    def buffered_bytes(self) -> int:
        """Bytes accepted here that the kernel has not taken yet."""

    def set_drain_callback(self, callback: Callable[[], None], *, low_bytes: int = ...) -> None:
        """Call back each time the buffered bytes have risen above `low_bytes` and come down to it again."""

    def allowance(self, owner: AllowanceOwner) -> Allowance:
        """To be asked before something is made for this sink. It ends with the sink."""

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back once, when the peer has gone or the sink was ended; at once if that is already so."""

    def abort(self) -> None:
        """Drop what is buffered and cut the peer off."""


class Line(NamedTuple):
    """A sink's way to its transport, for one who sends the same bytes to many.

    `framed` makes a chunk what the wire wants; sinks with an equal one can share what it gives. `write` hands that to
    the transport, and may be called only while `waiting`, the bytes the transport has not passed on, gives 0."""

    framed: Callable[[bytes], bytes]
    waiting: Callable[[], int]
    write: Callable[[bytes], object]


class StreamSink(Sink, Protocol):
    """An answer of unknown length. Each chunk is handed to the transport at once."""

    def send(self, chunk: bytes) -> None:
        """Send these bytes; nothing happens if the sink is closed."""

    def line(self) -> Line | None:
        """The way around this sink, good until it is closed; None if there is none, or other bytes wait here."""

    def end(self) -> None:
        """Finish the answer properly; what is buffered is still delivered."""


class WsSink(Sink, Protocol):
    """A WebSocket. Pings are answered and close frames exchanged without the application."""

    def send_text(self, payload: bytes) -> None:
        """Send one text message of UTF-8 bytes; nothing happens if the socket is closed."""

    def on_message(self, callback: Callable[[bytes, bool], None]) -> None:
        """Call back with each whole message and whether it is text (valid UTF-8) or binary."""

    def pause_reading(self) -> None:
        """Deliver no further message until `resume_reading`; the peer is slowed down by its own socket."""

    def resume_reading(self) -> None: ...

    def close(self, code: int = 1000) -> None:
        """Send a close frame and end the connection once the peer has answered it."""


class Responder(Protocol):
    """How a handler answers, once."""

    def reply(self, response: Response) -> None: ...

    def reply_ok(self, body: bytes) -> None:
        """`reply` with status 200 and a JSON body, the commonest answer of all."""

    def stream(self, status: int, headers: Headers) -> StreamSink:
        """Send this head now and the body piece by piece. A HEAD request gets the head and a sink that is closed."""

    def upgrade_websocket(self) -> WsSink:
        """Switch protocols. Only after `topics.net.websocket.handshake_problem` found none."""

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back if the peer goes before it was answered, so that a waiting handler can stop waiting."""

    def keep_order(self) -> None:
        """This request waits for others: nothing that was sent behind it on its connection may be carried out first.
        To be called during `handle`. Streams of HTTP/2 have no order."""

    def has_budget(self, size_bytes: int) -> bool:
        """Has the peer taken enough of what was made for it, that it may have so much more?"""

    def when_budget(self, read: Callable[[], None], dropped: Callable[[], None], *, size_bytes: int = 0) -> None:
        """Call `read` when there is room, at once if there is, or `dropped` if the peer goes before. A request waits
        with this before it reads what makes a large answer. With `size_bytes`, room for as much is kept until it is
        answered; whoever reads something that may take long leaves that out, and asks `has_budget` when it has come."""

    def expect(self, size_bytes: int) -> None:
        """An answer of about this size is being made; it counts as if it waited for the peer already."""


class FastAppendResponder(Responder, Protocol):
    def reply_ok_all(self, responders: Sequence[Any], bodies: Sequence[bytes]) -> None:
        """`reply_ok` of each of several that were taken by one head's `FastAppends`, this one among them."""

    def decline(self, body: bytes) -> None:
        """In place of an answer: the request, with this body, goes the usual way after all."""


FastAppend = Callable[[bytes, FastAppendResponder], bool]
"""Takes a body, to answer or decline it later; False, and nothing has happened, if it has to go the usual way."""


class Application(Protocol):
    def head(self, request: Request) -> Response | None:
        """Refuse a request by its head (`docs/spec/http-api.md#sec-3`, steps 1 to 4), or None to go on.

        The connection itself refuses a body over the limit, after this."""

    def handle(self, request: Request, responder: Responder) -> None:
        """Take a request whose body is complete."""

    def abandon(self, request: Request) -> None:
        """`head` let this request pass, but `handle` will not be called for it."""

    def shutdown(self) -> None:
        """The server drains: end every stream and socket with its last words, now."""
