"""Listening sockets: where the server can be reached, and whether that is only this machine.

`topics.config.environment` reads the address from the settings; this module asks the resolver and the kernel. A server
that cannot listen says so in one sentence, before it serves anything.
"""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
from pathlib import Path

from topics.config.environment import BindAddress
from topics.errors import ConfigError
from topics.net.transport_limits import CONNECTIONS_MAX

BACKLOG = 4096  # the kernel cuts it to its own limit
_PORT_TRIES = 16  # a free port on the first address may be taken on the second


def addresses_of(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """All addresses of a host; none if it cannot be resolved."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def is_loopback(host: str) -> bool:
    """Whether every address of the host stays on this machine; one that cannot be resolved does not count."""
    addresses = addresses_of(host)
    return bool(addresses) and all(_loopback_address(address) for _, address in addresses)


def _loopback_address(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def refuse_open_door(address: BindAddress, *, has_keys: bool, allow_insecure: bool) -> None:
    """Raise unless the server may listen here: a public address needs keys, or an explicit word that it needs none."""
    if has_keys or allow_insecure or is_loopback(address.host):
        return
    raise ConfigError(
        f"{address} is not a loopback address and no API keys are set; set TOPICS_API_KEYS, bind to 127.0.0.1, "
        "or set TOPICS_ALLOW_INSECURE_NO_AUTH=1 if everybody who can reach this address may do everything"
    )


def open_listeners(address: BindAddress) -> list[socket.socket]:
    """One socket per address of the host, all on one port; port 0 lets the kernel pick it."""
    addresses = addresses_of(address.host)
    if not addresses:
        raise ConfigError(f"the host {address.host!r} cannot be resolved")
    for _ in range(_PORT_TRIES):
        try:
            return _bind_all(addresses, address.port)
        except OSError as error:
            last = error
            if address.port:
                break
    raise ConfigError(f"cannot listen on {address}: {last.strerror or last}") from last


def _bind_all(addresses: list[tuple[socket.AddressFamily, str]], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            listener = _bind(family, address, port)
            sockets.append(listener)
            port = listener.getsockname()[1]
    except OSError:
        for listener in sockets:
            listener.close()
        raise
    return sockets


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def bound_address(listener: socket.socket) -> BindAddress:
    host, port = listener.getsockname()[:2]
    return BindAddress(host, port)


def write_port_file(path: str, address: BindAddress) -> None:
    """Whoever waits for the file sees the whole address or no file; a failure is the caller's end."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(str(address), encoding="ascii")
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigError(f"TOPICS_PORT_FILE: cannot write {path!r}: {error.strerror}") from error


RESERVED_FILES = 384
"""Descriptors that no connection gets: 256 segment files that stay open, the files of the log, snapshots, threads."""


def connections_max(file_limit: int) -> int:
    """How many connections may be open at once: log, segments and snapshots must never lack a descriptor for them."""
    reserved = min(RESERVED_FILES, file_limit // 2)
    return max(min(file_limit - reserved, CONNECTIONS_MAX), 1)


def raise_file_limit() -> int:
    """As many open files as the system grants: a stream is a file. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            return hard
        except (OSError, ValueError):
            pass
    return soft
