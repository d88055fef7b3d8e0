"""Who may do what: pure decisions over a key ring, a path and the headers of a request.

The caller keeps the order of `docs/spec/http-api.md#sec-3`: `authenticate` (401), its own count of running requests
(429), `check_rights` (403), and only then `Target.require` (404, 405). A key of None means that nothing is restricted:
either authentication is off, or the route is exempt. Called by api, once per request head."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from topics.config import Settings, bind_address
from topics.errors import ConfigError, Forbidden, HostNotAllowed, OriginNotAllowed, TopicsError, Unauthorized
from topics.model.router import RouterDef
from topics.wire.access.keys import ADMIN, READ, WRITE, Key, KeyRing
from topics.wire.access.stream_tokens import TOKEN_PROTOCOL, StreamTokens
from topics.wire.access.visible_names import error_seen, names_in
from topics.wire.endpoints import Area
from topics.wire.incoming.request_head import Target, parse_query

_BEARER = b"Bearer "  # matched literally, case included

# What a request needs that matches no row of the endpoint table, by the part of the address space it lies in.
_SCOPES_WITHOUT_ROW: dict[Area, int] = {
    "topic": WRITE,
    "router": ADMIN,
    "schedule": ADMIN,
    "topics": READ,
    "routers": READ,
    "schedules": READ,
    "watch": READ,
}
_NAMED_AREAS: tuple[Area, ...] = ("topic", "router", "schedule")


def bearer(authorization: bytes | None) -> bytes | None:
    """The secret of an `Authorization` header; any form but `Bearer <secret>` is none."""
    if authorization is None or not authorization.startswith(_BEARER):
        return None
    return authorization[len(_BEARER) :].strip()


class Presented(NamedTuple):
    """What a request shows. A Bearer header counts alone: a wrong one is not rescued by what else there is."""

    secret: bytes | None = None
    """May be a key."""
    token: bytes | None = None
    """May be a stream token."""

    def find(self, ring: KeyRing, tokens: StreamTokens | None = None) -> Key:
        key = None if self.secret is None else ring.find(self.secret)
        if key is None and self.token is not None and tokens is not None:
            key = tokens.find(self.token)
        if key is None:
            raise Unauthorized
        return key


def presented(
    target: Target, authorization: bytes | None, raw_query: bytes, protocols: bytes | None = None
) -> Presented:
    """`?token=` counts on the stream routes only: a key on two of them, a stream token on all three. A browser's
    WebSocket can send no header but its subprotocols."""
    secret, row = bearer(authorization), target.endpoint
    if secret is not None or row is None or not row.takes_stream_token:
        return Presented(secret)
    given = parse_query(raw_query).get("token") if raw_query else None
    token = subprotocol_token(protocols) if given is None else given.encode()
    return Presented(token if row.takes_query_token and given is not None else None, token)


def subprotocol_token(protocols: bytes | None) -> bytes | None:
    """The token among the subprotocols that a WebSocket offers."""
    offered = (name.strip() for name in (protocols or b"").split(b","))
    return next((name[len(TOKEN_PROTOCOL) :] for name in offered if name.startswith(TOKEN_PROTOCOL)), None)


def authenticate(
    ring: KeyRing | None,
    target: Target,
    *,
    authorization: bytes | None,
    raw_query: bytes = b"",
    probe_auth: bool = False,
    tokens: StreamTokens | None = None,
    protocols: bytes | None = None,
) -> Key | None:
    """The key of a request. Raises Unauthorized; a watch stream is left to `check_session`, the console is open."""
    if ring is None or (target.area == "probe" and not probe_auth):
        return None
    if target.endpoint is not None and target.endpoint.guard in ("session", "open"):
        return None
    return presented(target, authorization, raw_query, protocols).find(ring, tokens)


def check_rights(key: Key | None, target: Target) -> None:
    """Scope first, then the name in the path. Raises Forbidden."""
    if key is None:
        return
    row = target.endpoint
    if not key.allows(_SCOPES_WITHOUT_ROW.get(target.area, 0) if row is None else row.scopes):
        raise Forbidden("the key lacks the scope for this")
    if target.area in _NAMED_AREAS and not key.permits_name(target.name):
        raise Forbidden("the key does not permit this name")


def check_scope(key: Key | None, scopes: int) -> None:
    """For commands that have no path of their own."""
    if key is not None and not key.allows(scopes):
        raise Forbidden("the key lacks the scope for this")


def check_names(key: Key | None, request: msgspec.Struct) -> None:
    """Every topic that a body or a WebSocket command names, wherever it stands there."""
    if key is not None and key.is_bound:
        for name in names_in(request):
            if not key.permits_name(name):
                raise Forbidden.for_topic(name)


def permits_router(key: Key | None, router: RouterDef) -> bool:
    """A stored router may be seen by whoever may see both its topics."""
    return key is None or all(map(key.permits_name, (router.name, router.source, router.dest)))


def check_router_seen(key: Key | None, router: RouterDef) -> None:
    """Its topics are not named: the caller did not send them."""
    if not permits_router(key, router):
        raise Forbidden("the key does not permit a topic of this router")


def seen_by(key: Key | None, error: TopicsError) -> TopicsError:
    """An error without the names that the key does not permit."""
    return error if key is None or not key.is_bound else error_seen(error, key.permits_name)


def may_configure(key: Key | None) -> bool:
    return key is None or key.allows(ADMIN)


def check_config_on_write(key: Key | None, topic: str) -> None:
    """For a write that carries a config and would create the topic."""
    if not may_configure(key):
        raise Forbidden.for_topic(topic)


def check_session(
    ring: KeyRing | None,
    owner: bytes | None,
    shown: Presented,
    *,
    tokens: StreamTokens | None = None,
    topics: Iterable[str] = (),
) -> None:
    """A watch session with an owner is open to that key alone, and to its tokens that permit every topic of it; `owner`
    is the digest of the key that created it."""
    if ring is None or owner is None:
        return
    key = shown.find(ring, tokens)
    if not hmac.compare_digest(key.digest, owner):
        raise Unauthorized("the session belongs to another key")
    for name in topics:
        if not key.permits_name(name):
            raise Forbidden.for_topic(name)


Headers = tuple[tuple[bytes, bytes], ...]

ANY = "*"
LOCAL = "localhost"
NEVER_PUBLIC = ("local", "internal")
"""Names below these, and names without a dot, are given by a private network only (RFC 6762; ICANN 2024)."""
PREFLIGHT_S = 600  # how long a browser may remember an answer to its question
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_FOREIGN_SITES = (b"cross-site", b"same-site")
_OWN_SITES = (b"same-origin", b"none")  # `none`: typed in, or a bookmark

_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_HOST = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_PORT = re.compile(r":[0-9]*$")
_ASKED_NAMES = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+(, ?[!#$%&'*+\-.^_`|~0-9A-Za-z]+)*")

_METHODS = b"GET, HEAD, POST, PUT, DELETE"
_SENT_NAMES = b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID"
_SHOWN_NAMES = (
    b"Retry-After, Topics-Epoch, Topics-Head-Seq, Topics-Earliest-Seq, Topics-First-Seq, Topics-Last-Seq, "
    b"Topics-Tombstone"
)


class PageRules:
    """What web pages may ask of a server: the Host and the Origin of a request (`docs/spec/http-api.md#sec-8-8`).

    Without keys, whoever reaches the server may do everything, and a browser reaches whatever its machine reaches. So a
    request must carry a host that no stranger can make a browser believe in (DNS rebinding), and what changes something
    must not come from a page of another origin. With keys neither is needed: no browser adds a key by itself. Pages of
    origins that the operator has listed are let in, and their browsers told so (CORS). Called once per request head.

    The rules of one server. `is_guarded`: it has keys, so that only the lists of the operator matter."""

    def __init__(
        self,
        *,
        is_guarded: bool,
        hosts: tuple[str, ...] = (),
        origins: tuple[str, ...] = (),
        trusts_private_names: bool = False,
    ) -> None:
        self._is_guarded = is_guarded
        self._hosts = frozenset(host for host in hosts if not host.startswith(ANY))
        self._host_ends = tuple(host[1:] for host in hosts if host.startswith("*."))
        self._any_host = ANY in hosts
        self._origins = frozenset(origins)
        self._trusts_private_names = trusts_private_names

    @classmethod
    def from_settings(cls, settings: Settings, *, is_guarded: bool) -> PageRules:
        """Raises ConfigError. A server that is open to its network by the operator's word is called by names that only
        that network knows; and a host that it was told to bind is its own."""
        hosts = (*_listed(settings.allowed_hosts, _HOST, "allowed_hosts"), bind_address(settings).host.lower())
        return cls(
            is_guarded=is_guarded,
            hosts=hosts,
            origins=_listed(settings.allowed_origins, _ORIGIN, "allowed_origins"),
            trusts_private_names=settings.allow_insecure_no_auth,
        )

    # --- refusing -------------------------------------------------------------------------------------------------

    def check(self, method: str, headers: Mapping[bytes, bytes], target: Target) -> None:
        """Raises HostNotAllowed or OriginNotAllowed. Probes tell nothing that matters, and are asked by any name."""
        if self._is_guarded or target.area == "probe":
            return
        host = _header_text(headers.get(b"host"))
        if not self.permits_host(host, is_browser=_is_browser(headers)):
            raise HostNotAllowed(
                f"this server has no keys and does not know the host {host!r}: list it in TOPICS_ALLOWED_HOSTS, "
                "use an address or localhost, or set keys"
            )
        row = target.endpoint
        changes = method not in _SAFE_METHODS or (row is not None and row.acts)
        if changes and self._is_foreign(host, headers):
            origin = _header_text(headers.get(b"origin")) or "another site"
            raise OriginNotAllowed(
                f"this server has no keys and takes no changes from pages of {origin}: list the origin in "
                "TOPICS_ALLOWED_ORIGINS, or set keys"
            )

    def permits_host(self, host: str, *, is_browser: bool) -> bool:
        """Can no stranger have a browser send this name here? An address can be, for it is not looked up. Names that
        only a private network gives are good for programs: a stranger's network may answer them, but only browsers run
        a stranger's pages."""
        bare = _PORT.sub("", host)
        if not bare or bare.startswith("[") or self._any_host:  # without one it is no browser
            return True
        name = bare.removesuffix(".")
        labels = name.split(".")
        if labels[-1].isdigit() or labels[-1].startswith("0x") or labels[-1] == LOCAL:
            return True
        if name in self._hosts or name.endswith(self._host_ends):
            return True
        is_private = _HOST.fullmatch(name) is not None and (len(labels) == 1 or labels[-1] in NEVER_PUBLIC)
        return is_private and (self._trusts_private_names or not is_browser)

    def _is_foreign(self, host: str, headers: Mapping[bytes, bytes]) -> bool:
        """Did a page of another origin cause it? What the browser itself says about that comes first: behind a proxy
        the host may be another than the one in its address line."""
        site = headers.get(b"sec-fetch-site")
        if site in _OWN_SITES:
            return False
        origin = headers.get(b"origin")
        if origin is None:
            return site in _FOREIGN_SITES
        return not (_is_same(_header_text(origin), host) or self._permits_origin(origin))

    # --- letting in -----------------------------------------------------------------------------------------------

    def _permits_origin(self, origin: bytes) -> bool:
        return ANY in self._origins or _header_text(origin) in self._origins

    def shown_to(self, headers: Mapping[bytes, bytes]) -> Headers:
        """The header fields by which the browser lets a listed page see an answer; none for any other."""
        origin = headers.get(b"origin")
        if not self._origins or origin is None or not self._permits_origin(origin):
            return ()
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _SHOWN_NAMES),
            (b"vary", b"Origin"),
        )

    def preflight(self, method: str, headers: Mapping[bytes, bytes]) -> Headers | None:
        """The answer to a browser that asks before it sends what a listed page wants; None if this is no such question,
        or not a listed page's."""
        shown = self.shown_to(headers)
        if method != "OPTIONS" or not shown or b"access-control-request-method" not in headers:
            return None
        asked = headers.get(b"access-control-request-headers", b"")
        more: Headers = ()
        if headers.get(b"access-control-request-private-network") == b"true":
            more = ((b"access-control-allow-private-network", b"true"),)
        return (
            *shown,
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", asked if _ASKED_NAMES.fullmatch(asked) else _SENT_NAMES),
            (b"access-control-max-age", b"%d" % PREFLIGHT_S),
            *more,
        )


