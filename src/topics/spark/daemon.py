"""PySpark's worker daemon with our imports done once: every task is a fork of it and starts warm.

`topics.spark.session()` names it as `spark.python.daemon.module`. Nothing but imports happens before the fork. A task
whose rows nobody wants any more (`limit`, `show`, a query that was stopped) ends without a word: PySpark's own daemon
writes the traceback of a BrokenPipeError to the terminal.
"""

from __future__ import annotations

import gc
from socket import socket
from typing import Final

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

_COLLECTED_AFTER: Final = 100_000
_run = daemon.worker


def quiet_worker(sock: socket, authenticated: bool) -> int:
    """One task; 1 where Java has hung up, after which the process ends."""
    try:
        return _run(sock, authenticated)
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    daemon.worker = quiet_worker
    # Workers collect after every task: what was loaded here is not walked through each time. A task may come with a
    # hundred thousand blocks, which the collector would walk through again and again while they are made.
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER, 20, 20)
    daemon.manager()
