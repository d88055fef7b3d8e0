"""Where to begin and end in a topic: `start`, `end`, a seq, `-N` from the end, `@time`, or a printed position.

`topics read`, `tail`: records out. JSON lines for machines; on a terminal, a line that a person can read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import click
import msgspec

from topics import limits
from topics.cli.remote import EXIT_DATA_LOSS, F, harmless, has_colour, json_option, one_line, plain, say, server_options
from topics.client import Client, Topic
from topics.errors import DataLoss
from topics.model.paging import Gap
from topics.model.position import is_token, parse_token
from topics.model.results import Record

_SEQ = re.compile("-?[0-9]{1,20}").fullmatch
_MS = re.compile("[0-9]{1,20}").fullmatch
HELP = "start, end, a seq, -N (N before the end), @time (ISO 8601, or ms since the epoch) or a printed position"


class CliPosition(click.ParamType[str]):
    name = "position"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text in ("start", "end") or (_SEQ(text) and abs(int(text)) <= limits.U64_MAX):
            return text
        if is_token(text):
            return text
        if not text.startswith("@"):
            self.fail(f"{text!r} is no position; give {HELP}", param, ctx)
        try:
            parse_time(text)
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is no time; give @2026-01-31T12:00 or @1769860800000", param, ctx)
        return text


def parse_time(text: str) -> int:
    """Milliseconds of `@time`; a time without a zone is local."""
    body = text.removeprefix("@")
    if _MS(body):
        return int(body)
    return int(datetime.fromisoformat(body).astimezone(UTC).timestamp() * 1000)


def place_before(topic: Topic, position: str) -> int | str:
    """What to read behind: the next record is the first one wanted. Unlike a seq, a printed position stands behind its
    record, and knows its topic again."""
    return position if is_token(position) else cursor_before(topic, position)


def cursor_before(topic: Topic, position: str) -> int:
    """The cursor whose next record is the first one wanted; of a printed position, its seq."""
    if position == "start":
        return 0
    if is_token(position):
        return parse_token(position).seq
    state = topic.state(touch=False)
    if position == "end":
        return state.head_seq
    if position.startswith("@"):
        return cursor_at(topic, parse_time(position))
    number = int(position)
    if number < 0 or position == "-0":  # as many as there are: what retention took before is not asked for
        return max(state.head_seq + number, state.earliest_seq - 1)
    return max(number - 1, 0)


def cursor_at(topic: Topic, ts: int) -> int:
    """Before the first record of this time or later. Binary search: times never fall as seqs grow."""
    state = topic.state(touch=False)
    low, high = state.earliest_seq - 1, state.head_seq
    while low < high:
        middle = (low + high) // 2
        found = topic.page(middle, limit=1).records
        if not found or found[0].ts >= ts:
            high = middle
        else:
            low = found[0].seq
    return low


Line = Callable[[Record], bytes]


def reading_options(command: F) -> F:
    for option in (
        click.option("-n", "--count", type=click.IntRange(min=0), help="Stop after this many records."),
        json_option,
        click.option("--data-only", is_flag=True, help="Only the payloads, one per line."),
        click.option("--gaps", is_flag=True, help="Show gaps among the records instead of ending with status 3."),
        click.option("--exclude-node", multiple=True, help="Leave out records of this node; repeat for more."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("topic")
@click.option("--from", "start", type=CliPosition(), default="start", show_default=True, metavar="POS", help=HELP)
@click.option("--to", "stop", type=CliPosition(), metavar="POS", help="Last record wanted; the same forms.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@reading_options
@server_options
def read(
    client: Client,
    topic: str,
    *,
    start: str,
    stop: str | None,
    follow: bool,
    count: int | None,
    data_only: bool,
    as_json: bool,
    gaps: bool,
    exclude_node: tuple[str, ...],
) -> None:
    """Read records: as JSON lines, or, on a terminal, as lines for a person.

    \b
    topics read orders
    topics read orders --from -10
    topics read orders --from @2026-01-31T12:00 --to @2026-01-31T13:00 -n 100
    topics read orders --from 4711 --follow --data-only
    topics read orders --from 4710-e1a2b3c4d5e6f7

    A JSON line is {"$seq", "$ts", "$node", "$tag", "data", "meta", "position"}, without what the record lacks; `topics
    produce` takes it back. With --gaps, {"gap": {...}} stands where something was lost.

    A position, as a line shows it, stands behind its record: reading goes on with the next one, and ends with status 3
    if the topic is not the one that the position is from.
    """
    if stop is not None and follow:
        raise click.UsageError("--to and --follow exclude each other")
    handle = client.topic(topic)
    place = place_before(handle, start)
    last = None if stop is None else _last_wanted(handle, stop)
    items = (
        handle.follow(place, exclude_nodes=exclude_node, gaps="yield" if gaps else "raise")
        if follow
        else handle.read(place, limit=count, exclude_nodes=exclude_node, gaps="yield" if gaps else "raise")
    )
    line_of = _line_of(as_json=as_json, data_only=data_only)
    seen = _print(items, count=count, last=last, line_of=line_of, flushes=follow)
    if seen is not None and not data_only and line_of is not _json_line:
        say(f"--from {seen} goes on from here")


@click.command()
@click.argument("topic")
@click.option("--from", "start", type=CliPosition(), default="-10", show_default=True, metavar="POS", help=HELP)
@reading_options
@server_options
def tail(
    client: Client,
    topic: str,
    *,
    start: str,
    count: int | None,
    data_only: bool,
    as_json: bool,
    gaps: bool,
    exclude_node: tuple[str, ...],
) -> None:
    """The last records, and then whatever comes.

    \b
    topics tail orders
    topics tail orders --from end --data-only | jq .total
    """
    handle = client.topic(topic)
    items = handle.follow(place_before(handle, start), exclude_nodes=exclude_node, gaps="yield" if gaps else "raise")
    line_of = _line_of(as_json=as_json, data_only=data_only)
    _print(items, count=count, last=None, line_of=line_of, flushes=True)


def _last_wanted(topic: Topic, position: str) -> int:
    if position.startswith("@"):
        return cursor_at(topic, parse_time(position) + 1)
    if position in ("start", "end") or is_token(position) or int(position) < 0:
        return cursor_before(topic, position)
    return int(position)


# --- showing ---------------------------------------------------------------------------------------------------------


def _print(
    items: Iterable[Record | Gap], *, count: int | None, last: int | None, line_of: Line, flushes: bool
) -> int | str | None:
    """The position of the last record that was shown."""
    out, left, seen = sys.stdout.buffer, count, None
    try:
        for item in items if left != 0 else ():
            if last is not None and (item.gap_from if isinstance(item, Gap) else item.seq) > last:
                break
            if isinstance(item, Gap):
                out.write(_gap_line(item) + b"\n")
                continue
            out.write(one_line(line_of(item)) + b"\n")
            seen = item.position
            if flushes:
                out.flush()
            if left is not None:
                left -= 1
                if left == 0:
                    break
    except DataLoss as loss:
        if last is not None and loss.gap_from > last:
            return seen
        say(f"topics: {loss}; --gaps goes on behind it")
        sys.exit(EXIT_DATA_LOSS)
    finally:
        out.flush()
    return seen


def _line_of(*, as_json: bool, data_only: bool) -> Line:
    if data_only:
        return lambda record: bytes(record.data)  # type: ignore[arg-type]
    if as_json or not sys.stdout.isatty():
        return _json_line
    return _line_for_a_person


def _json_line(record: Record) -> bytes:
    """The record as the API shows it, and its position."""
    text = msgspec.json.encode(msgspec.structs.replace(record, epoch=0))
    return b'%b,"position":"%b"}' % (text[:-1], str(record.position).encode())


def _line_for_a_person(record: Record) -> bytes:
    when = datetime.fromtimestamp(record.ts / 1000).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    who = harmless(" ".join(filter(None, (record.tag, record.node and f"@{record.node}"))) or "-")
    head = click.style(f"{record.seq:>8}  {when}", dim=True)
    text = bytes(record.data) if isinstance(record.data, msgspec.Raw) else b""
    meta = b"  " + bytes(record.meta) if isinstance(record.meta, msgspec.Raw) else b""
    payload = harmless((text + meta).decode())
    return f"{head if has_colour() else click.unstyle(head)}  {who:16}  {payload}".encode()


def _gap_line(gap: Gap) -> bytes:
    return msgspec.json.encode({"gap": plain(gap)})
