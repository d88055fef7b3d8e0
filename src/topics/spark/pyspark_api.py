"""PySpark 4.0 to 4.3 behind one set of names: what a version lacks has a stand-in here, and nowhere else.

4.0, 4.1   `latestOffset` is told neither start nor limit, so a stream has no admission control
4.0        a streaming sink gets rows instead of Arrow batches

Whoever needs more than a stand-in asks `HAS_ADMISSION_CONTROL` or `STREAM_SINK_GETS_ARROW`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark.sql import datasource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import StructType

    HAS_ADMISSION_CONTROL: bool
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        HAS_ADMISSION_CONTROL = True
    except ImportError:
        HAS_ADMISSION_CONTROL = False

        class ReadLimit: ...

        class ReadAllAvailable(ReadLimit): ...

        @dataclass
        class ReadMaxRows(ReadLimit):
            max_rows: int

        @dataclass
        class ReadMaxBytes(ReadLimit):
            max_bytes: int

        class SupportsTriggerAvailableNow: ...

    StreamWriter = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)

VERSION: Final[str] = pyspark.__version__
STREAM_SINK_GETS_ARROW: Final = hasattr(datasource, "DataSourceStreamArrowWriter")
_ROWS_PER_BATCH: Final = 4096

__all__ = [
    "HAS_ADMISSION_CONTROL",
    "STREAM_SINK_GETS_ARROW",
    "VERSION",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "StreamWriter",
    "SupportsTriggerAvailableNow",
    "arrow_batches",
]


def arrow_batches(given: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """What a streaming sink is given, as Arrow batches in any version."""
    return iter(given) if STREAM_SINK_GETS_ARROW else _from_rows(iter(given), schema)


def _from_rows(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(schema)
    while chunk := list(islice(rows, _ROWS_PER_BATCH)):
        yield pa.RecordBatch.from_pylist([row.asDict(recursive=True) for row in chunk], schema=arrow)
