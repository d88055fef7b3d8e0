"""The write-ahead log against the disk it lies on: raw calls, one group, batches of 1000 x 64 B.

Prints microseconds per call (median, 90th and 99th percentile) and records per second, and holds the two promises of
the storage issue that belong to this layer: a lone `fsync` append within 0.25 ms of raw `fdatasync`, and at least one
million records a second through `encode_appends` and `write`. Files go to a temporary directory next to the sources,
because the system's temporary directory may be memory. `bench_wal.py DIR` uses another one.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from topics.clock import SystemClock
from topics.formats.frame import encode_appends
from topics.model.submission import Submission
from topics.storage.layout import DataDir
from topics.storage.osfs import OsFs
from topics.storage.steady import SteadyFs
from topics.storage.wal.discover import discover
from topics.storage.wal.files import WalFiles
from topics.storage.wal.group import WalGroup
from topics.storage.wal.opening import open_group
from topics.storage.wal.reader import scan_group
from topics.storage.wal.rotation import Layout

FILE_BYTES = 64 << 20
LONE = 400
BATCHES = 1500
BLOB = b'{"d":"' + b"x" * 56 + b'"}'
assert len(BLOB) == 64


def open_new(root: Path) -> tuple[WalGroup, WalFiles, SteadyFs, DataDir]:
    fs, data, files = SteadyFs(OsFs()), DataDir(str(root)), WalFiles()
    data.make_root(fs)
    data.make_missing(fs)
    group = open_group(
        fs,
        data,
        "",
        scan=None,
        repaired=None,
        layout=Layout(1, 1),
        files=files,
        file_bytes=FILE_BYTES,
        clock=SystemClock(),
        sync_failed=lambda: None,
    )
    return group, files, fs, data


def submission(first_seq: int, count: int) -> Submission:
    encoded = encode_appends(topic_id=1, first_seq=first_seq, ts=1, datas=[BLOB] * count, durable=False)
    return Submission([encoded.buffer], frame_count=count, client_frames=count, topic_id=1)


def timed(times: int, act: Callable[[int], object]) -> list[float]:
    took = []
    for i in range(times):
        began = time.perf_counter()
        act(i)
        took.append(time.perf_counter() - began)
    return sorted(took)


def show(name: str, took: list[float]) -> float:
    median, p90, p99 = (took[int(len(took) * share)] * 1e6 for share in (0.5, 0.9, 0.99))
    print(f"{name:<44} {median:>9.1f} {p90:>9.1f} {p99:>9.1f}")
    return median


def raw_file(root: Path) -> int:
    fd = os.open(root / "raw", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.posix_fallocate(fd, 0, FILE_BYTES)
    os.fsync(fd)
    return fd


def lone_appends(root: Path) -> bool:
    """Raw and through a group in turns, so that a drifting disk hits both."""
    group, _, _, _ = open_new(root / "lone")
    fd = raw_file(root)
    buffer = submission(1, 1).frames[0]
    raw_write, raw_sync, wal_write, wal_sync = [], [], [], []
    for i in range(LONE):
        at = i * len(buffer)
        raw_write += timed(1, lambda _, at=at: os.pwrite(fd, buffer, at))  # type: ignore[misc]
        raw_sync += timed(1, lambda _: os.fdatasync(fd))
        sub = submission(i + 1, 1)
        wal_write += timed(1, lambda _, sub=sub: group.write([sub]))  # type: ignore[misc]
        wal_sync += timed(1, lambda _: group.sync())
    os.close(fd)
    show("pwrite of one 110 B frame, raw", sorted(raw_write))
    show("WalGroup.write of the same", sorted(wal_write))
    raw = show("fdatasync, raw", sorted(raw_sync))
    ours = show("WalGroup.sync", sorted(wal_sync))
    print(f"{'a lone sync costs beyond the raw one':<44} {ours - raw:>9.1f}   (limit 250)")
    return ours - raw < 250


def batches(root: Path) -> bool:
    group, files, fs, data = open_new(root / "batches")
    rate = rate_of(lambda i: group.write([submission(i * 1000 + 1, 1000)]), BATCHES)
    print(f"{'encode + write, 1000 x 64 B, disk class':<44} {rate:>12,.0f} records/s   (limit 1,000,000)")
    prepared = [submission(i * 1000 + 1, 1000) for i in range(100)]
    write_only = rate_of(lambda i: group.write([prepared[i % 100]]), 300)
    print(f"{'write alone':<44} {write_only:>12,.0f} records/s")
    group.sync()
    synced = rate_of(lambda i: (group.write([submission(i * 1000 + 1, 1000)]), group.sync()), 300)
    print(f"{'encode + write + sync each batch':<44} {synced:>12,.0f} records/s")
    frames = group.stats.frames
    files.close()
    scan_all(fs, data, frames)
    return rate >= 1_000_000


def rate_of(act: Callable[[int], object], times: int) -> float:
    began = time.perf_counter()
    for i in range(times):
        act(i)
    return times * 1000 / (time.perf_counter() - began)


def scan_all(fs: SteadyFs, data: DataDir, frames: int) -> None:
    files = WalFiles()
    began = time.perf_counter()
    scans = [scan_group(fs, listing, files) for listing in discover(fs, data)]
    took = time.perf_counter() - began
    found = sum(scan.total_frames for scan in scans)
    assert found == frames, (found, frames)
    print(f"{'scan of all of it at a start':<44} {found / took:>12,.0f} frames/s    ({took:.2f} s)")
    files.close()


def empty_start(root: Path) -> None:
    _, files, fs, data = open_new(root / "empty")
    files.close()
    took = timed(7, lambda _: [scan_group(fs, listing, WalFiles()) for listing in discover(fs, data)])
    show("scan of one 64 MiB file with nothing in it", took)


def main() -> int:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
    root = Path(tempfile.mkdtemp(prefix="bench-wal-", dir=place))
    try:
        print(f"{'':<44} {'p50 us':>9} {'p90 us':>9} {'p99 us':>9}")
        good = [lone_appends(root)]
        empty_start(root)
        good.append(batches(root))
    finally:
        shutil.rmtree(root)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