def _is_browser(headers: Mapping[bytes, bytes]) -> bool:
    """Browsers name the origin of everything but a plain GET, and themselves always."""
    if b"origin" in headers or b"sec-fetch-site" in headers:
        return True
    return headers.get(b"user-agent", b"").startswith(b"Mozilla/")


def _header_text(value: bytes | None) -> str:
    return "" if value is None else value.decode("latin-1").lower()


def _is_same(origin: str, host: str) -> bool:
    """Schemes are not compared: a proxy may speak TLS for us. A port that goes without saying is not, either."""
    scheme, _, authority = origin.partition("://")
    usual = {"http": ":80", "https": ":443"}.get(scheme)
    return usual is not None and authority.removesuffix(usual) == host.removesuffix(usual)


def _listed(text: str | None, pattern: re.Pattern[str], name: str) -> tuple[str, ...]:
    entries = tuple(entry for part in (text or "").split(",") if (entry := part.strip().lower().rstrip("/")))
    for entry in entries:
        if entry != ANY and pattern.fullmatch(entry) is None:
            example = "https://app.example.com" if pattern is _ORIGIN else "topics.example.com or *.example.com"
            raise ConfigError(
                f"TOPICS_{name.upper()}: {entry!r} is not allowed; an entry looks like {example}, or is *"
            )
    return entries
