"""A real standalone cluster on this machine, over a real S3 server, with an executor that is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.spark.cluster_job import KEY
from tests.spark.served import QUICK_JAVA, ROOT, Served
from tests.storage.tiers.s3_server import KEY as STORE_KEY
from tests.storage.tiers.s3_server import SECRET, S3Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


RECORDS = 2000
PAD = "x" * 5000


class Cluster:
    """`deploy/spark-cluster.sh` with two workers."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        given = {**os.environ, "PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": QUICK_JAVA, **environment}
        with (folder / "cluster.log").open("wb") as log:
            command = [str(ROOT / "deploy" / "spark-cluster.sh"), str(folder), "2"]
            self.process = subprocess.Popen(command, env=given, stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while not (folder / "url").exists():
            assert self.process.poll() is None, (folder / "cluster.log").read_text()
            assert time.monotonic() < deadline, "the cluster did not come up"
            time.sleep(0.1)
        self.url = (folder / "url").read_text().strip()

    def executors(self) -> list[int]:
        """Executor processes of our workers."""
        workers = (self.folder / "pids").read_text().split()[1:]
        return [pid for worker in workers for pid in children(int(worker))]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


class CountingProxy:
    """Passes connections on to a server and counts what the server sends."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.bytes += len(data) if counted else 0
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        self._listener.close()


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[S3Server]:
    store = S3Server(tmp_path / "s3")
    try:
        store.start()
    except RuntimeError as error:
        pytest.skip(f"no S3 server can be started here: {error}")
    yield store
    store.stop()


@pytest.fixture
def served(tmp_path: Path, store: S3Server) -> Iterator[Served]:
    """All but the last records are in the store, and nowhere else."""
    cold = {"cold_dir": store.uri("cold"), "hot_retain_segments": "0"}
    served = Served(tmp_path / "served", key=f"{KEY}:read+write+delete+admin", **cold)
    for first in range(0, RECORDS, 100):
        served.write("c", *({"n": n, "pad": PAD} for n in range(first, first + 100)))
    deadline = time.monotonic() + 90
    while sum(segment["tier"] == "cold" for segment in served.segments("c")["segments"]) < RECORDS // 200:
        assert time.monotonic() < deadline, "the segments did not move"
        time.sleep(0.1)
    yield served
    served.stop()


@pytest.fixture
def proxy(served: Served) -> Iterator[CountingProxy]:
    proxy = CountingProxy(served.url)
    yield proxy
    proxy.close()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Cluster]:
    """Workers, and so executors, have the keys of the store in their environment."""
    made = Cluster(tmp_path, AWS_ACCESS_KEY_ID=STORE_KEY, AWS_SECRET_ACCESS_KEY=SECRET)
    yield made
    made.stop()


def test_batch_stream_and_sink_run_on_a_cluster(
    tmp_path: Path, served: Served, proxy: CountingProxy, made: Cluster
) -> None:
    """Executors read the store themselves, where the server says it is, also after one of them was killed. The event
    log shows that an executor was lost, and that a second attempt of a task won over the first."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"JAVA_TOOL_OPTIONS": QUICK_JAVA, "AWS_EC2_METADATA_DISABLED": "true"}
    job = str(Path(__file__).with_name("cluster_job.py"))
    process = subprocess.Popen(
        [sys.executable, job, made.url, proxy.url, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    killed = kill_one_executor(made, process, tmp_path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert killed
    told = json.loads(out.splitlines()[-1])
    assert told["batch"] == list(range(1, RECORDS + 1))
    assert told["python_workers"] >= 2
    assert told["shown_in_ui"] == []
    for topic in ("streamed", "speculated", "sunk"):
        assert sorted(row[4]["n"] for row in served.rows(topic)) == list(range(RECORDS))
    read = 5 * RECORDS * len(PAD)  # counted, collected, streamed, written with a task that hangs, and sunk
    assert proxy.bytes < read / 100, f"{proxy.bytes} of {read} bytes came from the server"
    assert KEY not in out + err
    events = [path for path in (tmp_path / "events").rglob("*") if path.is_file()]
    logs = [path for path in events if not path.name.endswith(".crc") and path.stat().st_size]
    happened = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
    assert any(event["Event"] == "SparkListenerExecutorRemoved" for event in happened)
    assert any(is_speculative_success(event) for event in happened)
    for path in [*events, *tmp_path.glob("*.log"), *tmp_path.glob("worker-*/**/std*")]:
        assert KEY.encode() not in path.read_bytes(), path


def is_speculative_success(event: dict[str, Any]) -> bool:
    """A task that Spark ran beside an attempt of the same task, and that came to its end."""
    if event["Event"] != "SparkListenerTaskEnd":
        return False
    ended: bool = event["Task Info"]["Speculative"] and event["Task End Reason"]["Reason"] == "Success"
    return ended


def kill_one_executor(made: Cluster, process: subprocess.Popen[str], folder: Path) -> bool:
    """As soon as the slow sink is at work, until the driver has noticed: a process may be one that has ended already.
    Says whether it came to that."""
    deadline, tries, next_try = time.monotonic() + 300, 0, 0.0
    while time.monotonic() < deadline and process.poll() is None:
        if tries and is_noticed(folder / "events"):
            return True
        if (folder / "running").exists() and time.monotonic() >= next_try:
            found = made.executors()
            os.kill(found[tries % len(found)], signal.SIGKILL)
            tries, next_try = tries + 1, time.monotonic() + 10
        time.sleep(0.1)
    return tries > 0


def is_noticed(events: Path) -> bool:
    logs = [path for path in events.rglob("*") if path.is_file()]
    return any(b"SparkListenerExecutorRemoved" in path.read_bytes() for path in logs)
