"""Verify: every frame of every segment in every tier of a data directory, checked as recovery would
(`docs/spec/pipeline.md#sec-7`).

Executors of Spark, or threads of this process, check whole segments: index against data, checksums, density, order.
What lies between them is checked where the job was started: overlaps, times, floors, files that should be there.
Nothing is changed; a finding names file, seqs and place.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from topics.engine.recovery.replay import recovered_name
from topics.formats import file_names as names
from topics.formats.segments import ENTRY_BYTES, Idx, idx_agrees, read_idx, rebuild_idx
from topics.formats.segments.columns import BLOB, decode_columns
from topics.runtime.recovery.look import Looked
from topics.runtime.recovery.reader import missing
from topics.spark.jobs.job import Ledger, Reporter, ledger_path, place_of, run_all
from topics.spark.logs.directory import layout, look_at, segment_stems
from topics.spark.logs.read_files import Files, chunks, open_files
from topics.storage.fs import read_full

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENTS_PER_WAVE: Final = 64
"""Segments that are checked at a time: progress is told and remembered after each wave."""
LOOK_AGAIN_S: Final = 0.05
"""Longer than a server takes from the rename of one file of a pair to that of the other."""


@dataclass(frozen=True, slots=True)
class VerifyFinding:
    """Something that is not as it should be: bytes, or seqs `from_seq..to_seq` (both included)."""

    topic: str
    file: str
    tier: str
    from_seq: int
    to_seq: int
    offset: int
    problem: str


@dataclass(frozen=True, slots=True)
class SegmentToCheck:
    """One copy of a segment. `count` is what metadata says, None if it says nothing."""

    topic: str
    root: str
    stem: str
    tier: str
    first_seq: int
    count: int | None
    is_active: bool
    data_len: int

    @property
    def key(self) -> str:
        return f"{self.tier}:{self.stem}:{self.count}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check of one copy found."""

    key: str
    topic: str
    tier: str
    first_seq: int
    count: int
    frames: int
    bytes: int
    min_ts: int
    max_ts: int
    findings: tuple[VerifyFinding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Checked:
        findings = tuple(VerifyFinding(**finding) for finding in told["findings"])
        return cls(**{**told, "findings": findings})


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome: totals and findings, by topic and place."""

    path: str
    topics: int
    segments: int
    frames: int
    bytes: int
    elapsed_s: float
    findings: tuple[VerifyFinding, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return not self.findings


def verify(
    spark: SparkSession | None,
    *,
    path: str,
    cold_path: str | None = None,
    reporter: Reporter | None = None,
    state_dir: str | None = None,
) -> Report:
    """Check everything below a data directory or cold root, in this process if there is no session."""
    begun, tell = time.monotonic(), reporter or Reporter()
    plan = plan_verify(path, cold_path)
    places = place_of(path), place_of(cold_path or "")
    ledger = Ledger(ledger_path("verify", *places, folder=state_dir), places[0])
    checked = [Checked.from_json(ledger.get(item.key)) for item in plan.segments if item.key in ledger]
    todo = [item for item in plan.segments if item.key not in ledger]
    if ledger.resumed:
        tell.note(f"going on: {len(checked)} of {len(plan.segments)} segments were checked before")
    tell.start("verify", len(plan.segments), "segments")
    for at in range(0, len(todo), SEGMENTS_PER_WAVE):
        found = run_all(spark, check_segment, todo[at : at + SEGMENTS_PER_WAVE])
        ledger.record_all({result.key: result.to_json() for result in found})
        checked += found
        tell.advance(len(checked), rows=sum(result.frames for result in checked))
    findings = [*plan.findings, *(finding for result in checked for finding in result.findings), *between(checked)]
    ledger.finish()
    return Report(
        path=path,
        topics=plan.topics,
        segments=len(checked),
        frames=sum(result.frames for result in checked),
        bytes=sum(result.bytes for result in checked),
        elapsed_s=round(time.monotonic() - begun, 3),
        findings=tuple(sorted(findings, key=lambda f: (f.topic, f.from_seq, f.offset))),
    )


# --- on the driver ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    topics: int
    segments: list[SegmentToCheck]
    findings: list[VerifyFinding]


def plan_verify(path: str, cold_path: str | None) -> Plan:
    """Every copy of every segment, and what metadata alone shows to be wrong."""
    files = open_files(path)
    kind = layout(files)
    cold = open_files(cold_path) if cold_path else None
    tiers = [("hot", files)] + ([("cold", cold)] if cold is not None else [])
    # Files first, log second: where a server is running, the log knows every topic that has files by then.
    listed = [(tier, root, *place) for tier, root in tiers for place in _listed(root)]
    if kind == "cold":
        found = [item for place in listed for item in _copies(*place, None)]
        return Plan(len({item.topic for item in found}), found, [])
    looked = look_at(files, cold)
    try:
        segments = [item for place in listed for item in _copies(*place, looked)]
        findings = [*_holes(files, looked), *_floor_findings(looked), *_missing(looked)]
        return Plan(len({item.topic for item in segments} | set(looked.state.topics)), segments, findings)
    finally:
        looked.close()


def _listed(files: Files) -> Iterator[tuple[int, dict[int, str]]]:
    """Topics that have a folder, and the segments in each."""
    for folder in files.list(names.TOPICS_DIR):
        topic_id = names.parse_topic_dir(folder)
        if topic_id is not None:
            yield topic_id, segment_stems(files, f"{names.TOPICS_DIR}/{folder}")


def _copies(
    tier: str, files: Files, topic_id: int, stems: dict[int, str], looked: Looked | None
) -> Iterator[SegmentToCheck]:
    """`looked` is None where there is neither snapshot nor log."""
    topic = looked.state.by_id.get(topic_id) if looked is not None else None
    if looked is None or topic is None:
        if looked is not None and topic_id < looked.state.next_topic_id:
            return  # deleted: what is left of it goes when the server comes to it
        for first, stem in sorted(stems.items()):
            yield SegmentToCheck(recovered_name(topic_id), files.root, stem, tier, first, None, False, -1)
        return
    expected = looked.attach.marks.expected(topic_id, looked.item(topic_id))
    recorded = {item.first: item.count for item in expected.segments}
    for first, stem in sorted(stems.items()):
        if first <= expected.sealed_to:
            yield SegmentToCheck(topic.name, files.root, stem, tier, first, recorded.get(first), False, -1)
        elif expected.active is not None and expected.active[0] == first:  # else a checkpoint is at work
            _, count, data_len = expected.active
            yield SegmentToCheck(topic.name, files.root, stem, tier, first, count, True, data_len)


def _holes(files: Files, looked: Looked) -> Iterator[VerifyFinding]:
    """Places of the log that cannot be read although it goes on behind them."""
    for scan in looked.scans:
        if scan.end.set_aside:
            path = scan.end.pieces[0].path if scan.end.pieces else scan.dir
            problem = f"log: {scan.end.reason}"
            yield VerifyFinding("", files.relative(path), "", 0, 0, scan.end.offset, problem)


def _floor_findings(looked: Looked) -> Iterator[VerifyFinding]:
    """A snapshot whose floors and head contradict each other."""
    for item in looked.snapshot.topics if looked.snapshot is not None else ():
        floor = max(item.cap_lost, item.ttl_lost, item.trim_lost, item.restart_lost) + 1
        if not 1 <= floor <= max(item.earliest_seq, floor) <= max(item.head, floor - 1) + 1:
            problem = f"floors: evict_floor {floor}, earliest_seq {item.earliest_seq}, head_seq {item.head}"
            yield VerifyFinding(item.name, "meta", "", item.earliest_seq, item.head, 0, problem)


def _missing(looked: Looked) -> Iterator[VerifyFinding]:
    """Segments that metadata names and no tier has."""
    for name, topic in looked.state.topics.items():
        for first, end in missing(looked, topic):
            yield VerifyFinding(name, names.segment_name(first, "data"), "", first, end - 1, 0, "file missing")


def between(checked: Iterable[Checked]) -> Iterator[VerifyFinding]:
    """What is wrong between the segments of one topic in one tier: overlaps, and times that fall."""
    places: dict[tuple[str, str], list[Checked]] = {}
    for result in checked:
        places.setdefault((result.topic, result.tier), []).append(result)
    for (topic, tier), results in places.items():
        results.sort(key=lambda result: result.first_seq)
        for before, after in pairwise(results):
            end = before.first_seq + before.count
            file = names.segment_name(after.first_seq, "data")
            if after.first_seq < end:
                yield VerifyFinding(topic, file, tier, after.first_seq, end - 1, 0, "overlaps the segment before it")
            if after.count and before.count and after.min_ts < before.max_ts:
                yield VerifyFinding(
                    topic, file, tier, after.first_seq, after.first_seq, 0, "time falls behind the one before"
                )


# --- on executors or threads ------------------------------------------------------------------------------------------


def check_segment(item: SegmentToCheck) -> Checked:
    """One copy. What looks damaged is looked at once more: a running server rewrites, seals and drops segments, and
    damage stays."""
    found = _look(item)
    if not found.findings:
        return found
    time.sleep(LOOK_AGAIN_S)
    again = _look(item)
    if again.findings and item.is_active:
        again = _look(replace(item, is_active=False, count=None))  # sealed since it was planned, or damaged
        if not again.findings and 0 < again.count < (item.count or 0):
            return found
    return found if again.findings else replace(again, key=item.key)


def _look(item: SegmentToCheck) -> Checked:
    """Read one copy whole and check every frame of it, dead ones too."""
    files = open_files(item.root)
    finds = _Findings(item)
    try:
        file = files.open(f"{item.stem}.data")
    except FileNotFoundError:
        return _nothing(item)  # dropped or moved since it was listed
    try:
        size = file.size()
        data_len = size if not item.is_active else min(item.data_len, size)
        if item.is_active and size < item.data_len:
            finds.add(0, (item.count or 1) - 1, size, f"shorter than its mark: {size} of {item.data_len} bytes")
        data = memoryview(read_full(file, 0, data_len))
        idx = _index(files, item, data, finds)
        frames = 0
        for a, b, start, size in chunks(idx, 0, len(idx)):
            columns = decode_columns(
                data[start : start + size],
                idx[a:b],
                first_seq=item.first_seq + a,
                want=BLOB,
                base=start,
                include_dead=True,
            )
            frames += len(columns)
            for bad in columns.bad:
                finds.add(a + bad.slot, a + bad.slot, start + bad.offset, bad.reason)
    finally:
        file.close()
    ts = idx["ts"]
    return Checked(
        key=item.key,
        topic=item.topic,
        tier=item.tier,
        first_seq=item.first_seq,
        count=len(idx),
        frames=frames,
        bytes=data_len,
        min_ts=int(ts[0]) if len(ts) else 0,
        max_ts=int(ts[-1]) if len(ts) else 0,
        findings=tuple(finds.found),
    )


def _index(files: Files, item: SegmentToCheck, data: memoryview, finds: _Findings) -> Idx:
    """The index as it is, or rebuilt where it cannot be used, with a finding for every disagreement."""
    try:
        raw = files.read(f"{item.stem}.idx")
    except FileNotFoundError:
        raw = None
    reason = "missing"
    if raw is not None:
        marked = raw[: item.count * ENTRY_BYTES] if item.is_active and item.count is not None else raw
        reason = idx_agrees(marked, len(data), data) or ""
        if not reason and item.count is not None and len(marked) != item.count * ENTRY_BYTES:
            reason = f"{len(marked) // ENTRY_BYTES} entries instead of {item.count}"
        if not reason:
            return read_idx(marked)
    rebuilt = rebuild_idx(data, first_seq=item.first_seq, count=item.count)
    finds.add(0, max(len(rebuilt.idx) - 1, 0), 0, f"index: {reason}", part="idx")
    for bad in rebuilt.bad:
        finds.add(bad.first_seq - item.first_seq, bad.last_seq - item.first_seq, bad.offset, "no valid frame")
    # Slots that point at bad bytes would be found a second time.
    idx = rebuilt.idx.copy()
    for bad in rebuilt.bad:
        low = bad.first_seq - item.first_seq
        if 0 <= low < len(idx):
            idx["len"][low], idx["offset"][low], idx["flags"][low] = 0, 0, 4
    return idx


class _Findings:
    def __init__(self, item: SegmentToCheck) -> None:
        self._item = item
        self.found: list[VerifyFinding] = []

    def add(self, from_slot: int, to_slot: int, offset: int, problem: str, *, part: str = "data") -> None:
        item = self._item
        first = item.first_seq
        file = open_files(item.root).shown(f"{item.stem}.{part}")
        self.found.append(
            VerifyFinding(
                item.topic, file, item.tier, int(first + from_slot), int(first + to_slot), int(offset), problem
            )
        )


def _nothing(item: SegmentToCheck) -> Checked:
    return Checked(item.key, item.topic, item.tier, item.first_seq, 0, 0, 0, 0, 0)
