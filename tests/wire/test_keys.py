"""TOPICS_API_KEYS: grammar, fail-closed parsing, and finding a key."""

import pytest

from topics.errors import ConfigError
from topics.wire.access.keys import ADMIN, ALL_SCOPES, DELETE, READ, WRITE, Key, KeyRing, parse_keys


def ring(text: str) -> KeyRing:
    keys = parse_keys(text)
    assert keys is not None
    return keys


def key(text: str, secret: bytes) -> Key:
    found = ring(text).find(secret)
    assert found is not None
    return found


@pytest.mark.parametrize("text", [None, "", " ", ",", " , ,\t"])
def test_no_entry_means_no_authentication(text: str | None) -> None:
    assert parse_keys(text) is None


@pytest.mark.parametrize(
    ("text", "scopes", "prefixes"),
    [
        ("ops", ALL_SCOPES, ()),
        ("ops:", ALL_SCOPES, ()),
        ("ops::", ALL_SCOPES, ()),
        ("ops: : ", ALL_SCOPES, ()),
        ("ops:read", READ, ()),
        ("ops:r", READ, ()),
        ("ops:W", WRITE, ()),
        ("ops:write+read", READ | WRITE, ()),
        ("ops:del", DELETE, ()),
        ("ops:Delete+D", DELETE, ()),
        ("ops:a", ADMIN, ()),
        ("ops:ADMIN + rw", READ | WRITE | ADMIN, ()),
        ("ops:rw:eu.|us.", READ | WRITE, ("eu.", "us.")),
        ("ops::acme:", ALL_SCOPES, ("acme:",)),
        ("ops:r:a:b|c:d", READ, ("a:b", "c:d")),
        (" ops : r : a | b ", READ, ("a", "b")),
        ("ops:r:a||b|", READ, ("a", "b")),
        ("ops:r::|", READ, (":",)),
    ],
)
def test_entries(text: str, scopes: int, prefixes: tuple[str, ...]) -> None:
    found = key(text, b"ops")
    assert (found.scopes, found.prefixes) == (scopes, prefixes)


@pytest.mark.parametrize(
    "text", ["k:reed", "k:read+", "k:+", "k:++", "k:+read", "k:read write", "good,k:x", ":bogus", "k:*", "k:r:|",
    "k:r: | "]
)  # fmt: skip
def test_what_does_not_parse_stops_the_process(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_keys(text)


def test_an_error_shows_no_secret() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_keys("hunter2:reed")
    assert "hunter2" not in str(refused.value)
    assert "reed" not in str(refused.value)  # a secret with a colon in it would end up there
    assert "hunter2" not in repr(key("hunter2", b"hunter2"))


def test_an_entry_without_a_secret_grants_nothing_and_keeps_authentication_on() -> None:
    keys = ring(":read")
    assert len(keys) == 0
    assert keys.find(b"") is None


def test_the_later_of_equal_secrets_wins() -> None:
    keys = ring("k:read,other,k:write:p")
    assert len(keys) == 2
    assert key("k:read,other,k:write:p", b"k").scopes == WRITE
    assert keys.find(b"nobody") is None


def test_secrets_are_found_by_their_bytes() -> None:
    assert ring("clé").find("clé".encode()) is not None
    assert ring("a b").find(b"a b") is not None
    assert ring("k").find(b"K") is None
    assert ring("k").find(b"k ") is None


def test_rights_of_a_key() -> None:
    found = key("k:rw:eu.|us.", b"k")
    assert found.allows(READ)
    assert found.allows(READ | WRITE)
    assert found.allows(0)
    assert not found.allows(READ | ADMIN)
    assert found.permits_name("eu.")
    assert found.permits_name("us.x")
    assert not found.permits_name("eu")
    assert not found.permits_name("EU.x")
    assert key("k", b"k").permits_name("anything")
