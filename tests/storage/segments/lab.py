"""The language of these tests: a `Log` that never loses anything, and a `Lab`, one process with one topic on a disk.

    lab = new_lab()
    lab.append(5, tag="a").checkpoint()          records 1..5 are in the active segment, and marked
    lab.delete(2)                                logged, flipped
    lab = lab.restart()                          another process on the same disk
    assert lab.served() == lab.log.live()

The log stands for WAL and snapshot, which have their own tests: it keeps every record, every delete that is not
absorbed, and what the last mark said. The lab replays it as recovery does: what has a slot is skipped, the rest is
tail.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from topics.errors import CorruptSegment
from topics.formats.file_names import segment_name
from topics.formats.snapshot import SegmentItem
from topics.formats.wal.bodies import TierMove
from topics.formats.wal.frame import FrameType, encode_frame
from topics.storage.checkpoint.absorb import (
    CheckpointJob,
    CheckpointRecords,
    CheckpointResult,
    SealRules,
    TopicWork,
    run,
)
from topics.storage.fetch import ActiveRead, Fetcher, SealedRead
from topics.storage.fs import Fs, make_dirs
from topics.storage.segments.active_segment import ActiveSegment
from topics.storage.segments.findings import Finding
from topics.storage.segments.flips import DeleteFlags
from topics.storage.segments.loading.load import load_topic
from topics.storage.segments.loading.loaded import ExpectedSegments, LoadedTopic, Move
from topics.storage.segments.loading.segment_repair import repair_loaded, repair_segment
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.topic_dir import SegmentEnv, TopicDir
from topics.storage.tiers.cold_cache import ColdCache
from topics.storage.tiers.stores import LocalStore
from topics.testing import FaultFs, OrderFs, OrderMonitor, SimFs
from topics.testing.crashes import CrashState, crash_states
from topics.testing.simdisk import PowerCutFate

TOPIC = 10
HOT = "data/topics"
COLD = "cold/topics"
DIR = f"{HOT}/0000000A"
SHORT_PATTERNS = ("lose_all", "keep_prefix_torn", "reorder", "zero_sector", "size_without_data", "random")
T0 = 1_700_000_000_000


@dataclass
class Record:
    seq: int
    ts: int
    tag: str | None
    blob: bytes

    def frame(self) -> bytes:
        tag = None if self.tag is None else self.tag.encode()
        return encode_frame(FrameType.APPEND, topic_id=TOPIC, seq=self.seq, ts=self.ts, tag=tag, data=self.blob)


@dataclass
class Log:
    """What is durable outside the segments."""

    records: dict[int, Record] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    unabsorbed: set[int] = field(default_factory=set)  # deletes whose frames recovery still replays
    dead: set[int] = field(default_factory=set)  # the snapshot's list
    expected: ExpectedSegments = field(default_factory=ExpectedSegments)
    trimmed_to: int = 0  # records up to here are in no WAL file any more
    head: int = 0

    def live(self) -> dict[int, bytes]:
        low = self.expected.earliest_seq
        return {seq: rec.blob for seq, rec in self.records.items() if seq not in self.deleted and seq >= low}

    def find_wal(self, topic_id: int, seqs: Sequence[int]) -> dict[int, bytes]:
        assert topic_id == TOPIC
        return {seq: self.records[seq].frame() for seq in seqs if seq > self.trimmed_to and seq in self.records}

    def copy(self) -> Log:
        return copy.deepcopy(self)


class Lab:
    """`fs` is what the process sees of `disk`: watched for order, and ready to fail."""

    def __init__(
        self,
        disk: SimFs,
        log: Log | None = None,
        *,
        fs: Fs | None = None,
        rules: SealRules | None = None,
        cold: bool = False,
        may_write: bool = True,
        monitor: OrderMonitor | None = None,
    ) -> None:
        self.disk = disk
        self.monitor = monitor or OrderMonitor(hot=HOT, cold=COLD)
        self.faults = FaultFs(OrderFs(disk, self.monitor), record=False)
        self.fs: Fs = fs or self.faults
        self.log = log or Log()
        self.rules = rules or SealRules(max_events=5)
        self.cold = cold
        self.now_ms = T0
        fs = self.fs
        make_dirs(fs, HOT)
        for item in self.log.expected.segments:
            self.monitor.tier_marked(topic_id=TOPIC, first_seq=item.first, tier=item.tier)
        for first, move in self.log.expected.moves.items():
            self.monitor.tier_marked(topic_id=TOPIC, first_seq=first, tier=move.tier)
        self.env = SegmentEnv(fs, HOT)
        store = LocalStore(fs, f"{COLD}/0000000A") if cold else None
        self.place = TopicDir(self.env, TOPIC, name="events", cold=store)
        self.flips = DeleteFlags(self.env)
        self.findings: list[Finding] = []
        self.loaded = load_topic(self.place, self.log.expected)
        repair_loaded(self.loaded, self.log.find_wal)
        self._adopt(self.loaded)
        for seq in self.log.unabsorbed:  # replay looks at what it deletes
            segment = self.sealed_of(seq)
            assert segment is None or segment.tier == "cold" or len(segment.flags)
        if may_write:
            self.env.allow_writes(fs)
        self.fetcher = Fetcher(
            read_wal=self._read_wal,
            cold=ColdCache(1 << 20),
            repair=lambda segment, slots: repair_segment(segment, self.log.find_wal, slots),
        )
        if may_write:
            self._replay_deletes()

    def _adopt(self, loaded: LoadedTopic) -> None:
        self.findings += loaded.findings
        self.sealed: list[SealedSegment] = [item.segment for item in loaded.sealed]
        self.active: ActiveSegment | None = loaded.active.segment if loaded.active else None
        self.places: dict[int, tuple[int, int]] = {}
        if loaded.active is not None:
            offs, lens = loaded.active.offs.tolist(), loaded.active.lens.tolist()
            for slot, place in enumerate(zip(offs, lens, strict=True)):
                self.places[loaded.active.segment.first_seq + slot] = place
        self.dead = set(self.log.dead)

    def _replay_deletes(self) -> None:
        for seq in sorted(self.log.unabsorbed):
            if not self.is_dead(seq):  # what is flagged already is not flagged again
                self._flip(seq)
        self.dead |= self.log.unabsorbed
        self.flips.sync()

    # --- what a user does -----------------------------------------------------------------------------------------

    def append(self, count: int = 1, *, tag: str | None = None, size: int = 10, gap: int = 0) -> Lab:
        self.log.head += gap
        for _ in range(count):
            self.log.head += 1
            seq = self.log.head
            text = b'"%d%s"' % (seq, b"x" * size)
            self.log.records[seq] = Record(seq, self.now_ms, tag, b'{"d":%b}' % text)
        return self

    def delete(self, *seqs: int) -> Lab:
        self.log.deleted |= set(seqs)
        self.log.unabsorbed |= set(seqs)
        self.dead |= set(seqs)
        for seq in seqs:
            self._flip(seq)
        return self

    def _flip(self, seq: int) -> None:
        segment = self.sealed_of(seq)
        if segment is not None:
            self.flips.flip(segment, [seq - segment.first_seq])
        elif self.active is not None and self.active.first_seq <= seq < self.active.next_seq:
            self.flips.flip(self.active, [seq - self.active.first_seq])

    # --- jobs -----------------------------------------------------------------------------------------------------

    def batches(self, *, kept: Iterable[int] = ()) -> list[CheckpointRecords]:
        """Everything behind the last slot, as the tail would give it: one batch per contiguous run."""
        seqs = sorted(seq for seq in self.log.records if seq > self.last_slot and seq > self.log.trimmed_to)
        runs: list[list[int]] = []
        for seq in seqs:
            if runs and runs[-1][-1] + 1 == seq:
                runs[-1].append(seq)
            else:
                runs.append([seq])
        return [self._batch(seqs, set(kept)) for seqs in runs]

    def _batch(self, seqs: list[int], kept: set[int]) -> CheckpointRecords:
        lens = [len(self.log.records[seq].frame()) for seq in seqs]
        offs = np.cumsum(lens) - lens
        return CheckpointRecords(
            first_seq=seqs[0],
            source=seqs[0],
            offs=np.asarray(offs, np.int64),
            lens=np.array(lens, np.uint32),
            ts=np.array([self.log.records[seq].ts for seq in seqs], np.uint64),
            sizes=np.array([len(self.log.records[seq].blob) - 6 for seq in seqs], np.uint32),
            dead=np.array([seq in self.dead for seq in seqs]),
            kept=np.array([seq in kept for seq in seqs]) if kept else None,
        )

    def _read_wal(self, file: int, offset: int, length: int) -> bytes:
        """File n of these tests is the frames from seq n on."""
        out = b""
        seq = file
        while len(out) < offset + length and seq in self.log.records:
            out += self.log.records[seq].frame()
            seq += 1
        return out[offset : offset + length]

    @property
    def last_slot(self) -> int:
        if self.active is not None:
            return self.active.next_seq - 1
        return self.sealed[-1].last_seq if self.sealed else 0

    def job(self, **kwargs: Any) -> CheckpointJob:
        work = TopicWork(self.place, self.active, self.batches(**kwargs))
        return CheckpointJob([work], now_ms=self.now_ms, rules=self.rules, read_wal=self._read_wal, flips=self.flips)

    def checkpoint(self, **kwargs: Any) -> Lab:
        """A whole checkpoint; the mark is logged and synced by the log, which never fails."""
        result = run(self.job(**kwargs))
        self.mark(result)
        return self.commit(result)

    def mark(self, result: CheckpointResult) -> None:
        """`docs/spec/storage.md#c9`."""
        (topic,) = result.topics
        expected = self.log.expected
        expected.active = topic.active.mark if topic.active else None
        expected.ckpt_seq = max(expected.ckpt_seq, topic.seq)
        expected.sealed_to = max([expected.sealed_to, *(segment.last_seq for segment in topic.sealed)])

    def commit(self, result: CheckpointResult) -> Lab:
        """`docs/spec/storage.md#c10`."""
        (topic,) = result.topics
        result.commit(topic)
        self.sealed += topic.sealed
        self.active = topic.active
        self.places = {seq: place for seq, place in self.places.items() if self.active and seq >= self.active.first_seq}
        for placed in topic.placed:
            for slot, place in enumerate(zip(placed.offs.tolist(), placed.lens.tolist(), strict=True)):
                self.places[placed.first_seq + slot] = place
        return self

    def snapshot(self) -> Lab:
        """Deletes that the segments prove are absorbed; the others go to `dead`."""
        self.flips.sync()
        pending = {segment.first_seq + slot for segment in self.segments() for slot in segment.flips.pending()}
        self.log.dead = {seq for seq in self.dead if seq in pending}
        self.log.unabsorbed = {seq for seq in self.log.unabsorbed if seq > self.last_slot}
        self.log.expected.segments = [self._item(segment) for segment in self.sealed]
        if self.active is not None:
            first, count, data_len = self.active.mark
            self.log.expected.segments.append(SegmentItem(first, count, data_len, False, "hot", count, 0))
        self.log.expected.moves = {}
        return self

    def _item(self, segment: SealedSegment) -> SegmentItem:
        segment.load_index()
        live, live_bytes = segment.totals()
        return SegmentItem(segment.first_seq, segment.count, segment.data_len, True, segment.tier, live, live_bytes)

    def trim_wal(self) -> Lab:
        """The log forgets what segments have."""
        self.log.trimmed_to = self.log.expected.ckpt_seq
        return self

    def log_tier_mark(self, moves: Sequence[TierMove]) -> None:
        for move in moves:
            self.log.expected.moves = {**self.log.expected.moves, move.first: Move(move.count, move.tier)}
            self.monitor.tier_marked(topic_id=move.id, first_seq=move.first, tier=move.tier)

    # --- what it has ----------------------------------------------------------------------------------------------

    def segments(self) -> list[SealedSegment | ActiveSegment]:
        return [*self.sealed, *([self.active] if self.active is not None else [])]

    def sealed_of(self, seq: int) -> SealedSegment | None:
        return next((s for s in self.sealed if s.first_seq <= seq <= s.last_seq), None)

    def segment(self, seq: int) -> SealedSegment:
        found = self.sealed_of(seq)
        assert found is not None
        return found

    def is_dead(self, seq: int) -> bool:
        if seq in self.dead or seq < self.log.expected.earliest_seq:
            return True
        segment = self.sealed_of(seq)
        if segment is not None:
            segment.load_index()
            return bool(segment.flags[seq - segment.first_seq] & 4)
        if self.loaded.active is not None and seq in self.places:
            slot = seq - self.loaded.active.segment.first_seq
            if 0 <= slot < len(self.loaded.active.flags) and self.loaded.active.flags[slot] & 4:
                return True
        return False

    def read(self, seq: int) -> bytes | None:
        """The blob; None if it is flagged dead on disk or nowhere; raises CorruptSegment."""
        segment = self.sealed_of(seq)
        if segment is not None:
            segment.load_index()
            parts = self.fetcher.fetch(
                [SealedRead(segment, range(seq - segment.first_seq, seq - segment.first_seq + 1))]
            )
        elif self.active is not None and self.active.first_seq <= seq < self.active.next_seq:
            off, length = self.places[seq]
            parts = self.fetcher.fetch([ActiveRead(self.active, range(seq, seq + 1), [off], [length])])
        else:
            record = self.log.records.get(seq)
            return record.blob if record is not None and seq > self.log.trimmed_to else None
        run_ = parts.runs[0]
        return run_.record(0).blob if len(run_) else None

    def served(self) -> dict[int, bytes]:
        """Every live record by seq; b"corrupt" for the damaged ones."""
        found: dict[int, bytes] = {}
        for seq in range(1, self.log.head + 1):
            if self.is_dead(seq):
                continue
            try:
                blob = self.read(seq)
            except CorruptSegment as error:
                assert error.seq == seq
                blob = b"corrupt"
            if blob is not None:
                found[seq] = blob
        return found

    def names(self, path: str = DIR) -> list[str]:
        try:
            return self.fs.listdir(path)
        except FileNotFoundError:
            return []

    def check_slots(self) -> None:
        """Segments are dense and disjoint; no seq has two slots."""
        ends = 0
        for segment in self.segments():
            assert segment.first_seq > ends
            ends = segment.first_seq + segment.count - 1

    # --- processes ------------------------------------------------------------------------------------------------

    def restart(self, *, may_write: bool = True) -> Lab:
        """Kill this process and start the next one."""
        return self._next(self.disk.reboot(), power_cut=False, may_write=may_write)

    def fork(self) -> Lab:
        """What the next process will find, to be changed and started apart from this one."""
        twin = copy.copy(self)
        twin.disk = self.disk.clone()
        twin.log = self.log.copy()
        twin.monitor = OrderMonitor(hot=HOT, cold=COLD)
        return twin

    def power_cut(self, fate: str | PowerCutFate = "lose_all", *, seed: int = 1) -> Lab:
        """Cut the power and start again."""
        self.disk.power_cut(Random(seed), fate)
        return self._next(self.disk.reboot(), power_cut=True)

    def _next(self, disk: SimFs, *, power_cut: bool, may_write: bool = True) -> Lab:
        self.monitor.check()
        self.monitor.restarted(power_cut=power_cut)
        lab = Lab(disk, self.log, rules=self.rules, cold=self.cold, may_write=may_write, monitor=self.monitor)
        lab.now_ms = self.now_ms
        return lab

    def checked(self) -> Lab:
        """Served is what the log says, no seq has two slots, and another start finds the same and changes nothing."""
        assert self.served() == self.log.live()
        self.check_slots()
        before = self.files()
        again = self.restart()
        assert again.served() == self.log.live()
        assert again.files() == before
        again.monitor.check()
        return again

    def files(self) -> dict[str, bytes]:
        """Every file but the sidecars, which come and go."""
        return {path: data for path, data in self.disk.dump().items() if not path.endswith(".tags")}

    def tamper(self, path: str, edit: Callable[[bytes], bytes]) -> Lab:
        """Change a file behind the back of the next process."""
        self.disk.tamper(path, edit)
        return self


def new_lab(**kwargs: Any) -> Lab:
    return Lab(SimFs(), **kwargs)


def crashes(
    prepare: Callable[[Lab], Lab],
    act: Callable[[Lab], object],
    *,
    seed: int = 1,
    patterns: Sequence[str] = SHORT_PATTERNS,
    **kwargs: Any,
) -> Iterator[tuple[CrashState, Lab]]:
    """`act` after `prepare`, crashed before each call; gives each disk with a lab started on it."""
    disk = SimFs()
    before = prepare(Lab(disk, **kwargs))
    disk = disk.reboot()
    current: list[Lab] = []

    def act_on(fs: Fs) -> None:
        lab = Lab(disk, before.log.copy(), fs=fs, rules=before.rules, cold=before.cold)
        lab.now_ms = before.now_ms
        current.append(lab)
        act(lab)

    def note() -> Log:
        return (current[-1] if current else before).log.copy()

    for state in crash_states(disk, act_on, rng=Random(seed), patterns=patterns, note=note):
        log = state.note
        assert isinstance(log, Log)
        lab = Lab(state.disk, log.copy(), rules=before.rules, cold=before.cold)
        lab.now_ms = before.now_ms
        yield state, lab


def flip_bit(at: int, mask: int = 0x01) -> Callable[[bytes], bytes]:
    """Damage one byte; negative places count from the end."""

    def edit(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[at] ^= mask
        return bytes(changed)

    return edit


def data_path(first: int) -> str:
    return f"{DIR}/{segment_name(first, 'data')}"


def idx_path(first: int) -> str:
    return f"{DIR}/{segment_name(first, 'idx')}"


def tags_path(first: int) -> str:
    return f"{DIR}/{segment_name(first, 'tags')}"
