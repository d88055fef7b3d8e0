"""Formats: records per second of every hot codec, on one core, for 100-record batches of 100-byte payloads.

Goals: encoding and scan + verification at least 1.0 M/s each. Each figure is the best of several runs over the same
200,000 records, per second of processor time, so that a busy machine does not blur it; the table is also written to
`bench/results/formats.txt`.
"""

import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from topics.formats.segments import decode_columns, scan_segment, segment_frames_from_wal
from topics.formats.segments.idx import idx_agrees
from topics.formats.wal import scan_wal
from topics.formats.wal.blob import blob
from topics.formats.wal.frame import encode_appends

BATCHES, PER_BATCH, BLOB_BYTES, RUNS = 2000, 100, 100, 7
TS = 1700000000001
RESULTS = Path(__file__).resolve().parent / "results" / "formats.txt"
GOAL = 1.0
TAGS = [b"tenant42:%d" % i for i in range(PER_BATCH)]


def payloads(*, meta: bytes | None) -> list[bytes]:
    """Blobs of exactly `BLOB_BYTES`, all different."""
    wrap = len(blob(b'""', meta))
    return [blob(b'"%0*d"' % (BLOB_BYTES - wrap, i), meta) for i in range(PER_BATCH)]


def encoded(datas: list[bytes], tags: list[bytes] | None) -> Iterator[bytes]:
    """The log, batch by batch."""
    node = None if tags is None else b"n1"
    for i in range(BATCHES):
        first_seq = 1 + PER_BATCH * i
        run = encode_appends(topic_id=10, first_seq=first_seq, ts=TS, datas=datas, nodes=node, tags=tags, durable=False)
        yield run.buffer


def log(*, tags: list[bytes] | None, meta: bytes | None = None) -> bytes:
    return b"".join(encoded(payloads(meta=meta), tags))


def best(call: Callable[[], object]) -> float:
    """Millions of records per second of processor time in the fastest of several runs."""
    fastest = float("inf")
    for _ in range(RUNS):
        began = time.process_time()
        call()
        fastest = min(fastest, time.process_time() - began)
    return BATCHES * PER_BATCH / fastest / 1e6


def singles() -> float:
    """Microseconds for one record encoded alone."""
    one = payloads(meta=None)[:1]

    def run() -> None:
        for seq in range(20_000):
            encode_appends(topic_id=10, first_seq=seq, ts=TS, datas=one, durable=False)

    return BATCHES * PER_BATCH / best(run) / 20_000


def measure() -> list[tuple[str, float, float | None]]:
    datas = payloads(meta=None)
    plain, tagged, with_meta = log(tags=None), log(tags=TAGS), log(tags=TAGS, meta=b'{"k":"v"}')
    rows: list[tuple[str, float, float | None]] = [
        ("encode appends", best(lambda: deque(encoded(datas, None), maxlen=0)), GOAL),
        ("encode appends, node and tags", best(lambda: deque(encoded(datas, TAGS), maxlen=0)), GOAL),
        ("scan + verify log", best(lambda: scan_wal(plain)), GOAL),
        ("scan + verify log, node and tags", best(lambda: scan_wal(tagged)), GOAL),
    ]
    found = scan_wal(tagged)
    pair = segment_frames_from_wal(tagged, found.offset, found.length)
    data, idx = pair.buffer, pair.idx
    meta_found = scan_wal(with_meta)
    meta_pair = segment_frames_from_wal(with_meta, meta_found.offset, meta_found.length)
    none: tuple[str, ...] = ()
    return [
        *rows,
        ("log to segment, verified", best(lambda: segment_frames_from_wal(tagged, found.offset, found.length)), None),
        ("scan + verify segment", best(lambda: scan_segment(data)), None),
        ("columns, all, verified", best(lambda: decode_columns(data, idx, first_seq=1)), None),
        ("columns, all, not verified", best(lambda: decode_columns(data, idx, first_seq=1, verify=False)), None),
        (
            "columns, all, verified, every record has meta",
            best(lambda: decode_columns(meta_pair.buffer, meta_pair.idx, first_seq=1)),
            None,
        ),
        ("columns, seq and ts only", best(lambda: decode_columns(data, idx, first_seq=1, want=none)), None),
        ("index agreement", best(lambda: idx_agrees(idx, len(data), data)), None),
    ]


def report(rows: list[tuple[str, float, float | None]], single_us: float) -> str:
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, xxhash {xxhash.VERSION}"
    lines = [
        f"{BATCHES * PER_BATCH:,} records, {PER_BATCH} a batch, blobs of {BLOB_BYTES} bytes, CPU time, best of {RUNS}",
        f"{versions}, msgspec {msgspec.__version__}, {platform.machine()}",
        "",
        f"{'M records/s':>12}  {'goal':>5}  what",
    ]
    for name, rate, goal in rows:
        wanted = "" if goal is None else f"{goal:.1f}"
        lines.append(f"{rate:12.2f}  {wanted:>5}  {name}")
    return "\n".join([*lines, "", f"{single_us:12.2f}  us to encode one record alone", ""])


def main() -> int:
    rows = measure()
    text = report(rows, singles())
    print(text)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    return 0 if all(goal is None or rate >= goal for _, rate, goal in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
