"""The head of a request, read before its body: path, query, `Accept`, content type.

    paths         which row of the endpoint table a request means, and which part of the address space it lies in. A
                  path is split on literal slashes first, then each segment is percent-decoded once. The answer is a
                  value and no error, because rights are decided between looking a path up and refusing it
    queries       `application/x-www-form-urlencoded`; a parameter that cannot be read means its default, and of several
                  equal names the first counts
    accept        the two questions that the contract asks of it, by substring and never by weight
    content type  checked after the size and before a decoder runs, so that 413 beats 415 beats 400
                  (`docs/spec/http-api.md#sec-4-1`)

Called by api once per request, and by `auth` for `?token=`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote_plus, unquote_to_bytes

from topics import limits
from topics.errors import InvalidRequest, MethodNotAllowed, NotFound, UnsupportedMediaType
from topics.model.position import Position, parse_token
from topics.wire.endpoints import Area, BodyKind, Endpoint

Methods = dict[str, Endpoint]

ARROW_MEDIA = b"application/vnd.apache.arrow.stream"
"""What a request accepts that wants a table, and the type of the answer."""

_NAME = b"{}"  # stands for the name in a key of `Routes._named`
_NAME_POSITIONS = (3, 2)  # /v0/topics/{topic}, /console/{file}
_PART_AT = 5  # /v0/topics/{topic}/cursors/{cursor}
_PLAIN_AREAS: dict[bytes, Area] = {
    b"/v0/topics": "topics",
    b"/v0/routers": "routers",
    b"/v0/schedules": "schedules",
    b"/v0/watch": "watch",
    b"/v0/health": "probe",
    b"/healthz": "probe",
    b"/v0/ready": "probe",
    b"/readyz": "probe",
}


class Target(NamedTuple):
    """What a request line means. `name` is the decoded topic, router, schedule, session or file; empty if the path
    has none. `part` is what a path names within that: a cursor of a topic."""

    endpoint: Endpoint | None
    area: Area
    name: str = ""
    allow: str = ""  # the methods of a known path
    is_bad_text: bool = False
    part: str = ""

    def require(self) -> Endpoint:
        """The row, or the refusal of `docs/spec/http-api.md#sec-2-4`."""
        if self.is_bad_text:
            raise InvalidRequest("a path segment is not valid UTF-8")
        if self.endpoint is None:
            raise MethodNotAllowed if self.allow else NotFound
        return self.endpoint


class Routes:
    """The table as dictionaries: whole plain paths, and the segments around one name."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._plain: dict[bytes, Methods] = {}
        self._named: dict[tuple[bytes, ...], Methods] = {}
        for row in endpoints:
            self._add(row)
        self._spelled = {tuple(path.split(b"/")): path for path in self._plain}

    def _add(self, row: Endpoint) -> None:
        segments = tuple(_NAME if part.startswith(b"{") else part for part in row.path.encode().split(b"/"))
        if _NAME in segments:
            methods = self._named.setdefault(segments, {})
        else:
            methods = self._plain.setdefault(row.path.encode(), {})
        methods[row.method] = row
        if row.method == "GET":
            methods["HEAD"] = row

    def find(self, method: str, raw_path: bytes) -> Target:
        methods = self._plain.get(raw_path)
        if methods is not None:
            return Target(methods.get(method), _PLAIN_AREAS.get(raw_path, "other"), allow=_allow(methods))
        segments = raw_path.split(b"/")
        if b"%" in raw_path:
            segments = list(map(unquote_to_bytes, segments))
            plain_path = self._spelled.get(tuple(segments))
            if plain_path is not None:
                return self.find(method, plain_path)
        return self._find_named(method, segments)

    def _find_named(self, method: str, segments: list[bytes]) -> Target:
        area, name = _area(segments)
        is_bad_text = not all(map(_is_utf8, segments))
        for at in _NAME_POSITIONS:
            if len(segments) > at and segments[at]:
                methods = self._named.get((*segments[:at], _NAME, *segments[at + 1 :]))
                if methods is not None:
                    return Target(methods.get(method), area, name or _text(segments[at]), _allow(methods), is_bad_text)
        if len(segments) == _PART_AT + 1 and segments[_PART_AT]:
            methods = self._named.get((*segments[:3], _NAME, segments[4], _NAME))
            if methods is not None:
                part = _text(segments[_PART_AT])
                return Target(methods.get(method), area, name, _allow(methods), is_bad_text, part)
        return Target(None, area, name, is_bad_text=is_bad_text)


