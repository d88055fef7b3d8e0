"""Newest rows: the table of a topic, one row for each tag (`docs/spec/readers.md#sec-7`), for `latestPerTag=true`.

A task has whole topics then (`planning.tasks`), and reads them in order. What a newer row of its tag replaces is let go
from time to time, so memory holds the table and a stretch of the topic. A tag whose newest data is null has no row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from topics.spark.planning.tasks import Task
from topics.spark.scanning.schema import table_fields
from topics.spark.scanning.task_scan import ReadSpec, scan

PENDING_ROWS_MAX: Final = 200_000
_KEYS: Final = ("topic", "tag", "data")


def newest_rows(task: Task, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    """The newest row of each tag, in the order of seqs."""
    names = spec.names
    more = table_fields([name for name in _KEYS if name not in names], with_loss=False)
    table, pending, rows = None, list[pa.RecordBatch](), 0
    for batch in scan(task, replace(spec, fields=(*spec.fields, *more))):
        pending.append(batch)
        rows += batch.num_rows
        if rows >= PENDING_ROWS_MAX:
            table, pending, rows = _newest(table, pending), [], 0
    if pending:
        table = _newest(table, pending)
    if table is not None:
        shown = [at for at, data in enumerate(table["data"].to_pylist()) if data != "null"]
        yield from table.take(shown).select(list(names)).cast(spec.schema).to_batches()


def _newest(table: pa.Table | None, pending: list[pa.RecordBatch]) -> pa.Table:
    joined = pa.Table.from_batches(pending)
    if table is not None:
        joined = pa.concat_tables([table, joined])
    keys = zip(joined["topic"].to_pylist(), joined["tag"].to_pylist(), strict=True)
    newest = {key: at for at, key in enumerate(keys) if key[1] is not None}
    return joined.take(sorted(newest.values()))
