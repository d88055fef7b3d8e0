"""The source through Spark's other doors, as users open them: the shell `spark-sql`, and a client of Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.served import QUICK_JAVA, ROOT, SPARK, Served

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

RECORDS = 20


@pytest.fixture(scope="module")
def orders(served: Served) -> Served:
    for n in range(RECORDS):
        served.write("orders", {"n": n}, tag="ab"[n % 2])
    return served


def environment() -> dict[str, str]:
    quick = {"JAVA_TOOL_OPTIONS": QUICK_JAVA, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable, **quick}


def spark_sql(folder: Path, statements: str) -> subprocess.CompletedProcess[str]:
    """The shell with its catalog in a folder."""
    import pyspark

    shell = Path(pyspark.__file__).parent / "bin" / "spark-sql"
    command = [str(shell), "--master", "local[2]", "--conf", "spark.ui.enabled=false", "--driver-memory", "1g"]
    command += ["--conf", "spark.sql.shuffle.partitions=2", "-e", statements]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )


def test_a_table_of_the_shell_is_there_in_the_next_one(orders: Served, tmp_path: Path) -> None:
    made = spark_sql(
        tmp_path,
        f"CREATE TABLE orders USING topics OPTIONS (url '{orders.url}', subscribe 'orders');"
        "CREATE VIEW of_b AS SELECT seq, data FROM orders WHERE tag = 'b';"
        "SELECT tag, count(*) FROM orders GROUP BY tag ORDER BY tag;",
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == ["a\t10", "b\t10"]
    orders.write("orders", {"n": RECORDS}, tag="c")
    again = spark_sql(
        tmp_path,
        "SELECT data FROM orders WHERE tag = 'c' AND seq > 5;"
        "SELECT max(seq) FROM of_b;"
        "SELECT count(*) FROM (SELECT seq FROM orders WHERE seq < 3 UNION ALL SELECT seq FROM orders WHERE seq > 19);"
        f"CREATE TABLE bad USING topics OPTIONS (url '{orders.url}', subscirbe 'orders');",
    )
    assert again.stdout.splitlines() == ['{"n": 20}', "20", "4"]
    assert again.returncode != 0
    assert "unknown option subscirbe for reading topics: did you mean subscribe?" in again.stderr


def test_a_client_of_connect_can_do_all_that_a_driver_can(orders: Served, tmp_path: Path) -> None:
    job = str(Path(__file__).with_name("connect_job.py"))
    done = subprocess.run(
        [sys.executable, job, orders.url, str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    everything = [row[0] for row in orders.rows("orders")]
    assert told["session"].startswith("pyspark.sql.connect")
    assert told["filtered"] == [1, 3, 5, 7, 9]
    assert told["union"] == [1, 2, *everything[18:]]
    assert told["narrowed"] == [2, 4, 6]
    assert (told["sql"], told["joined"]) == (10, 10)
    assert told["streamed"] == everything
    assert len(orders.rows("copies")) == len(everything)
    assert "did you mean subscribe?" in told["refused"]
    # Before 4.2 an AvailableNow run does not ask again after its last batch, so its cursor stays one batch behind.
    done_to = everything[-1] if SPARK >= (4, 2) else 0
    assert orders.call("GET", "/v0/topics/orders/cursors/connect")["seq"] == done_to
