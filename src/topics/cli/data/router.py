"""`topics router`: standing orders to copy one topic into another."""

from __future__ import annotations

import click

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

COLUMNS = ("router", "source", "dest", "guarantee", "forwarded_total")


@click.group()
def router() -> None:
    """Routers: copy what is written to one topic into another.

    \b
    topics router put 'orders->audit' orders audit
    topics router ls
    topics router rm 'orders->audit' --yes
    """


@router.command()
@click.argument("name")
@click.argument("source")
@click.argument("dest")
@click.option("--filter", "match", metavar="TAG", help="Only records with this tag; a final * matches a prefix.")
@click.option("--exactly-once", is_flag=True, help="No second copy while the first is there.")
@click.option("--allow-cycle", is_flag=True, help="This router may close a cycle.")
@click.option("--drop-node", is_flag=True, help="Copies have no node.")
@click.option("--drop-tag", is_flag=True, help="Copies have no tag.")
@click.option("--no-create", is_flag=True, help="DEST must exist.")
@json_option
@server_options
def put(
    client: Client,
    name: str,
    source: str,
    dest: str,
    *,
    match: str | None,
    exactly_once: bool,
    allow_cycle: bool,
    drop_node: bool,
    drop_tag: bool,
    no_create: bool,
    as_json: bool,
) -> None:
    """Create a router, or replace the settings of one.

    \b
    topics router put 'orders->audit' orders audit --filter 'big:*' --exactly-once
    """
    state = client.router(name).put(
        source,
        dest,
        filter=match,
        guarantee="exactly_once" if exactly_once else "at_least_once",
        allow_cycle=allow_cycle,
        preserve_node=not drop_node,
        preserve_tag=not drop_tag,
        create_dest=not no_create,
    )
    show_fields(plain(state), as_json=as_json)


@router.command("ls")
@click.option("--prefix", default="", help="Only names that begin so.")
@click.option("--source", help="Only routers from this topic.")
@click.option("--dest", help="Only routers into this topic.")
@table_options
@server_options
def list_routers(client: Client, prefix: str, *, source: str | None, dest: str | None, as_json: bool) -> None:
    """List routers by name.

    \b
    topics router ls --source orders
    """
    routers = client.routers(prefix, source=source, dest=dest)
    show_rows(COLUMNS, ([getattr(entry, column) for column in COLUMNS] for entry in routers), as_json=as_json)


@router.command()
@click.argument("name")
@table_options
@server_options
def info(client: Client, name: str, *, as_json: bool) -> None:
    """Settings and progress of a router.

    \b
    topics router info 'orders->audit'
    """
    show_fields(plain(client.router(name).get()), as_json=as_json)


@router.command()
@click.argument("name")
@sure_options
@json_option
@server_options
def rm(client: Client, name: str, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Stop a router; the copies it made stay.

    \b
    topics router rm 'orders->audit' --yes
    """
    if dry_run:
        state = client.router(name).get()
        told = f"would remove router {name!r} from {state.source} to {state.dest}"
        rehearse(told, {"router": name, "deleted": True}, as_json=as_json)
        return
    confirm(f"Remove router {name!r}?", yes=yes)
    show_fields({"router": name, "deleted": client.router(name).delete()}, as_json=as_json)
