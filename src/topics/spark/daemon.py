"""PySpark's worker daemon with our imports done once: every task is a fork of it and starts warm.

`topics.spark.session()` names it as `spark.python.daemon.module`. Nothing but imports happens before the fork.
"""

from __future__ import annotations

import gc

import pandas  # type: ignore[import-untyped]  # Arrow loads it as soon as it makes objects
import pyarrow.compute
from pyspark import daemon

import topics.spark.batch
import topics.spark.directory
import topics.spark.scan
import topics.spark.server
import topics.spark.sink
import topics.spark.source
import topics.spark.stream

PRELOADED = (
    pandas,
    pyarrow.compute,
    topics.spark.batch,
    topics.spark.directory,
    topics.spark.scan,
    topics.spark.server,
    topics.spark.sink,
    topics.spark.source,
    topics.spark.stream,
)

if __name__ == "__main__":
    # Workers collect after every task: what was loaded here is not walked through each time.
    gc.freeze()
    daemon.manager()
