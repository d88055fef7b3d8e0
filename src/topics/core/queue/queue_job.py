"""A job that was handed out at least once, and the states that a job can be in."""

from __future__ import annotations

from typing import Final, NamedTuple

LEASED: Final = 1
ACKING: Final = 2
"""Acked; its delete is being committed. Counts as in flight and cannot expire."""
DELAYED: Final = 3
READY: Final = 4
"""On the line."""
MOVING: Final = 5
"""On its way to the dead-letter topic. Counts as ready."""
STUCK: Final = 6
"""Its payload is damaged on disk: counted as ready, handed to nobody until the next start."""


class QueueJob:
    """`due_at` is when its lease or its delay is over: the first moment it is ready. The tag is known once a rule or a
    history has asked for it (`tag_known`)."""

    __slots__ = (
        "counted",
        "deliveries",
        "due_at",
        "error",
        "final",
        "first_ts",
        "last_ts",
        "lease_id",
        "node",
        "origin",
        "priority",
        "seq",
        "state",
        "stream",
        "tag",
        "tag_known",
    )

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.state = READY
        self.deliveries = 0
        self.lease_id = 0
        self.node = ""
        self.due_at = 0
        self.stream = 0  # the work stream that holds it; 0: a plain claim
        self.priority = 0
        self.error = ""  # of the last nack that gave one
        self.final = False  # its worker has given it up
        self.first_ts = 0  # when it was claimed for the first time, and for the last
        self.last_ts = 0
        self.origin: tuple[int, bytes | None] | None = None  # time and tag of its record, for the history
        self.tag: bytes | None = None
        self.tag_known = False
        self.counted = False  # in flight, as far as rules about tags are concerned

    @property
    def deadline(self) -> int:
        """The last moment at which the lease holds."""
        return self.due_at - 1

    def __repr__(self) -> str:
        return f"Job({self.seq}, state={self.state}, deliveries={self.deliveries}, lease={self.lease_id})"


class LostLease(NamedTuple):
    """Retention took a job while somebody held it."""

    node: str
    lease_id: int
    due_at: int
    reason: str
