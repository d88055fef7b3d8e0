"""Huey on Redis. It takes a task off the queue before the work and has no later ack, so its safest setting is that of
Redis alone. It has no call for several tasks."""

from __future__ import annotations

import os
from typing import Any

import marks
from huey import RedisHuey

huey = RedisHuey("bench", url=os.environ["BENCH_JOBS_URL"])
work = huey.task()(marks.work)


def send_one(sent: float, gate: bool) -> None:
    work(sent, gate)


def send_many(arguments: list[Any]) -> None:
    for sent, gate in arguments:
        work(sent, gate)
