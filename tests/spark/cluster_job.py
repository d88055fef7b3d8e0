"""Batch, stream and sink on a cluster, in a process of its own; prints what it found as JSON.

python cluster_job.py MASTER SERVER_URL FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import topics.spark

KEY = "cluster-s3cr3t"


def main() -> None:
    master, url, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    (folder / "events").mkdir()
    spark = topics.spark.session(
        "cluster",
        master=master,
        conf={
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.executor.cores": "1",
            "spark.sql.shuffle.partitions": "2",
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.1",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{folder}/events",
            "spark.ui.port": "0",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        print(json.dumps(run(spark, url, folder)))
    finally:
        spark.stop()


def run(spark: Any, url: str, folder: Path) -> dict[str, Any]:
    given = {"url": url, "apiKey": KEY}
    while len(executors(spark)) < 2:
        time.sleep(0.1)
    df = spark.read.format("topics").options(subscribe="c", minPartitions="8", **given).load()
    hosts = df.mapInArrow(process_ids(str(folder)), "pid long").distinct().count()
    batch = sorted(row.seq for row in df.select("seq").collect())

    query = (
        spark.readStream.format("topics")
        .options(subscribe="c", startingOffsets="earliest", maxOffsetsPerTrigger="700", minPartitions="4", **given)
        .load()
        .select("data")
        .writeStream.format("topics")
        .options(topic="streamed", batchRecords="50", **given)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(100)

    # One task writes its first rows and then hangs until Spark runs it a second time, beside the first.
    hanging = df.select("data").mapInArrow(hanging_once(str(folder)), "data string")
    hanging.write.format("topics").mode("append").options(topic="speculated", batchRecords="20", **given).save()

    # Tasks that take their time, so that one executor can be killed under them.
    slow = df.select("data").mapInArrow(slowly(str(folder)), "data string")
    slow.write.format("topics").mode("append").options(topic="sunk", batchRecords="20", **given).save()
    wait_for_loss(folder / "events")
    return {
        "batch": batch,
        "python_workers": hosts,
        "executors": len(executors(spark)),
        "shown_in_ui": shown(spark.sparkContext.uiWebUrl),
    }


def process_ids(folder: str) -> Any:
    """The process of each executor; a task waits for one of another executor, so that none does all of the work."""

    def through(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            pass
        Path(folder, f"executor-{os.getppid()}").touch()
        deadline = time.monotonic() + 60
        while len(list(Path(folder).glob("executor-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        yield pa.RecordBatch.from_pydict({"pid": pa.array([os.getppid()], pa.int64())})

    return through


def hanging_once(folder: str) -> Any:
    def through(batches: Any) -> Any:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        hangs = task.partitionId() == 0 and task.attemptNumber() == 0
        if task.partitionId() == 0 and not hangs:
            Path(folder, "second attempt").touch()
        for batch in batches:
            yield batch.slice(0, 20)
            deadline = time.monotonic() + 120
            while hangs and not Path(folder, "second attempt").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            yield batch.slice(20)

    return through


def slowly(folder: str) -> Any:
    def through(batches: Any) -> Any:
        for batch in batches:
            Path(folder, "running").touch()
            for at in range(0, batch.num_rows, 20):
                time.sleep(0.05)
                yield batch.slice(at, 20)

    return through


def wait_for_loss(events: Path) -> None:
    """Until the event log has the lost executor: second attempts can end the job before the driver notices."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        logs = [path for path in events.rglob("*") if path.is_file()]
        if any(b"SparkListenerExecutorRemoved" in path.read_bytes() for path in logs):
            return
        time.sleep(0.1)


def executors(spark: Any) -> list[Any]:
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return [info for info in infos if info.cacheSize() >= 0][1:]


def shown(ui: str) -> list[str]:
    """Pages of the UI that show the key."""
    api = f"{ui}/api/v1/applications"
    app = json.loads(fetch(api))[0]["id"]
    pages = [f"{ui}/environment/", f"{ui}/SQL/", f"{ui}/jobs/", f"{ui}/executors/", f"{api}/{app}/environment"]
    listed = json.loads(fetch(f"{api}/{app}/sql?details=true&planDescription=true&length=1000"))
    pages += [f"{ui}/SQL/execution/?id={entry['id']}" for entry in listed]
    return [page for page in pages if KEY in fetch(page)] + (["sql api"] if KEY in json.dumps(listed) else [])


def fetch(page: str) -> str:
    with urllib.request.urlopen(page, timeout=30) as response:
        text: str = response.read().decode()
        return text


if __name__ == "__main__":
    main()
