"""Dramatiq on Redis. It acks after the work by default. A group sends its messages one after the other."""

from __future__ import annotations

import os
from typing import Any

import dramatiq
import marks
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_JOBS_URL"]))
work = dramatiq.actor(marks.work)


def send_one(sent: float, gate: bool) -> None:
    work.send(sent, gate)


def send_many(arguments: list[Any]) -> None:
    dramatiq.group([work.message(sent, gate) for sent, gate in arguments]).run()
