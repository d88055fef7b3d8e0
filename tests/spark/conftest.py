"""Fixtures: a server process, and one Spark session for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.served import QUICK_JAVA, Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("served"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session on two cores; starting one takes seconds."""
    import topics.spark

    work = tmp_path_factory.mktemp("spark")
    events = work / "events"
    events.mkdir()
    session = topics.spark.session(
        "tests",
        master="local[2]",
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(work / "warehouse"),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{events}",
            "spark.eventLog.compress": "false",
            "spark.sql.streaming.metricsEnabled": "false",
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def event_logs(spark: SparkSession) -> Path:
    """Where the session writes its event log."""
    return Path(str(spark.conf.get("spark.eventLog.dir")).removeprefix("file://"))
