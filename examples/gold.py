"""Prints the gold tables of a pipeline that ran, and with a server's address writes them back to topics, which its
console draws: `python examples/gold.py DIR [URL]`. The tables are Parquet files."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import topics
from topics.spark.jobs.project import GOLD_TABLES

ROWS_MAX = 12


def table_folder(folder: Path, name: str) -> Path:
    """Where Spark put a table: in the warehouse it was given, or in its default one."""
    places = [folder / warehouse / name for warehouse in ("warehouse", "spark-warehouse")]
    return next((place for place in places if place.is_dir()), places[0])


def show(folder: Path, name: str) -> None:
    rows = pq.read_table(table_folder(folder, name))
    order = [(column, "descending" if "minute" in column else "ascending") for column in rows.column_names[:2]]
    rows = rows.take(pc.sort_indices(rows, sort_keys=order)).slice(0, ROWS_MAX)
    table = Table(*rows.column_names, title=name, box=None)
    for row in rows.to_pylist():
        table.add_row(*(f"{value:,.1f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)


def events(folder: Path, name: str) -> list[topics.Event]:
    """One event for each row; `_batch` tells one writing of the table from the next."""
    batch = int(time.time() * 1000)
    rows = pq.read_table(table_folder(folder, name)).to_pylist()
    plain = [{key: str(value) if isinstance(value, datetime) else value for key, value in row.items()} for row in rows]
    return [topics.Event({**row, "_batch": batch}) for row in plain]


def main() -> None:
    folder = Path(sys.argv[1])
    for name in GOLD_TABLES:
        show(folder, name)
    if len(sys.argv) > 2:
        with topics.connect(sys.argv[2]) as server:
            for name in GOLD_TABLES:
                server.topic(name.replace("_", ".", 1)).append_many(events(folder, name))


if __name__ == "__main__":
    main()
