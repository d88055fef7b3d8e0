"""Dashboard and alert rules of `deploy/` against a real Prometheus that scrapes a real server."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]
from tests.api.server import LiveServer

import topics

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
PANELS = json.loads((DEPLOY / "grafana/dashboards/topics.json").read_text())["panels"]
QUERIES = {target["expr"]: panel["title"] for panel in PANELS for target in panel["targets"]}

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Prometheus is not installed: scripts/system-packages.sh prometheus installs it",
)


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **query: str) -> Any:
        answer = httpx.get(f"{self._url}/api/v1/{path}", params=query, timeout=10).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def names(self) -> set[str]:
        return set(self.get("label/__name__/values"))


def eventually(found: Any, *, within_s: float = 30) -> Any:
    """What `found` gives once it is true; Prometheus scrapes and evaluates in its own time."""
    until = time.monotonic() + within_s
    while True:
        try:
            value = found()
        except httpx.TransportError:
            value = None
        if value:
            return value
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    data_dir = tmp_path_factory.mktemp("data")
    with LiveServer(data_dir, cold_dir=str(data_dir / "cold"), api_keys="ops,scraper:read") as live:
        yield live


@pytest.fixture(scope="module")
def prometheus(live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """With the files of `deploy/`, but quicker: it scrapes ten times a second, and no alert waits."""
    home = tmp_path_factory.mktemp("prometheus")
    (home / "topics.key").write_text("scraper")
    config = (DEPLOY / "prometheus.yml").read_text()
    config = re.sub(r"_interval: 5s", "_interval: 100ms", config)
    config = config.replace("/etc/prometheus/", f"{home}/").replace("topics:4000", f"127.0.0.1:{live.port}")
    (home / "prometheus.yml").write_text(config)
    (home / "alerts.yml").write_text(re.sub(r" for: \w+", " for: 0s", (DEPLOY / "alerts.yml").read_text()))
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    arguments = [f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data"]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            ["prometheus", *arguments, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        work(live)
        eventually(lambda: prometheus.query('up{job="topics"} == 1'))
        eventually(lambda: prometheus.query("changes(topics_wal_frames_total[1m]) >= 0"))
        yield prometheus
    finally:
        process.terminate()
        process.wait(20)


def work(live: LiveServer) -> None:
    """Something to see on every panel."""
    with topics.connect(f"http://127.0.0.1:{live.port}", api_key="ops") as db:
        db.queue("jobs").append(1)
        db.topic("a").append(1)
        db.router("r").put(source="a", dest="b")
        db.topic("a").append(2)


def test_promtool_takes_the_rules_and_the_configuration(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "alerts.yml"):
        (tmp_path / name).write_text((DEPLOY / name).read_text().replace("/etc/prometheus/", f"{tmp_path}/"))
    (tmp_path / "topics.key").write_text("k")
    for what in (["rules", str(tmp_path / "alerts.yml")], ["config", str(tmp_path / "prometheus.yml")]):
        done = subprocess.run(["promtool", "check", *what], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_panel_shows_something(prometheus: Prometheus) -> None:
    empty = [title for query, title in QUERIES.items() if not eventually(lambda q=query: prometheus.query(q))]
    assert len(QUERIES) > 15
    assert not empty


def test_prometheus_knows_every_series_that_an_alert_asks_for(prometheus: Prometheus) -> None:
    known = prometheus.names()
    for rule in RULES:
        prometheus.query(rule["expr"])
        # A family of log groups that take no writes has samples only while one does not.
        asked = set(re.findall(r"\b(?:topics|process)_\w+", rule["expr"])) - {"topics_wal_group_read_only"}
        assert asked <= known, rule["alert"]


def test_the_rules_are_loaded_and_only_the_one_that_should_fires(prometheus: Prometheus, live: LiveServer) -> None:
    (group,) = prometheus.get("rules")["groups"]
    assert [rule["name"] for rule in group["rules"]] == [rule["alert"] for rule in RULES]
    headers = {"authorization": "Bearer ops"}
    httpx.post(f"http://127.0.0.1:{live.port}/v0/topics/jobs/pause", headers=headers).raise_for_status()

    def paused() -> list[dict[str, Any]]:
        alerts = prometheus.get("alerts")["alerts"]
        return [it for it in alerts if it["labels"]["alertname"] == "TopicsQueuePaused" and it["state"] == "firing"]

    (alert,) = eventually(paused)
    assert alert["annotations"]["summary"] == "queue jobs has been paused for an hour"
    others = {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]} - {"TopicsQueuePaused"}
    assert not others - {
        "TopicsSlowSyncs",
        "TopicsSlowWrites",
        "TopicsSlowDelivery",
        "TopicsPressure",
    }  # a busy machine
