"""The table is the log while the server writes, seals, relocates, evicts and deletes: in path and in url mode.

A thread changes topics all the time; the reader checks every table against what was acknowledged before it was planned
and after it was read. Now and then the changes pause, and then a table must equal a full diff exactly.
"""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.served import Served
from tests.spark.test_url_reads import rows_in
from tests.spark.world import read_tasks

from topics.errors import ConfigError
from topics.spark.options import read_options
from topics.spark.planning.batch import plan_batch

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "synced": {"durability": "fsync"},
    "capped": {"cap_records": 700},
    "short": {"ttl_ms": 1500},
    "again": {"durability": "memory"},
}
SECONDS = 3.0
LOOKS_MIN = 10


@dataclass
class Known:
    """One record as its writer knows it; times are None while nothing happened."""

    n: int
    tag: str
    acked_at: float
    delete_begun_at: float | None = None
    deleted_at: float | None = None


@dataclass
class Instance:
    """What was acknowledged of one topic between its creation and its end."""

    records: dict[int, Known] = field(default_factory=dict)


class Changes:
    """Random changes, one after the other, from a thread of their own."""

    def __init__(self, served: Served, seed: int) -> None:
        self.served = served
        self.rng = random.Random(seed)
        self.instances: dict[str, list[Instance]] = {name: [] for name in CONFIGS}
        self.free = threading.Lock()
        self.stopped = False
        self.failure: BaseException | None = None
        self.n = 0
        self.makes = 0
        """Odd while a topic is being deleted and made anew."""
        for name in CONFIGS:
            self.make(name)
        self.thread = threading.Thread(target=self._run)

    def make(self, name: str) -> None:
        self.served.put(name, **CONFIGS[name])
        self.instances[name].append(Instance())

    def _run(self) -> None:
        try:
            while not self.stopped:
                with self.free:
                    self.change()
                time.sleep(0.001)
        except BaseException as error:
            self.failure = error

    def change(self) -> None:
        name = self.rng.choice(list(CONFIGS))
        dice = self.rng.random()
        if dice < 0.85:
            self.write(name)
        elif dice < 0.97:
            self.delete(name)
        elif name == "again":
            self.makes += 1
            self.served.drop(name)
            self.make(name)
            self.makes += 1

    def write(self, name: str) -> None:
        count, tag = self.rng.randint(1, 60), f"t{self.rng.randint(0, 4)}"
        numbers = range(self.n, self.n + count)
        self.n += count
        records = [{"data": {"n": n, "x": "é" * (n % 40)}, "tag": tag} for n in numbers]
        first = self.served.call("POST", f"/v0/topics/{name}", {"records": records})["first_seq"]
        now = time.monotonic()
        known = {first + i: Known(n, tag, now) for i, n in enumerate(numbers)}
        self.instances[name][-1].records.update(known)

    def delete(self, name: str) -> None:
        records = self.instances[name][-1].records
        tag = f"t{self.rng.randint(0, 4)}"
        before = self.rng.choice([*records, 1])  # records of a tag and never all of them: some have to grow old
        chosen = [known for seq, known in records.items() if known.tag == tag and seq < before]
        for known in chosen:
            known.delete_begun_at = known.delete_begun_at or time.monotonic()
        self.served.delete(name, match=tag, before_seq=before)
        for known in chosen:
            known.deleted_at = known.deleted_at or time.monotonic()

    @contextmanager
    def running(self) -> Iterator[None]:
        self.thread.start()
        try:
            yield
        finally:
            self.stopped = True
            self.thread.join(30)
        assert self.failure is None, self.failure

    def earliest(self, name: str) -> int:
        return int(self.served.call("GET", f"/v0/topics/{name}")["earliest_seq"])


def read(served: Served, mode: str, topic: str) -> pa.Table:
    where = {"url": served.url} if mode == "url" else {"path": served.data_dir, "coldPath": str(served.path / "cold")}
    options = read_options({"subscribe": topic, "onDataLoss": "rows", **where}, streaming=False)
    return read_tasks(plan_batch(options), options)


def check(changes: Changes, name: str, mode: str) -> None:
    """One table, read while everything changes."""
    makes, known = changes.makes, changes.instances[name][-1].records
    before, begun = changes.earliest(name), time.monotonic()
    table = read(changes.served, mode, name)
    ended, after = time.monotonic(), changes.earliest(name)
    if name == "again" and (changes.makes != makes or makes % 2):
        return  # made anew meanwhile; what is told of that is tested elsewhere
    rows = [row for row in table.to_pylist() if row["kind"] == "record"]
    lost = {seq for r in table.to_pylist() if r["kind"] == "tombstone" for seq in range(r["gap_from"], r["gap_to"] + 1)}
    seqs = [row["seq"] for row in rows]
    assert seqs == sorted(set(seqs)), (name, mode, out_of_order(seqs))
    for row in rows:
        record = known.get(row["seq"])
        if record is None:
            continue  # written, and not yet acknowledged to its writer
        assert (json.loads(row["data"])["n"], row["tag"]) == (record.n, record.tag)
        assert record.deleted_at is None or record.deleted_at >= begun, (name, mode, row["seq"])
        assert row["seq"] >= before, (name, mode, row["seq"], before)
    given = set(seqs)
    for seq, record in list(known.items()):
        if record.acked_at <= begun and seq not in given and seq >= after and seq not in lost:
            assert record.delete_begun_at is not None, (name, mode, seq)
            assert record.delete_begun_at <= ended, (name, mode, seq)


def out_of_order(seqs: list[int]) -> list[tuple[int, int]]:
    return [(a, b) for a, b in pairwise(seqs) if b <= a]


def settled(changes: Changes, name: str, mode: str) -> None:
    """Nobody writes; files still move. Looks between which records expired compare nothing; at the latest when all of
    them have, there is nothing left to expire."""
    while True:
        first = changes.served.rows(name)
        table = read(changes.served, mode, name)
        last = changes.served.rows(name)
        if first == last:
            records = table.filter(pa.compute.equal(table["kind"], "record"))
            assert rows_in(records) == first, (name, mode)
            return


@pytest.mark.parametrize("shards", [1, 3])
def test_the_table_is_the_log_while_everything_moves(tmp_path: Path, shards: int) -> None:
    served = Served(
        tmp_path,
        wal_shards=str(shards),
        cold_dir=str(tmp_path / "cold"),
        hot_retain_segments="1",
        segment_max_events="150",
        rewrite_min_dead_bytes="1",
    )
    try:
        changes = Changes(served, seed=shards)
        with changes.running():
            deadline, looks = time.monotonic() + SECONDS, 0
            while (time.monotonic() < deadline or looks < LOOKS_MIN) and changes.failure is None:
                name = list(CONFIGS)[looks % len(CONFIGS)]
                try:
                    check(changes, name, ("path", "url")[looks % 2])
                except (ConfigError, urllib.error.HTTPError):
                    assert name == "again"  # it was gone for a moment
                looks += 1
                if looks % 10 == 0:
                    with changes.free:
                        for name in CONFIGS:
                            settled(changes, name, ("path", "url")[(looks // 10) % 2])
        for name in CONFIGS:
            for mode in ("path", "url"):
                settled(changes, name, mode)
        deadline = time.monotonic() + 30  # a busy machine moves segments late
        while {segment["tier"] for segment in served.segments("plain")["segments"]} != {"hot", "cold"}:
            assert time.monotonic() < deadline, "no segment was moved"
            time.sleep(0.1)
    finally:
        served.stop()
