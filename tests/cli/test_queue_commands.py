"""`topics queue` and `topics worker`: what is in a queue, who works on it, and an app that does."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Shell

pytestmark = pytest.mark.timeout(60)

APP = """
import topics
app = topics.JobApp()

@app.job("{queue}", concurrency=2)
def work(job):
    with open("done.txt", "a") as done:
        done.write(f"{word}{{job.value}}\\n")
"""


def rows(shell: Shell, *args: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shell.lines(*args, "--json")]


def test_a_queue_of_the_command_line_is_safe(shell: Shell) -> None:
    shell.run("topic", "create", "safe", "--set", "type=queue")
    config = shell.client.topic("safe").state().config
    assert (config.max_deliveries, config.dead_letter, config.retry is not None) == (20, "safe.dead", True)


def test_queues_jobs_and_workers_are_listed(shell: Shell) -> None:
    queue = shell.client.queue("look")
    queue.append(1, tag="a")
    queue.append(2, delay=60)
    queue.claim("w1")
    (row,) = rows(shell, "queue", "ls", "--prefix", "look")
    assert (row["queue"], row["ready"], row["in_flight"], row["delayed"], row["paused"]) == ("look", 0, 1, 1, False)
    assert [(job["seq"], job["state"], job["node"]) for job in rows(shell, "queue", "jobs", "look")] == [
        (1, "in_flight", "w1"),
        (2, "delayed", None),
    ]
    assert [job["seq"] for job in rows(shell, "queue", "jobs", "look", "--state", "delayed")] == [2]
    (worker,) = rows(shell, "queue", "workers", "look")
    assert (worker["node"], worker["in_flight"]) == ("w1", 1)


def test_progress_is_told_with_an_extension_and_listed(shell: Shell) -> None:
    queue = shell.client.queue("far")
    queue.append(1)
    queue.claim("w1")
    shell.run("queue", "extend", "far", "1", "--node", "w1", "--lease-ms", "60000", "--progress", "0.4")
    shell.run("queue", "extend", "far", "1", "--node", "w1", "--lease-ms", "60000")
    (job,) = rows(shell, "queue", "jobs", "far")
    assert job["progress"]["fraction"] == 0.4
    told = ["--progress", "0.5", "--progress-text", "half of it"]
    shell.run("queue", "extend", "far", "1", "--node", "w1", "--lease-ms", "60000", *told)
    assert shell.lines("queue", "jobs", "far")[0].endswith("\t50% half of it")


def test_jobs_are_retried_cancelled_and_purged_and_a_queue_paused(shell: Shell) -> None:
    queue = shell.client.queue("act")
    for _ in range(3):
        queue.append(1, delay=60)
    assert rows(shell, "queue", "retry", "act", "1")[0]["retried"] == 1
    assert rows(shell, "queue", "cancel", "act", "2", "9")[0]["skipped"] == [9]
    assert rows(shell, "queue", "pause", "act")[0]["paused"] is True
    assert queue.claim("w").claimed == []
    assert rows(shell, "queue", "resume", "act")[0]["paused"] is False
    assert "2 jobs" in shell.run("queue", "purge", "act", "--dry-run").stderr
    assert rows(shell, "queue", "purge", "act", "--yes")[0]["deleted"] == 2
    assert queue.state().count == 0


def test_looking_at_a_queue_creates_none(shell: Shell) -> None:
    shell.run("queue", "jobs", "absent", status=1)
    shell.run("queue", "pause", "absent", status=1)
    assert list(shell.client.topics("absent")) == []


def test_a_worker_runs_the_functions_of_an_app(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "shop_jobs.py").write_text(APP.format(queue="app1", word=""))
    shell.client.queue("app1").append_many([1, 2, 3])
    shell.run("worker", "shop_jobs:app", "--until-empty")
    assert sorted((tmp_path / "done.txt").read_text().split()) == ["1", "2", "3"]
    assert "no module" in shell.run("worker", "nowhere:app", status=1).stderr
    assert "has no 'other'" in shell.run("worker", "shop_jobs:other", status=1).stderr
    assert "but for app1" in shell.run("worker", "shop_jobs:app", "-q", "app2", status=2).stderr


def test_a_worker_with_reload_begins_again_when_a_file_changed(shell: Shell, tmp_path: Path) -> None:
    module, done = tmp_path / "dev_jobs.py", tmp_path / "done.txt"
    module.write_text(APP.format(queue="app3", word="old"))
    queue = shell.client.queue("app3")
    queue.append(1)
    with shell.begun("worker", "dev_jobs:app", "--reload") as child:
        wait_for(lambda: done.exists() and done.read_text() == "old1\n")
        module.write_text(APP.format(queue="app3", word="new"))
        os.utime(module, ns=(1, 1))
        wait_for(lambda: len(queue.workers()) == 2)  # the old one is still remembered
        queue.append(2)
        wait_for(lambda: "new2" in done.read_text())
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0


def wait_for(is_so: Any) -> None:
    deadline = time.monotonic() + 40
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
