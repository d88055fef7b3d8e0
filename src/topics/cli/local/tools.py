"""`topics doctor`, `completion`: looking at the machine, and helping the shell."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator

import click

import topics
from topics.cli.remote import show_rows, table_options
from topics.errors import TopicsError

# --- doctor ----------------------------------------------------------------------------------------------------------


@click.command()
@table_options
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
    yield _kernel()
    yield _settings()
    yield _open_files()
    yield from _spark()


def _kernel() -> Finding:
    from topics.formats.kernel_choice import KERNEL

    plain = "pure: frames are encoded and checked in plain Python, many times slower"
    cure = "with a C compiler and python3-dev, `make setup` or `pip install` builds the native codecs"
    return "kernel", True, KERNEL if KERNEL == "native" else f"{plain}; {cure}"


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
        yield "pyspark", True, "not installed; pip install 'topicsdb[spark]' for the Spark verbs"
        return
    from topics.spark.start import checks as spark_checks

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
