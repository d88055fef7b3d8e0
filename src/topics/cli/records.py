"""`topics produce`, `read`, `tail`, `delete`: records in and out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import IO

import click
import msgspec

from topics.cli.positions import HELP, Position, cursor_before, parse_time
from topics.cli.remote import (
    EXIT_DATA_LOSS,
    F,
    confirm,
    echo_json,
    json_option,
    plain,
    say,
    server_options,
    show_fields,
    sure_options,
)
from topics.client import Client, Topic
from topics.errors import DataLoss, InvalidRequest
from topics.model.paging import Gap
from topics.model.results import Record
from topics.model.values import Event, Json

# --- produce ---------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.File("rb"))
@click.option("--tag", help="Tag of every record.")
@click.option("--node", help="Node of every record.")
@click.option("--batch", default=1000, show_default=True, type=click.IntRange(1, 10_000), help="Records per write.")
@click.option("--raw", is_flag=True, help="Each line is a text, not JSON.")
@json_option
@server_options
def produce(
    client: Client,
    topic: str,
    files: tuple[IO[bytes], ...],
    *,
    tag: str | None,
    node: str | None,
    batch: int,
    raw: bool,
    as_json: bool,
) -> None:
    """Append JSON lines from files or stdin, one record per line.

    \b
    echo '{"id": 1}' | topics produce orders
    topics produce orders --tag import orders.jsonl
    tail -f app.log | topics produce logs --raw --batch 1
    """
    handle, total, last = client.topic(topic), 0, 0
    for chunk in _chunks(_lines(files or (sys.stdin.buffer,)), batch):
        events = [Event(_data(text, raw=raw, at=at), tag=tag, node=node) for at, text in chunk]
        done = handle.append_many(events)
        total, last = total + done.count, done.last_seq
    if as_json:
        echo_json({"topic": topic, "count": total, "last_seq": last})
    else:
        say(f"{total} records appended to {topic}" + (f", up to seq {last}" if total else ""))


def _lines(files: Iterable[IO[bytes]]) -> Iterator[tuple[str, bytes]]:
    for file in files:
        for number, line in enumerate(file, 1):
            text = line.rstrip(b"\r\n")
            if text.strip():
                yield f"{getattr(file, 'name', '-')}:{number}", text


def _chunks(lines: Iterator[tuple[str, bytes]], size: int) -> Iterator[list[tuple[str, bytes]]]:
    chunk: list[tuple[str, bytes]] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _data(text: bytes, *, raw: bool, at: str) -> object:
    if raw:
        return text.decode("utf-8", "replace")
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{at} is not JSON: {error}") from None
    return Json(text.strip())


# --- read, tail ------------------------------------------------------------------------------------------------------


def reading_options(command: F) -> F:
    for option in (
        click.option("-n", "--count", type=click.IntRange(min=0), help="Stop after this many records."),
        click.option("--data-only", is_flag=True, help="Only the payloads, one per line."),
        click.option("--gaps", is_flag=True, help="Show gaps among the records instead of ending with status 3."),
        click.option("--exclude-node", multiple=True, help="Leave out records of this node; repeat for more."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("topic")
@click.option("--from", "start", type=Position(), default="start", show_default=True, metavar="POS", help=HELP)
@click.option("--to", "stop", type=Position(), metavar="POS", help="Last record wanted; the same forms.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@reading_options
@server_options
def read(
    client: Client,
    topic: str,
    *,
    start: str,
    stop: str | None,
    follow: bool,
    count: int | None,
    data_only: bool,
    gaps: bool,
    exclude_node: tuple[str, ...],
) -> None:
    """Read records as JSON lines.

    \b
    topics read orders
    topics read orders --from -10
    topics read orders --from @2026-01-31T12:00 --to @2026-01-31T13:00 -n 100
    topics read orders --from 4711 --follow --data-only
    """
    if stop is not None and follow:
        raise click.UsageError("--to and --follow exclude each other")
    handle = client.topic(topic)
    cursor = cursor_before(handle, start)
    last = None if stop is None else _last_wanted(handle, stop)
    items = (
        handle.follow(cursor, exclude_nodes=exclude_node, gaps="yield" if gaps else "raise")
        if follow
        else handle.read(cursor, exclude_nodes=exclude_node, gaps="yield" if gaps else "raise")
    )
    _print(items, count=count, last=last, data_only=data_only)


@click.command()
@click.argument("topic")
@click.option("--from", "start", type=Position(), default="-10", show_default=True, metavar="POS", help=HELP)
@reading_options
@server_options
def tail(
    client: Client,
    topic: str,
    *,
    start: str,
    count: int | None,
    data_only: bool,
    gaps: bool,
    exclude_node: tuple[str, ...],
) -> None:
    """The last records, and then whatever comes.

    \b
    topics tail orders
    topics tail orders --from end --data-only | jq .total
    """
    handle = client.topic(topic)
    items = handle.follow(cursor_before(handle, start), exclude_nodes=exclude_node, gaps="yield" if gaps else "raise")
    _print(items, count=count, last=None, data_only=data_only)


def _last_wanted(topic: Topic, position: str) -> int:
    if position.startswith("@"):
        return cursor_before(topic, f"@{parse_time(position) + 1}")
    if position in ("start", "end") or int(position) < 0:
        return cursor_before(topic, position)
    return int(position)


def _print(items: Iterable[Record | Gap], *, count: int | None, last: int | None, data_only: bool) -> None:
    left = count
    if left == 0:
        return
    try:
        for item in items:
            if isinstance(item, Gap):
                echo_json({"gap": plain(item)})
                continue
            if last is not None and item.seq > last:
                return
            click.echo(bytes(item.data) if data_only else msgspec.json.encode(item))  # type: ignore[arg-type]
            if left is not None:
                left -= 1
                if left == 0:
                    return
    except DataLoss as loss:
        say(f"topics: {loss}; --gaps goes on behind it")
        sys.exit(EXIT_DATA_LOSS)
    except KeyboardInterrupt:
        sys.exit(130)


# --- delete ----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("topic")
@click.option("--before", type=click.IntRange(min=0), metavar="SEQ", help="Records below this seq.")
@click.option("--match", metavar="TAG", help="Records with this tag; a final * matches a prefix.")
@sure_options
@json_option
@server_options
def delete(
    client: Client, topic: str, *, before: int | None, match: str | None, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Delete records below a seq, by tag, or both. Permanent, and silent to readers.

    \b
    topics delete orders --before 1000 --dry-run
    topics delete orders --match 'tenant42:*' --yes
    """
    if before is None and match is None:
        raise click.UsageError("give --before, --match or both")
    what = " and ".join(
        text
        for text in (f"below seq {before}" if before is not None else "", f"tagged {match}" if match else "")
        if text
    )
    if dry_run:
        say(f"would delete the records of {topic} {what}")
        return
    confirm(f"Delete the records of {topic} {what}?", yes=yes)
    show_fields(plain(client.topic(topic).delete(before_seq=before, match=match)), as_json=as_json)
