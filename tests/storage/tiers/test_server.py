"""Tiers as a client and an operator see them: a server with a cold folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner
from tests.api.server import LiveServer

import topics
from topics.cli import cli

SMALL: dict[str, Any] = {
    "segment_max_events": 10,
    "hot_retain_segments": 1,
    "relocate_interval_ms": 20,
    "checkpoint_interval_ms": 20,
    "recent_cache_bytes": 1,
    "cold_io_threads": 1,
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    """Forty-five records: segments 1, 11 and 21 are cold, 31 is hot, the rest is active."""
    with LiveServer(tmp_path / "data", cold_dir=str(tmp_path / "cold"), **SMALL) as live:
        with topics.connect(f"http://127.0.0.1:{live.port}") as client:
            client.topic("t").append_many([{"n": n} for n in range(45)])
            until(lambda: metric(live, 'topics_segments{tier="cold"}') == 3, "the move")
        yield live


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.02)


def ask(server: LiveServer, path: str, body: object = None, *, timeout: float = 30) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def metric(server: LiveServer, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v0/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))


def diff(server: LiveServer, from_seq: int, limit: int = 10, **more: Any) -> tuple[int, dict[str, Any]]:
    return ask(server, "/v0/topics/t/diff", {"from_seq": from_seq, "limit": limit}, **more)


def test_the_performance_block_counts_cold_segments_only_when_the_store_was_asked(server: LiveServer) -> None:
    _, first = diff(server, 0, 20)
    _, again = diff(server, 0, 20)
    _, hot = diff(server, 30)
    assert first["performance"]["cold_segments_read"] == 2
    assert "cold_segments_read" not in again["performance"]
    assert "cold_segments_read" not in hot["performance"]
    assert [record["data"]["n"] for record in first["records"]] == list(range(20))


def test_metrics_tell_what_moved_and_whether_the_store_answers(server: LiveServer) -> None:
    assert metric(server, "topics_segments_relocated_total") == 3
    assert metric(server, "topics_relocation_bytes_total") == metric(server, 'topics_segment_bytes{tier="cold"}')
    assert metric(server, "topics_relocation_failures_total") == 0
    assert abs(metric(server, "topics_relocation_last_success_ms") / 1000 - time.time()) < 60
    assert metric(server, "topics_cold_store_up") == 1


def test_a_store_that_went_away_fails_old_reads_with_a_retryable_error_that_names_it(
    server: LiveServer, tmp_path: Path
) -> None:
    (tmp_path / "cold").rename(tmp_path / "away")
    status, body = diff(server, 0)
    assert status == 503
    assert str(tmp_path / "cold") in body["error"]["message"]
    assert metric(server, "topics_cold_store_up") == 0
    assert ["the cold store does not answer" in problem for problem in ask(server, "/v0/health")[1]["problems"]] == [
        True
    ]
    assert diff(server, 30)[0] == 200
    (tmp_path / "away").rename(tmp_path / "cold")
    until(lambda: diff(server, 0)[0] == 200, "the store coming back")
    assert "problems" not in ask(server, "/v0/health")[1]


def test_the_manifest_says_where_cold_files_are(server: LiveServer, tmp_path: Path) -> None:
    _, manifest = ask(server, "/v0/topics/t/segments")
    rows = {row["first_seq"]: row for row in manifest["segments"]}
    assert [row["tier"] for row in rows.values()] == ["cold", "cold", "cold", "hot", "hot"]
    assert rows[1]["uri"] == str(tmp_path / "cold" / "topics" / "00000001" / "seg-0000000000000001.data")
    assert Path(rows[1]["uri"]).exists()
    assert "uri" not in rows[31]
    assert rows[1]["min_ts"] <= rows[1]["max_ts"] <= rows[11]["min_ts"]


def test_tier_status_shows_each_topic_by_tier(server: LiveServer) -> None:
    done = CliRunner().invoke(cli, ["tier", "status", "--url", f"http://127.0.0.1:{server.port}", "--json"])
    assert done.exit_code == 0, done.output
    row = json.loads(done.stdout)
    assert (row["topic"], row["segments"], row["hot"], row["cold"], row["oldest_hot_seq"]) == ("t", 5, 2, 3, 31)
    assert row["bytes"] == row["hot_bytes"] + row["cold_bytes"]
    plain = CliRunner().invoke(cli, ["tier", "status", "--url", f"http://127.0.0.1:{server.port}"])
    assert plain.stdout.startswith("t\t5\t")


def test_a_cold_read_that_hangs_holds_up_nobody_else(server: LiveServer, tmp_path: Path) -> None:
    path = next((tmp_path / "cold").rglob("seg-0000000000000011.data"))
    kept = path.with_suffix(".kept")
    path.rename(kept)
    os.mkfifo(path)  # opening it waits until somebody opens the other end
    answers: list[int] = []
    stuck = Thread(target=lambda: answers.append(diff(server, 10, timeout=60)[0]))
    stuck.start()
    with topics.connect(f"http://127.0.0.1:{server.port}") as client:
        queue = client.queue("q")
        for n in range(30):
            client.topic("t").append({"n": n})
            queue.append({"job": n})
            (job,) = queue.claim("w").claimed
            queue.ack([job], node="w")
            assert diff(server, 40)[0] == 200
    assert not answers
    os.close(os.open(path, os.O_WRONLY))
    stuck.join(30)
    assert answers == [503]
    path.unlink()
    kept.rename(path)
    assert diff(server, 10)[0] == 200


def test_a_process_ends_although_a_cold_read_hangs(tmp_path: Path) -> None:
    script = tmp_path / "hang.py"
    script.write_text(HANGING)
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


HANGING = """
import os, sys, time, pathlib, threading, topics
base = pathlib.Path(sys.argv[1])
db = topics.open(str(base / "d"), cold_dir=str(base / "c"), wal_shards=1, segment_max_events=10, hot_retain_segments=0,
                 relocate_interval_ms=20, checkpoint_interval_ms=20, recent_cache_bytes=1)
topic = db.topic("t")
topic.append_many(list(range(25)))
while len(list((base / "c").rglob("*.idx"))) < 2 or list((base / "d" / "topics").rglob("*0001.data")):
    time.sleep(0.02)
path = next((base / "c").rglob("seg-0000000000000001.data"))
path.unlink()
os.mkfifo(path)
reader = threading.Thread(target=lambda: topic.page(), daemon=True)
reader.start()
time.sleep(0.3)
db.close()
print("closed")
"""
