"""Whose share a caller takes from."""

from __future__ import annotations

import pytest

from topics.wire.access.keys import Key, client_of, network_of, share_of


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", None),
        ("127.9.9.9", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        ("", None),
        ("/run/topics.sock", None),
    ],
)
def test_addresses_are_counted_by_network_and_loopback_is_not(address: str, network: str | None) -> None:
    assert network_of(address) == network


def test_a_key_is_counted_by_itself_wherever_it_comes_from() -> None:
    key = Key(b"digest")
    assert client_of(key, "10.0.0.1:99") == client_of(key, "127.0.0.1:99") == b"digest"
    assert client_of(None, "10.0.0.1:99") == "10.0.0.1"
    assert client_of(None, "2001:db8::1:99") == "2001:db8::/64"
    assert client_of(None, "") is None


@pytest.mark.parametrize(
    ("cap", "share", "each"), [(100, 0.25, 25), (40, 0.25, 16), (3, 0.25, 3), (0, 0.25, 0), (9, 1.0, 0), (9, 0.0, 9)]
)
def test_a_share_of_a_small_cap_is_sixteen_or_all_of_it(cap: int, share: float, each: int) -> None:
    assert share_of(cap, share) == each
