"""Procrastinate on PostgreSQL, whose default (a commit is synced before it is answered) is the safest setting too.

The function is a coroutine: others share a pool of threads that is smaller than eight on a small machine."""

from __future__ import annotations

import os
from typing import Any

import marks
from procrastinate import App, SyncPsycopgConnector
from procrastinate.psycopg_connector import PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=os.environ["BENCH_JOBS_URL"]), import_paths=["procrastinate_jobs"])
work = app.task(name="work")(marks.work_async)
_sender = App(connector=SyncPsycopgConnector(conninfo=os.environ["BENCH_JOBS_URL"]))
_send = _sender.task(name="work")(marks.work_async)


def open_queue() -> None:
    _sender.open()
    _sender.schema_manager.apply_schema()


def send_one(sent: float, gate: bool) -> None:
    _send.defer(sent=sent, gate=gate)


def send_many(arguments: list[Any]) -> None:
    for at in range(0, len(arguments), 1000):
        _send.batch_defer(*({"sent": sent, "gate": gate} for sent, gate in arguments[at : at + 1000]))
