"""Workloads around compaction: what is superseded goes in the background, and a crash may come at every call of it."""

from __future__ import annotations

from functools import partial

from tests.crash.harness import Rig
from tests.crash.workloads import REWRITING, TIERED, Workload

TAGS = ("a", "b", "a", None, "c", "b", "a")


def _table(rig: Rig, durability: str) -> None:
    rig.create("t", durability, compact="tag", compact_grace_ms=0)
    for tag in TAGS:
        rig.write("t", 1, tag=tag)


def _compact(rig: Rig) -> None:
    """From the log, from the active segment, and from sealed ones; tags that are removed; all of it once more."""
    rig.compact("t")
    rig.write("t", 1, tag="a")
    rig.checkpoint()
    rig.remove_tag("t", "b")
    rig.write("t", 2, tag="c")
    rig.compact("t")
    rig.write("t", 1, tag="b")
    rig.snapshot()
    rig.compact("t")


def _sealed_table(rig: Rig, durability: str) -> None:
    _table(rig, durability)
    for tag in TAGS:
        rig.write("t", 2, tag=tag)
    rig.snapshot()


def _compact_sealed(rig: Rig) -> None:
    """Segments lose some records, are written anew without them, and go whole."""
    rig.write("t", 1, tag="a")
    rig.remove_tag("t", "c")
    rig.compact("t")
    rig.tick()
    rig.write("t", 1, tag="b")
    rig.compact("t")
    rig.tick()
    rig.snapshot()


def _fed_table(rig: Rig, durability: str) -> None:
    rig.create("a", durability)
    rig.create("t", durability, compact="tag", compact_grace_ms=0)
    rig.router("r", "a", "t")
    for tag in TAGS[:4]:
        rig.write("a", 1, tag=tag)
    rig.look("t")
    rig.checkpoint()


def _compact_fed(rig: Rig) -> None:
    """Copies are superseded by copies, once a checkpoint has them."""
    rig.compact("t")
    rig.write("a", 2, tag="a")
    rig.look("t")
    rig.checkpoint()
    rig.compact("t")
    rig.write("a", 1, tag="b")
    rig.look("t")


COMPACT_WORKLOADS = [
    *(
        Workload(f"compact-{durability}", partial(_table, durability=durability), _compact, fineness=0)
        for durability in ("disk", "fsync", "memory")
    ),
    Workload(
        "compact-rewrite",
        partial(_sealed_table, durability="disk"),
        _compact_sealed,
        {**REWRITING, "wal_shards": 2},
        fineness=0,
    ),
    Workload("compact-cold", partial(_sealed_table, durability="fsync"), _compact_sealed, TIERED, fineness=0),
    *(
        Workload(
            f"compact-fed-{durability}",
            partial(_fed_table, durability=durability),
            _compact_fed,
            {"wal_shards": 2},
            fineness=0,
        )
        for durability in ("disk", "fsync")
    ),
]
