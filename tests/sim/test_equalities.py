"""What must be equal: snapshot and tail, full replay, a second start, other shard counts; and every byte of `data`."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from tests.crash.harness import Rig, survey

from topics.core.reading.walk import ReadRequest
from topics.model.record import RecordIn, build_batch
from topics.testing import SimClock, SimFs, SimHost

TEXTS = [
    b"123456789012345678901234567890123456789012345678901234567890",
    b'{"a":1,"a":2,"a":{"a":3,"a":3}}',
    b'{ "x" :\t[ 1 ,\r\n 2 ] }',
    rb'"\u00e9\ud83d\ude00\/\b\f\n\"\\"',
    '"\U0001f600 und \U00010348, ä"'.encode(),
    b"-0.0",
    b"1E400",
    b"0.1000000000000000000000000000000000000000000000001",
    b"null",
    b"{}",
]


def story(rig: Rig, seed: int) -> None:
    """Random, the same for the same seed."""
    rng = Random(seed)
    for name, durability in (("f", "fsync"), ("d", "disk"), ("m", "memory")):
        rig.create(name, durability)
    for _ in range(40):
        name = rng.choice("fdm")
        step = rng.randrange(8)
        if step < 5:
            rig.write(name, rng.randrange(1, 7), tag=rng.choice("abc"), size=rng.randrange(60))
        elif step == 5:
            rig.delete(name, match=rng.choice("abc"))
        elif step == 6:
            rig.checkpoint()
        else:
            rig.snapshot()


def started(disk: SimFs, **settings: Any) -> Rig:
    return Rig(disk, clock=SimClock(1_755_000_900_000), host=SimHost(), **settings)


@pytest.mark.parametrize("seed", range(12))
def test_snapshot_and_tail_equal_the_older_snapshot_and_a_longer_tail(seed: int) -> None:
    disk = SimFs()
    rig = Rig(disk)
    story(rig, seed)
    rig.snapshot()
    rig.write("f", 2)
    expected = survey(rig.sim)
    with_newest, with_older = disk.clone(), disk.clone()
    newest = max(with_older.listdir("data/meta"))
    with_older.tamper(f"data/meta/{newest}", lambda data: data[:-1])
    assert survey(started(with_newest).sim) == expected
    assert survey(started(with_older).sim) == expected


@pytest.mark.parametrize("seed", range(12))
def test_full_replay_equals_what_was_running(seed: int) -> None:
    """Without a snapshot in the story, the log holds everything from its first frame on."""
    disk = SimFs()
    rig = Rig(disk, wal_file_bytes=1 << 16)
    rng = Random(seed)
    rig.create("f", "fsync")
    for _ in range(20):
        rig.write("f", rng.randrange(1, 5), tag=rng.choice("ab"))
        if rng.random() < 0.2:
            rig.delete("f", match=rng.choice("ab"))
    expected = survey(rig.sim)
    bare = disk.clone()
    for name in bare.listdir("data/meta"):
        bare.erase(f"data/meta/{name}")
    assert survey(started(bare, wal_file_bytes=1 << 16).sim) == expected


@pytest.mark.parametrize("seed", range(12))
def test_starting_twice_equals_starting_once_and_changes_no_file(seed: int) -> None:
    disk = SimFs()
    story(Rig(disk), seed)
    disk.kill()
    once = disk.reboot()
    seen = survey(started(once).sim)
    files = once.dump()
    once.kill()
    twice = once.reboot()
    assert survey(started(twice).sim) == seen
    assert twice.dump() == files


@pytest.mark.parametrize("seed", range(12))
def test_another_shard_count_changes_nothing(seed: int) -> None:
    rng = Random(seed)
    disk = SimFs()
    rig = Rig(disk, wal_shards=rng.choice([1, 2, 3]))
    story(rig, seed)
    seen = survey(rig.sim)
    for shards in (rng.choice([1, 2, 5]), rng.choice([1, 3, 8])):
        disk.kill()
        disk = disk.reboot()
        assert survey(started(disk, wal_shards=shards).sim) == seen


def test_data_comes_back_byte_for_byte_from_everywhere() -> None:
    """From the recent cache, the log, an active and a sealed segment, and after restarts."""
    disk = SimFs()
    rig = Rig(disk, segment_max_events=7)
    rig.create("t", "fsync")
    records = [RecordIn(data=msgspec.Raw(text), meta=msgspec.Raw(b'{"m": 1e0}')) for text in TEXTS]
    blobs = [b'{"d":%b,"m":{"m": 1e0}}' % text for text in TEXTS]
    rig.call(lambda engine: engine.write("t", build_batch(records)))
    assert stored(rig) == blobs
    rig.checkpoint()
    assert stored(rig) == blobs
    rig.snapshot()
    for _ in range(2):
        disk.kill()
        disk = disk.reboot()
        rig = started(disk, segment_max_events=7, recent_cache_bytes=0)
        assert stored(rig) == blobs


def stored(rig: Rig) -> list[bytes]:
    outcome = rig.call(lambda engine: engine.read("t", ReadRequest(from_seq=0, limit=1000))).outcome
    return [bytes(record.blob) for run in outcome.runs for record in run.records()]
