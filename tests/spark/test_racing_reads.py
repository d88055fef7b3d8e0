"""A read of a directory whose server moves, seals, rewrites, evicts and drops files in the middle of it (path mode).

Everything runs on one thread: the reader's file system lets a random piece of the server's work happen between two of
its calls, so that a seed is one exact race. Whatever happens, no record that was there all the time is missing, no
record comes twice or changed, and nothing that is still there is told to be lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from tests.spark.test_random_histories import History
from tests.spark.world import Row, World, read_path, rows_in

from topics.spark.logs import directory
from topics.spark.logs.read_files import Files, open_files
from topics.spark.scanning import task_scan
from topics.storage.osfs import OsFs

READS = 20


class RacingFs(OsFs):
    """`between` runs in front of each call."""

    def __init__(self, between: Callable[[], None]) -> None:
        super().__init__()
        self._between = between

    def open(self, path: str, mode: Any = "r") -> Any:
        self._between()
        return super().open(path, mode)

    def listdir(self, path: str) -> list[str]:
        self._between()
        return super().listdir(path)

    def stat_len(self, path: str) -> int:
        self._between()
        return super().stat_len(path)

    def exists(self, path: str) -> bool:
        self._between()
        return super().exists(path)


class Race(History):
    """A history that goes on while its directory is read. Topics live on, and no time passes inside a read."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.chance = 0.0
        self.is_busy = False

    def between(self) -> None:
        if self.is_busy or self.rng.random() >= self.chance:
            return
        self.is_busy = True
        try:
            self.rng.choice((self.write, self.write, self.delete, self.background, self.work, self.work))()
        finally:
            self.is_busy = False

    def work(self) -> None:
        """Checkpoint, then the moves, rewrites and drops that are due."""
        self.world.sim.checkpoint()
        self.world.clock.advance(2_000)
        self.world.sim.tick()

    def read(self, topic: str) -> None:
        before = {row.seq: row for row in self.world.rows(topic)}
        self.chance = self.rng.choice((0.02, 0.1, 0.4))
        try:
            table = read_path(self.world, topic, onDataLoss="rows", startingOffsets=f'{{"{topic}":1}}')
        finally:
            self.chance = 0.0
        after = {row.seq: row for row in self.world.rows(topic)}
        judge(table, before, after)


def judge(table: Any, before: dict[int, Row], after: dict[int, Row]) -> None:
    told = table.to_pylist()
    rows = rows_in(table.filter(pc.equal(table["kind"], "record")))
    lost = {seq for row in told if row["kind"] == "tombstone" for seq in range(row["gap_from"], row["gap_to"] + 1)}
    seqs = [row.seq for row in rows]
    assert seqs == sorted(set(seqs))
    known = before | after
    assert all(known.get(row.seq, row) == row for row in rows)
    assert not (before.keys() & after.keys()) - set(seqs), "records that were there all the time"
    assert not lost & after.keys(), "told to be lost, and there"


def put_between(between: Callable[[], None], world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    racing = RacingFs(between)

    def opened(root: str) -> Files:
        found = open_files(root)
        return Files(found.root, racing, found.top)

    monkeypatch.setattr(directory, "open_files", opened)
    monkeypatch.setattr(task_scan, "_files", opened)
    reader, sleep = threading.get_ident(), time.sleep
    # Threads of a Spark session in this process sleep, too: they do not race.
    monkeypatch.setattr(time, "sleep", lambda s: between() if threading.get_ident() == reader else sleep(s))
    monkeypatch.setattr(time, "time_ns", lambda: world.clock.wall_ms() * 1_000_000)


@pytest.mark.parametrize("seed", range(4))
def test_a_read_of_files_that_move_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    tiers: dict[str, Any] = {"cold_dir": str(tmp_path / "cold"), "hot_retain_segments": seed % 3} if seed % 3 else {}
    world = World(tmp_path, rewrite_min_dead_bytes=1, segment_max_events=10, **tiers)
    race = Race(world, seed)
    put_between(race.between, world, monkeypatch)
    for _ in range(READS):
        for _ in range(8):
            race.step()
        race.read(race.topic())
    world.stop()


@pytest.mark.parametrize("call", range(10, 22))
def test_a_segment_that_goes_to_the_cold_store_meanwhile_has_not_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Its hot files go between the listing and the look at their times: what is not there has no time."""
    world = World(tmp_path, cold_dir=str(tmp_path / "cold"), hot_retain_segments=1, segment_max_events=10)
    world.put("short", ttl_ms=60_000)
    world.write("short", *range(45))
    world.sim.checkpoint()
    world.sim.snapshot()
    expected, calls = world.rows("short"), [0]

    def move() -> None:
        calls[0] += 1
        if calls[0] == call:
            world.clock.advance(2_000)
            world.sim.tick()

    put_between(move, world, monkeypatch)
    assert rows_in(read_path(world, "short")) == expected
    assert calls[0] >= call
    assert list(Path(tmp_path, "cold").rglob("*.data")), "nothing was moved"
