"""Workloads around floors: what caps, TTL and deletes take, in a log and in a router's destination.

Each crashes at every call of checkpoints, snapshots, rotations and moves to the cold tier, while readers look at the
floors in between. The judge then asks for more than the records: whatever a cap or TTL took must be told as a gap, and
no floor may lie below one that a reader has seen (`Instance.earliest_seen`, `floor_seen`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.crash.harness import Rig
from tests.crash.workloads import REWRITING, TIERED, Workload

TTL_MS = 200_000
LIFETIME_MS = TTL_MS + 1_000


def _one(rig: Rig, durability: str, **config: Any) -> None:
    rig.create("c", durability, **config)
    rig.write("c", 1)


def _one_routed(rig: Rig, durability: str, **config: Any) -> None:
    """The destination is what is capped."""
    rig.create("a", durability)
    rig.create("c", durability, **config)
    rig.router("r", "a", "c")
    rig.write("a", 1)
    rig.look("c")


def _fill(rig: Rig, count: int, **more: Any) -> None:
    """Through the router where there is one."""
    routed = "a" in rig.ledger.instances
    rig.write("a" if routed else "c", count, **more)
    if routed:
        rig.look("c")


def _grow_old(rig: Rig) -> None:
    if rig.sim.engine.state.topics["c"].config.ttl_ms:
        rig.tick(LIFETIME_MS)


def _checkpoint(rig: Rig) -> None:
    """Nothing of the topic lies in a segment yet when the first records go."""
    _fill(rig, 4)
    _grow_old(rig)
    rig.observe("c")
    _fill(rig, 2)
    rig.checkpoint()
    _fill(rig, 5)
    rig.observe("c")
    rig.checkpoint()


def _unseen(rig: Rig) -> None:
    """Nobody looks: the floors need not survive, but what is missing must be told."""
    _fill(rig, 4)
    _grow_old(rig)
    rig.checkpoint()
    _fill(rig, 3)
    rig.checkpoint()


def _snapshot(rig: Rig) -> None:
    _fill(rig, 4)
    rig.snapshot()
    _fill(rig, 3)
    _grow_old(rig)
    rig.observe("c")
    rig.snapshot()
    _fill(rig, 2)
    rig.observe("c")


def _rotate(rig: Rig) -> None:
    for _ in range(4):
        _fill(rig, 2, size=400)
        rig.observe("c")
    _grow_old(rig)
    rig.checkpoint()
    _fill(rig, 1, size=400)
    rig.observe("c")


def _relocate(rig: Rig) -> None:
    _fill(rig, 9)
    rig.checkpoint()
    rig.tick()
    _fill(rig, 5)
    _grow_old(rig)
    rig.observe("c")
    rig.tick()
    rig.snapshot()
    rig.tick()
    rig.observe("c")


def _delete(rig: Rig) -> None:
    """Deletes and evictions meet: the first are silent, the others are told."""
    _fill(rig, 3, tag="x")
    rig.delete("c", match="x")
    rig.observe("c")
    _fill(rig, 4)
    _grow_old(rig)
    rig.checkpoint()
    rig.delete("c", before_seq=5)
    _fill(rig, 2)
    rig.observe("c")
    rig.snapshot()


def _reshape(rig: Rig) -> None:
    """Caps come, tighten and go; what they took stays gone, and stays told."""
    durability = rig.ledger.instance("c").durability
    _fill(rig, 4)
    rig.observe("c")
    for cap in (2, 5, 0):
        rig.configure("c", durability, cap_records=cap)
        _fill(rig, 2)
        rig.observe("c")
    rig.checkpoint()


Begin = Callable[..., None]
CAPS: dict[str, dict[str, Any]] = {
    "count": {"cap_records": 3},
    "bytes": {"cap_bytes": 60},
    "ttl": {"ttl_ms": TTL_MS},
}
STORIES: tuple[tuple[str, Callable[[Rig], None], dict[str, Any], int], ...] = (
    ("checkpoint", _checkpoint, {}, 10),
    ("unseen", _unseen, {}, 14),
    ("snapshot", _snapshot, {}, 3),
    ("rotation", _rotate, {}, 2),
    ("relocation", _relocate, TIERED, 2),
    ("delete", _delete, REWRITING, 2),
    ("reshape", _reshape, {}, 8),
)


def _workloads(prefix: str, begin: Begin, *, finer: int) -> list[Workload]:
    """Every story under every cap in every class; caps in records take part in all of them."""
    return [
        Workload(
            f"{prefix}{cap}-{story}-{durability}",
            partial(begin, durability=durability, **config),
            run,
            settings,
            fineness=fineness * finer,
        )
        for story, run, settings, fineness in STORIES
        for cap, config in CAPS.items()
        for durability in ("fsync", "disk", "memory")
        if cap == "count" or (story != "reshape" and durability != "memory")
    ]


FLOOR_WORKLOADS = _workloads("", _one, finer=1)
ROUTED_FLOOR_WORKLOADS = _workloads("routed-", _one_routed, finer=0)
