"""Readiness, and what a client is told, while the log takes no writes."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.client import Client
from tests.api.server import LiveServer

import topics
from topics.errors import DiskFull
from topics.storage.osfs import OsFs
from topics.testing.faultfs import FOREVER, FaultFs

WAL = "*/wal-*.log"


@pytest.fixture
def disk() -> FaultFs:
    return FaultFs(OsFs(), record=False)


@pytest.fixture
def server(tmp_path: Path, disk: FaultFs) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "data", fs=disk) as live:
        yield live


def eventually_ready(client: Client) -> None:
    for _ in range(600):
        if client.raw("GET", "/readyz").status_code == 200:
            return
        time.sleep(0.05)
    raise AssertionError("it never became ready again")


@pytest.mark.parametrize("cause", ["no_space", "sync", "write"])
def test_a_server_whose_log_takes_no_writes_is_alive_and_not_ready(
    client: Client, topic: str, disk: FaultFs, cause: str
) -> None:
    client.put(topic, durability="fsync")
    assert client.raw("GET", "/readyz").status_code == 200
    kind, code = {
        "no_space": ("pwrite", errno.ENOSPC),
        "sync": ("datasync", errno.EIO),
        "write": ("pwrite", errno.EIO),
    }[cause]
    disk.fail(kind, WAL, code=code, times=FOREVER)  # type: ignore[arg-type]
    refused = client.send("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})
    assert refused.status_code == (503 if cause == "no_space" else 500)
    for path in ("/readyz", "/v0/ready"):
        response = client.raw("GET", path)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        error = response.json()["error"]
        assert error["code"] == "not_ready"
        assert error["detail"]["replay_progress"] == 1.0
        assert error["detail"]["problems"] == client.raw("GET", "/healthz").json()["problems"]
        assert error["message"] == error["detail"]["problems"][0]
        assert cause in error["message"]
    assert client.raw("GET", "/healthz").status_code == 200
    metrics = client.raw("GET", "/v0/metrics", headers={"accept": "application/json"}).json()
    assert metrics["ready"] is False
    assert "\ntopics_ready 0\n" in client.raw("GET", "/v0/metrics").text
    assert client.raw("GET", f"/v0/topics/{topic}").status_code == 200, "reads go on"
    disk.clear()


def test_a_full_disk_is_told_as_such_and_the_server_is_ready_again_when_there_is_space(
    client: Client, topic: str, disk: FaultFs
) -> None:
    client.put(topic, durability="fsync")
    disk.fail("pwrite", WAL, code=errno.ENOSPC, times=FOREVER)
    for _ in range(2):  # the write that met it, and one that is refused at once
        response = client.send("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"]["code"] == "disk_full"
    disk.clear()
    eventually_ready(client)
    assert client.write(topic, 2)["first_seq"] == 1


def test_a_client_gets_an_exception_of_its_own_for_a_full_disk(server: LiveServer, disk: FaultFs, topic: str) -> None:
    with topics.connect(f"http://127.0.0.1:{server.port}", retry_s=0) as client:
        made = client.topic(topic, durability="fsync")
        made.append(1)
        disk.fail("pwrite", WAL, code=errno.ENOSPC, times=FOREVER)
        with pytest.raises(DiskFull, match="disk is full"):
            made.append(2)
    disk.clear()


def test_a_server_whose_directory_was_deleted_is_not_ready_and_says_why(
    client: Client, server: LiveServer, topic: str
) -> None:
    client.put(topic, durability="fsync")
    shutil.rmtree(server.settings.data_dir)
    assert client.send("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}).status_code == 500
    response = client.raw("GET", "/readyz")
    assert response.status_code == 503
    assert "deleted, moved or replaced" in response.json()["error"]["message"]
