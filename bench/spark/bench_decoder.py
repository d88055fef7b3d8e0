"""The decoder alone, on one core: segment bytes to Arrow batches, and where the time goes.

python bench/spark/bench_decoder.py [--unsaved]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE.parent), str(HERE)]

from dataset import make
from report import Report

from topics.formats.segments import read_idx, verify_frames
from topics.formats.segments.columns import decode_columns
from topics.spark.options import read_options
from topics.spark.planning.batch import plan_batch, read_spec
from topics.spark.scanning.arrow_columns import Origin, record_batch
from topics.spark.scanning.schema import arrow_schema, table_fields
from topics.spark.scanning.task_scan import scan

RECORDS = 200_000


def best(run: Callable[[], object], *, times: int = 5) -> float:
    """CPU seconds of the fastest run: other load on the machine counts less."""
    found = []
    for _ in range(times):
        begun = time.process_time()
        run()
        found.append(time.process_time() - begun)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--unsaved", action="store_true", help="only print")
    given = parser.parse_args()
    title = f"Decoder of the Spark source: {RECORDS:,} records in segments of 10,000, CPU time of one core, best of 5"
    report = Report("decoder", title)
    with tempfile.TemporaryDirectory() as folder:
        data = make(Path(folder), RECORDS) / "data"
        kinds(report, data)
        report.line()
        parts(report, data)
    if not given.unsaved:
        report.save()


def kinds(report: Report, data: Path) -> None:
    for what, given in (
        ("all columns, verified", {}),
        ("all columns, not verified", {"verifyChecksums": "false"}),
        ("data only, verified", {"columns": "data"}),
        ("seq and ts", {"columns": "seq,ts"}),
        ("one tag in 16, all columns, verified", {"tag": "tag-3"}),
    ):
        seconds = best(lambda given=given: read(data, given))
        report.figure(what, RECORDS / seconds / 1e6, "M records/s")


def read(data: Path, given: dict[str, str]) -> int:
    options = read_options({"path": str(data), "subscribe": "bench", **given}, streaming=False)
    spec = read_spec(options, table_fields(options.table_columns, with_loss=False))
    return sum(batch.num_rows for task in plan_batch(options) for batch in scan(task, spec))


def parts(report: Report, data: Path) -> None:
    """One segment, step by step."""
    stem = min((data / "topics").glob("*/*.data"))
    raw, idx = stem.read_bytes(), read_idx(stem.with_suffix(".idx").read_bytes())
    offsets, lengths = idx["offset"].astype("i8"), idx["len"].astype("i8")
    columns = decode_columns(raw, idx, first_seq=1)
    schema = arrow_schema(table_fields(("topic", "epoch", "seq", "ts", "node", "tag", "data", "meta"), with_loss=False))
    steps: list[tuple[str, Callable[[], object]]] = [
        ("checksums", lambda: verify_frames(raw, offsets, lengths)),
        ("headers and meta", lambda: decode_columns(raw, idx, first_seq=1, verify=False)),
        ("Arrow arrays", lambda: record_batch(columns, raw, None, origin=Origin("bench", 1), schema=schema)),
    ]
    for what, step in steps:
        report.figure(f"one segment: {what}", best(step, times=20) / len(idx) * 1e9, "ns/record")


if __name__ == "__main__":
    main()
