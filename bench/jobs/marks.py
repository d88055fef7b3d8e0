"""Marks: what every job of `bench_jobs.py` does, whatever system runs it.

A job leaves eight bytes in a file that all workers of a run share: the seconds since it was sent. So the size of the
file says how many jobs were begun, alike for all systems. A job that is a gate waits for a file first: gates keep every
worker busy while the queue is filled."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from pathlib import Path

MARK = struct.Struct("d")
ROOM = Path(os.environ["BENCH_JOBS_ROOM"])
GATE = ROOM / "gate"
_file = os.open(ROOM / "marks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


def leave_mark(sent: float) -> None:
    os.write(_file, MARK.pack(time.time() - sent))


def work(sent: float, gate: bool) -> None:
    leave_mark(sent)
    while gate and not GATE.exists():
        time.sleep(0.002)


async def work_async(sent: float, gate: bool) -> None:
    leave_mark(sent)
    while gate and not GATE.exists():
        await asyncio.sleep(0.002)


def mark_count() -> int:
    return (ROOM / "marks").stat().st_size // MARK.size


def last_marks(count: int) -> list[float]:
    data = (ROOM / "marks").read_bytes()[-count * MARK.size :]
    return [value for (value,) in MARK.iter_unpack(data)]
