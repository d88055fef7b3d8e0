"""Floors: how far a topic's front has been lost, by cause, and how far it has been deleted (semantics.md section 6).

Each `*_lost` is the highest seq that was live when its cause took it, so `evict_floor` moves for nothing else. No value
ever decreases. `earliest_seq` is kept here but computed by `core.front`: it needs the slots. While recovery replays, it
may run ahead of the head; afterwards it never does.
"""

from topics.model.ops import Evict, LostReason

SEQ_BASE = 1


class Floors:
    __slots__ = ("cap_lost", "delete_below", "earliest_seq", "restart_lost", "trim_lost", "ttl_lost")

    def __init__(self) -> None:
        self.cap_lost = 0
        self.ttl_lost = 0
        self.trim_lost = 0
        self.restart_lost = 0
        self.delete_below = 0
        self.earliest_seq = SEQ_BASE

    @property
    def lost(self) -> int:
        """The highest seq lost by any cause; everything at or below it is dead."""
        return max(self.cap_lost, self.ttl_lost, self.trim_lost, self.restart_lost)

    def evict_floor(self, head: int) -> int:
        return min(max(self.lost + 1, SEQ_BASE), head + 1)

    def raise_to(self, op: Evict) -> None:
        self.cap_lost = max(self.cap_lost, op.cap_lost)
        self.ttl_lost = max(self.ttl_lost, op.ttl_lost)
        self.trim_lost = max(self.trim_lost, op.trim_lost)
        self.restart_lost = max(self.restart_lost, op.restart_lost)

    def absorb(self, hi: int, reason: LostReason) -> None:
        """A lost range that ends at `hi` has become part of the lost front."""
        if reason == "restart":
            self.restart_lost = max(self.restart_lost, hi)
        elif reason == "source_trim":
            self.trim_lost = max(self.trim_lost, hi)
        else:
            self.cap_lost = max(self.cap_lost, hi)

    def reason_since(self, gap_from: int) -> str:
        """Why a reader at `gap_from` finds the front missing; more than one contributing cause is `mixed`."""
        causes = [
            name
            for name, lost in (
                ("cap", self.cap_lost),
                ("ttl", self.ttl_lost),
                ("source_trim", self.trim_lost),
                ("restart", self.restart_lost),
            )
            if lost >= gap_from
        ]
        return causes[0] if len(causes) == 1 else "mixed"
