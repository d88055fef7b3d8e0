"""Exchange: HTTP/1.1 without I/O, from the client's side: calls become bytes, bytes become answers or stream pieces.

Always holds: an answer is complete or it is none (`Unreachable`), wherever the connection was cut; a connection whose
state is in doubt is never used again. Used by the blocking and by the asyncio client alike."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import httptools
import msgspec

from topics.errors import TopicsError, TopicsWarning, Unreachable
from topics.limits import MIB
from topics.wire.outgoing.replies import error_from_wire

T = TypeVar("T")

ANSWER_BYTES_MAX = 256 * MIB  # 30 times the largest page a server renders: more is not ours
WARNED_MAX = 1000  # warnings that a process remembers to have told
JSON = b"application/json"
_CONTINUE = 100
_OK = 200
_REDIRECTS = 300


class ClientCall(Generic[T]):
    """One call as a value. `repeatable`: twice does no harm. `wait_ms`: the server may take this much longer. `accept`:
    the kind of body that `decode` takes."""

    __slots__ = ("accept", "body", "decode", "method", "repeatable", "target", "wait_ms")

    def __init__(
        self,
        method: bytes,
        target: str,
        decode: Callable[[bytes], T],
        *,
        body: bytes | None = None,
        repeatable: bool = True,
        wait_ms: int = 0,
        accept: bytes = JSON,
    ) -> None:
        self.accept = accept
        self.method = method
        self.target = target
        self.decode = decode
        self.body = body
        self.repeatable = repeatable
        self.wait_ms = wait_ms


class ClientAnswer(NamedTuple):
    status: int
    headers: Mapping[bytes, bytes]  # lower-case names
    body: bytes

    @property
    def is_ok(self) -> bool:
        return _OK <= self.status < _REDIRECTS


def render_request(
    call: ClientCall[Any], fixed: bytes, *, base: str = "", accept: bytes | None = None, extra: bytes = b""
) -> bytes:
    """`fixed` and `extra` are whole header lines."""
    target, accept = (base + call.target).encode(), accept or call.accept
    if call.body is None:
        return b"%b %b HTTP/1.1\r\n%bAccept: %b\r\n%b\r\n" % (call.method, target, fixed, accept, extra)
    form = b"%b %b HTTP/1.1\r\n%bAccept: %b\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    return form % (call.method, target, fixed, accept, extra, len(call.body), call.body)


# The head of nearly every answer, byte for byte as a server of ours writes it. What has any other line in it, such as
# what a proxy adds, is parsed.
_find_plain_head = re.compile(
    rb"HTTP/1\.1 200 OK\r\nDate: [\w ,:]+\r\nContent-Type: application/json\r\nContent-Length: (\d{1,9})\r\n\r\n"
).match
_NO_HEADERS: Mapping[bytes, bytes] = MappingProxyType({})


def plain_answer(data: bytes) -> ClientAnswer | None:
    """The answer that came whole, alone, and with a head that says nothing unusual; None if it has to be parsed."""
    head = _find_plain_head(data)
    if head is None or len(data) - head.end() != int(head[1]):
        return None
    return ClientAnswer(_OK, _NO_HEADERS, data[head.end() :])


class ResponseReader:
    """Responses of one connection, one at a time. Feed it what was received; ask what there is."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._size = 0
        self._surplus = False
        self._keep = False
        self.keeps_alive = False  # after an answer: the connection may carry another call
        self.status = 0
        self.has_head = False
        self.is_complete = False

    def feed(self, data: bytes) -> None:
        """Raises Unreachable for what is not HTTP, or more than any answer of ours."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            raise Unreachable("what came back is not an HTTP/1.1 response", sent=True) from None
        if self._size > ANSWER_BYTES_MAX:
            raise Unreachable(f"an answer has more than {ANSWER_BYTES_MAX} bytes", sent=True)

    def take(self) -> bytes:
        """The body bytes that came since the last time."""
        pieces, self._pieces, self._size = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def answer(self) -> ClientAnswer:
        """The complete answer; the reader is ready for the next one."""
        assert self.is_complete
        answer = ClientAnswer(self.status, self._headers, self.take())
        self.keeps_alive = self._keep and not self._surplus
        self._headers, self.has_head, self.is_complete = {}, False, False
        return answer

    # --- what the parser calls ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.is_complete:  # more than was asked for: nobody knows what it answers
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._surplus:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._surplus:
            return
        self.status = self._parser.get_status_code()
        self.has_head = self.status >= _OK

    def on_body(self, piece: bytes) -> None:
        if not self._surplus:
            self._size += len(piece)
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if self.status < _OK:  # an interim answer; the real one follows
            self._headers = {}
        elif not self._surplus:
            self.is_complete = True
            self._keep = bool(self._parser.should_keep_alive())


# --- from an answer to a result or an error --------------------------------------------------------------------------


def result_of(call: ClientCall[T], answer: ClientAnswer) -> T:
    """What the call asked for; raises the error that the server reported."""
    if not answer.is_ok:
        raise error_of(answer)
    if answer.body.endswith(b'"]}'):
        _warn(answer.body)
    try:
        return call.decode(answer.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _foreign(answer, f"its body is not what the contract says: {error}") from None


class _Warned(msgspec.Struct):
    warnings: list[str] = []


_decode_warned = msgspec.json.Decoder(_Warned).decode
_warned: set[str] = set()


def _warn(body: bytes) -> None:
    """What a server says about a request is told once in a process: it says so every time."""
    try:
        texts = _decode_warned(body).warnings
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return  # what it is instead is for the call's own decoder to say
    for text in texts:
        if text not in _warned and len(_warned) < WARNED_MAX:
            _warned.add(text)
            warnings.warn(f"the server says: {text}", TopicsWarning, stacklevel=2)


class _Reported(msgspec.Struct):
    code: str
    message: str
    detail: dict[str, Any] | None = None


class _Envelope(msgspec.Struct):
    error: _Reported


_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def error_of(answer: ClientAnswer) -> TopicsError:
    try:
        told = _decode_envelope(answer.body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _foreign(answer, "it does not speak like a topics server")
    error = error_from_wire(code=told.code, status=answer.status, message=told.message, detail=told.detail)
    return _with_retry_after(error, answer)


def _foreign(answer: ClientAnswer, why: str) -> TopicsError:
    message = f"the server answered {answer.status}, and {why}"
    return _with_retry_after(error_from_wire(code="foreign_answer", status=answer.status, message=message), answer)


def _with_retry_after(error: TopicsError, answer: ClientAnswer) -> TopicsError:
    seconds = answer.headers.get(b"retry-after", b"")
    if seconds.isdigit():
        error.retry_after_s = float(seconds)
    return error
