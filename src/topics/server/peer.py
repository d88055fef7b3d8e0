"""Peer: what every connection has, whatever it speaks.

The server owns the peers; a peer owns its transport. A connection changes its protocol by handing its transport to
another peer (`replace_by`), so that each class knows one protocol only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from topics.net.transport_limits import LINGER_S, WRITE_HIGH_BYTES, WRITE_LOW_BYTES, WRITE_STALL_S
from topics.wire.access.keys import network_of

if TYPE_CHECKING:
    from topics.server.hub import Hub

NEVER_S = float("-inf")  # from `on_timer`: do not ask again


class Peer(asyncio.Protocol):
    __slots__ = (
        "_stall_bytes", "_stall_since_s", "address", "hub", "network", "transport", "was_asked_to_leave", "wheel_tick",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.address = ""
        self.network: str | None = None  # that it is counted with
        self.wheel_tick = -1
        self.was_asked_to_leave = False
        self._stall_bytes = 0
        self._stall_since_s = 0.0

    # --- asyncio's side ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        self.address = _address(transport)
        self.network = network_of(self.address.rpartition(":")[0])
        self.hub.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.hub.left(self)
        self.lost()

    def replace_by(self, peer: Peer) -> None:
        """From now on the transport's bytes go to `peer`; this one is done."""
        peer.transport = self.transport
        peer.address = self.address
        peer.network = self.network
        self.hub.replaced(self, peer)
        self.transport.set_protocol(peer)

    # --- what each protocol says --------------------------------------------------------------------------------------

    def lost(self) -> None:
        """The connection is over: tell everybody who waits for it. Called once or more."""

    def on_timer(self, now_s: float) -> float:
        """See `wheel.Timed`."""
        return NEVER_S

    @property
    def is_idle(self) -> bool:
        """Nothing of it is under way: closing it costs its client a new connection and nothing else."""
        return False

    def turn_away(self) -> None:
        """There are too many connections."""
        self.transport.abort()

    def drain(self) -> None:
        """The server drains: close at once if no request is running, else as soon as none is."""
        self.close_idle()

    # --- shared -------------------------------------------------------------------------------------------------------

    def close_idle(self) -> None:
        """Close what nobody waits for. Over TLS the peer is to answer our end with its own, but one that is idle does
        not look."""
        transport = self.transport
        transport.close()
        if not transport.can_write_eof() and not transport.get_write_buffer_size():
            self.hub.loop.call_later(LINGER_S, transport.abort)

    def cut(self) -> None:
        self.transport.abort()
        self.lost()

    def write_stalled(self, now_s: float) -> bool:
        """Output waits, and the peer took none of it for too long. To be asked every few seconds."""
        waiting = self.transport.get_write_buffer_size()
        if not waiting or waiting != self._stall_bytes:
            self._stall_bytes = waiting
            self._stall_since_s = now_s
        return waiting > 0 and now_s - self._stall_since_s >= WRITE_STALL_S


def _address(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "")
