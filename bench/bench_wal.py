"""The write-ahead log against the disk it lies on: raw calls, one group, batches of 1000 x 64 B.

    python bench/bench_wal.py [--dir DIR] [--unsaved]

Medians of single calls, and records per second. The goals are those of the storage issue that belong to this layer: a
lone sync within 0.25 ms of raw `fdatasync`, and a million records a second through `encode_appends` and `write`. Files
go to a temporary directory next to the sources, because the system's temporary directory may be memory."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from report import Report

from topics.clock import SystemClock
from topics.formats.wal.frame import encode_appends
from topics.model.submission import Submission
from topics.storage.data_dir import DataDir
from topics.storage.osfs import OsFs, RetryingFs
from topics.storage.wal.file_scan import scan_group
from topics.storage.wal.group import WalGroup
from topics.storage.wal.group_scan import discover
from topics.storage.wal.log_repair import open_group
from topics.storage.wal.rotation import Layout
from topics.storage.wal.wal_files import WalFiles

FILE_BYTES = 64 << 20
LONE = 400
BLOB = b'{"d":"' + b"x" * 56 + b'"}'
assert len(BLOB) == 64


def open_new(root: Path) -> tuple[WalGroup, WalFiles, RetryingFs, DataDir]:
    fs, data, files = RetryingFs(OsFs()), DataDir(str(root)), WalFiles()
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
    return Submission([encoded.buffer], len(encoded.buffer), count, client_frames=count, topic_id=1)


def timed(times: int, act: Callable[[int], object]) -> list[float]:
    took = []
    for i in range(times):
        began = time.perf_counter()
        act(i)
        took.append(time.perf_counter() - began)
    return sorted(took)


def show(report: Report, name: str, took: list[float]) -> float:
    """Median and 99th percentile of sorted times, in microseconds."""
    median, p99 = (took[int(len(took) * share)] * 1e6 for share in (0.5, 0.99))
    report.figure(f"{name}, p50", median, "us")
    report.figure("  p99", p99, "us")
    return median


def raw_file(root: Path) -> int:
    fd = os.open(root / "raw", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.posix_fallocate(fd, 0, FILE_BYTES)
    os.fsync(fd)
    return fd


def lone_appends(report: Report, root: Path) -> None:
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
    show(report, "pwrite of one 110 B frame, raw", sorted(raw_write))
    show(report, "WalGroup.write of the same", sorted(wal_write))
    raw = show(report, "fdatasync, raw", sorted(raw_sync))
    ours = show(report, "WalGroup.sync", sorted(wal_sync))
    report.figure("  beyond the raw one", max(ours - raw, 0.0), "us", at_most=250)


def batches(report: Report, root: Path) -> None:
    group, files, fs, data = open_new(root / "batches")
    rounds = [rate_of(lambda i, r=r: group.write([submission((r * 300 + i) * 1000 + 1, 1000)]), 300) for r in range(5)]  # type: ignore[misc]
    report.figure("encode + write, 1000 x 64 B, disk class", max(rounds), "records/s", at_least=1_000_000)
    report.figure("  median of 5 rounds", sorted(rounds)[2], "records/s")
    prepared = [submission(i * 1000 + 1, 1000) for i in range(100)]
    report.figure("write alone", rate_of(lambda i: group.write([prepared[i % 100]]), 300), "records/s")
    group.sync()
    synced = rate_of(lambda i: (group.write([submission(i * 1000 + 1, 1000)]), group.sync()), 300)
    report.figure("encode + write + sync each batch", synced, "records/s")
    frames = group.stats.frames
    files.close()
    scan_all(report, fs, data, frames)


def rate_of(act: Callable[[int], object], times: int) -> float:
    began = time.perf_counter()
    for i in range(times):
        act(i)
    return times * 1000 / (time.perf_counter() - began)


def scan_all(report: Report, fs: RetryingFs, data: DataDir, frames: int) -> None:
    files = WalFiles()
    began = time.perf_counter()
    scans = [scan_group(fs, listing, files) for listing in discover(fs, data)]
    took = time.perf_counter() - began
    found = sum(scan.total_frames for scan in scans)
    assert found == frames, (found, frames)
    report.figure("scan of all of it at a start", found / took, "frames/s")
    files.close()


def empty_start(report: Report, root: Path) -> None:
    _, files, fs, data = open_new(root / "empty")
    files.close()
    took = timed(7, lambda _: [scan_group(fs, listing, WalFiles()) for listing in discover(fs, data)])
    report.figure("scan of one 64 MiB file with nothing in it", took[3] * 1e3, "ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--unsaved", action="store_true", help="leave bench/results as it is")
    chosen = parser.parse_args()
    report = Report("wal", "The write-ahead log: one group on a real disk")
    report.line(f"load of the machine at the start {os.getloadavg()[0]:.1f}")
    root = Path(tempfile.mkdtemp(prefix="bench-wal-", dir=chosen.dir))
    try:
        lone_appends(report, root)
        empty_start(report, root)
        batches(report, root)
    finally:
        shutil.rmtree(root)
    if not chosen.unsaved:
        report.save()
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
