"""The template project runs with Spark's own pipelines, and its second run adds what is new."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.spark.served import QUICK_JAVA, run_cli
from tests.spark.world import World

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(500)]


def rows(folder: Path, table: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pq.read_table(folder / "warehouse" / table).to_pylist()
    return found


def test_bronze_silver_and_gold(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    for n in range(40):
        world.write("orders", {"type": "order", "user": f"u{n % 7}", "amount": n}, tag="eu" if n % 2 else "us")
    world.write("orders", {"type": "order", "amount": "much"}, "no event", tag="eu")
    world.stop()
    project = tmp_path / "shop"
    made = run_cli("pipeline", "init", str(project), "--path", world.data_dir, "--topic", "orders*")
    assert made.returncode == 0, made.stderr
    ran = run_cli("pipeline", "run", str(project), "--master", "local[2]", JAVA_TOOL_OPTIONS=QUICK_JAVA)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(rows(project, "bronze")) == 42
    assert len(rows(project, "silver")) == 40
    assert {row["data"] for row in rows(project, "quarantine")} == {'{"type": "order", "amount": "much"}', '"no event"'}
    (topic,) = rows(project, "gold_topics")
    assert (topic["topic"], topic["records"], topic["malformed"]) == ("orders", 42, 2)
    minutes = rows(project, "gold_by_minute")
    assert {row["tag"]: row["events"] for row in minutes} == {"eu": 20, "us": 20}
