"""Who may do what: pure decisions over a key ring, a path and the headers of a request.

The caller keeps the order of `docs/spec/http-api.md#sec-3`: `authenticate` (401), its own count of running requests
(429), `check_rights` (403), and only then `Target.require` (404, 405). A key of None means that nothing is restricted:
either authentication is off, or the route is exempt. Called by api, once per request head.
"""

import hmac

import msgspec

from topics.errors import Forbidden, TopicsError, Unauthorized
from topics.model.router import RouterDef
from topics.wire.access.keys import ADMIN, READ, WRITE, Key, KeyRing
from topics.wire.access.visible_names import error_seen, names_in
from topics.wire.endpoints import Area
from topics.wire.incoming.paths import Target
from topics.wire.incoming.query import parse_query

_BEARER = b"Bearer "  # matched literally, case included

# What a request needs that matches no row of the endpoint table, by the part of the address space it lies in.
_SCOPES_WITHOUT_ROW: dict[Area, int] = {"topic": WRITE, "router": ADMIN, "topics": READ, "routers": READ, "watch": READ}
_NAMED_AREAS: tuple[Area, ...] = ("topic", "router")


def bearer(authorization: bytes | None) -> bytes | None:
    """The secret of an `Authorization` header; any form but `Bearer <secret>` is none."""
    if authorization is None or not authorization.startswith(_BEARER):
        return None
    return authorization[len(_BEARER) :].strip()


def presented_secret(target: Target, authorization: bytes | None, raw_query: bytes) -> bytes | None:
    """`?token=` counts on the two stream routes only, and never beside a Bearer header."""
    secret = bearer(authorization)
    if secret is None and raw_query and target.endpoint is not None and target.endpoint.takes_query_token:
        token = parse_query(raw_query).get("token")
        return None if token is None else token.encode()
    return secret


def authenticate(
    ring: KeyRing | None,
    target: Target,
    *,
    authorization: bytes | None,
    raw_query: bytes = b"",
    probe_auth: bool = False,
) -> Key | None:
    """The key of a request. Raises Unauthorized; a watch stream is left to `check_session`."""
    if ring is None or (target.area == "probe" and not probe_auth):
        return None
    if target.endpoint is not None and target.endpoint.guard == "session":
        return None
    return known_key(ring, presented_secret(target, authorization, raw_query))


def known_key(ring: KeyRing, secret: bytes | None) -> Key:
    key = None if secret is None else ring.find(secret)
    if key is None:
        raise Unauthorized
    return key


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
    if key is not None and key.prefixes:
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
    return error if key is None or not key.prefixes else error_seen(error, key.permits_name)


def may_configure(key: Key | None) -> bool:
    return key is None or key.allows(ADMIN)


def check_config_on_write(key: Key | None, topic: str) -> None:
    """For a write that carries a config and would create the topic."""
    if not may_configure(key):
        raise Forbidden.for_topic(topic)


def check_session(ring: KeyRing | None, owner: bytes | None, secret: bytes | None) -> None:
    """A watch session with an owner is open to that key alone; `owner` is the digest of the key that created it."""
    if ring is None or owner is None:
        return
    if not hmac.compare_digest(known_key(ring, secret).digest, owner):
        raise Unauthorized("the session belongs to another key")
