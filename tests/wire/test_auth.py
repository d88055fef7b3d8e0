"""Who may do what, and in which order it is decided."""

import pytest

from topics.errors import Forbidden, MethodNotAllowed, NotFound, Unauthorized
from topics.model.config import ConfigPatch
from topics.model.router import RouterDef
from topics.wire.access.auth import (
    Presented,
    authenticate,
    bearer,
    check_config_on_write,
    check_names,
    check_rights,
    check_router_seen,
    check_scope,
    check_session,
)
from topics.wire.access.keys import READ, WRITE, Key, parse_keys
from topics.wire.endpoints import ENDPOINTS
from topics.wire.incoming.request_head import Routes, Target

ROUTES = Routes(ENDPOINTS)
RING = parse_keys("all,r:read,w:write,d:delete,a:admin,rw:rw,eu:rw:eu.,none::nothing.")
assert RING is not None


def at(method: str, path: bytes) -> Target:
    return ROUTES.find(method, path)


def key_of(secret: str) -> Key:
    assert RING is not None
    key = RING.find(secret.encode())
    assert key is not None
    return key


def permitted(secret: str, method: str, path: bytes) -> bool:
    try:
        check_rights(key_of(secret), at(method, path))
    except Forbidden as refused:
        assert refused.detail is None
        return False
    return True


# --- presenting a key ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "secret"),
    [
        (None, None),
        (b"Bearer k", b"k"),
        (b"Bearer  k \t", b"k"),
        (b"Bearer a b", b"a b"),
        (b"Bearer ", b""),
        (b"Bearer", None),
        (b"bearer k", None),
        (b"BEARER k", None),
        (b" Bearer k", None),
        (b"Bearer\tk", None),
        (b"Basic k", None),
        (b"k", None),
        (b"", None),
    ],
)
def test_bearer(header: bytes | None, secret: bytes | None) -> None:
    assert bearer(header) == secret


@pytest.mark.parametrize(
    "path", [b"/v0/topics", b"/v0/nowhere", b"/v0/topics/a", b"/openapi.json", b"/v0/access", b"/v0/ws"]
)
def test_without_a_key_everything_is_401(path: bytes) -> None:
    for header in (None, b"Bearer nobody", b"Bearer ", b"Basic all", b"bearer all"):
        with pytest.raises(Unauthorized):
            authenticate(RING, at("GET", path), authorization=header)
        with pytest.raises(Unauthorized):
            authenticate(RING, at("PATCH", path), authorization=header)


def test_a_known_key_is_found() -> None:
    assert authenticate(RING, at("GET", b"/v0/nowhere"), authorization=b"Bearer r") == key_of("r")


def test_with_authentication_off_nothing_is_looked_at() -> None:
    for path in (b"/v0/topics/a", b"/v0/watch/w", b"/healthz"):
        assert authenticate(None, at("GET", path), authorization=b"Bearer x", raw_query=b"token=y") is None
    check_rights(None, at("DELETE", b"/v0/topics/a"))


@pytest.mark.parametrize("path", [b"/v0/health", b"/healthz", b"/v0/ready", b"/readyz"])
def test_probes_are_open_unless_told_otherwise(path: bytes) -> None:
    for method in ("GET", "HEAD", "POST"):
        assert authenticate(RING, at(method, path), authorization=None) is None
        with pytest.raises(Unauthorized):
            authenticate(RING, at(method, path), authorization=None, probe_auth=True)
        key = authenticate(RING, at(method, path), authorization=b"Bearer none", probe_auth=True)
        check_rights(key, at(method, path))


def test_query_tokens_count_on_work_streams() -> None:
    work = at("GET", b"/v0/topics/eu.a/work")
    assert authenticate(RING, work, authorization=None, raw_query=b"token=rw") == key_of("rw")
    assert authenticate(RING, work, authorization=b"Basic x", raw_query=b"x=1&token=r%77") == key_of("rw")
    assert authenticate(RING, work, authorization=None, raw_query=b"token=rw&token=all") == key_of("rw")
    with pytest.raises(Unauthorized):
        authenticate(RING, work, authorization=None, raw_query=b"token=nobody&token=rw")
    with pytest.raises(Unauthorized):  # a wrong header is not rescued
        authenticate(RING, work, authorization=b"Bearer nobody", raw_query=b"token=rw")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", b"/v0/ws"),
        ("GET", b"/v0/topics"),
        ("POST", b"/v0/watch"),
        ("POST", b"/v0/topics/a/work"),
        ("GET", b"/x"),
    ],
)
def test_query_tokens_count_nowhere_else(method: str, path: bytes) -> None:
    with pytest.raises(Unauthorized):
        authenticate(RING, at(method, path), authorization=None, raw_query=b"token=all")


# --- watch sessions --------------------------------------------------------------------------------------------------


def test_a_watch_stream_is_checked_by_its_session() -> None:
    for method in ("GET", "HEAD"):
        assert authenticate(RING, at(method, b"/v0/watch/w"), authorization=None) is None
    with pytest.raises(Unauthorized):
        authenticate(RING, at("POST", b"/v0/watch/w"), authorization=None)


def test_a_session_belongs_to_the_key_that_made_it() -> None:
    owner = key_of("r").digest
    check_session(RING, owner, Presented(b"r"))
    for secret in (None, b"", b"nobody", b"all"):
        with pytest.raises(Unauthorized):
            check_session(RING, owner, Presented(secret))
    check_session(None, None, Presented())


# --- rights ----------------------------------------------------------------------------------------------------------

