"""`topics cursor`: named cursors, and every other reader of a topic with its lag."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from topics.cli.data.reading import HELP, CliPosition, begin_at
from topics.cli.remote import (
    confirm,
    json_option,
    plain,
    rehearse,
    server_options,
    show_fields,
    show_rows,
    sure_options,
    table_options,
)
from topics.client import Client
from topics.errors import CursorNotFound
from topics.model.results import CursorState

COLUMNS = ("topic", "cursor", "kind", "seq", "lag_records", "lag_bytes", "lag_ms", "owner", "updated_ts")
TITLES = ("topic", "cursor", "kind", "seq", "records behind", "bytes", "ms", "owner", "updated")


@click.group()
def cursor() -> None:
    """Named cursors: list them with their lag, look at one, reset, forget.

    \b
    topics cursor ls
    topics cursor show orders billing
    topics cursor reset orders billing --to @-1h
    topics cursor rm orders billing --yes
    """


@cursor.command("ls")
@click.argument("topic", required=False)
@click.option("--prefix", default="", help="Only topics whose names begin so.")
@table_options
@server_options
def list_cursors(client: Client, topic: str | None, *, prefix: str, as_json: bool) -> None:
    """List every reader with its lag: named cursors, routers and queues, of one topic or of all.

    \b
    topics cursor ls
    topics cursor ls orders
    topics cursor ls --json | jq 'select(.lag_records > 1000)'
    """
    if topic is not None and prefix:
        raise click.UsageError("give a topic or --prefix, not both")
    found = client.cursors(prefix) if topic is None else client.topic(topic).cursors()
    show_rows(COLUMNS, map(_row_of, found), as_json=as_json, titles=TITLES)


def _row_of(state: CursorState) -> tuple[Any, ...]:
    lag = state.lag
    return (
        state.topic,
        state.cursor,
        state.kind,
        state.seq,
        lag.records,
        lag.bytes,
        lag.ms,
        state.owner,
        state.updated_ts,
    )


@cursor.command()
@click.argument("topic")
@click.argument("name")
@table_options
@server_options
def show(client: Client, topic: str, name: str, *, as_json: bool) -> None:
    """Position, owner, hold and lag of a named cursor.

    \b
    topics cursor show orders billing --json
    """
    show_fields(_fields_of(client.topic(topic).cursor(name).get()), as_json=as_json)


def _fields_of(state: CursorState) -> dict[str, Any]:
    fields = plain(msgspec.structs.replace(state, meta=msgspec.UNSET))
    return fields if state.meta is msgspec.UNSET else {**fields, "meta": msgspec.json.decode(state.meta)}


@cursor.command()
@click.argument("topic")
@click.argument("name")
@click.option("--to", "target", type=CliPosition(), required=True, metavar="POS", help=f"Where it goes on: {HELP}")
@sure_options
@json_option
@server_options
def reset(client: Client, topic: str, name: str, *, target: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Set a named cursor anywhere; one that does not exist is created there.

    \b
    topics cursor reset orders billing --to start --dry-run
    topics cursor reset orders billing --to @-1h --yes
    topics cursor reset orders billing --to 4711 --yes

    The forms are those of `topics read --from`: the reader's next record is the one that `read` would begin with.
    """
    handle = client.topic(topic)
    try:
        stands = f"is at seq {handle.cursor(name).get().seq}"
    except CursorNotFound:
        stands = "does not exist"
    told = f"cursor {name!r} of {topic}, which {stands}, to {target}"
    if dry_run:
        rehearse(f"would set {told}", {"topic": topic, "cursor": name, "to": target}, as_json=as_json)
        return
    confirm(f"Set {told}?", yes=yes)
    place, fields = begin_at(handle, target)
    from_ts = fields.get("from_ts")
    to = None if from_ts is not None else (target if target in ("start", "end") else place)
    show_fields(_fields_of(handle.cursor(name).reset(to, from_ts=from_ts)), as_json=as_json)


@cursor.command()
@click.argument("topic")
@click.argument("name")
@sure_options
@json_option
@server_options
def rm(client: Client, topic: str, name: str, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Forget a named cursor; the topic's records stay.

    \b
    topics cursor rm orders billing --yes
    """
    handle = client.topic(topic).cursor(name)
    if dry_run:
        told = f"would forget cursor {name!r} of {topic} at seq {handle.get().seq}"
        rehearse(told, {"topic": topic, "cursor": name, "deleted": True}, as_json=as_json)
        return
    confirm(f"Forget cursor {name!r} of {topic}?", yes=yes)
    show_fields({"topic": topic, "cursor": name, "deleted": handle.delete()}, as_json=as_json)
