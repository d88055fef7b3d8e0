"""PySpark's worker daemon with our imports done once: every task is a fork of it and starts warm.

`topics.spark.session()` names it as `spark.python.daemon.module`. Nothing but imports happens before the fork.
"""

from __future__ import annotations

import gc

import pandas  # type: ignore[import-untyped]  # Arrow loads it as soon as it makes objects
import pyarrow.compute
from pyspark import daemon

import topics.spark.logs.directory
import topics.spark.logs.server_log
import topics.spark.planning.batch
import topics.spark.planning.stream
import topics.spark.scanning.task_scan
import topics.spark.source
import topics.spark.writing.sink

PRELOADED = (
    pandas,
    pyarrow.compute,
    topics.spark.planning.batch,
    topics.spark.logs.directory,
    topics.spark.scanning.task_scan,
    topics.spark.logs.server_log,
    topics.spark.writing.sink,
    topics.spark.source,
    topics.spark.planning.stream,
)

if __name__ == "__main__":
    # Workers collect after every task: what was loaded here is not walked through each time.
    gc.freeze()
    daemon.manager()
