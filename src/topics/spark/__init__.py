"""Spark: topics as tables, batch and streaming, in and out, and the jobs on top of them (`docs/spec/pipeline.md`).

`spark.read.format("topics")` needs no import of this package: Spark finds the source through `pyspark_topics`. From
here comes `session()`, which starts Spark with the settings that suit the source. In reading order:

source          PySpark's Python Data Source API: puts the parts below together
options         what a user may ask for; checked, frozen values
option_values   texts of options to values, or one sentence on what is wrong
sql_tables      tables that a catalog keeps, for users of SQL
pyspark_api     PySpark 4.0 to 4.3 behind one set of names
logs            what there is to read: a data directory (`path`) or a server (`url`)
planning        what a topic holds at one moment, cut into tasks; offsets of streams
scanning        tasks to Arrow batches, on the executors; the table's columns
writing         rows of a DataFrame to records on a server
jobs            archive, replay, verify, stats, pipeline projects
start           a Spark session, and whether this machine can run one
daemon          the workers' parent process, with our imports done once
secret          keys that travel to executors and are never shown

Never imports `api`, `server` or `cli`, and never writes into a data directory: all writes go through a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.spark.start import session

__all__ = ["session"]


def __getattr__(name: str) -> Any:
    # Late: executors import this package for every task and need no session.
    if name == "session":
        from topics.spark.start import session

        return session
    raise AttributeError(name)
