"""Side by side with Spark's own Kafka source, on a broker of this machine: rows per second, and the start of a query.

    python bench/spark/bench_kafka.py [--records 1000000] [--connector 4.2.0] [--token-provider 4.0.0] [--broker 3.9.1]
                                      [--folder DIR] [--unsaved]

The connector and the broker come from Maven Central through `mvn`, once, into the folder; without `mvn`, or where they
cannot be had, one line says so. The connector must fit the PySpark of this interpreter, and not every version of it is
complete there: its token provider may be of another one. Both sides hold the same payloads: a Kafka topic with one
partition for each core, and a topic of a server on this machine. The job is the same but for its format and address.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE.parent), str(HERE)]

from dataset import payloads
from report import Report

import topics.spark

CORES = 2
FEW = 1000
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>bench</artifactId><version>1</version><dependencies>{}</dependencies></project>"""
ONE = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions><exclusion><groupId>{}</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""
BROKER = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}
num.partitions={cores}
offsets.topic.replication.factor=1
"""


def fetched(folder: Path, *wanted: tuple[str, str, str], without: str = "none") -> Path:
    """A folder with the jars of these packages and all that they need."""
    jars = folder / "jars"
    if not jars.exists():
        if shutil.which("mvn") is None:
            sys.exit("mvn is not installed: Kafka's source cannot be had here, so nothing is compared")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(POM.format("".join(ONE.format(*each, without) for each in wanted)))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'new'}"]
        told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if told.returncode:
            sys.exit(f"{wanted[0][1]} {wanted[0][2]} cannot be had: {told.stdout.strip().splitlines()[0]}")
        (folder / "new").rename(jars)
    return jars


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def broker(jars: Path, folder: Path) -> Iterator[str]:
    """A Kafka broker in KRaft mode; gives its address."""
    port, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(BROKER.format(port=port, controller=controller, folder=folder / "log", cores=CORES))
    java = ["java", "-Xmx512m", "-cp", f"{jars}/*"]
    new = [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(settings)]
    subprocess.run(new, check=True, capture_output=True)
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
    try:
        wait_for(lambda: _answers(port) and process.poll() is None, "the broker")
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A topics server; gives its address."""
    told = folder / "port"
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src"), "TOPICS_DATA_DIR": str(folder / "data")}
    environment |= {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(told), "TOPICS_LOG": "error"}
    process = subprocess.Popen([sys.executable, "-m", "topics.cli", "serve"], env=environment)
    try:
        wait_for(lambda: told.exists() and bool(told.read_text().strip()), "the server")
        yield f"http://{told.read_text().strip()}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def wait_for(is_there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not is_there():
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not start")
        time.sleep(0.1)


class Side:
    """The job on one of the two: what differs is `kind` and `address`."""

    def __init__(self, spark: Any, kind: str, address: str) -> None:
        self.spark, self.kind, self.address = spark, kind, address

    def write(self, topic: str, texts: Any) -> None:
        rows = texts.selectExpr("value").write.format(self.kind).option("kafka.bootstrap.servers", self.address)
        rows.option("topic", topic).mode("append").save()

    def _given(self, reader: Any, topic: str) -> Any:
        given = {"kafka.bootstrap.servers": self.address, "subscribe": topic, "startingOffsets": "earliest"}
        return reader.format(self.kind).options(**given).load()

    def batch(self, topic: str) -> int:
        rows = self._given(self.spark.read, topic).selectExpr("sum(length(CAST(value AS STRING))) AS total")
        total: int = rows.collect()[0].total
        return total

    def stream(self, topic: str) -> None:
        checkpoint = tempfile.mkdtemp()
        writer = self._given(self.spark.readStream, topic).writeStream.format("noop")
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        shutil.rmtree(checkpoint)


def in_turns(*runs: Callable[[], Any], times: int = 3) -> list[float]:
    for run in runs:
        run()
    took = []
    for _ in range(times):
        row = []
        for run in runs:
            began = time.perf_counter()
            run()
            row.append(time.perf_counter() - began)
        took.append(row)
    return [min(column) for column in zip(*took, strict=True)]


def compare(kafka: Side, ours: Side, records: int, report: Report) -> None:
    if kafka.batch("bench") != ours.batch("bench"):
        sys.exit("the two sides do not hold the same payloads")
    for what, runs in (
        ("batch, sum(length)", (lambda: kafka.batch("bench"), lambda: ours.batch("bench"))),
        ("stream into a no-op sink, AvailableNow", (lambda: kafka.stream("bench"), lambda: ours.stream("bench"))),
    ):
        theirs, mine = in_turns(*runs)
        report.figure(f"Kafka: {what}", records / theirs / 1e6, "M records/s")
        report.figure(f"topics: {what}", records / mine / 1e6, "M records/s")
        report.figure("  topics : Kafka", theirs / mine, "x", at_least=1)
    theirs, mine = in_turns(lambda: kafka.stream("few"), lambda: ours.stream("few"))
    report.figure(f"Kafka: a stream over {FEW:,} records, start to end", theirs, "s")
    report.figure(f"topics: a stream over {FEW:,} records, start to end", mine, "s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--connector", default="4.2.0")
    parser.add_argument("--token-provider", default="4.0.0")
    parser.add_argument("--broker", default="3.9.1")
    parser.add_argument("--folder")
    parser.add_argument("--unsaved", action="store_true", help="only print")
    given = parser.parse_args()
    cache = Path(given.folder or Path(tempfile.gettempdir()) / "topics-bench-kafka")
    group, kafka = "org.apache.spark", "org.apache.kafka"
    connector = fetched(
        cache / f"connector-{given.connector}",
        (group, "spark-sql-kafka-0-10_2.13", given.connector),
        (group, "spark-token-provider-kafka-0-10_2.13", given.token_provider),
        (kafka, "kafka-clients", given.broker),
        ("org.apache.commons", "commons-pool2", "2.12.0"),
        without=group,
    )
    brokers = fetched(cache / f"broker-{given.broker}", (kafka, "kafka_2.13", given.broker))
    title = f"Beside Spark's Kafka source: local[{CORES}], {given.records:,} records of 100 to 200 bytes"
    report = Report("spark_kafka", f"{title}, best of 3 in turns")
    with tempfile.TemporaryDirectory() as folder, broker(brokers, Path(folder)) as theirs, server(Path(folder)) as mine:
        spark = topics.spark.session(
            "bench",
            master=f"local[{CORES}]",
            conf={
                "spark.jars": ",".join(map(str, connector.glob("*.jar"))),
                "spark.driver.memory": "3g",
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": str(CORES),
            },
        )
        spark.sparkContext.setLogLevel("ERROR")
        lines = Path(folder, "lines.txt")
        lines.write_bytes(b"\n".join(payloads(1, given.records)) + b"\n")
        texts = spark.read.text(str(lines)).repartition(CORES)
        sides = Side(spark, "kafka", theirs), Side(spark, "topics", mine)
        for side in sides:
            side.write("bench", texts)
            side.write("few", texts.limit(FEW))
        compare(*sides, given.records, report)
        spark.stop()
    report.line()
    report.line(
        f"PySpark {spark.version}, connector {given.connector}, broker {given.broker}; load {os.getloadavg()[0]:.1f}"
    )
    if not given.unsaved:
        report.save()


if __name__ == "__main__":
    main()
