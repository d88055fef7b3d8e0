"""`topics topic`: create, list, look at, reconfigure and remove topics."""

from __future__ import annotations

from typing import Any, get_args

import click
import msgspec

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
from topics.errors import InvalidRequest, TopicNotFound
from topics.model.config import DURABILITIES, ConfigPatch, Discard, TopicType
from topics.model.results import TopicState

CHOICES = {"type": get_args(TopicType), "discard": get_args(Discard), "durability": (*DURABILITIES, "null")}
COLUMNS = ("topic", "type", "count", "bytes", "head_seq", "earliest_seq", "durable", "effective_priority")
TITLES = ("topic", "type", "count", "bytes", "head", "earliest", "durable", "priority")


@click.group()
def topic() -> None:
    """Topics: create, list, look at, reconfigure, remove.

    \b
    topics topic create orders --set durability=fsync
    topics topic ls --prefix orders
    topics topic info orders --json
    topics topic rm orders --dry-run
    """


def parse_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` pairs; values are read by the type the setting has."""
    given: dict[str, Any] = {}
    for pair in settings:
        name, sign, text = pair.partition("=")
        if not sign or name not in ConfigPatch.__struct_fields__:
            known = ", ".join(ConfigPatch.__struct_fields__)
            raise click.BadParameter(f"{pair!r} is not name=value; the names are {known}", param_hint="--set")
        if text not in CHOICES.get(name, (text,)):
            raise click.BadParameter(f"{pair!r}: {name} is one of {', '.join(CHOICES[name])}", param_hint="--set")
        given[name] = None if text == "null" else text
    try:
        config = msgspec.convert(given, ConfigPatch, strict=False)
    except (msgspec.ValidationError, InvalidRequest) as error:
        raise click.BadParameter(str(error), param_hint="--set") from None
    return {name: getattr(config, name) for name in given}


@topic.command()
@click.argument("name")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A config field; repeat for more.")
@json_option
@server_options
def create(client: Client, name: str, settings: tuple[str, ...], *, as_json: bool) -> None:
    """Create a topic. An existing one is left alone, and that is an error.

    A queue gets bounded deliveries, growing pauses and dead letters, unless --set says otherwise.

    \b
    topics topic create orders --set durability=fsync
    topics topic create jobs --set type=queue --set max_deliveries=5
    """
    config = parse_settings(settings)
    handle = client.queue(name) if config.get("type") == "queue" else client.topic(name)
    try:
        client.topic(name).state(touch=False)
    except TopicNotFound:
        show_fields({"topic": name, "config": plain(handle.configure(**config))}, as_json=as_json)
        return
    raise click.ClickException(f"topic {name!r} exists; `topics topic config {name}` changes it")


@topic.command("ls")
@click.option("--prefix", default="", help="Only names that begin so.")
@table_options
@server_options
def list_topics(client: Client, prefix: str, *, as_json: bool) -> None:
    """List topics by name.

    \b
    topics topic ls
    topics topic ls --prefix orders --json
    topics topic ls --header | column -t
    """
    rows = ([getattr(entry, column) for column in COLUMNS] for entry in client.topics(prefix))
    show_rows(COLUMNS, rows, as_json=as_json, titles=TITLES)


@topic.command()
@click.argument("name")
@table_options
@server_options
def info(client: Client, name: str, *, as_json: bool) -> None:
    """State and config of a topic; does not count as a read.

    \b
    topics topic info orders
    """
    show_fields(plain(client.topic(name).state(touch=False)), as_json=as_json)


@topic.command()
@click.argument("name")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A config field; repeat for more.")
@click.option("--reset", is_flag=True, help="What is not set here goes back to its default; a queue stays one.")
@sure_options
@json_option
@server_options
def config(
    client: Client, name: str, settings: tuple[str, ...], *, reset: bool, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Show a topic's config, or change some of it. Asks before a tighter cap or TTL takes records away.

    \b
    topics topic config orders
    topics topic config orders --set cap_records=100000 --dry-run
    topics topic config orders --reset --set durability=fsync --yes
    """
    handle, changes = client.topic(name), parse_settings(settings)
    state = handle.state(touch=False)
    current = plain(state.config)
    if changes or reset:
        current.pop("durable")  # follows from durability
        wanted = {**({"type": state.type} if reset else current), **changes}
        victims = _taken(state, wanted)
        if dry_run:
            told = f"would set {', '.join(settings) or 'defaults'} of {name!r}" + (f" and {victims}" if victims else "")
            rehearse(told, wanted, as_json=as_json)
            return
        if victims:
            confirm(f"Reconfigure {name!r}? This will {victims}.", yes=yes)
        current = plain(handle.configure(**wanted))
    show_fields(current, as_json=as_json)


def _taken(state: TopicState, wanted: dict[str, Any]) -> str:
    """What a config takes away at once, in words; nothing of a topic that refuses instead."""
    if wanted.get("discard", "old") == "old":
        if 0 < wanted.get("cap_records", 0) < state.count:
            return f"remove {state.count - wanted['cap_records']} records"
        if 0 < wanted.get("cap_bytes", 0) < state.bytes:
            return f"remove about {state.bytes - wanted['cap_bytes']} bytes of records"
    ttl_ms = wanted.get("ttl_ms", 0)
    if state.count and ttl_ms and (ttl_ms < state.config.ttl_ms or not state.config.ttl_ms):
        return f"remove records that are older than {ttl_ms} ms"
    return ""


@topic.command()
@click.argument("name")
@click.option("--if-empty", is_flag=True, help="Refuse if records are live.")
@sure_options
@json_option
@server_options
def rm(client: Client, name: str, *, if_empty: bool, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove a topic with everything in it.

    \b
    topics topic rm orders --dry-run
    topics topic rm orders --yes
    """
    handle = client.topic(name)
    state = handle.state(touch=False)
    if dry_run:
        told = f"would remove topic {name!r} with {state.count} records"
        rehearse(told, {"topic": name, "deleted": True}, as_json=as_json)
        return
    confirm(f"Remove topic {name!r} with {state.count} records?", yes=yes)
    show_fields({"topic": name, "deleted": handle.drop(if_empty=if_empty)}, as_json=as_json)
