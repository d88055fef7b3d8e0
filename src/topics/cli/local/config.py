"""`topics config`: what the process would start with, and why."""

import os
import sys

import click
import msgspec

from topics.cli.remote import show_rows
from topics.config import Resolved, Settings, settings_from
from topics.config.resolve import kinds_of, shown, variable_of


class SettingRow(msgspec.Struct, frozen=True):
    """One setting as it is shown."""

    name: str
    value: int | float | str | bool | None
    unit: str
    origin: str
    help: str


@click.group()
def config() -> None:
    """Settings of this process.

    \b
    topics config show --origin
    """


@config.command()
@click.option("--origin", is_flag=True, help="Also say where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def show(*, origin: bool, as_json: bool) -> None:
    """Show every setting with its value.

    \b
    topics config show --origin
    TOPICS_PORT=5000 topics config show --json | grep PORT
    """
    resolved = settings_from(os.environ)
    for warning in resolved.warnings:
        click.echo(f"topics: {warning}", err=True)
    rows = rows_of(resolved)
    if as_json:
        write_json(rows, with_origin=origin)
    elif sys.stdout.isatty():
        write_table(rows, with_origin=origin)
    else:
        write_lines(rows, with_origin=origin)


def rows_of(resolved: Resolved[Settings]) -> list[SettingRow]:
    kinds = kinds_of(Settings)
    return [
        SettingRow(variable_of(name), value, kinds[name].unit, resolved.origins[name], kinds[name].help)
        for name, value in shown(resolved.settings).items()
    ]


def write_json(rows: list[SettingRow], *, with_origin: bool) -> None:
    for row in rows:
        fields = {"name": row.name, "value": row.value, "unit": row.unit} | (
            {"origin": row.origin} if with_origin else {}
        )
        click.echo(msgspec.json.encode(fields).decode())


def write_lines(rows: list[SettingRow], *, with_origin: bool) -> None:
    """Tab-separated, in the spelling that the environment takes."""
    for row in rows:
        click.echo("\t".join([row.name, spelled(row.value), *([row.origin] if with_origin else [])]))


def write_table(rows: list[SettingRow], *, with_origin: bool) -> None:
    headers = ("variable", "value", "unit", *(["origin"] if with_origin else []), "meaning")
    cells = ((r.name, spelled(r.value), r.unit, *([r.origin] if with_origin else []), r.help) for r in rows)
    show_rows(headers, cells, as_json=False)


def spelled(value: int | float | str | bool | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
