"""Workloads: a dozen short stories, each around one thing that a crash could break.

Each begins with an engine whose `before` part is finished and runs its `story`; every disk call of the story is a crash
point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.crash.harness import Rig


@dataclass(frozen=True)
class Workload:
    name: str
    before: Callable[[Rig], None]
    story: Callable[[Rig], None]
    settings: dict[str, Any] = field(default_factory=dict)
    shards_after: tuple[int, ...] = ()  # shard counts of the starts after the crash, in turn
    fineness: int = 8  # of the tears and chances at each point (`fates`)


def _two_classes(rig: Rig) -> None:
    rig.create("f", "fsync")
    rig.create("d", "disk")
    rig.write("f", 2)
    rig.write("d", 2)


def _append(rig: Rig) -> None:
    for _ in range(3):
        rig.write("f")
        rig.write("d")


def _batches(rig: Rig) -> None:
    rig.write("f", 3)
    rig.write("d", 5)
    rig.write("f", 1)
    rig.write("d", 12)


def _one(rig: Rig, durability: str) -> None:
    """A single topic: a start costs half as much, so there can be twice as many."""
    rig.create("t", durability)
    rig.write("t", 1)


def _one_append(rig: Rig) -> None:
    for _ in range(8):
        rig.write("t")


def _one_batch(rig: Rig) -> None:
    for count in (3, 9, 1, 14, 2):
        rig.write("t", count)


def _one_rotation(rig: Rig) -> None:
    for _ in range(7):
        rig.write("t", 2, size=500)


def _one_checkpoint(rig: Rig) -> None:
    rig.write("t", 3)
    rig.checkpoint()
    rig.write("t", 4)
    rig.checkpoint()


def _one_configure(rig: Rig) -> None:
    for cap in (9, 4, 0):
        rig.configure("t", rig.ledger.instance("t").durability, cap_records=cap)
        rig.write("t", 3)


def _one_delete(rig: Rig) -> None:
    rig.write("t", 3, tag="a")
    rig.delete("t", match="a")
    rig.write("t", 2, tag="a")
    rig.delete("t", before_seq=3)


def _group_commit(rig: Rig) -> None:
    pending = [rig.submit(name, count) for name, count in (("f", 1), ("d", 2), ("f", 3), ("d", 1), ("f", 2))]
    rig.sim.pump()
    for submitted in pending:
        rig.finish(submitted)


def _together(rig: Rig, counts: tuple[tuple[int, ...], ...], size: int = 4) -> None:
    """Writes that meet in a turn and travel as one submission, as far as the ceiling lets them."""
    for turn in counts:
        for count in turn:
            rig.submit("t", count, size=size)
        rig.sim.pump()


def _joined(rig: Rig) -> None:
    """Single writes of a turn that were given together, between others."""
    rig.write("t")
    for joined, count in ((3, 2), (1, 1), (4, 3)):
        rig.join("t", joined)
        rig.submit("t", count)
        rig.join("t", joined)
        rig.sim.pump()


def _rotation(rig: Rig) -> None:
    for _ in range(6):
        rig.write("f", 2, size=400)
        rig.write("d", 2, size=400)


def _large(rig: Rig) -> None:
    rig.write("d", 3, size=3000)
    rig.write("f", 1, size=6000)
    rig.write("d", 1)


def _checkpoint(rig: Rig) -> None:
    rig.write("f", 3)
    rig.checkpoint()
    rig.write("d", 3)
    rig.checkpoint()


def _seal(rig: Rig) -> None:
    rig.write("f", 9)
    rig.checkpoint()
    rig.write("f", 2)
    rig.checkpoint()


def _snapshot(rig: Rig) -> None:
    rig.write("f", 3)
    rig.snapshot()
    rig.write("d", 3)
    rig.snapshot()


def _prune(rig: Rig) -> None:
    for _ in range(3):
        rig.write("f", 3, size=700)
        rig.snapshot()


def _tagged(rig: Rig) -> None:
    _two_classes(rig)
    for tag in ("a", "b", "a", None, "b", "a"):
        rig.write("f", 2, tag=tag)
        rig.write("d", 1, tag=tag)
    rig.checkpoint()
    rig.write("f", 2, tag="a")


def _delete(rig: Rig) -> None:
    rig.delete("f", match="a")
    rig.write("f", 1, tag="a")
    rig.checkpoint()
    rig.delete("f", before_seq=6)
    rig.delete("d", match="b")
    rig.snapshot()


def _rewrite(rig: Rig) -> None:
    rig.delete("f", match="a*")
    rig.tick()
    rig.tick()
    rig.write("f", 1)
    rig.snapshot()


def _history(rig: Rig) -> None:
    _two_classes(rig)
    rig.write("f", 7, tag="a")
    rig.write("f", 5, tag="b")
    rig.snapshot()


def _relocate(rig: Rig) -> None:
    """Sealed segments go to the cold tier, are deleted from there, and some of them go whole."""
    rig.tick()
    rig.delete("f", match="a")
    rig.tick()
    rig.write("f", 2)
    rig.delete("f", before_seq=5)
    rig.snapshot()
    rig.tick()


def _drop_and_recreate(rig: Rig) -> None:
    rig.checkpoint()
    rig.drop("f")
    rig.tick()
    rig.create("f", "fsync")
    rig.write("f", 2)
    rig.drop("d")
    rig.create("d", "disk")
    rig.write("d", 1)
    rig.tick()
    rig.snapshot()


def _capped(rig: Rig) -> None:
    rig.create("c", "fsync", cap_records=5)
    rig.write("c", 4)
    rig.checkpoint()


def _evict(rig: Rig) -> None:
    rig.write("c", 3)
    rig.checkpoint()
    rig.write("c", 9)
    rig.checkpoint()
    rig.tick()
    rig.write("c", 1)
    rig.snapshot()


def _segments_by_tag(rig: Rig) -> None:
    rig.create("f", "fsync")
    for tag in ("a", "b", "c", "d"):
        rig.write("f", 4, tag=tag)
    rig.write("f", 2, tag="e")
    rig.checkpoint()


def _drop_segments(rig: Rig) -> None:
    """Whole segments go from the middle and from the front while the log still has all they held."""
    rig.delete("f", match="b")
    rig.tick()
    rig.write("f", 1, tag="e")
    rig.delete("f", before_seq=6)
    rig.tick()
    rig.checkpoint()
    rig.delete("f", match="d")
    rig.tick()
    rig.write("f", 2)


def _rotate_for_checkpoint(rig: Rig) -> None:
    """Checkpoints that find the log more than half full begin a file, and snapshots let go of the old ones."""
    for _ in range(2):
        rig.write("f", 3, size=750)
        rig.checkpoint()
        rig.snapshot()


def _configure(rig: Rig) -> None:
    rig.configure("d", cap_records=3)
    rig.write("d", 2)
    rig.configure("d")
    rig.write("d", 2)


def _switch_classes(rig: Rig) -> None:
    for durability in ("disk", "fsync", "memory", "fsync", "disk", "ephemeral"):
        rig.configure("f", durability)
        rig.write("f", 2)
        rig.write("f", 1)
    rig.snapshot()


def _weak(rig: Rig) -> None:
    rig.create("m", "memory")
    rig.create("e", "ephemeral")
    rig.ledger.instance("e").ephemeral = True
    rig.write("m", 1)
    rig.write("e", 1)


def _weak_writes(rig: Rig) -> None:
    for _ in range(3):
        rig.write("m", 5)
        rig.write("e", 5)
        rig.delete("m", before_seq=3)
    rig.snapshot()
    rig.write("m", 5)
    rig.write("e", 9)


def _birth(rig: Rig) -> None:
    rig.ledger.begin("n", "disk")
    rig.write("n", 2)
    rig.write("n", 1)


def _long(rig: Rig) -> None:
    """A bit of everything, again and again, so that files of every age are there."""
    for turn in range(2):
        rig.write("f", 5, tag="a", size=60)
        rig.write("d", 7, tag="b", size=60)
        rig.write("f", 3, tag="b")
        if turn % 2:
            rig.delete("f", match="a")
            rig.snapshot()
        else:
            rig.checkpoint()
        rig.delete("d", before_seq=5 * turn + 1)
        rig.tick(5_100)


def _queue(rig: Rig, **config: Any) -> None:
    rig.create("dead", "fsync")
    rig.create("q", type="queue", claim_jitter_ms=0, **config)
    rig.write("q", 6)


def _work(rig: Rig) -> None:
    first = rig.claim("q", 3)
    rig.ack("q", first[:1])
    rig.nack("q", first[1:2])
    rig.checkpoint()
    rig.ack("q", rig.claim("q", 2))
    rig.write("q", 2)
    rig.snapshot()
    rig.claim("q", 1, node="other")
    rig.nack("q", first[2:3])
    rig.ack("q", rig.claim("q", 1))


def _letters(rig: Rig) -> None:
    _queue(rig, durability="fsync", leases_durable=True, max_deliveries=1, dead_letter="dead")
    rig.ledger.instance("dead").fed_by = ("q",)


def _dead_letter(rig: Rig) -> None:
    """Jobs that were delivered as often as they may be move on; those that went are in `dead`, and nowhere else."""
    instance = rig.ledger.instance("q")
    instance.deleting |= set(instance.acked())  # any of them may have been moved
    for _ in range(2):
        for seq in rig.claim("q", 2):
            rig.nack("q", [seq])
    rig.claim("q", 4)
    rig.tick()
    rig.checkpoint()
    rig.write("q", 1)
    rig.snapshot()


def _routed(rig: Rig, durability: str, *, once: bool = False) -> None:
    rig.create("a", durability)
    rig.create("b", durability)
    rig.router("r", "a", "b", once=once)
    rig.write("a", 2)
    rig.look("b")


def _forward(rig: Rig) -> None:
    rig.write("a", 2)
    rig.look("b")
    rig.checkpoint()
    rig.write("a", 3)
    rig.look("b")
    rig.delete("a", before_seq=4)
    rig.write("a", 1)
    rig.look("b")
    rig.snapshot()
    rig.write("a", 1)
    rig.look("b")


def _direct(rig: Rig) -> None:
    for _ in range(2):
        rig.write("a", 2)
        rig.write("b", 1)
        rig.look("b")
    rig.checkpoint()
    rig.write("b", 2)
    rig.write("a", 1)
    rig.look("b")


def _unrouted(rig: Rig, durability: str) -> None:
    rig.create("a", durability)
    rig.create("b", durability)
    rig.write("b", 1)


def _route_meanwhile(rig: Rig) -> None:
    """A router begins while writes are on their way into its destination, and both go on in the same turns."""
    rig.submit("b", 1)
    rig.submit("b", 2)
    rig.router("r", "a", "b")
    for _ in range(2):
        for name, count in (("a", 1), ("b", 1), ("a", 2), ("b", 2)):
            rig.submit(name, count)
        rig.sim.pump()
        rig.look("b")


def _kept(rig: Rig) -> None:
    _queue(rig, durability="fsync", leases_durable=True)


def _forgotten(rig: Rig) -> None:
    _queue(rig, durability="disk")


REWRITING = {"rewrite_min_dead_bytes": 1, "rewrite_dead_ratio": 0.3}
TIERED = {"cold_dir": "cold", "hot_retain_segments": 1, "relocate_interval_ms": 1000, "rewrite_dead_ratio": 0}

LOG_WORKLOADS = [
    Workload("append", _two_classes, _append, fineness=30),
    Workload("batch", _two_classes, _batches, fineness=30),
    Workload("group-commit", _two_classes, _group_commit, {"wal_shards": 2}, fineness=60),
    Workload("rotation", _two_classes, _rotation, fineness=12),
    Workload("large", _two_classes, _large, fineness=20),
    Workload("configure", _two_classes, _configure, fineness=30),
    Workload("birth", lambda rig: None, _birth, fineness=2000),
    Workload("switch-classes", _two_classes, _switch_classes, fineness=5),
    Workload("weak-classes", _weak, _weak_writes, fineness=2),
]
ONE_TOPIC_WORKLOADS = [
    Workload(f"one-{name}-{durability}", partial(_one, durability=durability), story, fineness=fineness)
    for name, story, fineness in (
        ("append", _one_append, 1000),
        ("batch", _one_batch, 1000),
        ("rotation", _one_rotation, 90),
        ("checkpoint", _one_checkpoint, 22),
        ("configure", _one_configure, 200),
        ("delete", _one_delete, 2000),
    )
    for durability in ("disk", "fsync")
]
"""Torn at every byte of what was pending, or nearly."""
MIXED_TURNS = ((1, 3, 1, 2), (5, 1, 2), (1, 1, 1, 1, 1, 1))
ONE_TURN_WORKLOADS = [
    Workload(
        f"together-{durability}-{size}",
        partial(_one, durability=durability),
        partial(_together, counts=MIXED_TURNS, size=size),
        {"seq_reserve": seq_reserve},
        fineness=fineness,
    )
    for durability, size, seq_reserve, fineness in (("disk", 4, 2, 60), ("fsync", 4, 8, 60), ("disk", 300, 4, 8))
]
ONE_TURN_WORKLOADS += [
    Workload(f"joined-{durability}", partial(_one, durability=durability), _joined, fineness=60)
    for durability in ("disk", "fsync")
]
SEGMENT_WORKLOADS = [
    Workload("checkpoint", _two_classes, _checkpoint, fineness=4),
    Workload("seal", _two_classes, _seal, fineness=3),
    Workload("snapshot", _two_classes, _snapshot, {"wal_shards": 2}, fineness=3),
    Workload("prune", _two_classes, _prune, fineness=2),
    Workload("delete", _tagged, _delete, fineness=1),
    Workload("rewrite", _tagged, _rewrite, REWRITING, fineness=1),
    Workload("relocation", _history, _relocate, TIERED, fineness=2),
    Workload("drop-and-recreate", _two_classes, _drop_and_recreate, fineness=8),
    Workload("evict", _capped, _evict, fineness=2),
    Workload("rotate-for-checkpoint", _two_classes, _rotate_for_checkpoint, fineness=1),
    Workload("drop-segments", _segments_by_tag, _drop_segments, fineness=1),
]
MIXED_WORKLOADS = [
    Workload("long", _two_classes, _long, {**REWRITING, "wal_shards": 2}, fineness=0),
]
QUEUE_WORKLOADS = [
    Workload("leases-kept", _kept, _work, fineness=2),
    Workload("leases-forgotten", _forgotten, _work, fineness=2),
    Workload("dead-letter", _letters, _dead_letter, fineness=2),
]
ROUTER_WORKLOADS = [
    Workload("forward-fsync", lambda rig: _routed(rig, "fsync"), _forward, {"wal_shards": 2}, fineness=0),
    Workload("forward-disk", lambda rig: _routed(rig, "disk"), _forward, fineness=0),
    Workload("forward-once", lambda rig: _routed(rig, "fsync", once=True), _forward, fineness=0),
    Workload("direct-fsync", lambda rig: _routed(rig, "fsync"), _direct, fineness=0),
    Workload("direct-disk", lambda rig: _routed(rig, "disk", once=True), _direct, {"wal_shards": 2}, fineness=0),
    Workload(
        "meanwhile-fsync", partial(_unrouted, durability="fsync"), _route_meanwhile, {"wal_shards": 2}, fineness=0
    ),
    Workload(
        "meanwhile-memory", partial(_unrouted, durability="memory"), _route_meanwhile, {"wal_shards": 2}, fineness=0
    ),
]
LAYOUT_WORKLOADS = [
    Workload("one-to-three", _two_classes, _snapshot, shards_after=(3, 1), fineness=2),
    Workload("three-to-one", _two_classes, _prune, {"wal_shards": 3}, shards_after=(1, 3), fineness=0),
    Workload("four-to-two-to-four", _tagged, _delete, {"wal_shards": 4}, shards_after=(2, 4), fineness=0),
    Workload(
        "rewrite-two-to-five", _tagged, _rewrite, {**REWRITING, "wal_shards": 2}, shards_after=(5, 2, 3), fineness=0
    ),
    Workload("rotation-one-to-eight", _two_classes, _rotation, shards_after=(8, 1), fineness=4),
]
