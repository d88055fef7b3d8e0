"""Where a server listens, who may reach it there, and how others learn the port."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from topics.config.environment import BindAddress
from topics.errors import ConfigError
from topics.server.listen import (
    bound_address,
    is_loopback,
    open_listeners,
    raise_file_limit,
    refuse_open_door,
    write_port_file,
)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("localhost", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("does-not-exist.invalid", False),
        ("", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_host_is_loopback_only_if_all_its_addresses_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(socket.AF_INET, 1, 6, "", (address, 0)) for address in ("127.0.0.1", "10.1.2.3")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert not is_loopback("both.example")


def test_a_public_address_needs_keys_or_a_word() -> None:
    public = BindAddress("0.0.0.0", 4000)
    with pytest.raises(ConfigError, match="TOPICS_API_KEYS"):
        refuse_open_door(public, has_keys=False, allow_insecure=False)
    refuse_open_door(public, has_keys=True, allow_insecure=False)
    refuse_open_door(public, has_keys=False, allow_insecure=True)
    refuse_open_door(BindAddress("127.0.0.1", 4000), has_keys=False, allow_insecure=False)


def close(listeners: list[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def test_port_0_is_resolved_and_the_same_on_every_address() -> None:
    listeners = open_listeners(BindAddress("localhost", 0))
    try:
        ports = {bound_address(listener).port for listener in listeners}
        assert len(ports) == 1
        assert ports != {0}
    finally:
        close(listeners)


def test_a_taken_port_is_told_in_one_sentence() -> None:
    listeners = open_listeners(BindAddress("127.0.0.1", 0))
    try:
        address = bound_address(listeners[0])
        with pytest.raises(ConfigError, match=f"cannot listen on {address}"):
            open_listeners(address)
    finally:
        close(listeners)


def test_an_unknown_host_is_told_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="cannot be resolved"):
        open_listeners(BindAddress("does-not-exist.invalid", 0))


def test_an_ipv6_address_is_bound_and_written_with_brackets() -> None:
    try:
        listeners = open_listeners(BindAddress("::1", 0))
    except ConfigError:
        pytest.skip("no IPv6 on this machine")
    try:
        assert str(bound_address(listeners[0])).startswith("[::1]:")
    finally:
        close(listeners)


def test_the_port_file_holds_the_address_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "port"
    path.write_text("old")
    write_port_file(str(path), BindAddress("127.0.0.1", 4321))
    assert path.read_text() == "127.0.0.1:4321"
    assert os.listdir(tmp_path) == ["port"]


def test_a_port_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TOPICS_PORT_FILE"):
        write_port_file(str(tmp_path / "missing" / "port"), BindAddress("127.0.0.1", 1))


def test_the_file_limit_is_raised_as_far_as_it_goes() -> None:
    limit = raise_file_limit()
    assert limit > 0
    assert raise_file_limit() == limit
