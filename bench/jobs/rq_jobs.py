"""RQ on Redis. Its default worker forks for each job."""

from __future__ import annotations

import os
from typing import Any

import marks
from redis import Redis
from rq import Queue

queue = Queue("bench", connection=Redis.from_url(os.environ["BENCH_JOBS_URL"]))


def send_one(sent: float, gate: bool) -> None:
    queue.enqueue(marks.work, sent, gate)


def send_many(arguments: list[Any]) -> None:
    for at in range(0, len(arguments), 1000):
        queue.enqueue_many([Queue.prepare_data(marks.work, one) for one in arguments[at : at + 1000]])
