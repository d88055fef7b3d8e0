"""The decoder alone, on one core: segment bytes to Arrow batches, and where the time goes."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "src"), str(Path(__file__).resolve().parent)]

from dataset import make

from topics.formats.columns import decode_columns
from topics.formats.segment import read_idx, verify_frames
from topics.spark.batch import plan_batch, read_spec
from topics.spark.decode import Origin, record_batch
from topics.spark.options import read_options
from topics.spark.scan import scan
from topics.spark.schema import arrow_schema, table_fields

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
    with tempfile.TemporaryDirectory() as folder:
        data = make(Path(folder), RECORDS) / "data"
        print(f"{RECORDS:,} records in segments of 10,000, CPU time of one core, best of 5\n\n M records/s  what")
        for what, given in (
            ("all columns, verified", {}),
            ("all columns, not verified", {"verifyChecksums": "false"}),
            ("data only, verified", {"columns": "data"}),
            ("seq and ts", {"columns": "seq,ts"}),
            ("all columns of one tag in 16, verified", {"tag": "tag-3"}),
        ):
            seconds = best(lambda given=given: read(data, given))
            print(f"{RECORDS / seconds / 1e6:12.2f}  {what}")
        parts(data)


def read(data: Path, given: dict[str, str]) -> int:
    options = read_options({"path": str(data), "subscribe": "bench", **given}, streaming=False)
    spec = read_spec(options, table_fields(options.table_columns, with_loss=False), None)
    return sum(batch.num_rows for task in plan_batch(options) for batch in scan(task, spec))


def parts(data: Path) -> None:
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
    print("\n ns a record  step")
    for what, step in steps:
        print(f"{best(step, times=20) / len(idx) * 1e9:12.0f}  {what}")


if __name__ == "__main__":
    main()
