"""Stream tokens: what they open, for how long, and how many there may be (`docs/spec/readers.md#sec-9`)."""

from __future__ import annotations

import pytest

from topics import limits
from topics.errors import Throttled
from topics.wire.access.auth import presented, subprotocol_token
from topics.wire.access.keys import ALL_SCOPES, READ, WRITE, Key, KeyRing, digest_of
from topics.wire.access.stream_tokens import StreamTokens
from topics.wire.endpoints import ENDPOINTS
from topics.wire.incoming.request_head import Routes

ROUTES = Routes(ENDPOINTS)
OPS = Key(digest_of("ops"))
SHOP = Key(digest_of("shop"), READ | WRITE, ("eu.",))


class Time:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def tokens(time: Time) -> StreamTokens:
    return StreamTokens(KeyRing([OPS, SHOP]), monotonic=time)


def test_a_token_is_its_key_until_it_expires(tokens: StreamTokens, time: Time) -> None:
    token = tokens.issue(SHOP, topics=(), ttl_ms=60_000).encode()
    assert tokens.find(token) == SHOP
    time.now_s += 59.9
    assert tokens.find(token) == SHOP
    time.now_s += 0.2
    assert tokens.find(token) is None
    assert len(tokens) == 0


def test_rights_are_cut_to_those_of_the_key_and_of_the_token(tokens: StreamTokens) -> None:
    found = tokens.find(tokens.issue(SHOP, topics=("eu.a", "eu.b*", "us.*"), scopes=READ | 8, ttl_ms=1000).encode())
    assert found is not None
    assert found.scopes == READ
    names = ["eu.a", "eu.aa", "eu.b", "eu.bcd", "us.x", "eu.c"]
    assert [name for name in names if found.permits_name(name)] == ["eu.a", "eu.b", "eu.bcd"]
    assert found.is_bound
    assert found.digest == SHOP.digest


def test_a_token_ends_with_its_key(time: Time) -> None:
    ring = KeyRing([OPS, SHOP])
    tokens = StreamTokens(ring, monotonic=time)
    token = tokens.issue(SHOP, topics=(), ttl_ms=60_000).encode()
    ring.replace([OPS])
    assert tokens.find(token) is None
    ring.replace([OPS, SHOP])
    assert tokens.find(token) is None, "what has ended stays so"


def test_a_token_has_the_rights_that_its_key_has_by_now(time: Time) -> None:
    ring = KeyRing([OPS, SHOP])
    tokens = StreamTokens(ring, monotonic=time)
    token = tokens.issue(SHOP, topics=(), ttl_ms=60_000).encode()
    ring.replace([OPS, Key(SHOP.digest, READ, ("eu.", "us."))])
    found = tokens.find(token)
    assert found is not None
    assert (found.scopes, found.prefixes) == (READ, ("eu.", "us."))


def test_a_key_has_a_bounded_number_of_tokens_and_expired_ones_make_room(tokens: StreamTokens, time: Time) -> None:
    for _ in range(limits.STREAM_TOKENS_PER_KEY_MAX):
        tokens.issue(SHOP, topics=(), ttl_ms=1000)
    with pytest.raises(Throttled):
        tokens.issue(SHOP, topics=(), ttl_ms=1000)
    tokens.issue(OPS, topics=(), ttl_ms=60_000)
    time.now_s += 2
    tokens.issue(SHOP, topics=(), ttl_ms=1000)
    assert len(tokens) == 2


def test_without_keys_nothing_is_kept(time: Time) -> None:
    tokens = StreamTokens(None, monotonic=time)
    token = tokens.issue(None, topics=("a",), ttl_ms=1000)
    assert (len(tokens), tokens.find(token.encode())) == (0, None)


@pytest.mark.parametrize(
    ("path", "key_counts", "token_counts"),
    [
        (b"/v0/watch/wid_x", True, True),
        (b"/v0/topics/t/work", True, True),
        (b"/v0/ws", False, True),
        (b"/v0/topics/t", False, False),
        (b"/v0/metrics", False, False),
    ],
)
def test_a_token_counts_on_streams_alone(path: bytes, key_counts: bool, token_counts: bool) -> None:
    shown = presented(ROUTES.find("GET", path), None, b"token=x")
    assert (shown.secret == b"x", shown.token == b"x") == (key_counts, token_counts)
    assert presented(ROUTES.find("GET", path), b"Bearer y", b"token=x") == (b"y", None)


def test_the_token_of_a_socket_is_among_its_subprotocols() -> None:
    assert subprotocol_token(b"topics, topics.token.st_a-_, chat") == b"st_a-_"
    assert subprotocol_token(b"topics,chat") is None
    assert subprotocol_token(None) is None
    shown = presented(ROUTES.find("GET", b"/v0/ws"), None, b"", b"topics.token.st_a")
    assert shown == (None, b"st_a")
    assert ALL_SCOPES & READ
