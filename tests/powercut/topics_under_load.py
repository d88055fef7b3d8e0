"""The topics of a power-cut run: what each promises, in one table that clients and oracle share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One topic. `keeps`: no acked record may be missing after any end, except what a cap, a TTL or a delete took."""

    config: dict[str, Any] = field(default_factory=dict)
    keeps: bool = False
    cap: int = 0
    limited: bool = False  # by a cap or a TTL: gaps at the front are its nature
    deletes: bool = False
    deletes_last: bool = True  # an acked delete survives everything
    fed_by: str = ""
    writer: int = -1  # which thread of the clients writes it


TOPICS: dict[str, Kind] = {
    "fsync": Kind({"durability": "fsync"}, keeps=True, deletes=True, writer=0),
    "ttl": Kind({"durability": "disk", "ttl_ms": 700}, limited=True, writer=0),
    "jobs": Kind({"durability": "fsync", "type": "queue", "claim_jitter_ms": 0}, keeps=True, writer=0),
    "disk": Kind({"durability": "disk"}, deletes=True, writer=1),
    "cap-fsync": Kind({"durability": "fsync", "cap_records": 40}, keeps=True, cap=40, limited=True, writer=1),
    "cap-disk": Kind({"durability": "disk", "cap_records": 40}, cap=40, limited=True, writer=1),
    "source": Kind({"durability": "fsync"}, keeps=True, writer=1),
    "memory": Kind({"durability": "memory"}, deletes=True, deletes_last=False, writer=2),
    "cap-bytes": Kind({"durability": "disk", "cap_bytes": 4000}, limited=True, writer=2),
    "weak-source": Kind({"durability": "disk"}, writer=2),
    "copies": Kind({"durability": "fsync"}, fed_by="source"),
    "weak-copies": Kind({"durability": "disk"}, fed_by="weak-source"),
}
ROUTERS: dict[str, dict[str, Any]] = {
    "exact": {"source": "source", "dest": "copies", "guarantee": "exactly_once"},
    "weak": {"source": "weak-source", "dest": "weak-copies"},
}
THREADS = 3


def tag_of(token: str) -> str:
    """A token names its record, and ends in the tag it was written with."""
    return token.rpartition(":")[2]
