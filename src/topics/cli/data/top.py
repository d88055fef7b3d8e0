"""`topics top`: what a server does right now, as a page that refreshes itself, once, or as JSON lines.

Everything comes from the endpoints that any client may use; rates are the differences of two looks."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from topics.cli.remote import echo_json, harmless, has_colour, json_option, server_options
from topics.client import Client
from topics.model.results import CursorState, QueueCounters, TopicSummary

if TYPE_CHECKING:
    from rich.console import Group

WAL_RATES = {"frames": "frames", "bytes_written": "bytes", "batches": "commits", "fsyncs": "syncs"}


class Glance(msgspec.Struct, frozen=True):
    """What a server said at one moment."""

    at_s: float
    health: dict[str, Any]
    metrics: dict[str, Any]
    topics: list[TopicSummary]
    queues: dict[str, QueueCounters]
    readers: list[CursorState]


@click.command()
@click.option("--prefix", default="", help="Only topics whose names begin so.")
@click.option("--rows", type=click.IntRange(1, 1000), default=15, show_default=True, help="Rows of each table.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Look for one interval, show it, and end.")
@json_option
@server_options
def top(client: Client, *, prefix: str, rows: int, interval: float, once: bool, as_json: bool) -> None:
    """Rates, topics, queues and the lag of readers, live; q or Ctrl-C ends it.

    \b
    topics top
    topics top --prefix orders --interval 1
    topics top --once --json

    Topics come by what is written to them, queues by ready jobs, readers by how far they are behind.
    """
    looks = _looks(client, prefix=prefix, rows=rows)
    before = next(looks)
    if as_json or once or not sys.stdout.isatty():
        while True:
            time.sleep(interval)
            now = next(looks)
            told = told_of(before, now, rows=rows)
            if as_json:
                echo_json(told)
            else:
                _print(told)
            if once:
                return
            before = now
    _show_live(looks, before, rows=rows, interval=interval)


def _looks(client: Client, *, prefix: str, rows: int) -> Iterator[Glance]:
    while True:
        found = list(client.topics(prefix))
        queues = sorted((it for it in found if it.type == "queue"), key=lambda it: -it.count)[:rows]
        counters = {it.topic: client.topic(it.topic).state().queue for it in queues}
        yield Glance(
            time.monotonic(),
            client.health(),
            client.metrics(),
            found,
            {name: queue for name, queue in counters.items() if queue is not None},
            list(client.cursors(prefix)),
        )


# --- what is told ----------------------------------------------------------------------------------------------------


def told_of(before: Glance, now: Glance, *, rows: int) -> dict[str, Any]:
    """Two looks as one object: totals, rates, and the first rows of each table."""
    passed_s = max(now.at_s - before.at_s, 1e-9)
    heads = {it.topic: it.head_seq for it in before.topics}
    topics: list[dict[str, Any]] = [
        {
            "topic": it.topic,
            "type": it.type,
            "records_per_s": _rate(it.head_seq, heads.get(it.topic, 0), passed_s),
            "records": it.count,
            "bytes": it.bytes,
        }
        for it in now.topics
    ]
    topics.sort(key=lambda row: (-row["records_per_s"], -row["records"], row["topic"]))
    queues: list[dict[str, Any]] = [
        {
            "queue": name,
            "ready": queue.ready,
            "delayed": queue.delayed,
            "in_flight": queue.in_flight,
            "dead": queue.dead_lettered,
            "oldest_ms": queue.oldest_ms,
        }
        for name, queue in now.queues.items()
    ]
    queues.sort(key=lambda row: (-row["ready"], row["queue"]))
    readers: list[dict[str, Any]] = [
        {"topic": it.topic, "reader": it.cursor, "kind": it.kind, "lag_records": it.lag.records, "lag_ms": it.lag.ms}
        for it in now.readers
    ]
    readers.sort(key=lambda row: (-row["lag_records"], row["topic"], row["reader"]))
    wal, wal_before = now.metrics["wal"], before.metrics["wal"]
    return {
        "version": now.health["version"],
        "uptime_ms": now.health["uptime_ms"],
        "ready": now.metrics["ready"],
        "problems": now.health.get("problems", []),
        "per_s": {told: _rate(wal[name], wal_before[name], passed_s) for name, told in WAL_RATES.items()},
        "totals": {
            name: now.metrics[name]
            for name in ("topics", "routers", "records_live", "bytes_live", "sse_connections", "queue_leases_in_flight")
        },
        "topics": topics[:rows],
        "queues": queues[:rows],
        "readers": readers[:rows],
    }


def _rate(now: int, before: int, passed_s: float) -> float:
    """Per second; a server that began anew counts from 0."""
    return round(max(now - before, 0) / passed_s, 1)


# --- how it is shown -------------------------------------------------------------------------------------------------


def _page(told: dict[str, Any]) -> Group:
    from rich.console import Group
    from rich.text import Text

    totals, rates = told["totals"], told["per_s"]
    state = "ready" if told["ready"] else "NOT READY"
    head = [
        f"topics {told['version']}  up {_time(told['uptime_ms'])}  {state}",
        (
            f"{rates['frames']:,.1f} frames/s  {_size(rates['bytes'])}/s  {rates['commits']:,.1f} commits/s  "
            f"{rates['syncs']:,.1f} syncs/s"
        ),
        (
            f"{totals['topics']:,} topics  {totals['records_live']:,} records  {_size(totals['bytes_live'])}  "
            f"{totals['routers']:,} routers  {totals['sse_connections']:,} streams  "
            f"{totals['queue_leases_in_flight']:,} leases"
        ),
        *(f"! {harmless(problem)}" for problem in told["problems"]),
    ]
    return Group(
        Text("\n".join([*head, ""])),
        _table("topic", told["topics"], {"records_per_s": "records/s", "bytes": "size"}),
        _table("queue", told["queues"], {"in_flight": "in flight", "oldest_ms": "oldest"}),
        _table("topic", told["readers"], {"lag_records": "records behind", "lag_ms": "behind"}),
    )


def _table(first: str, rows: list[dict[str, Any]], titles: dict[str, str]) -> Any:
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return Text("")
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), title=None)
    for name in rows[0]:
        is_text = name in (first, "type", "reader", "kind")
        table.add_column(
            titles.get(name, name), justify="left" if is_text else "right", overflow="ellipsis", no_wrap=True
        )
    for row in rows:
        table.add_row(*(Text(_cell(name, value)) for name, value in row.items()))
    return table


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "bytes":
        return _size(value)
    if name.endswith("_ms"):
        return _time(value)
    return harmless(value).replace("\n", " ") if isinstance(value, str) else f"{value:,}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def _time(ms: float) -> str:
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{minutes}m{int(seconds % 60):02}s" if hours == 0 else f"{hours}h{minutes % 60:02}m"


def _print(told: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(color_system="auto" if has_colour() else None)
    with console.capture() as shown:
        console.print(_page(told))
    click.echo(shown.get(), nl=False)


def _show_live(looks: Iterator[Glance], before: Glance, *, rows: int, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(color_system="auto" if has_colour() else None)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while not pressed(interval):
                now = next(looks)
                live.update(_page(told_of(before, now, rows=rows)), refresh=True)
                before = now
        except KeyboardInterrupt:  # the usual way to end it
            pass


@contextmanager
def _keys() -> Iterator[Any]:
    """Waits so many seconds; True once q was pressed. Where nobody types, it only waits."""
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(seconds)
        return
    stdin = sys.stdin.fileno()
    usual = termios.tcgetattr(stdin)
    tty.setcbreak(stdin)

    def pressed(seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            if select.select([stdin], [], [], left_s)[0] and os.read(stdin, 1) in (b"q", b"Q", b""):
                return True
        return False

    try:
        yield pressed
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, usual)
