"""Spark: topics as tables, batch and streaming, in and out, and the jobs on top of them (`docs/spec/pipeline.md`).

`spark.read.format("topics")` needs no import of this package: Spark finds the source through `pyspark_topics`. From
here comes `session()`, which starts Spark with the settings that the source likes best.

options, schema   what a user may ask for; the table
files, manifest   what there is to read: a data directory (`path`) or a server (`url`)
plan, offsets     ranges to partitions; pure
decode, scan      partitions to Arrow batches, on the executors
source, sink      PySpark's Python Data Source API
jobs              archive, replay, verify, stats
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.spark.launch.start import session

__all__ = ["session"]


def __getattr__(name: str) -> Any:
    # Late: executors import this package for every task and need no session.
    if name == "session":
        from topics.spark.launch.start import session

        return session
    raise AttributeError(name)
