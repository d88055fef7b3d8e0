"""`topics dlq`: dead letters of a queue: look at them, send them back, throw them away."""

from __future__ import annotations

from collections.abc import Iterator

import click

from topics.cli.remote import confirm, json_option, say, server_options, show_fields, show_rows, sure_options
from topics.client import Client
from topics.model.results import Record
from topics.model.values import Event, Json

FROM = "$dead_letter_from"
OURS = (FROM, "$dead_letter_deliveries", "$dead_letter_src_seq")


@click.group()
def dlq() -> None:
    """Dead letters: list, redrive into their queues, purge.

    \b
    topics dlq ls jobs.dead
    topics dlq redrive jobs.dead --dry-run
    topics dlq purge jobs.dead --yes
    """


def letters(client: Client, name: str) -> Iterator[Record]:
    return (item for item in client.topic(name).read(gaps="yield") if isinstance(item, Record))


@dlq.command("ls")
@click.argument("name")
@json_option
@server_options
def list_letters(client: Client, name: str, *, as_json: bool) -> None:
    """Dead letters with where they came from.

    \b
    topics dlq ls jobs.dead --json
    """
    rows = (
        (letter.seq, headers.get(FROM), headers.get(OURS[2]), headers.get(OURS[1]), bytes(letter.data).decode())  # type: ignore[arg-type]
        for letter in letters(client, name)
        for headers in [letter.headers or {}]
    )
    show_rows(("seq", "from", "src_seq", "deliveries", "data"), rows, as_json=as_json)


@dlq.command()
@click.argument("name")
@click.option("--to", "target", help="Queue to send them to; default is the one each came from.")
@sure_options
@json_option
@server_options
def redrive(client: Client, name: str, *, target: str | None, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Send dead letters back, then delete them here. A crash in between may leave one in both places.

    \b
    topics dlq redrive jobs.dead --yes
    """
    waiting = list(letters(client, name))
    if dry_run or not waiting:
        say(f"{len(waiting)} dead letters would be sent back")
        return
    confirm(f"Send {len(waiting)} dead letters back?", yes=yes)
    for letter in waiting:
        _send_back(client, name, letter, target)
    show_fields({"topic": name, "redriven": len(waiting)}, as_json=as_json)


def _send_back(client: Client, name: str, letter: Record, target: str | None) -> None:
    headers = dict(letter.headers or {})
    queue = target or headers.get(FROM)
    if not queue:
        raise click.ClickException(f"record {letter.seq} of {name} does not say where it came from; give --to")
    meta = {key: value for key, value in headers.items() if key not in OURS} or None
    event = Event(Json(bytes(letter.data)), tag=letter.tag, node=letter.node, meta=meta)  # type: ignore[arg-type]
    # The key makes a repeat after a crash harmless within the queue's window.
    client.topic(queue).append_many([event], key=f"redrive:{name}:{letter.seq}:{letter.ts}")
    client.topic(name).delete(before_seq=letter.seq + 1)


@dlq.command()
@click.argument("name")
@sure_options
@json_option
@server_options
def purge(client: Client, name: str, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete all dead letters that are there now.

    \b
    topics dlq purge jobs.dead --yes
    """
    state = client.topic(name).state(touch=False)
    if dry_run:
        say(f"would delete {state.count} dead letters of {name}")
        return
    confirm(f"Delete {state.count} dead letters of {name}?", yes=yes)
    done = client.topic(name).delete(before_seq=state.head_seq + 1)
    show_fields({"topic": name, "deleted": done.deleted}, as_json=as_json)