SCOPES = {
    ("PUT", b"/v0/topics/a"): "a",
    ("GET", b"/v0/topics/a"): "r",
    ("HEAD", b"/v0/topics/a"): "r",
    ("GET", b"/v0/topics"): "r",
    ("DELETE", b"/v0/topics/a"): "d",
    ("POST", b"/v0/topics/a"): "w",
    ("POST", b"/v0/topics/a/diff"): "r",
    ("POST", b"/v0/topics/a/delete"): "d",
    ("POST", b"/v0/topics/a/ack"): "w",
    ("POST", b"/v0/topics/a/nack"): "w",
    ("POST", b"/v0/topics/a/extend"): "w",
    ("GET", b"/v0/topics/a/segments"): "r",
    ("GET", b"/v0/topics/a/frames"): "r",
    ("PUT", b"/v0/routers/a"): "a",
    ("GET", b"/v0/routers/a"): "r",
    ("GET", b"/v0/routers"): "r",
    ("DELETE", b"/v0/routers/a"): "d",
    ("POST", b"/v0/watch"): "r",
    ("GET", b"/v0/metrics"): "r",
    # no row of the table
    ("PATCH", b"/v0/topics/a"): "w",
    ("GET", b"/v0/topics/a/diff"): "w",
    ("POST", b"/v0/topics/a/nonsense"): "w",
    ("GET", b"/v0/topics/a/b/c"): "w",
    ("POST", b"/v0/routers/a"): "a",
    ("PATCH", b"/v0/routers/a"): "a",
    ("POST", b"/v0/topics"): "r",
    ("DELETE", b"/v0/routers"): "r",
    ("GET", b"/v0/watch"): "r",
}


@pytest.mark.parametrize(("method", "path"), SCOPES)
def test_each_route_needs_exactly_its_scope(method: str, path: bytes) -> None:
    allowed = [secret for secret in "rwda" if permitted(secret, method, path)]
    assert allowed == [SCOPES[method, path]]
    assert permitted("all", method, path)


def test_claim_and_work_need_two_scopes() -> None:
    for method, path in (("POST", b"/v0/topics/a/claim"), ("GET", b"/v0/topics/a/work")):
        assert [secret for secret in ("r", "w", "d", "a", "rw") if permitted(secret, method, path)] == ["rw"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", b"/v0/ws"), ("POST", b"/v0/ws"), ("GET", b"/nowhere"), ("PATCH", b"/v0/metrics"), ("POST", b"/v0/watch/w"),
     ("GET", b"/v0/topics/"), ("GET", b"/v0/routers/a/b"), ("GET", b"/openapi.json"), ("GET", b"/console"),
     ("GET", b"/console/app.js")],
)  # fmt: skip
def test_elsewhere_any_key_will_do(method: str, path: bytes) -> None:
    for secret in ("r", "w", "d", "a", "none"):
        assert permitted(secret, method, path)


def test_names_outside_the_allowlist() -> None:
    assert permitted("eu", "POST", b"/v0/topics/eu.a")
    assert permitted("eu", "POST", b"/v0/topics/%65u.a")
    assert not permitted("eu", "POST", b"/v0/topics/us.a")
    assert not permitted("eu", "GET", b"/v0/routers/us.a")
    assert not permitted("eu", "PATCH", b"/v0/topics/us.a")
    assert not permitted("eu", "GET", b"/v0/topics/us.a/nonsense")
    assert not permitted("eu", "GET", b"/v0/topics/%ff")
    assert permitted("eu", "GET", b"/v0/topics")
    assert permitted("eu", "GET", b"/v0/metrics")
    assert permitted("eu", "GET", b"/v0/watch/us.x")


def test_403_comes_before_404_and_405() -> None:
    for method, path, refusal in (
        ("POST", b"/v0/topics/a/nonsense", NotFound),
        ("PATCH", b"/v0/topics/a", MethodNotAllowed),
    ):
        target = at(method, path)
        with pytest.raises(Forbidden):
            check_rights(key_of("r"), target)
        check_rights(key_of("w"), target)
        with pytest.raises(refusal):
            target.require()


def test_names_outside_the_path_are_named_in_the_refusal() -> None:
    check_names(key_of("eu"), ConfigPatch(dead_letter="eu.x"))
    check_names(None, ConfigPatch(dead_letter="us.x"))
    check_names(key_of("rw"), ConfigPatch(dead_letter="us.x"))
    with pytest.raises(Forbidden) as refused:
        check_names(key_of("eu"), ConfigPatch(dead_letter="us.x"))
    assert refused.value.detail == {"topic": "us.x"}


def test_a_stored_router_out_of_reach_is_refused_without_its_topics() -> None:
    router = RouterDef(name="eu.r", source="eu.a", dest="us.b")
    check_router_seen(None, router)
    check_router_seen(key_of("rw"), router)
    with pytest.raises(Forbidden) as refused:
        check_router_seen(key_of("eu"), router)
    assert refused.value.detail is None
    assert "us.b" not in refused.value.message


def test_config_on_write_needs_admin() -> None:
    check_config_on_write(key_of("a"), "t")
    check_config_on_write(None, "t")
    with pytest.raises(Forbidden) as refused:
        check_config_on_write(key_of("w"), "t")
    assert refused.value.detail == {"topic": "t"}


def test_scopes_of_commands() -> None:
    check_scope(None, READ)
    check_scope(key_of("rw"), READ | WRITE)
    with pytest.raises(Forbidden):
        check_scope(key_of("w"), READ)
