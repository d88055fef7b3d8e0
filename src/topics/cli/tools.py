"""`topics inspect`, `doctor`, `completion`: looking at a directory, at the machine, and helping the shell."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator

import click

import topics
from topics.cli.remote import json_option, show_rows
from topics.errors import TopicsError

# --- inspect ---------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option("--topic", "name", help="The segments of one topic.")
@json_option
def inspect(path: str, *, name: str | None, as_json: bool) -> None:
    """Look inside a data directory, read-only, whether a server runs on it or not.

    \b
    topics inspect /var/lib/topics
    topics inspect /var/lib/topics --topic orders --json
    """
    from topics.storage.layout import DataDir
    from topics.storage.osfs import OsFs
    from topics.storage.snapshots import SnapshotStore

    data = DataDir(path)
    snapshot = SnapshotStore(OsFs(), data.meta).load().snapshot
    if snapshot is None:
        raise TopicsError(f"{path} holds no snapshot; is it a data directory?")
    if name is None:
        click.echo(f"snapshot {snapshot.id} of instance {snapshot.instance}, clean stop: {snapshot.clean}", err=True)
        rows = (
            (t.name, f"{t.id:08X}", t.config["durability"], t.head, t.earliest_seq, t.count, t.bytes, len(t.segments))
            for t in sorted(snapshot.topics, key=lambda t: t.name)
        )
        show_rows(
            ("topic", "id", "durability", "head", "earliest", "count", "bytes", "segments"), rows, as_json=as_json
        )
        return
    found = next((item for item in snapshot.topics if item.name == name), None)
    if found is None:
        raise TopicsError(f"the newest snapshot knows no topic {name!r}")
    segments = (
        (s.first, s.first + s.count - 1, s.data_len, s.sealed, s.tier, s.live, s.live_bytes) for s in found.segments
    )
    show_rows(("first", "last", "bytes", "sealed", "tier", "live", "live_bytes"), segments, as_json=as_json)


# --- doctor ----------------------------------------------------------------------------------------------------------


@click.command()
@json_option
def doctor(*, as_json: bool) -> None:
    """Check what this machine needs, and say what to do about what is missing. Status 1 if something is wrong.

    \b
    topics doctor
    """
    rows = list(checks())
    show_rows(("check", "ok", "finding"), rows, as_json=as_json)
    if not all(ok for _, ok, _ in rows):
        sys.exit(1)


Finding = tuple[str, bool, str]


def checks() -> Iterator[Finding]:
    yield "python", sys.version_info >= (3, 11), platform.python_version()
    yield "topics", True, topics.__version__
    yield _settings()
    yield _open_files()
    yield from _spark()


def _settings() -> Finding:
    from topics.config import settings_from

    try:
        settings_from(os.environ)
    except TopicsError as error:
        return "settings", False, str(error)
    return "settings", True, "every TOPICS_* variable is understood"


def _open_files() -> Finding:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return "open files", hard >= 4096 or hard < 0, f"limit {hard}; one stream is one file"


def _spark() -> Iterator[Finding]:
    if importlib.util.find_spec("pyspark") is None:
        yield "pyspark", True, "not installed; pip install 'topics[spark]' for the Spark verbs"
        return
    from topics.spark.checks import checks as spark_checks

    yield from spark_checks()


# --- completion ------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    topics completion bash > /etc/bash_completion.d/topics
    topics completion zsh > "${fpath[1]}/_topics"
    """
    from click.shell_completion import get_completion_class

    from topics.cli import cli

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(cli, {}, "topics", "_TOPICS_COMPLETE").source())
