"""A real standalone cluster on this machine: a master and two workers, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.spark.cluster_job import KEY
from tests.spark.served import QUICK_JAVA, ROOT, Served

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    def __init__(self, folder: Path) -> None:
        import pyspark

        self.folder = folder
        self.home = Path(pyspark.__file__).parent
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self._start("master.Master", "--port", str(self.port), "--webui-port", "0")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.1)
        for number in range(2):
            work = str(folder / f"worker-{number}")
            self._start("worker.Worker", "-c", "1", "-m", "600m", "--webui-port", "0", "-d", work, self.url)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def _start(self, name: str, *arguments: str) -> None:
        environment = {**os.environ, "SPARK_HOME": str(self.home), "SPARK_DAEMON_MEMORY": "256m"}
        environment["JAVA_TOOL_OPTIONS"] = QUICK_JAVA
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_MASTER_HOST": "127.0.0.1"}
        log = (self.folder / f"{name}-{len(self.processes)}.log").open("wb")
        command = [str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
        process = subprocess.Popen([*command, *arguments], env=environment, stdout=log, stderr=log)
        log.close()
        self.processes.append(process)

    def executors(self) -> list[int]:
        """Executor processes of our workers."""
        return [pid for worker in self.processes[1:] for pid in children(worker.pid)]

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


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


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.stop()


def test_batch_stream_and_sink_run_on_a_cluster(tmp_path: Path) -> None:
    served = Served(tmp_path / "served", key=f"{KEY}:read+write+delete+admin")
    try:
        served.write("c", *range(2000))
        with cluster(tmp_path) as made:
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SPARK_LOCAL_IP": "127.0.0.1"}
            environment["JAVA_TOOL_OPTIONS"] = QUICK_JAVA
            job = str(Path(__file__).with_name("cluster_job.py"))
            process = subprocess.Popen(
                [sys.executable, job, made.url, served.url, str(tmp_path)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            killed = kill_one_executor(made, process, tmp_path / "running")
            out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert killed
        told = json.loads(out.splitlines()[-1])
        assert told["batch"] == list(range(1, 2001))
        assert told["python_workers"] >= 2
        assert told["shown_in_ui"] == []
        assert sorted(row[4] for row in served.rows("streamed")) == list(range(2000))
        assert sorted(row[4] for row in served.rows("sunk")) == list(range(2000))
        assert KEY not in out + err
        events = [path for path in (tmp_path / "events").rglob("*") if path.is_file()]
        assert events
        for path in [*events, *tmp_path.glob("*.log"), *tmp_path.glob("worker-*/**/std*")]:
            assert KEY.encode() not in path.read_bytes(), path
    finally:
        served.stop()


def kill_one_executor(made: Cluster, process: subprocess.Popen[str], running: Path) -> bool:
    """As soon as the slow sink is at work. Says whether it came to that."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if running.exists():
            os.kill(made.executors()[0], signal.SIGKILL)
            return True
        time.sleep(0.05)
    return False
