"""Spark itself comes back to a topic: a checkpoint of another life fails the query, one of this life goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.api.server import LiveServer
from tests.ways import (
    TOLD,
    TOPIC,
    Way,
    World,
    copied,
    directory_replaced,
    dropped,
    recreated_equal,
    recreated_longer,
    renamed,
    restored_from_an_older_copy,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
WAYS: list[Way] = [
    dropped, recreated_equal, recreated_longer, directory_replaced, restored_from_an_older_copy, copied, renamed,
]  # fmt: skip


def run(spark: SparkSession, server: LiveServer, folder: Path) -> str | None:
    """Read what is there now into `folder`; why it failed, if it did."""
    options = {"url": f"http://127.0.0.1:{server.port}", "subscribe": TOPIC, "startingOffsets": "earliest"}
    query = (
        spark.readStream.format("topics")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(120)
    except Exception as error:  # what PySpark raises depends on its way to the JVM
        return str(error)
    return None


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_checkpoint_and_a_batch_are_told_what_became_of_their_topic(
    spark: SparkSession, tmp_path: Path, way: Way
) -> None:
    world, folder = World(tmp_path), tmp_path / "query"
    with LiveServer(world.data) as server:
        assert run(spark, server, folder) is None
    rows: Any = spark.read.parquet(str(folder / "out")).collect()
    last = max(rows, key=lambda row: row.seq)
    assert len(rows) == 10
    way(world)
    starting = json.dumps({TOPIC: f"{last.seq}-e{last.epoch:x}"})
    with LiveServer(world.data) as server:
        failure = run(spark, server, folder)
        url = f"http://127.0.0.1:{server.port}"
        read = spark.read.format("topics").options(url=url, subscribe=TOPIC, startingOffsets=starting)
        if TOLD[way] == ["gone"]:
            assert failure is not None
            assert "deleted" in failure
            return
        if "recreated" in TOLD[way]:
            assert failure is not None
            assert "recreated" in failure
            with pytest.raises(Exception, match="recreated"):
                read.load().collect()
            return
        assert failure is None
        assert sorted(row.seq for row in read.load().collect()) == TOLD[way]
    seqs = sorted(row.seq for row in spark.read.parquet(str(folder / "out")).collect())
    assert seqs == list(range(1, 16))
