"""What commands that talk to a server share: where it is, which key, and how rows are shown.

Data goes to stdout and everything else to stderr. A terminal gets a table, a pipe gets tab-separated lines, `--json`
gives one JSON object per line. `--header` puts the names of the columns before the lines of a pipe. Exit statuses are
listed in `topics.cli`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import click
import msgspec

from topics.client import connect
from topics.config import client_settings_from

F = TypeVar("F", bound=Callable[..., Any])

_HEADER = "topics.cli.header"

EXIT_DATA_LOSS = 3

_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")
_NO_BREAKS = str.maketrans("\r\n\t", "   ")
_NO_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


def server_options(command: F) -> F:
    """`--url` and `--api-key`, from the environment where they are not given."""

    @click.option("--url", metavar="URL", help="Server to talk to.  [env: TOPICS_URL; default: http://127.0.0.1:4000]")
    @click.option(
        "--api-key", metavar="KEY", help="Bearer key; better given in the environment.  [env: TOPICS_API_KEY]"
    )
    @wraps(command)
    def with_client(*args: Any, url: str | None, api_key: str | None, **options: Any) -> Any:
        _check_texts(options)
        settings = client_settings_from(os.environ).settings
        with connect(url or settings.url, api_key or settings.api_key, retry_s=2.0) as client:
            return command(client, *args, **options)

    return with_client  # type: ignore[return-value]


def _check_texts(options: dict[str, Any]) -> None:
    """Arguments may be any bytes; what goes to a server is Unicode."""
    for name, given in options.items():
        for text in given if isinstance(given, tuple) else (given,):
            if isinstance(text, str) and name != "command" and not _is_unicode(text):
                raise click.UsageError(f"{name.replace('_', '-')} is not valid UTF-8")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")(command)


def table_options(command: F) -> F:
    """`--json`, and `--header` for the lines of a pipe."""
    header = click.option(
        "--header", is_flag=True, expose_value=False, callback=_note_header, help="In a pipe, column names come first."
    )
    return json_option(header(command))


def _note_header(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    context.meta[_HEADER] = wanted


def sure_options(command: F) -> F:
    """`--yes` and `--dry-run` for verbs that destroy."""
    command = click.option("--yes", is_flag=True, help="Do not ask.")(command)
    return click.option("--dry-run", is_flag=True, help="Say what would happen and do nothing.")(command)


def rehearse(sentence: str, fields: dict[str, Any], *, as_json: bool) -> None:
    """A dry run: what would happen, for a person and, if asked for, as the answer that would come."""
    say(sentence)
    if as_json:
        echo_json({**fields, "dry_run": True})


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; without one, `--yes` must have been given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody is here to answer: add --yes, or look first with --dry-run.")
    click.confirm(question, abort=True, err=True)


# --- output ----------------------------------------------------------------------------------------------------------


def show_rows(
    names: Sequence[str], rows: Iterable[Sequence[Any]], *, as_json: bool, titles: Sequence[str] | None = None
) -> None:
    """Rows as a table, as lines, or as JSON objects with the names as keys. A table may have shorter titles."""
    if as_json:
        for row in rows:
            echo_json(dict(zip(names, row, strict=True)))
    elif sys.stdout.isatty():
        _show_table(titles or names, rows)
    else:
        context = click.get_current_context(silent=True)
        if context is not None and context.meta.get(_HEADER):
            click.echo("\t".join(names))
        for row in rows:
            click.echo("\t".join(spelled(value).translate(_NO_BREAKS) for value in row))


def show_fields(fields: dict[str, Any], *, as_json: bool) -> None:
    """One object: name and value per line, or as JSON."""
    if as_json:
        echo_json(fields)
    else:
        show_rows(["field", "value"], _flat(fields), as_json=False)


def echo_json(value: Any) -> None:
    click.echo(one_line(msgspec.json.encode(value)))


def one_line(text: bytes) -> bytes:
    """JSON on one line: payloads come byte for byte, so there may be line ends between their tokens."""
    return text.translate(_TO_SPACES) if b"\n" in text or b"\r" in text else text


def plain(result: Any) -> dict[str, Any]:
    """A result struct as plain values, under the names of the wire."""
    built: dict[str, Any] = msgspec.to_builtins(result)
    return built


def spelled(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list | msgspec.Raw):
        return msgspec.json.encode(value).decode()
    return str(value)


def harmless(text: str) -> str:
    """For a terminal, which would obey control characters in data. Line ends and tabs stay."""
    return text.translate(_NO_CONTROLS)


def has_colour() -> bool:
    """https://no-color.org; bold and dim count as colours."""
    return not os.environ.get("NO_COLOR")


def say(text: str) -> None:
    click.echo(text, err=True)


@contextmanager
def progress(what: str, total: int, *, unit: str) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, and nothing elsewhere. What is yielded is called with each step; total 0 is unknown."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn(f"{{task.completed:,.0f}} {unit}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total or None)
        yield lambda steps: bar.advance(task, steps)


def _flat(fields: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in fields.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", value))
    return rows


def _show_table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold")  # a narrow terminal gets more lines, not less data
    for row in rows:
        table.add_row(*(Text(harmless(spelled(value))) for value in row))  # what looks like markup is data
    console = Console(color_system="auto" if has_colour() else None)
    with console.capture() as shown:
        console.print(table)
    click.echo(shown.get(), nl=False)  # which finds a way through an encoding that lacks characters
