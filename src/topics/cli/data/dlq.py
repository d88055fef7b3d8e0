"""`topics dlq`: dead letters of a queue: look at them, send them back, throw them away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import click

from topics.cli.remote import (
    confirm,
    json_option,
    progress,
    rehearse,
    server_options,
    show_fields,
    show_rows,
    sure_options,
    table_options,
)
from topics.client import Client
from topics.core.meta import ORIGINAL_META
from topics.errors import TopicNotFound
from topics.model.results import Record
from topics.model.values import Event, Json

FROM = "$dead_letter_from"
DELIVERIES = "$dead_letter_deliveries"
SRC_SEQ = "$dead_letter_src_seq"
OURS = "$dead_letter_"
"""How the keys begin that the server adds."""
DELETE_EVERY = 100


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


def origin(letter: Record) -> str | None:
    headers = letter.headers
    found = headers.get(FROM) if isinstance(headers, dict) else None
    return found if isinstance(found, str) else None


@dlq.command("ls")
@click.argument("name")
@table_options
@server_options
def list_letters(client: Client, name: str, *, as_json: bool) -> None:
    """Dead letters with where they came from.

    \b
    topics dlq ls jobs.dead --json
    """
    rows = (
        (letter.seq, headers.get(FROM), headers.get(SRC_SEQ), headers.get(DELIVERIES), letter.data)
        for letter in letters(client, name)
        for headers in [letter.headers if isinstance(letter.headers, dict) else {}]
    )
    show_rows(("seq", "from", "src_seq", "deliveries", "data"), rows, as_json=as_json)


# --- redrive ---------------------------------------------------------------------------------------------------------


@dlq.command()
@click.argument("name")
@click.option("--to", "target", help="Queue to send them to; default is the one each came from.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Only this many, the oldest first.")
@sure_options
@json_option
@server_options
def redrive(
    client: Client, name: str, *, target: str | None, count: int | None, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Send dead letters back, then delete them here.

    Nothing is sent unless every letter has a queue to go to. An interruption loses nothing: a letter that was sent and
    not yet deleted is recognised when the command is given again (within the queue's idempotency window).

    \b
    topics dlq redrive jobs.dead --dry-run
    topics dlq redrive jobs.dead -n 1 --yes
    topics dlq redrive jobs.dead --to jobs.slow --yes
    """
    ways: Counter[str] = Counter()
    last = 0
    for letter in islice(letters(client, name), count):
        ways[_way(name, letter, target)] += 1
        last = letter.seq
    _check_queues(client, ways)
    told = ", ".join(f"{number} to {queue}" for queue, number in sorted(ways.items())) or "none"
    if dry_run:
        fields = {"topic": name, "redriven": ways.total()}
        rehearse(f"dead letters that would be sent back: {told}", fields, as_json=as_json)
        return
    if ways:
        confirm(f"Send dead letters back ({told})?", yes=yes)
    with progress("sending back", ways.total(), unit="letters") as advance:
        for some in _chunks(letter for letter in letters(client, name) if letter.seq <= last):
            for letter in some:
                _send_back(client, name, letter, _way(name, letter, target))
                advance(1)
            client.topic(name).delete(before_seq=some[-1].seq + 1)
    show_fields({"topic": name, "redriven": ways.total()}, as_json=as_json)


def _chunks(items: Iterator[Record]) -> Iterator[list[Record]]:
    while chunk := list(islice(items, DELETE_EVERY)):
        yield chunk


def _way(name: str, letter: Record, target: str | None) -> str:
    queue = target or origin(letter)
    if not queue:
        raise click.ClickException(f"record {letter.seq} of {name} does not say where it came from; give --to")
    return queue


def _check_queues(client: Client, names: Counter[str]) -> None:
    """An append to what does not exist would create a log, and one to a log would be no job."""
    for name in names:
        try:
            state = client.topic(name).state(touch=False)
        except TopicNotFound:
            raise click.ClickException(f"queue {name!r} is gone; create it, or give --to") from None
        if state.type != "queue":
            raise click.ClickException(f"topic {name!r} is no queue; give --to")


def _send_back(client: Client, name: str, letter: Record, queue: str) -> None:
    headers = dict(letter.headers) if isinstance(letter.headers, dict) else {}
    meta = {key: value for key, value in headers.items() if not key.startswith(OURS)} or None
    if meta is not None and set(meta) == {ORIGINAL_META}:
        meta = meta[ORIGINAL_META]
    event = Event(Json(bytes(letter.data)), tag=letter.tag, node=letter.node, meta=meta)  # type: ignore[arg-type]
    client.topic(queue).append_many([event], key=f"redrive:{name}:{letter.seq}:{letter.ts}")


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
        told = f"would delete {state.count} dead letters of {name}"
        rehearse(told, {"topic": name, "deleted": state.count}, as_json=as_json)
        return
    confirm(f"Delete {state.count} dead letters of {name}?", yes=yes)
    done = client.topic(name).delete(before_seq=state.head_seq + 1)
    show_fields({"topic": name, "deleted": done.deleted}, as_json=as_json)
