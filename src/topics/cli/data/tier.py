"""`topics tier`: where the history of each topic lies."""

from __future__ import annotations

from typing import Any

import click

from topics.cli.remote import server_options, show_rows, table_options
from topics.client import Client

COLUMNS = ("topic", "segments", "bytes", "hot", "hot_bytes", "cold", "cold_bytes", "oldest_hot_seq", "oldest_hot_ts")


@click.group()
def tier() -> None:
    """The hot and the cold tier.

    \b
    topics tier status
    topics tier status --prefix orders --json
    """


@tier.command()
@click.option("--prefix", default="", help="Only topics whose names begin so.")
@table_options
@server_options
def status(client: Client, *, prefix: str, as_json: bool) -> None:
    """Segments and bytes of each topic by tier, and how far back the hot ones reach.

    \b
    topics tier status
    topics tier status --json | jq 'select(.cold > 0)'

    The active segment counts as hot. `oldest_hot_seq` is the first seq that needs no cold store.
    """
    rows = (row_of(client.topic(summary.topic).segments()) for summary in client.topics(prefix))
    show_rows(COLUMNS, rows, as_json=as_json)


def row_of(manifest: dict[str, Any]) -> tuple[Any, ...]:
    segments = manifest["segments"]
    hot = [segment for segment in segments if segment["tier"] == "hot"]
    cold = [segment for segment in segments if segment["tier"] == "cold"]
    behind = max((segment["last_seq"] for segment in cold), default=0)
    reach = [segment for segment in hot if segment["first_seq"] > behind]
    oldest = min(reach, key=lambda segment: int(segment["first_seq"]), default=None)
    return (
        manifest["topic"],
        len(segments),
        _bytes(segments),
        len(hot),
        _bytes(hot),
        len(cold),
        _bytes(cold),
        None if oldest is None else oldest["first_seq"],
        None if oldest is None else oldest["min_ts"],
    )


def _bytes(segments: list[dict[str, Any]]) -> int:
    return sum(int(segment["bytes"]) for segment in segments)
