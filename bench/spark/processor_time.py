"""Processor time of a Spark session: its Java process and all that this has started, Python workers too.

On a machine that others use as well, it says more than the time on the clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def processor_time(spark: Any, run: Callable[[], object]) -> float:
    """Seconds that all processes of the session spend while something runs."""
    pid: int = spark.sparkContext._gateway.proc.pid
    before = _spent(pid)
    run()
    return _spent(pid) - before


def _spent(root: int) -> float:
    """Of a process and its descendants, those included that have ended and were waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    family = {root}
    while found := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= found
    return sum(ticks[pid] for pid in family if pid in ticks) / os.sysconf("SC_CLK_TCK")
