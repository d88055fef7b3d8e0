"""The language of these tests: a `Log` is one process on a simulated disk, a `Model` knows what it was told.

    model = Model()
    log = Log(disk, model).start()
    log.send(1, 3, 2)                       one batch of three fsync submissions with 1, 3 and 2 records
    log.crash("lose_all")                   power cut
    log = log.restart().checked()           start again; the model compares what is there

The model is independent of the code under test: it keeps the bytes of every submission and whether it was acked, and
asks for one thing, a whole-submission prefix of what was sent that holds all that was promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from topics.errors import CommitFailed
from topics.formats.file_names import group_keys, shard_of
from topics.formats.wal import WalColumns
from topics.formats.wal.frame import MORE, FrameType, encode_appends
from topics.model.submission import Submission
from topics.storage.data_dir import DataDir, DataDirLock
from topics.storage.fs import Fs
from topics.storage.osfs import RetryingFs
from topics.storage.wal.file_scan import GroupScan, newest_layout, scan_group
from topics.storage.wal.group import WalGroup
from topics.storage.wal.group_scan import discover
from topics.storage.wal.log_repair import (
    Repaired,
    log_dirs,
    open_group,
    quarantined_ceilings,
    refuse_damage,
    remove_temps,
    repair_group,
)
from topics.storage.wal.rotation import Layout
from topics.storage.wal.sync_failure import SyncFailureLatch
from topics.storage.wal.wal_files import LogPosition, WalFiles
from topics.testing import FaultFs, SimClock, SimFs
from topics.testing.order_fs import OrderFs
from topics.testing.order_monitor import OrderMonitor
from topics.testing.simdisk import PowerCutFate

FLAT = ""
WAL = "*/wal-*.log"
FILE_BYTES = 4096
SHORT_PATTERNS = ("lose_all", "keep_prefix_torn", "reorder", "zero_sector", "flip", "random")


def topic_of(key: str, shards: int) -> int:
    """A topic id that lives in the group."""
    shard = group_keys(shards).index(key)
    return next(topic_id for topic_id in range(1, 1000) if shard_of(topic_id, shards) == shard)


@dataclass
class Sent:
    """One submission and what its sender was told."""

    sub: Submission
    data: bytes
    first_seq: int
    count: int
    state: str = "queued"  # queued, written (disk ack), synced (fsync ack), absent (not committed), unknown

    def must_survive(self, *, killed: bool) -> bool:
        return self.state == "synced" or (killed and self.state == "written" and not self.sub.durable)


@dataclass
class Model:
    """All submissions that may be in the log, by group, in order; and every seq that was ever visible."""

    sent: dict[str, list[Sent]] = field(default_factory=dict)

    def check(self, key: str, found: Sequence[bytes], *, killed: bool) -> None:
        """`found` is a prefix of what was sent, and nothing promised is missing."""
        possible = [sent for sent in self.sent.get(key, []) if sent.state not in ("queued", "absent")]
        assert list(found) == [sent.data for sent in possible][: len(found)], "not a prefix of whole submissions"
        missing = possible[len(found) :]
        assert not [s.first_seq for s in missing if s.must_survive(killed=killed)], "promised, and gone"

    def accept(self, key: str, found: Sequence[bytes]) -> None:
        """After a start, what is there is durable, and what is not there will never be."""
        possible = [sent for sent in self.sent.get(key, []) if sent.state not in ("queued", "absent")]
        self.sent[key] = possible[: len(found)]
        for sent in self.sent[key]:
            sent.state = "synced"


class Log:
    """One process: lock, recovery, one writer per group."""

    def __init__(
        self,
        disk: SimFs,
        model: Model | None = None,
        *,
        shards: int = 1,
        file_bytes: int = FILE_BYTES,
        starts: dict[str, LogPosition] | None = None,
        snapshot: Layout | None = None,
        recorded: dict[str, int] | None = None,
        refuse: bool = False,
        salvage: bool = False,
        monitor: OrderMonitor | None = None,
        watched: bool = True,
    ) -> None:
        self.disk = disk
        self.model = model or Model()
        self.shards = shards
        self.file_bytes = file_bytes
        self.starts = starts or {}
        self.snapshot = snapshot
        self.recorded = recorded or {}
        self.refuse = refuse
        self.salvage = salvage
        self.monitor = monitor or OrderMonitor()
        self.watched = watched
        self.faults = FaultFs(OrderFs(disk, self.monitor) if watched else disk)
        self.fs: Fs = RetryingFs(self.faults, sleep=lambda _: None)
        self.clock = SimClock()
        self.data = DataDir("data")
        self.files = WalFiles()
        self.killed = True
        self.scans: dict[str, GroupScan] = {}
        self.repaired: dict[str, Repaired] = {}
        self.groups: dict[str, WalGroup] = {}
        self.next_seq: dict[str, int] = {}

    # --- starting -------------------------------------------------------------------------------------------------

    def start(self) -> Log:
        self.data.make_root(self.fs)
        self.lock = DataDirLock.take(self.fs, self.data.lock, pid=7)
        self.data.make_missing(self.fs)
        self.scan()
        if self.refuse:
            refuse_damage(self.scans.values())
        self.repair()
        self.open()
        self.lock.claim("boot-1")
        return self

    def scan(self) -> None:
        gen = self.snapshot.gen if self.snapshot else 0
        for listing in discover(self.fs, self.data):
            start = self.starts.get(listing.key)
            self.scans[listing.key] = scan_group(
                self.fs, listing, self.files, start=start, snapshot_gen=gen, salvage=self.salvage
            )

    def repair(self) -> None:
        for key, scan in self.scans.items():
            self.repaired[key] = repair_group(
                self.fs, self.data, scan, self.files, file_bytes=self.file_bytes, anew=self.lock.old_boot is None
            )
        remove_temps(self.fs, log_dirs(self.fs, self.data))

    def open(self) -> None:
        self.layout = newest_layout(self.scans.values(), self.snapshot, shards=self.shards)
        self.sync_failed = SyncFailureLatch(self.lock.mark_boot_unknown)
        for key in group_keys(self.shards):
            self.groups[key] = open_group(
                self.fs,
                self.data,
                key,
                scan=self.scans.get(key),
                repaired=self.repaired.get(key),
                layout=self.layout,
                files=self.files,
                file_bytes=self.file_bytes,
                clock=self.clock,
                sync_failed=self.sync_failed,
                recorded=self.recorded.get(key, 0),
            )
            self.sync_failed.watch(self.groups[key])
            self.next_seq[key] = self._head(key) + 1

    def _head(self, key: str) -> int:
        """Above every seq that is in the log or was set aside."""
        topic_id = topic_of(key, self.shards)
        aside = quarantined_ceilings(self.fs, self.data).get(topic_id, 0)
        sent = [s.first_seq + s.count - 1 for s in self.model.sent.get(key, []) if s.data in set(self.found(key))]
        return max([aside, *sent])

    # --- what was found -------------------------------------------------------------------------------------------

    def found(self, key: str = FLAT) -> list[bytes]:
        """The whole submissions that a replay of the group would see, without `open` frames."""
        scan = self.scans.get(key)
        return [
            run for scanned in (scan.files if scan else []) for run in _runs(bytes(scanned.buffer()), scanned.columns)
        ]

    def checked(self) -> Log:
        """Compare with the model, then take what is there as durable."""
        for key in {*self.model.sent, *self.scans}:
            self.model.check(key, self.found(key), killed=self.killed)
            self.model.accept(key, self.found(key))
        self.monitor.check()
        return self

    # --- writing --------------------------------------------------------------------------------------------------

    @property
    def group(self) -> WalGroup:
        return self.groups[FLAT]

    def make(self, *counts: int, durable: bool = True, size: int = 20, key: str = FLAT) -> list[Sent]:
        """Submissions with so many records each; their seqs follow what was handed out before."""
        made = []
        for count in counts:
            first_seq = self.next_seq[key]
            self.next_seq[key] += count
            made.append(self._make_one(first_seq, count, durable, size, key))
        return made

    def _make_one(self, first_seq: int, count: int, durable: bool, size: int, key: str) -> Sent:
        datas = [b'{"d":"' + b"%d " % (first_seq + i) + b"x" * size + b'"}' for i in range(count)]
        topic_id = topic_of(key, self.shards)
        encoded = encode_appends(topic_id=topic_id, first_seq=first_seq, ts=5, datas=datas, durable=durable)
        frames = [encoded.buffer]
        sub = Submission(frames, sum(map(len, frames)), count, client_frames=count, durable=durable, topic_id=topic_id)
        return Sent(sub, encoded.buffer, first_seq, count)

    def write(self, *made: Sent, key: str = FLAT) -> None:
        """One batch; a failure is noted in the model, seqs of what is not committed are given back, and raised."""
        self.model.sent.setdefault(key, []).extend(made)
        try:
            self.groups[key].write([sent.sub for sent in made])
        except CommitFailed as error:
            for sent in made:
                sent.state = "absent" if error.outcome == "not_committed" else "unknown"
            if error.outcome == "not_committed":
                self.next_seq[key] = made[0].first_seq
            raise
        for sent in made:
            sent.state = "written"

    def sync(self, key: str = FLAT) -> None:
        """One sync; acks, in the model and to the order monitor, what it covers."""
        group, sents = self.groups[key], self.model.sent.get(key, [])
        waiting = [sent for sent in sents if sent.state == "written"]
        try:
            lsn = group.sync()
        except CommitFailed:
            for sent in waiting:
                sent.state = "unknown" if sent.sub.durable else "written"
            raise
        for sent in waiting:
            if sent.sub.end_lsn <= lsn:
                entry = self.files.get(sent.sub.file)
                self.monitor.acked(entry.path, sent.sub.offset + sent.sub.size)
                sent.state = "synced"

    def send(self, *counts: int, durable: bool = True, size: int = 20, key: str = FLAT) -> list[Sent]:
        """Write a batch and, for durable ones, sync it."""
        made = self.make(*counts, durable=durable, size=size, key=key)
        self.write(*made, key=key)
        if durable:
            self.sync(key)
        return made

    # --- ending ---------------------------------------------------------------------------------------------------

    def kill(self) -> Log:
        self.disk.kill()
        return self

    def crash(self, pattern: str | PowerCutFate = "lose_all", seed: int = 1) -> Log:
        self.disk.power_cut(Random(seed), pattern)
        self.killed = False
        return self

    def next(self, disk: SimFs | None = None) -> Log:
        """The process after this one, not started yet."""
        self.monitor.restarted(power_cut=not self.killed)
        following = Log(
            disk or self.disk.reboot(),
            self.model,
            shards=self.shards,
            file_bytes=self.file_bytes,
            starts=self.starts,
            snapshot=self.snapshot,
            recorded=self.recorded,
            refuse=self.refuse,
            salvage=self.salvage,
            monitor=self.monitor if disk is None else None,
            watched=self.watched,
        )
        following.killed = self.killed
        return following

    def restart(self) -> Log:
        return self.next().start()

    def twice(self) -> Log:
        """Restart, check; restart again: nothing may have changed, neither state nor files
        (`docs/spec/storage.md#o5`)."""
        once = self.restart().checked()
        before = once.dump()
        again = once.kill().restart().checked()
        assert again.dump() == before
        return again

    def dump(self) -> dict[str, bytes]:
        return {path: data for path, data in self.disk.dump().items() if not path.endswith(".lock")}

    # --- looking --------------------------------------------------------------------------------------------------

    def path(self, number: int, key: str = FLAT) -> str:
        return f"{self.data.group(key)}/wal-{number:016d}.log"

    def numbers(self, key: str = FLAT) -> list[int]:
        return [entry.number for entry in self.files.of_group(key)]

    def quarantine(self, key: str = FLAT) -> list[str]:
        prefix = self.data.quarantine(key) + "/"
        return [path.removeprefix(prefix) for path in self.disk.dump() if path.startswith(prefix)]


def new_log(**kwargs: object) -> Log:
    """A log on an empty disk."""
    return Log(SimFs(), **kwargs).start()  # type: ignore[arg-type]


def _runs(buffer: bytes, columns: WalColumns) -> list[bytes]:
    fields = (columns.offset, columns.length, columns.type, columns.flags)
    rows = zip(*(field.tolist() for field in fields), strict=True)
    runs, start = [], None
    for offset, length, kind, flags in rows:
        start = offset if start is None else start
        if not flags & MORE:
            if kind == FrameType.APPEND:
                runs.append(buffer[start : offset + length])
            start = None
    assert start is None, "the reader gave out half a submission"
    return runs
