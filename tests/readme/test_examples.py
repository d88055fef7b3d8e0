"""Every example runs, as its first lines say, and does what it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.api.server import LiveServer

import topics
from topics import Event
from topics.spark.jobs.project import GOLD_TABLES

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LiveServer(tmp_path_factory.mktemp("data")) as live:
        yield f"http://127.0.0.1:{live.port}"


def run(name: str, *args: str, cwd: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *args],
        cwd=cwd,
        env={**environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_shop_writes_events(url: str, tmp_path: Path) -> None:
    assert "150 events written" in run("shop.py", url, "--seconds", "0", cwd=tmp_path)


def test_the_staff_of_the_shop_does_its_jobs_and_reads_its_orders(url: str, tmp_path: Path) -> None:
    run("shop.py", url, "--seconds", "0", cwd=tmp_path)
    run("shop_staff.py", url, "--seconds", "1", cwd=tmp_path)
    with topics.connect(url) as client:
        assert client.topic("shop.jobs.done").state().count > 0
        readers = {cursor.cursor for cursor in client.cursors("shop.orders")}
        assert {"billing", "warehouse"} <= readers


def test_the_tour_does_not_write_to_somebody_elses_server(url: str, tmp_path: Path) -> None:
    with topics.connect(url) as client:
        before = [summary.topic for summary in client.topics()]
        port = url.rsplit(":", 1)[1]
        environ = {**os.environ, "TOPICS_PORT": port, "RUN_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run([ROOT / "scripts" / "run.sh"], env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "Address already in use" in done.stderr
        assert "the server did not start" in done.stderr
        assert [summary.topic for summary in client.topics()] == before


def test_a_log_is_imported(url: str, tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text("GET /a\nPOST /b\n")
    assert run("import_log.py", url, "access.log", cwd=tmp_path).startswith("2 lines")
    assert run("import_log.py", url, cwd=tmp_path).endswith(" 0 refused\n")
    with topics.connect(url) as client:
        assert client.topic("access").state().count == 20_002


def test_a_projection_goes_on_where_it_was(url: str, tmp_path: Path) -> None:
    with topics.connect(url) as client:
        orders = client.topic("projected", cap_records=3)
        orders.append_many([Event({"total": 1.5}, tag="a"), Event({"total": 2}, tag="b")])
        assert "up to record 2: {'a': 1.5, 'b': 2.0}" in run("projection.py", url, "projected", "--once", cwd=tmp_path)
        orders.append({"total": 4}, tag="a")
        assert "up to record 3: {'a': 5.5, 'b': 2.0}" in run("projection.py", url, "projected", "--once", cwd=tmp_path)
        for _ in range(5):
            orders.append({"total": 1}, tag="c")
        told = run("projection.py", url, "projected", "--once", cwd=tmp_path)
        assert "records 4..5 are gone (cap)" in told
        assert "up to record 8: {'a': 5.5, 'b': 2.0, 'c': 3.0}" in told


def test_a_worker_sends_mails_and_buries_what_cannot_be_sent(url: str, tmp_path: Path) -> None:
    assert run("mail_worker.py", url, "--once", cwd=tmp_path) == "20 sent, 1 in mails.example.dead\n"


def test_people_chat(url: str, tmp_path: Path) -> None:
    said = run("async_chat.py", url, cwd=tmp_path)
    assert re.findall(r"(\w+) heard 6 lines", said) == ["ada", "bob", "eve"]


def test_a_journal_is_embedded(tmp_path: Path) -> None:
    assert run("embedded_audit.py", "data", cwd=tmp_path) == (
        "3 entries in the journal, alarms: [{'sensor': 7, 'temperature': 91}]\n"
    )
    assert run("embedded_audit.py", "data", cwd=tmp_path).startswith("6 entries")


def test_gold_tables_are_printed(tmp_path: Path) -> None:
    for name in GOLD_TABLES:
        (tmp_path / "spark-warehouse" / name).mkdir(parents=True)
        rows = pa.table({"topic": ["shop.orders"], "minute": ["12:00"], "average": [1234.56]})
        pq.write_table(rows, tmp_path / "spark-warehouse" / name / "part-0.parquet")
    said = run("gold.py", str(tmp_path), cwd=tmp_path)
    assert all(name in said for name in GOLD_TABLES)
    assert said.count("1,234.6") == len(GOLD_TABLES)


@pytest.mark.spark
def test_what_became_of_jobs_is_shown_by_tag(url: str, tmp_path: Path) -> None:
    with topics.connect(url) as client:
        jobs = client.queue("timed", done="timed.done", max_deliveries=3)
        jobs.append_many([Event(1, tag="a"), Event(2, tag="a"), Event(3, tag="b")])
        claimed = jobs.claim("n", max=3).claimed
        jobs.ack(claimed[:2], node="n")
        jobs.nack(claimed[2:], node="n", error="no", final=True)
    rows = [line.split("|")[1:6] for line in run("job_times.py", url, "timed.done", cwd=tmp_path).splitlines()]
    told = {tuple(cell.strip() for cell in row) for row in rows if row and row[0].strip() == "timed"}
    assert told == {("timed", "a", "2", "0", "0"), ("timed", "b", "1", "1", "0")}  # queue, tag, jobs, failed, cancelled


def test_no_example_is_left_out() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    for example in EXAMPLES.glob("*.py"):
        assert f'run("{example.name}"' in here, example.name


def test_a_projection_ends_with_ctrl_c(url: str, tmp_path: Path) -> None:
    with topics.connect(url) as client:
        client.topic("interrupted").append({"total": 3}, tag="a")
    child = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "projection.py"), url, "interrupted"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with child:
        while not (tmp_path / "totals.json").exists() and child.poll() is None:
            pass
        child.send_signal(signal.SIGINT)
        said, wrong = child.communicate(timeout=30)
    assert (said, wrong) == ("up to record 1: {'a': 3.0}\n", "")
