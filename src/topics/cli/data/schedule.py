"""`topics schedule`: records that are appended by the clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
import msgspec

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
from topics.errors import InvalidRequest
from topics.model.schedules.schedule import MissedTicks
from topics.model.schedules.schedule_answers import ScheduleState
from topics.model.values import Json

COLUMNS = ("schedule", "topic", "when", "last_tick", "next_tick", "ticks", "problem")


@click.group()
def schedule() -> None:
    """Schedules: append a record to a topic by the clock.

    \b
    topics schedule put nightly reports '{"kind": "daily"}' --cron '0 3 * * *' --timezone Europe/Berlin
    topics schedule ls
    topics schedule run nightly
    topics schedule rm nightly --yes
    """


@schedule.command()
@click.argument("name")
@click.argument("topic")
@click.argument("data", default="null")
@click.option("--cron", metavar="TEXT", help="Five fields of a crontab, or @daily and the like.")
@click.option("--every", "every_ms", type=click.IntRange(min=1), metavar="MS", help="A tick each so many ms.")
@click.option("--timezone", default="UTC", show_default=True, help="The zone whose clock --cron goes by.")
@click.option("--tag", help="Tag of the records.")
@click.option("--priority", type=int, help="Of the jobs, -9 to 9; TOPIC must be a queue.")
@click.option(
    "--missed",
    type=click.Choice(["skip", "one", "all"]),
    default="one",
    show_default=True,
    help="What becomes of ticks that passed while the server was down.",
)
@click.option("--paused", is_flag=True, help="Do not tick yet.")
@json_option
@server_options
def put(
    client: Client,
    name: str,
    topic: str,
    data: str,
    *,
    cron: str | None,
    every_ms: int | None,
    timezone: str,
    tag: str | None,
    priority: int | None,
    missed: MissedTicks,
    paused: bool,
    as_json: bool,
) -> None:
    """Create a schedule, or replace what it does. DATA is JSON.

    \b
    topics schedule put beat ticks --every 60000
    topics schedule put nightly reports '{"kind": "daily"}' --cron @daily
    """
    state = client.schedule(name).put(
        topic,
        _json(data),
        cron=cron,
        every_ms=every_ms,
        timezone=timezone,
        tag=tag,
        priority=priority,
        missed=missed,
        paused=paused,
    )
    show_fields(_shown(state), as_json=as_json)


@schedule.command("ls")
@click.option("--prefix", default="", help="Only names that begin so.")
@click.option("--topic", help="Only schedules of this topic.")
@table_options
@server_options
def list_schedules(client: Client, prefix: str, *, topic: str | None, as_json: bool) -> None:
    """List schedules by name, with their last and next tick.

    \b
    topics schedule ls --topic reports
    """
    show_rows(COLUMNS, (_row(state) for state in client.schedules(prefix, topic=topic)), as_json=as_json)


@schedule.command()
@click.argument("name")
@table_options
@server_options
def info(client: Client, name: str, *, as_json: bool) -> None:
    """What a schedule does, and how far it has come.

    \b
    topics schedule info nightly
    """
    show_fields(_shown(client.schedule(name).get()), as_json=as_json)


@schedule.command()
@click.argument("name")
@json_option
@server_options
def run(client: Client, name: str, *, as_json: bool) -> None:
    """Append its record now, beside its ticks.

    \b
    topics schedule run nightly
    """
    show_fields({"schedule": name, "seq": client.schedule(name).run()}, as_json=as_json)


@schedule.command()
@click.argument("name")
@json_option
@server_options
def pause(client: Client, name: str, *, as_json: bool) -> None:
    """Stop the ticks of a schedule.

    \b
    topics schedule pause nightly
    """
    show_fields(_shown(client.schedule(name).pause()), as_json=as_json)


@schedule.command()
@click.argument("name")
@json_option
@server_options
def resume(client: Client, name: str, *, as_json: bool) -> None:
    """Start its ticks again; those that passed count as missed.

    \b
    topics schedule resume nightly
    """
    show_fields(_shown(client.schedule(name).resume()), as_json=as_json)


@schedule.command()
@click.argument("name")
@sure_options
@json_option
@server_options
def rm(client: Client, name: str, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove a schedule; what it has appended stays.

    \b
    topics schedule rm nightly --yes
    """
    if dry_run:
        state = client.schedule(name).get()
        told = f"would remove schedule {name!r} of topic {state.topic!r}"
        rehearse(told, {"schedule": name, "deleted": True}, as_json=as_json)
        return
    confirm(f"Remove schedule {name!r}?", yes=yes)
    show_fields({"schedule": name, "deleted": client.schedule(name).delete()}, as_json=as_json)


def _json(text: str) -> Json:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"DATA must be JSON: {error}") from None
    return Json(text.encode())


def _shown(state: ScheduleState) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(state))
    return {name: value for name, value in fields.items() if value is not None or name in ("last_tick", "next_tick")}


def _row(state: ScheduleState) -> list[object]:
    when = f"{state.cron} {state.timezone}" if state.cron is not None else f"every {state.every_ms} ms"
    is_paused = "paused" if state.paused else None
    return [
        state.schedule,
        state.topic,
        when,
        _moment(state.last_tick),
        is_paused or _moment(state.next_tick),
        state.ticks,
        state.problem,
    ]


def _moment(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
