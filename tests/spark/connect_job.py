"""Everything that the source does, over Spark Connect, in a process of its own; prints what it found as JSON.

python connect_job.py SERVER_URL FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> None:
    from pyspark.sql import SparkSession

    url, folder = sys.argv[1], Path(sys.argv[2])
    builder = SparkSession.builder.remote("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        print(json.dumps({"session": type(spark).__module__, **run(spark, url, folder)}))
    finally:
        spark.stop()


def run(spark: SparkSession, url: str, folder: Path) -> dict[str, Any]:
    rows = spark.read.format("topics").options(url=url, subscribe="orders").load()
    spark.sql(f"CREATE TABLE kept USING topics OPTIONS (url '{url}', subscribe 'orders')")
    query = (
        spark.readStream.format("topics")
        .options(url=url, subscribe="orders", startingOffsets="earliest", cursor="connect")
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    rows.select("data", "tag").write.format("topics").mode("append").options(url=url, topic="copies").save()
    return {
        "filtered": seqs(rows.where("tag = 'a' AND seq <= 10")),
        "union": seqs(rows.where("seq < 3").union(rows.where("seq > 18"))),
        "narrowed": seqs(spark.read.format("topics").options(url=url, subscribe="orders", tag="b", limit="3").load()),
        "sql": spark.sql("SELECT count(*) AS n FROM kept WHERE tag = 'b'").collect()[0].n,
        "joined": spark.sql("SELECT count(*) AS n FROM kept x JOIN kept y USING (seq) WHERE x.tag = 'a'")
        .collect()[0]
        .n,
        "streamed": seqs(spark.read.parquet(str(folder / "out"))),
        "refused": refused(spark, url),
    }


def seqs(rows: Any) -> list[int]:
    return sorted(row.seq for row in rows.select("seq").collect())


def refused(spark: SparkSession, url: str) -> str:
    try:
        spark.read.format("topics").options(url=url, subscirbe="orders").load().count()
    except Exception as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
