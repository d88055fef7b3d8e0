"""`topics dlq`: dead letters of a queue: look at them, send them back, throw them away."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial

import click

from topics.cli.remote import (
    confirm,
    json_option,
    rehearse,
    server_options,
    show_fields,
    show_rows,
    sure_options,
    table_options,
)
from topics.client import Client
from topics.model.results import Record

FROM = "$dead_letter_from"
DELIVERIES = "$dead_letter_deliveries"
SRC_SEQ = "$dead_letter_src_seq"
REASON = "$dead_letter_reason"
ERROR = "$dead_letter_error"
COLUMNS = {"from": FROM, "src_seq": SRC_SEQ, "deliveries": DELIVERIES, "reason": REASON, "error": ERROR}


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
@table_options
@server_options
def list_letters(client: Client, name: str, *, as_json: bool) -> None:
    """Dead letters with where they came from, and why.

    \b
    topics dlq ls jobs.dead --json
    """
    rows = (
        (letter.seq, letter.tag, *map(headers.get, COLUMNS.values()), letter.data)
        for letter in letters(client, name)
        for headers in [letter.headers if isinstance(letter.headers, dict) else {}]
    )
    show_rows(("seq", "tag", *COLUMNS, "data"), rows, as_json=as_json)


# --- redrive ---------------------------------------------------------------------------------------------------------


def _time(_: click.Context, __: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time such as 2026-01-31T09:00 or 2026-01-31") from None


@dlq.command()
@click.argument("name")
@click.option("--to", "target", help="Queue to send them to; default is the one each came from.")
@click.option("--tag", help="Only those with this tag; `x*` is all that begin with x.")
@click.option("--error", help="Only those whose last error contains this text.")
@click.option("--since", callback=_time, metavar="TIME", help="Only those that came here since, as 2026-01-31T09:00.")
@click.option("--until", callback=_time, metavar="TIME", help="Only those that came here until then.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Look at this many only, the oldest first.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="So many become ready a second.")
@sure_options
@json_option
@server_options
def redrive(
    client: Client,
    name: str,
    *,
    target: str | None,
    tag: str | None,
    error: str | None,
    since: datetime | None,
    until: datetime | None,
    count: int | None,
    rate: float | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send dead letters back, each once, with a fresh count of deliveries.

    Nothing is sent unless every letter has a queue to go to. An interruption loses nothing and repeats nothing: give
    the command again.

    \b
    topics dlq redrive jobs.dead --dry-run
    topics dlq redrive jobs.dead --error timeout --rate 10 --yes
    topics dlq redrive jobs.dead --tag 'tenant42:*' --to jobs.slow --yes
    """
    letters_of = client.dead_letters(name)
    chosen = partial(
        letters_of.redrive, to=target, match=tag, error=error, since=since, until=until, limit=count, rate=rate
    )
    found = chosen(dry_run=True)
    if found.skipped:
        some = ", ".join(map(str, found.skipped[:5]))
        raise click.ClickException(
            f"{len(found.skipped)} letters of {name} do not say where they came from, or their queue is gone; "
            f"give --to, for seqs {some}"
        )
    if dry_run:
        fields = {"topic": name, "redriven": found.matched}
        rehearse(f"{found.matched} dead letters of {name} would be sent back", fields, as_json=as_json)
        return
    if found.matched:
        confirm(f"Send {found.matched} dead letters of {name} back?", yes=yes)
    show_fields({"topic": name, "redriven": chosen().redriven if found.matched else 0}, as_json=as_json)


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
