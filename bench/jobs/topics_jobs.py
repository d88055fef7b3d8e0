"""topics: a `JobApp` on a server process."""

from __future__ import annotations

import os
from typing import Any

import marks

import topics

app = topics.JobApp(os.environ["BENCH_JOBS_URL"])
SAFE = bool(os.environ.get("BENCH_JOBS_SAFE"))


@app.job("bench", config={"durability": "fsync" if SAFE else "disk"})
def work(job: topics.Job) -> None:
    marks.work(*job.value)


def send_one(sent: float, gate: bool) -> None:
    work.append([sent, gate])


def send_many(arguments: list[Any]) -> None:
    for at in range(0, len(arguments), 1000):
        work.queue.append_many(arguments[at : at + 1000])
