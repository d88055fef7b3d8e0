"""Formats: records per second of every hot codec, native and plain, on one core, for batches of 100-byte payloads.

Goals are ratios, native over plain of the same run, and hold anywhere. Each rate is the best of several runs in turns
over the same records, per second of processor time, so that a busy machine does not blur it; the plain codecs get
a twentieth of the records. The table is also written to `bench/results/formats.txt`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from report import Report

from topics.formats.codec import plain_log, plain_render, plain_segment
from topics.formats.segments.columns import ALL
from topics.formats.wal.blob import blob

try:
    from topics.formats.codec import native_log, native_render, native_segment
except ImportError:
    sys.exit("the native codecs are not built: make setup")

BATCHES, PER_BATCH, BLOB_BYTES, RUNS = 2000, 100, 100, 7
TS = 1700000000001
TAGS = [b"tenant42:%d" % i for i in range(PER_BATCH)]
META = b'{"k":"v"}'


def payloads(*, meta: bytes | None) -> list[bytes]:
    """Blobs of exactly `BLOB_BYTES`, all different."""
    wrap = len(blob(b'""', meta))
    return [blob(b'"%0*d"' % (BLOB_BYTES - wrap, i), meta) for i in range(PER_BATCH)]


class Bench:
    """One kind of codec and `batches` of records for it."""

    def __init__(self, log: Any, segment: Any, render: Any, batches: int) -> None:
        self.log, self.segment, self.render, self.batches = log, segment, render, batches
        self.datas = payloads(meta=None)
        self.wal = self.encode(TAGS, self.datas)
        self.places = log.scan_wal_frames(self.wal, 0, len(self.wal), False)[:2]
        self.data, self.entries = self.convert(self.wal, self.places)
        self.bodies = segment.live_bodies(self.data, self.entries, range(batches * PER_BATCH), 1)
        with_meta = self.encode(TAGS, payloads(meta=META))
        self.with_meta = self.convert(with_meta, log.scan_wal_frames(with_meta, 0, len(with_meta), False)[:2])

    def encode(self, tags: list[bytes] | None, datas: list[bytes]) -> bytes:
        node = None if tags is None else b"n1"
        common = {"topic_id": 10, "ts": TS, "datas": datas, "nodes": node, "tags": tags, "durable": False}
        made = [self.log.encode_appends(first_seq=1 + PER_BATCH * i, **common).buffer for i in range(self.batches)]
        return b"".join(made)

    def convert(self, wal: bytes, places: Any) -> Any:
        return self.log.wal_to_segment(wal, *places, base=0, verify=True, file="wal")

    def decode(self, pair: Any, *, verify: bool = True, want: frozenset[str] = ALL) -> Any:
        return self.segment.decode_entries(*pair, None, 1, 0, want, verify, False)

    def arrow(self) -> None:
        """What the Spark reader does with all columns: decode, verify, gather the texts."""
        columns = self.decode(self.with_meta)
        for at in (4, 6, 10, 12):
            self.segment.gather_texts(self.with_meta[0], columns[at], columns[at + 1])

    def pages(self) -> None:
        """JSON of all records, a batch at a time."""
        offsets, flags = self.bodies
        for at in range(0, len(flags), PER_BATCH):
            part = slice(at, at + PER_BATCH)
            self.render.render_records(self.data, offsets[part], flags[part], True, True, True)

    def calls(self) -> dict[str, Callable[[], object]]:
        pair = self.data, self.entries
        return {
            "encode appends": lambda: self.encode(None, self.datas),
            "encode appends, node and tags": lambda: self.encode(TAGS, self.datas),
            "scan + verify log": lambda: self.log.scan_wal_frames(self.wal, 0, len(self.wal), True),
            "log to segment, verified": lambda: self.convert(self.wal, self.places),
            "scan + verify segment": lambda: self.segment.scan_segment_frames(self.data, 0, sys.maxsize, True),
            "columns, all, verified": lambda: self.decode(pair),
            "columns, all, not verified": lambda: self.decode(pair, verify=False),
            "columns, all, verified, with meta": lambda: self.decode(self.with_meta),
            "the same, gathered as Arrow strings": self.arrow,
            "bodies for a read, verified": lambda: self.segment.live_bodies(*pair, range(self.batches * PER_BATCH), 1),
            "records as JSON": self.pages,
            "columns, seq and ts only": lambda: self.decode(pair, want=frozenset()),
        }

    def rate(self, call: Callable[[], object]) -> float:
        """Millions of records per second of processor time."""
        began = time.process_time()
        call()
        return self.batches * PER_BATCH / (time.process_time() - began) / 1e6

    def single_us(self) -> float:
        """Microseconds for one record encoded alone."""
        one = self.datas[:1]
        began = time.process_time()
        for seq in range(20_000):
            self.log.encode_appends(topic_id=10, first_seq=seq, ts=TS, datas=one, durable=False)
        return (time.process_time() - began) / 20_000 * 1e6


GOALS = {
    "encode appends": 8.0,
    "encode appends, node and tags": 8.0,
    "scan + verify log": 10.0,
    "log to segment, verified": 10.0,
    "the same, gathered as Arrow strings": 5.0,
}


def main() -> int:
    records = f"{BATCHES * PER_BATCH:,} records, {PER_BATCH} a batch, blobs of {BLOB_BYTES} bytes"
    title = f"formats: {records}, CPU time, best of {RUNS}"
    report = Report("formats", title)
    native = Bench(native_log, native_segment, native_render, BATCHES)
    plain = Bench(plain_log, plain_segment, plain_render, BATCHES // 20)
    fast, slow = native.calls(), plain.calls()
    for name, call in fast.items():
        rates = [(native.rate(call), plain.rate(slow[name])) for _ in range(RUNS)]
        best, other = max(rate for rate, _ in rates), max(rate for _, rate in rates)
        report.line(f"{name:50} {best:8.2f} M/s native, {other:6.2f} M/s plain")
        report.figure("    native over plain", best / other, "x", at_least=GOALS.get(name, 0.0))
    report.line()
    report.figure("one record encoded alone, native", min(native.single_us() for _ in range(3)), "us")
    report.figure("one record encoded alone, plain", min(plain.single_us() for _ in range(3)), "us")
    report.save()
    return int(report.missed > 0)


if __name__ == "__main__":
    sys.exit(main())
