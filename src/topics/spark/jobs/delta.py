"""Delta: workers write the files of a batch, the driver commits them once, through the `deltalake` package.

Exactly once: the commit carries the batch's number as an application transaction, and a batch whose number is already
in the table is not written again. Files of a batch that failed are in no commit and belong to nothing.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from topics.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FILE_RECORDS_MAX: Final = 4_000_000
_DESCRIBED: Final = "path string, size long, topic string, date string, stats string"


def check_installed() -> None:
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise ConfigError("the Delta format needs the deltalake package: pip install 'topicsdb[spark]'") from None


def committer(folder: Path, app_id: str) -> Callable[[DataFrame, int], None]:
    """The function that a stream calls for each batch."""

    def commit(batch: DataFrame, batch_id: int) -> None:
        table = _table(folder)
        done = table.transaction_version(app_id) if table is not None else None
        if done is not None and done >= batch_id:
            return
        files = batch.mapInArrow(_writer(str(folder), batch_id), _DESCRIBED).collect()
        _commit(folder, table, [row.asDict() for row in files], app_id, batch_id)

    return commit


def _table(folder: Path) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(str(folder)) if DeltaTable.is_deltatable(str(folder)) else None


def _writer(folder: str, batch_id: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One task: a file for each topic and date among its rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        waiting: dict[tuple[str, str], list[pa.Table]] = {}
        described: list[dict[str, Any]] = []
        for batch in batches:
            table = pa.Table.from_batches([batch])
            keys = table.select(["topic", "date"]).group_by(["topic", "date"]).aggregate([]).to_pylist()
            for key in keys:
                is_key = pc.and_(pc.equal(table["topic"], key["topic"]), pc.equal(table["date"], key["date"]))
                part = table if len(keys) == 1 else table.filter(is_key)
                waiting.setdefault((key["topic"], key["date"]), []).append(part.drop_columns(["topic", "date"]))
            for place in [place for place, parts in waiting.items() if _rows(parts) >= FILE_RECORDS_MAX]:
                described.append(_write_file(folder, batch_id, place, waiting.pop(place)))
        described += [_write_file(folder, batch_id, place, parts) for place, parts in sorted(waiting.items())]
        if described:
            yield pa.RecordBatch.from_pylist(described, schema=_described_schema())

    return write


def _rows(parts: Iterable[pa.Table]) -> int:
    return sum(part.num_rows for part in parts)


def _described_schema() -> pa.Schema:
    import pyarrow as pa

    text = pa.string()
    return pa.schema([("path", text), ("size", pa.int64()), ("topic", text), ("date", text), ("stats", text)])


def _write_file(folder: str, batch_id: int, place: tuple[str, str], parts: list[pa.Table]) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    topic, date = place
    table = pa.concat_tables(parts)
    relative = f"topic={quote(topic, safe='')}/date={date}/part-{batch_id:05d}-{uuid.uuid4().hex}.parquet"
    path = Path(folder) / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="snappy")
    low, high = (pc.min_max(table["seq"]).as_py()[end] for end in ("min", "max"))
    stats = {
        "numRecords": table.num_rows,
        "minValues": {"seq": low},
        "maxValues": {"seq": high},
        "nullCount": {"seq": 0},
    }
    size = path.stat().st_size
    return {"path": relative, "size": size, "topic": topic, "date": date, "stats": json.dumps(stats)}


def _commit(folder: Path, table: Any, files: list[dict[str, Any]], app_id: str, batch_id: int) -> None:
    from deltalake import CommitProperties, Transaction
    from deltalake.transaction import AddAction, create_table_with_add_actions

    if not files and table is None:
        return
    now_ms = time.time_ns() // 1_000_000
    # Names as they are on the disk: the package encodes them for the log.
    actions = [AddAction(f["path"], f["size"], _values(f), now_ms, True, f["stats"]) for f in files]
    properties = CommitProperties(app_transactions=[Transaction(app_id, batch_id)])
    if table is None:
        create_table_with_add_actions(
            str(folder), _schema(), actions, partition_by=["topic", "date"], commit_properties=properties
        )
    else:
        table.create_write_transaction(
            actions, "append", table.schema(), partition_by=["topic", "date"], commit_properties=properties
        )


def _values(file: dict[str, Any]) -> dict[str, str | None]:
    return {"topic": file["topic"], "date": file["date"]}


def _schema() -> Any:
    from deltalake import Field, Schema
    from deltalake.schema import PrimitiveType

    kinds = {
        "topic": "string",
        "epoch": "long",
        "seq": "long",
        "ts": "timestamp",
        "node": "string",
        "tag": "string",
        "data": "string",
        "meta": "string",
        "date": "string",
    }
    return Schema([Field(name, PrimitiveType(kind), nullable=True) for name, kind in kinds.items()])


def committed_by_delta(folder: Path) -> list[str]:
    """Relative paths of the files in the table."""
    table = _table(folder)
    return ["topic=" + uri.rpartition("/topic=")[2] for uri in table.file_uris()] if table is not None else []
