"""A real server process for tests, the few calls they make to it, and verbs of the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Short runs on few cores: no time to pay back what an optimising compiler takes."""


try:
    from pyspark import __version__ as _version

    SPARK = tuple(int(part) for part in _version.split(".")[:2])
except ImportError:
    SPARK = (0, 0)
"""Major and minor version of PySpark."""


def limited(count: int) -> dict[str, str]:
    """A limit for the batches of a stream, where this PySpark has one."""
    return {"maxOffsetsPerTrigger": str(count)} if SPARK >= (4, 2) else {}


class Served:
    """`topics serve` on a free port; `stop` ends it cleanly, `kill` does not."""

    def __init__(self, path: Path, *, key: str | None = None, **settings: str) -> None:
        self.path = path
        self.key = key
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.start()

    @property
    def data_dir(self) -> str:
        return str(self.path / "data")

    def start(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        port_file = self.path / "port"
        port_file.unlink(missing_ok=True)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")},
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONDONTWRITEBYTECODE": "",  # a second start compiles nothing
            "PYTHONPYCACHEPREFIX": str(self.path / "pyc"),
            "TOPICS_DATA_DIR": self.data_dir,
            "TOPICS_PORT": self.url.rpartition(":")[2] or "0",
            "TOPICS_PORT_FILE": str(port_file),
            "TOPICS_LOG": "warn",
            "TOPICS_SEGMENT_MAX_EVENTS": "200",
            "TOPICS_WAL_FILE_BYTES": str(1 << 20),
            "TOPICS_CHECKPOINT_INTERVAL_MS": "300",
            "TOPICS_RELOCATE_INTERVAL_MS": "300",
            **({"TOPICS_API_KEYS": self.key} if self.key else {}),
            **{f"TOPICS_{name.upper()}": value for name, value in self.settings.items()},
        }
        log = (self.path / "log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "topics.cli", "serve"], env=environment, stderr=log, stdout=log
        )
        log.close()
        self._wait_until_ready(port_file)

    def _wait_until_ready(self, port_file: Path) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, (self.path / "log").read_text()
            told = port_file.read_text().strip() if port_file.exists() else ""
            if told:
                self.url = f"http://{told}"
                try:
                    urllib.request.urlopen(f"{self.url}/readyz", timeout=5).close()
                    return
                except (urllib.error.URLError, ConnectionError):
                    pass
            time.sleep(0.02)
        raise AssertionError("the server did not become ready")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)
            self.process = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    # --- calls --------------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key.partition(':')[0]}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read())

    def put(self, topic: str, **config: Any) -> None:
        self.call("PUT", f"/v0/topics/{topic}", config)

    def drop(self, topic: str) -> None:
        self.call("DELETE", f"/v0/topics/{topic}")

    def write(self, topic: str, *values: Any, **shared: Any) -> None:
        self.call("POST", f"/v0/topics/{topic}", {"records": [{"data": value, **shared} for value in values]})

    def delete(self, topic: str, **selector: Any) -> None:
        self.call("POST", f"/v0/topics/{topic}/delete", selector)

    def segments(self, topic: str) -> Any:
        return self.call("GET", f"/v0/topics/{topic}/segments")

    def rows(self, topic: str) -> list[tuple[int, int, str | None, str | None, Any, Any]]:
        """A full diff: seq, ts, node, tag, data, meta."""
        rows = []
        cursor, caught_up = 0, False
        while not caught_up:
            answer = self.call(
                "POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000, "include_tags": True}
            )
            rows += [
                (r["$seq"], r["$ts"], r.get("$node"), r.get("$tag"), r["data"], r.get("meta"))
                for r in answer["records"]
            ]
            cursor, caught_up = answer["next_from_seq"], answer["caught_up"]
        return rows

    def wait_sealed(self, topic: str, count: int) -> None:
        """Until so many segments of the topic are sealed."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if sum(segment["state"] == "sealed" for segment in self.segments(topic)["segments"]) >= count:
                return
            time.sleep(0.05)
        raise AssertionError(f"{topic} did not seal {count} segments")


def run_cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A `topics` verb as users run it."""
    given = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    command = [sys.executable, "-m", "topics.cli", *arguments]
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=400, check=False)
