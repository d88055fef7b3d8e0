"""Paths: which row of the endpoint table a request means, and which part of the address space it lies in.

A path is split on literal slashes first, then each segment is percent-decoded once. The answer is a value, not an
error, because rights are decided between looking a path up and refusing it. Called once per request head.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from topics.errors import InvalidRequest, MethodNotAllowed, NotFound
from topics.wire.endpoints import Area, Endpoint

Methods = dict[str, Endpoint]

_NAME = b"{}"  # stands for the name in a key of `Routes._named`
_NAME_POSITIONS = (3, 2)  # /v0/topics/{topic}, /console/{file}
_PLAIN_AREAS: dict[bytes, Area] = {
    b"/v0/topics": "topics",
    b"/v0/routers": "routers",
    b"/v0/watch": "watch",
    b"/v0/health": "probe",
    b"/healthz": "probe",
    b"/v0/ready": "probe",
    b"/readyz": "probe",
}


class Target(NamedTuple):
    """What a request line means. `name` is the decoded topic, router, session or file; empty if the path has none."""

    endpoint: Endpoint | None
    area: Area
    name: str = ""
    allow: str = ""  # the methods of a known path
    is_bad_text: bool = False

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
        return Target(None, area, name, is_bad_text=is_bad_text)


def _allow(methods: Methods) -> str:
    return ", ".join(methods)


def _area(segments: Sequence[bytes]) -> tuple[Area, str]:
    """Everything below a topic's name belongs to the topic, known or not; below other names nothing does."""
    if len(segments) < 4 or segments[1] != b"v0" or segments[0] or not segments[3]:
        return "other", ""
    if segments[2] == b"topics":
        return "topic", _text(segments[3])
    if segments[2] == b"routers" and len(segments) == 4:
        return "router", _text(segments[3])
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
