"""Workloads: a dozen short stories, each around one thing that a crash could break.

Each begins with an engine whose `before` part is finished and runs its `story`; every disk call of the story is a crash
point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.crash.harness import Rig


@dataclass(frozen=True)
class Workload:
    name: str
    before: Callable[[Rig], None]
    story: Callable[[Rig], None]
    settings: dict[str, Any] = field(default_factory=dict)


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


def _group_commit(rig: Rig) -> None:
    pending = [rig.submit(name, count) for name, count in (("f", 1), ("d", 2), ("f", 3), ("d", 1), ("f", 2))]
    rig.sim.pump()
    for submitted in pending:
        rig.finish(submitted)


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


def _configure(rig: Rig) -> None:
    from topics.model.config import patch_from, resolve_config

    for config in ({"durability": "disk", "cap_records": 3}, {"durability": "disk"}):
        rig.ledger.instance("d").cap = 3
        rig.call(lambda engine, config=config: engine.put_topic("d", resolve_config(patch_from(config))))
        rig.write("d", 2)


def _birth(rig: Rig) -> None:
    rig.ledger.begin("n", "disk")
    rig.write("n", 2)
    rig.write("n", 1)


WORKLOADS = [
    Workload("append", _two_classes, _append),
    Workload("batch", _two_classes, _batches),
    Workload("group-commit", _two_classes, _group_commit, {"wal_shards": 2}),
    Workload("rotation", _two_classes, _rotation),
    Workload("large", _two_classes, _large),
    Workload("checkpoint", _two_classes, _checkpoint),
    Workload("seal", _two_classes, _seal),
    Workload("snapshot", _two_classes, _snapshot, {"wal_shards": 2}),
    Workload("prune", _two_classes, _prune),
    Workload("delete", _tagged, _delete),
    Workload("rewrite", _tagged, _rewrite, {"rewrite_min_dead_bytes": 1, "rewrite_dead_ratio": 0.3}),
    Workload("drop-and-recreate", _two_classes, _drop_and_recreate),
    Workload("evict", _capped, _evict),
    Workload("configure", _two_classes, _configure),
    Workload("birth", lambda rig: None, _birth),
]
