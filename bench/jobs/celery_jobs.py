"""Celery on Redis. Safe: `task_acks_late` and `task_reject_on_worker_lost`. It has no call for several tasks that
sends them together, so many are one after the other."""

from __future__ import annotations

import os
from typing import Any

import marks
from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_JOBS_URL"])
if os.environ.get("BENCH_JOBS_SAFE"):
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
work = app.task(marks.work, name="work")


def send_one(sent: float, gate: bool) -> None:
    work.delay(sent, gate)


def send_many(arguments: list[Any]) -> None:
    for sent, gate in arguments:
        work.delay(sent, gate)
