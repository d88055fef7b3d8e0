"""arq on Redis. It has no call for several jobs, so many are 50 calls under way at a time."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import marks
from arq import create_pool
from arq.connections import ArqRedis, RedisSettings

AT_ONCE = 50
_loop = asyncio.new_event_loop()
_pool: ArqRedis


async def work(context: Any, sent: float, gate: bool) -> None:
    await marks.work_async(sent, gate)


class WorkerSettings:
    functions = (work,)
    redis_settings = RedisSettings.from_dsn(os.environ["BENCH_JOBS_URL"])
    max_jobs = int(os.environ.get("BENCH_JOBS_WORKERS", "8"))


def open_queue() -> None:
    global _pool
    _pool = _loop.run_until_complete(create_pool(WorkerSettings.redis_settings))


def send_one(sent: float, gate: bool) -> None:
    _loop.run_until_complete(_pool.enqueue_job("work", sent, gate))


def send_many(arguments: list[Any]) -> None:
    async def send() -> None:
        for at in range(0, len(arguments), AT_ONCE):
            await asyncio.gather(*(_pool.enqueue_job("work", *one) for one in arguments[at : at + AT_ONCE]))

    _loop.run_until_complete(send())
