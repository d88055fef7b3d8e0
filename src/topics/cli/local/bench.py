"""`topics bench`: how fast this machine appends and reads, embedded or against a server. Cleans up behind itself."""

from __future__ import annotations

import math
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from topics.cli.remote import show_rows, table_options
from topics.client import Client, connect
from topics.client.blocking_handles import BlockingTopic
from topics.config import client_settings_from
from topics.model.config import Durability

if TYPE_CHECKING:
    from topics.embedded import Database

READ_LIMIT = 1000
COLUMNS = ("what", "records", "records_per_s", "mb_per_s", "p50_us", "p99_us")


class Measured(msgspec.Struct, frozen=True):
    """`spans` are seconds of single calls, in order; `each` is how many records one call carries."""

    what: str
    each: float
    spans: list[float]
    took_s: float

    def row(self, size: int) -> tuple[Any, ...]:
        records = round(self.each * len(self.spans))
        per_s = records / self.took_s
        ordered = sorted(self.spans)
        p50, p99 = (round(ordered[len(ordered) * part // 100] * 1e6, 1) for part in (50, 99))
        return self.what, records, round(per_s), round(per_s * size / 1e6, 2), p50, p99


@click.command()
@click.option("--url", metavar="URL", help="Measure this server; without it, an embedded database.")
@click.option("--api-key", metavar="KEY", help="Bearer key of the server.  [env: TOPICS_API_KEY]")
@click.option("--path", metavar="DIR", type=click.Path(file_okay=False), help="Directory for the embedded database.")
@click.option("--seconds", default=2.0, show_default=True, type=click.FloatRange(min=0.01), help="For each row.")
@click.option("--size", default=100, show_default=True, type=click.IntRange(2, 1_000_000), help="Bytes of a payload.")
@click.option("--batch", default=1000, show_default=True, type=click.IntRange(1, 10_000), help="Records of a batch.")
@click.option(
    "--durability",
    default="disk",
    show_default=True,
    type=click.Choice(["ephemeral", "memory", "disk", "fsync"]),
    help="Class of the topics that are written.",
)
@table_options
def bench(
    *,
    url: str | None,
    api_key: str | None,
    path: str | None,
    seconds: float,
    size: int,
    batch: int,
    durability: Durability,
    as_json: bool,
) -> None:
    """Measure single appends, batches and reads.

    \b
    topics bench
    topics bench --durability fsync --seconds 5
    topics bench --url http://127.0.0.1:4000 --batch 100 --json

    Embedded, the database is a temporary one in DIR. Against a server, the topics are removed afterwards.
    """
    if not math.isfinite(seconds):
        raise click.BadParameter("a number of seconds", param_hint="--seconds")
    if url is not None and path is not None:
        raise click.UsageError("give one of --url (a running server) and --path (where an embedded database may be)")
    with _door(url, api_key, path) as door:
        rows = (row.row(size) for row in _measure(door, seconds=seconds, size=size, batch=batch, durability=durability))
        show_rows(COLUMNS, _told(rows), as_json=as_json)


@contextmanager
def _door(url: str | None, api_key: str | None, path: str | None) -> Iterator[Client | Database]:
    if url is not None:
        with connect(url, api_key or client_settings_from(os.environ).settings.api_key, retry_s=2.0) as client:
            yield client
        return
    from topics.embedded import open_database

    if path is not None:
        os.makedirs(path, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=path) as folder, open_database(folder) as database:
        yield database


def _told(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """A line on a terminal while a row is being measured, so that nobody thinks it hangs."""
    if not sys.stderr.isatty():
        yield from rows
        return
    from rich.console import Console

    with Console(stderr=True).status("measuring") as status:
        for row in rows:
            status.update(f"measuring; {row[0]}: {row[2]:,} records/s")
            yield row


def _measure(
    door: Client | Database, *, seconds: float, size: int, batch: int, durability: Durability
) -> Iterator[Measured]:
    payload = "x" * (size - 2)  # with its quotes
    name = f"bench.{secrets.token_hex(4)}"
    single, many = (door.topic(f"{name}.{part}") for part in ("single", "batch"))
    try:
        for topic in (single, many):
            topic.configure(durability=durability)
        yield _repeated("append, one at a time", 1, seconds, lambda: single.append(payload))
        records = [payload] * batch
        yield _repeated(f"append, {batch} at a time", batch, seconds, lambda: many.append_many(records))
        if isinstance(door, Client):
            yield _produced(door, f"{name}.batch", payload, seconds)
        yield _read(many, seconds)
    finally:
        for topic in (single, many):
            topic.drop()


def _repeated(what: str, each: int, seconds: float, step: Callable[[], object]) -> Measured:
    spans: list[float] = []
    start = now = time.perf_counter()
    while now - start < seconds:
        step()
        spans.append(-now + (now := time.perf_counter()))
    return Measured(what, each, spans, now - start)


def _produced(client: Client, name: str, payload: str, seconds: float) -> Measured:
    """Through the batching producer, from `append` to the delivery report."""
    spans: list[float] = []
    start = time.perf_counter()
    with client.topic(name).producer() as producer:
        while time.perf_counter() - start < seconds:
            for _ in range(100):
                at = time.perf_counter()
                producer.append(payload, report=lambda _, at=at: spans.append(time.perf_counter() - at))  # type: ignore[misc]
    return Measured("append, batching producer", 1, spans, time.perf_counter() - start)


def _read(topic: BlockingTopic, seconds: float) -> Measured:
    """Pages from the start, round and round."""
    spans: list[float] = []
    count, cursor = 0, 0
    start = now = time.perf_counter()
    while now - start < seconds:
        page = topic.page(cursor, limit=READ_LIMIT)
        spans.append(-now + (now := time.perf_counter()))
        count += len(page.records)
        cursor = 0 if page.caught_up else page.next_from_seq
    return Measured(f"read, {READ_LIMIT} at a time", count / len(spans), spans, now - start)
