"""Writes a data directory with a bit of everything and packs it with what its readers saw: run once for each release.

python scripts/keep_directory.py tests/runtime/old/0.1.0.tar.xz

`tests/runtime/test_old_directories.py` opens every such archive with the code of the day. The script uses nothing but
the embedded library's oldest verbs, so that it runs in the work tree of an older version too.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

import topics


def write(path: Path) -> None:
    """Ends without closing, as a killed process does: part of the history is in segments, the rest only in the log."""
    db = topics.open(path, wal_shards=1)
    for durability in ("fsync", "disk", "memory"):
        topic = db.topic(f"log.{durability}", durability=durability)
        for number in range(20):
            topic.append({"n": number, "text": "ä" * number}, tag=f"tag:{number % 3}", node="writer")
    db.topic("log.fsync").delete(match="tag:1")
    db.topic("capped", cap_records=5, durability="fsync").append_many(range(12))
    db.router("copies").put("log.fsync", "copied")
    db.checkpoint()
    db.topic("payloads").append_many([None, True, 1.5, "text", [1, [2]], {"deep": {"er": []}}, 10**18])
    db.topic("log.fsync").append_many([{"n": number} for number in range(5)])
    db.topic("log.disk").delete(match="tag:2")
    db.topic("capped").append_many(range(12, 15))
    jobs = db.queue("jobs", lease_ms=60_000, durability="fsync")
    jobs.append_many([{"job": number} for number in range(6)])
    jobs.claim("worker", max=3)
    jobs.ack([1], node="worker")
    expected = {name: seen(db.topic(name)) for name in ("log.fsync", "log.disk", "log.memory", "capped", "payloads")}
    expected["jobs"] = [[seq, None, {"job": seq - 1}] for seq in range(2, 7)]
    (path.parent / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False))
    os._exit(0)


def seen(topic) -> list[list[object]]:  # type: ignore[no-untyped-def]
    return [
        ["gap", item.gap_from, item.gap_to] if isinstance(item, topics.Gap) else [item.seq, item.tag, item.value]
        for item in topic.read(gaps="yield")
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        writer = os.fork()
        if writer == 0:
            write(Path(place) / "data")
        assert os.waitpid(writer, 0)[1] == 0
        with tarfile.open(sys.argv[1], "w:xz") as archive:
            for name in ("expected.json", "data"):
                archive.add(Path(place) / name, name, filter=without_lock)


def without_lock(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """The lock names the boot of this machine. Without it every start takes the directory as left by a power cut."""
    return None if entry.name == "data/.topics.lock" else entry


if __name__ == "__main__":
    main()
