"""The files of `deploy/`, as far as they can be tried without a container engine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.api.server import LiveServer

import topics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "topics.service"
    text = (DEPLOY / "topics.service").read_text()
    assert "ExecStart=/opt/topics/bin/topics serve" in text
    unit.write_text(text.replace("/opt/topics/bin/topics", sys.executable))  # it has to exist
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert "topics.service" not in done.stderr, done.stderr


def test_the_dashboard_asks_for_what_the_server_measures(tmp_path: Path) -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/topics.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for it in panel["targets"]
        for name in re.findall(r"topics_\w+", it["expr"])
    }
    with LiveServer(tmp_path) as live:
        url = f"http://127.0.0.1:{live.port}"
        with topics.connect(url) as client:
            client.queue("jobs").append(1)
            client.topic("a").append(1)
            client.router("r").put(source="a", dest="b")
        urllib.request.urlopen(
            url + "/metrics", timeout=10
        ).close()  # asks for the free space, which the next one shows
        with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
            measured = {re.split(r"[ {]", line)[0] for line in answer.read().decode().splitlines()}
    assert len(asked) > 10
    assert asked <= measured


def test_the_image_is_built_from_files_that_are_sent_to_the_builder() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert names == sent
    assert all((ROOT / name).exists() for name in names)


def test_compose_mounts_files_that_are_there() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    mounted = set(re.findall(r"- (\./\S+?):", text)) - {"./prometheus.key"}  # the operator's own
    assert len(mounted) == 4
    assert all((DEPLOY / name).exists() for name in mounted)
