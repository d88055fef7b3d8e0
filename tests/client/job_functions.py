"""Functions that worker processes import by name."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from topics.client.jobs.handling import GiveUp, RetryLater
from topics.client.jobs.job_app import JobApp
from topics.model.results import Job

app = JobApp()


@app.job("counted")
def count(job: Job) -> int:
    return int(job.value) + 1


def note(job: Job) -> dict[str, int]:
    """Leaves a file named after its value, with the process that made it."""
    where = Path(job.value["dir"]) / str(job.value["n"])
    where.write_text(str(os.getpid()))
    return {"pid": os.getpid()}


def die_once(job: Job) -> None:
    if job.deliveries == 1:
        os._exit(7)
    note(job)


def sleep_once(job: Job) -> None:
    if job.deliveries == 1:
        time.sleep(60)
    note(job)


def report(job: Job) -> None:
    """Says how far it is, and ends when that was seen."""
    job.progress(0.1, "x" * 1000)
    job.progress(0.25, "a quarter")
    while not (Path(job.value["dir"]) / "seen").exists():
        time.sleep(0.01)


async def areport(job: Job) -> None:
    job.progress(0.25, "a quarter")
    while not (Path(job.value["dir"]) / "seen").exists():
        await asyncio.sleep(0.01)


def give_up(job: Job) -> None:
    raise GiveUp("no such customer")


def later(job: Job) -> None:
    raise RetryLater(3600, "the bank is closed")


def before(job: Job) -> None:
    (Path(job.value["dir"]) / f"before-{job.seq}").touch()


def after(job: Job, error: BaseException | None) -> None:
    (Path(job.value["dir"]) / f"after-{job.seq}").write_text(repr(error))


async def anote(job: Job) -> None:
    note(job)


def names(where: Path) -> list[Any]:
    return sorted(path.name for path in where.iterdir())
