"""Whatever happened to a directory, the table over its files is what a full diff gives (path mode)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.spark.world import Row, World, read_path, rows_in

TOPICS = ("a", "b", "c")
CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"durability": "fsync"},
    {"cap_records": 25},
    {"cap_bytes": 600},
    {"ttl_ms": 5_000},
    {"ttl_ms": 20_000, "cap_records": 60},
    {"durability": "memory"},
)


class History:
    """Random steps against one world."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.made: dict[str, int] = {}
        self.done: list[str] = []

    def step(self) -> None:
        verbs = [self.write] * 12 + [self.delete] * 4 + [self.advance] * 3 + [self.background] * 6
        verbs += [self.configure, self.recreate, self.restart]
        verb = self.rng.choice(verbs)
        self.done.append(verb.__name__)
        verb()

    def topic(self) -> str:
        name = self.rng.choice(TOPICS)
        if name not in self.made:
            self.world.put(name, **self.rng.choice(CONFIGS))
            self.made[name] = 0
        return name

    def write(self) -> None:
        topic, rng = self.topic(), self.rng
        for _ in range(rng.randint(1, 3)):
            count = rng.randint(1, 9)
            values = [{"n": self.made[topic] + i, "x": "é" * rng.randint(0, 20)} for i in range(count)]
            self.made[topic] += count
            meta = {"m": rng.randint(0, 9)} if rng.random() < 0.3 else None
            tag = f"t{rng.randint(0, 4)}" if rng.random() < 0.7 else None
            self.world.write(topic, *values, tag=tag, node=rng.choice((None, "n1", "")), meta=meta)

    def delete(self) -> None:
        topic, rng = self.topic(), self.rng
        before = rng.randint(1, self.made[topic] + 2) if rng.random() < 0.6 else None
        match = rng.choice(("t1", "t*", "t3")) if before is None or rng.random() < 0.5 else None
        self.world.delete(topic, before=before, match=match)

    def advance(self) -> None:
        self.world.clock.advance(self.rng.choice((1, 500, 2_000, 6_000)))
        if self.rng.random() < 0.7:
            self.world.sim.tick()

    def background(self) -> None:
        job = self.rng.choice((self.world.sim.checkpoint, self.world.sim.checkpoint, self.world.sim.snapshot))
        job()

    def configure(self) -> None:
        self.world.put(self.topic(), **self.rng.choice(CONFIGS))

    def recreate(self) -> None:
        topic = self.topic()
        self.world.drop(topic)
        del self.made[topic]

    def restart(self) -> None:
        self.world.stop() if self.rng.random() < 0.5 else self.world.kill()
        shards = self.rng.choice((1, 2, 4)) if self.rng.random() < 0.5 else self.world.settings["wal_shards"]
        self.world.start(wal_shards=shards)

    def check(self) -> None:
        for topic in self.made:
            expected = self.world.rows(topic)
            assert rows_in(read_path(self.world, topic)) == expected, (topic, self.done[-8:])


@pytest.mark.parametrize("seed", range(12))
def test_the_table_is_the_log(tmp_path: Path, seed: int) -> None:
    tiers: dict[str, Any] = {"cold_dir": str(tmp_path / "cold"), "hot_retain_segments": seed % 3} if seed % 2 else {}
    world = World(tmp_path, rewrite_min_dead_bytes=1, **tiers)
    history = History(world, seed)
    for _ in range(60):
        history.step()
        history.check()
    world.stop()


def test_an_empty_topic_has_no_rows(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("a")
    assert rows_in(read_path(world, "a")) == []
    world.write("a", 1)
    world.delete("a", before=9)
    assert rows_in(read_path(world, "a")) == []


def test_texts_come_back_byte_for_byte(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write("a", b'{"a": 1.50, "a":\t"\\u00e9", "m":{"m":[1,2]}}', b'"x,\\"m\\":{}"', b"null", meta={"k": "v"})
    world.write("a", b'{"d":1,"m":2}')
    expected = world.rows("a")
    assert [row.data for row in expected][1] == '"x,\\"m\\":{}"'
    assert rows_in(read_path(world, "a")) == expected
    world.sim.checkpoint()
    assert rows_in(read_path(world, "a")) == expected


def test_columns_left_out_are_not_in_the_table(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write("a", *range(50), tag="t")
    world.sim.checkpoint()
    world.delete("a", match="t")
    world.write("a", *range(50, 60))
    table = read_path(world, "a", columns="ts, seq")
    assert table.column_names == ["ts", "seq"]
    assert table.column("seq").to_pylist() == list(range(51, 61))


def test_rows_are_comparable() -> None:
    assert Row(1, 2, None, "t", "3", None) == Row(1, 2, None, "t", "3", None)
