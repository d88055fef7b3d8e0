"""A stream of topics into Parquet in a process of its own, to be killed: python stream_job.py URL FOLDER [once]"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS_PER_BATCH = 250


def start(spark: SparkSession, url: str, folder: Path, *, once: bool) -> Any:
    """The query; `once` reads what is there and stops."""
    given = {"url": url, "subscribePattern": "k-.*", "startingOffsets": "earliest", "cursor": "kills"}
    if not once:
        given["maxOffsetsPerTrigger"] = str(RECORDS_PER_BATCH)
    rows = spark.readStream.format("topics").options(**given).load()
    writer = rows.writeStream.format("parquet").option("path", str(folder / "out"))
    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": "0 seconds"}
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(**trigger).start()


def main() -> None:
    import topics.spark

    url, folder = sys.argv[1], Path(sys.argv[2])
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.session.timeZone": "UTC",
    }
    spark = topics.spark.session("kills", master="local[2]", conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    query = start(spark, url, folder, once="once" in sys.argv)
    print("started", flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
