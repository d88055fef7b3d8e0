"""One damaged place in a small data directory, a start on it, and what readers may see then.

The directory is built once for each way to end and holds every kind of file; each try damages one place in a copy. What
must hold: every record that is served is the one that was there under its seq, what is missing is announced or its read
fails with an error that names it, no deleted record comes back, `count` and `earliest_seq` are what a full read gives,
no seq that was used is given again; or the start refuses with a sentence. Where the log itself is damaged, it may lose
what it alone said (deletes, topics), and then it counts damage or logs an error."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import Any, Final, NamedTuple

from tests.crash.harness import Rig

from topics.core.reading.walk import ReadRequest
from topics.errors import ColdUnavailable, CorruptSegment, TopicsError
from topics.formats.wal import scan_wal
from topics.testing import SimFs
from topics.testing.clock import SimClock, SimHost
from topics.testing.driver import SimKernel

SETTINGS: Final[dict[str, Any]] = {
    "wal_shards": 2,
    "wal_file_bytes": 4096,
    "segment_max_events": 6,
    "cold_dir": "cold",
    "hot_retain_segments": 2,
    "relocate_interval_ms": 1000,
    "rewrite_dead_ratio": 0,
}
KINDS: Final = {
    "wal": "data/wal/*/wal-*.log",
    "CURRENT": "data/wal/*/CURRENT",
    "lock": "data/.topics.lock",
    "identity": "data/identity*",
    "snapshot": "data/meta/snapshot.*.bin",
    "data": "data/topics/*/seg-*.data",
    "idx": "data/topics/*/seg-*.idx",
    "tags": "data/topics/*/seg-*.tags",
    "cold data": "cold/*/seg-*.data",
    "cold idx": "cold/*/seg-*.idx",
    "cold owner": "cold/OWNER",
}
WAYS: Final = ("flip", "zero", "truncate", "erase")
LATER_MS: Final = 1_755_000_100_000


class Place(NamedTuple):
    path: str
    how: str
    at: int
    size: int = 0

    def __str__(self) -> str:
        return f"{self.how} {self.path} at {self.at}" + (f" ({self.size} bytes)" if self.size else "")


@dataclass
class Found:
    """What a full read gives: `corrupt` are seqs whose read fails with an error that names them."""

    records: dict[int, str]
    gaps: list[tuple[int, int]]
    corrupt: set[int]
    head: int
    earliest: int
    count: int
    blind: bool

    def accounted(self, seq: int) -> bool:
        return seq in self.records or seq in self.corrupt or any(lo <= seq <= hi for lo, hi in self.gaps)


class Base:
    """A directory, and what it holds. `ending`: "kill", "stop", or "reboot" for a kill that another boot id follows."""

    def __init__(self, ending: str) -> None:
        self.ending = ending
        self.disk = SimFs()
        clock = SimClock()
        rig = Rig(self.disk, clock=clock, **SETTINGS)
        _live(rig)
        self.ledger = rig.ledger
        if ending == "stop":
            rig.sim.close()
        else:
            rig.sim.sync_all()
        self.disk.kill()
        self.disk = self.disk.reboot()
        self.files = {path: len(data.rstrip(b"\0")) for path, data in self.disk.dump().items()}
        self.truth = {
            name: read_around(sim, name) for sim in (self.start(self.disk.clone()),) for name in topics_of(sim)
        }

    def start(self, disk: SimFs) -> SimKernel:
        host = SimHost("boot-2") if self.ending == "reboot" else SimHost()
        return Rig(disk, clock=SimClock(LATER_MS), host=host, **SETTINGS).sim

    def last_file(self, path: str) -> str:
        """The newest log file of the group that `path` is of."""
        folder = path.rpartition("/")[0]
        return max(found for found in self.files if found.startswith(f"{folder}/wal-"))

    def files_of(self, kind: str) -> list[str]:
        return sorted(path for path in self.files if fnmatchcase(path, KINDS[kind]) and self.files[path])


def _live(rig: Rig) -> None:
    """Every kind of topic and of file: sealed, active and cold segments, sidecars, two snapshots, rotated logs."""
    rig.create("f", "fsync")
    rig.create("d", "disk")
    rig.create("c", "fsync", cap_records=9)
    rig.create("a", "fsync")
    rig.create("b", "fsync")
    rig.create("q", "fsync", type="queue", claim_jitter_ms=0)
    rig.router("r", "a", "b")
    for turn in range(4):
        for tag in ("x", "y", None):
            rig.write("f", 3, tag=tag)
            rig.write("d", 2, tag=tag)
        rig.write("c", 4)
        rig.write("a", 3)
        rig.write("q", 4)
        rig.ack("q", rig.claim("q", 2))
        if turn == 1:
            rig.delete("f", match="x")
        rig.checkpoint()
        rig.tick()
        if turn in (1, 2):
            rig.snapshot()
            rig.delete("d", before_seq=5 * turn)
    rig.write("f", 3, tag="y")
    rig.delete("f", before_seq=4)
    rig.write("d", 2)
    rig.write("a", 2)
    rig.write("f", 1)


def topics_of(sim: SimKernel) -> list[str]:
    return sorted(sim.engine.state.topics)


def read_around(sim: SimKernel, name: str) -> Found:
    """Everything that can be read, going on behind each record whose read fails."""
    records: dict[int, str] = {}
    gaps: list[tuple[int, int]] = []
    corrupt: set[int] = set()
    cursor, limit, blind = 0, 50, False
    for _ in range(10_000):
        try:
            request = ReadRequest(from_seq=cursor, limit=limit)
            outcome = sim.call(lambda engine, request=request: engine.read(name, request)).outcome  # type: ignore[misc]
        except CorruptSegment as error:
            if limit > 1:  # what lies before it can be had one by one
                limit = 1
                continue
            blind |= error.seq <= cursor  # a segment whose index is lost: nobody knows which of its slots are dead
            cursor, limit = max(error.seq, cursor + 1), 50
            corrupt.add(cursor)
            continue
        if outcome.tombstone is not None:
            gaps.append((outcome.tombstone.gap_from, outcome.tombstone.gap_to))
        for run in outcome.runs:
            for stored in run.records():
                assert stored.seq not in records, f"{name}: seq {stored.seq} twice"
                records[stored.seq] = bytes(stored.blob).decode()
        cursor = outcome.next_from_seq
        if outcome.caught_up:
            topic = sim.engine.state.topics[name]
            return Found(records, gaps, corrupt, topic.head, topic.earliest_seq, topic.count, blind)
    raise AssertionError("a reader never catches up")


# --- damage ---------------------------------------------------------------------------------------------------------


def draw(base: Base, kind: str, rng: Random) -> Place:
    path = rng.choice(base.files_of(kind))
    used = base.files[path]
    how = rng.choices(WAYS, weights=(10, 5, 5, 1))[0]
    return Place(path, how, rng.randrange(used), rng.choice((1, 8, 64, 512)) if how == "zero" else 0)


def damage(disk: SimFs, place: Place, rng: Random) -> bool:
    """False if no byte changed by it."""
    path, how, at, size = place
    if how == "erase":
        disk.erase(path)
        return True
    before = disk.contents(path)
    if how == "flip":
        after = before[:at] + bytes([before[at] ^ (1 << rng.randrange(8))]) + before[at + 1 :]
    elif how == "zero":
        after = before[:at] + bytes(min(size, len(before) - at)) + before[at + size :]
    else:
        after = before[:at]
    disk.tamper(path, lambda _: after)
    return after != before


def looks_torn(base: Base, place: Place) -> bool:
    """Whether the log ends now as a crash may leave it: nobody can tell its last frames from a write that was cut off,
    unless a position behind them was recorded. A torn tail is an end."""
    if not fnmatchcase(place.path, KINDS["wal"]) or place.path != base.last_file(place.path):
        return False
    columns = scan_wal(base.disk.contents(place.path))
    last = int(columns.offset[-1])
    if place.how == "zero" and place.at + place.size >= base.files[place.path]:
        return True
    if place.how == "truncate":
        return place.at in columns.offset or place.at >= columns.end
    if base.ending == "reboot":
        return place.at + place.size >= last
    return last <= place.at < last + 4  # its length, which says where it was to end


# --- judging --------------------------------------------------------------------------------------------------------


class Listener(logging.Handler):
    """Whether anything was logged that an operator reads."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def judge(base: Base, disk: SimFs, kind: str, place: Place, said: Listener) -> str:
    """How it went: "refused", "exact", "announced" or "corrupt". AssertionError if a promise is broken."""
    said.lines.clear()
    try:
        sim = base.start(disk)
    except TopicsError as error:
        assert str(error), "the start refuses without a sentence"
        return "refused"
    log_lost = sim.kernel.recovered.damage > 0 or any("log of" in line for line in said.lines)
    try:
        torn = looks_torn(base, place)
        went = {judge_topic(base, sim, name, log_lost=log_lost or torn, torn=torn) for name in base.truth}
    except ColdUnavailable:
        assert kind == "cold owner"
        return "refused"
    for name in set(topics_of(sim)) - set(base.truth):
        assert log_lost, f"{name}: the topic was deleted and is there again"
        assert name.startswith("recovered:"), f"{name}: nobody created this topic"
    return next(how for how in ("announced", "corrupt", "exact") if how in went)


