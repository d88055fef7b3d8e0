"""Holders: whose share of sessions, streams and connections a caller takes from (`http-api.md` section 9).

A key where there is one, by its digest; else the network that the caller comes from. Called where something is opened.
"""

from __future__ import annotations

import ipaddress

from topics.wire.keys import Key

Holder = bytes | str | None
"""The digest of a key, or a network; None is not counted."""

IPV6_CLIENT_BITS = 64  # what one customer of a network is given at least, and may pick addresses from as it likes


def holder_of(key: Key | None, peer: str) -> Holder:
    """`peer` is `address:port`, as connections show it."""
    return network_of(peer.rpartition(":")[0]) if key is None else key.digest


def network_of(address: str) -> str | None:
    """None for loopback, where programs of this machine are, and a proxy for everybody else; and for what is no
    address, such as a socket file."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0].strip("[]"))
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if parsed.is_loopback:
        return None
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((parsed, IPV6_CLIENT_BITS), strict=False))
    return str(parsed)


SHARE_MIN = 16  # a share of a small cap would refuse a client what the cap is there to allow


def share_of(cap: int, share: float) -> int:
    """What one holder may have of a cap; 0 is no cap, as everywhere."""
    return 0 if share >= 1 or not cap else min(max(int(cap * share), SHARE_MIN), cap)