def _allow(methods: Methods) -> str:
    return ", ".join(methods)


def _area(segments: Sequence[bytes]) -> tuple[Area, str]:
    """Everything below the name of a topic or schedule belongs to it, known or not; below other names nothing does."""
    if len(segments) < 4 or segments[1] != b"v0" or segments[0] or not segments[3]:
        return "other", ""
    if segments[2] == b"topics":
        return "topic", _text(segments[3])
    if segments[2] == b"routers" and len(segments) == 4:
        return "router", _text(segments[3])
    if segments[2] == b"schedules":
        return "schedule", _text(segments[3])
    if segments[2] == b"watch" and len(segments) == 4:
        return "stream", _text(segments[3])
    return "other", ""


def _text(segment: bytes) -> str:
    # Bad bytes are kept as surrogates: rights are checked on them before the request is refused for them.
    return segment.decode("utf-8", "surrogateescape")


def _is_utf8(segment: bytes) -> bool:
    if segment.isascii():
        return True
    try:
        segment.decode()
    except UnicodeDecodeError:
        return False
    return True


Query = Mapping[str, str]

NO_QUERY: Query = {}
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


def parse_query(raw: bytes) -> Query:
    """`raw` is what follows the `?`. Broken `%` sequences stay as they are; broken UTF-8 becomes U+FFFD."""
    if not raw:
        return NO_QUERY
    query: dict[str, str] = {}
    for pair in raw.decode("utf-8", "replace").split("&"):
        name, _, value = pair.partition("=")
        query.setdefault(_unquoted(name), _unquoted(value))
    return query


def _unquoted(text: str) -> str:
    return unquote_plus(text) if "%" in text or "+" in text else text


def bool_param(query: Query, name: str, *, default: bool) -> bool:
    return _BOOLS.get(query.get(name, ""), default)


def int_param(query: Query, name: str, *, clamp: limits.Clamp) -> int:
    """An integer moved into its range; the clamp's default if there is none."""
    return clamp(unsigned(query.get(name)))


def position_param(text: str | None) -> Position:
    """A seq or a position; the start if it is neither. A text that was meant as a position is not taken for another."""
    if text is None or "-" not in text:
        return Position(unsigned(text) or 0)
    try:
        return parse_token(text)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def unsigned(text: str | None) -> int | None:
    """The value of plain decimal digits, at most 64 bits' worth; None for anything else."""
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return min(int(text), limits.U64_MAX) if len(text) <= 100 else limits.U64_MAX


def takes_events(accept: bytes | None) -> bool:
    """Whether a stream may be sent; if not, 406."""
    return not accept or b"text/event-stream" in accept or b"*/*" in accept


def wants_table(accept: bytes | None) -> bool:
    """Whether records go out as an Arrow table instead of JSON."""
    return accept is not None and ARROW_MEDIA in accept


def wants_json(accept: bytes | None) -> bool:
    """Whether metrics go out as JSON instead of text."""
    return accept is not None and b"application/json" in accept


EMPTY_OBJECT = b"{}"
_JSON = b"application/json"


def body_text(kind: BodyKind, *, content_type: bytes | None, body: bytes) -> bytes:
    """The bytes to parse. A body of blanks is not empty; it is JSON with a mistake."""
    if not body and kind == "empty_ok":
        return EMPTY_OBJECT
    if not body and kind == "never_empty":
        raise InvalidRequest("a body is needed")
    if not is_json(content_type):
        raise UnsupportedMediaType
    return body


def is_json(content_type: bytes | None) -> bool:
    return content_type is not None and content_type.lstrip().startswith(_JSON)