def judge_topic(base: Base, sim: SimKernel, name: str, *, log_lost: bool, torn: bool) -> str:
    truth = base.truth[name]
    if name not in sim.engine.state.topics:
        assert log_lost, f"{name}: the topic is gone in silence"
        return "announced"
    found = read_around(sim, name)
    fed = name == "b"
    for seq, record in found.records.items():
        if seq in truth.records:
            assert truth.records[seq] == record, f"{name}: seq {seq} is {record}, and was {truth.records[seq]}"
        elif fed and seq > truth.head:
            assert record in base.truth["a"].records.values() or log_lost, f"{name}: {record} is no copy"
        else:
            assert log_lost, f"{name}: seq {seq} was not there before: {record}"
            assert record.removeprefix('{"d":"').partition(".")[0] in (name, "a"), f"{name}: {record} of another topic"
    silent = [seq for seq in truth.records if not found.accounted(seq)]
    assert torn or not silent, f"{name}: {silent} are missing in silence"
    used = max(base.ledger.instance(name).acked(), default=0)
    assert torn or found.head >= max(used, *truth.records), f"{name}: head {found.head}, and {used} was used"
    there = found.records.keys() | found.corrupt
    if found.blind or torn:  # a delete that nobody can tell from one that was never acked may have left its flag
        return "corrupt" if found.blind else "announced"
    assert found.count == len(there), f"{name}: count {found.count}, a full read finds {len(there)}"
    first = min(there, default=found.head + 1)
    assert found.earliest == first, f"{name}: earliest_seq {found.earliest}, a full read begins at {first}"
    if found.corrupt:
        return "corrupt"
    return "exact" if truth.records.items() <= found.records.items() else "announced"
