"""Where to begin and end in a topic: `start`, `end`, a seq, `-N` from the end, `@time`, `cursor:name`, or a printed
position.

`topics read`, `tail`, `latest`: records out. JSON lines for machines; on a terminal, a line that a person can read.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import click
import msgspec

from topics import limits
from topics.cli.remote import EXIT_DATA_LOSS, F, harmless, has_colour, json_option, one_line, plain, say, server_options
from topics.client import Client, Topic
from topics.client.readers import FollowFields, ReadFields
from topics.errors import DataLoss
from topics.model.names import is_topic_name
from topics.model.paging import Gap, Gaps
from topics.model.position import is_token, parse_token
from topics.model.results import Record

_SEQ = re.compile("-?[0-9]{1,20}").fullmatch
_MS = re.compile("[0-9]{1,20}").fullmatch
_AGO = re.compile("-([0-9]{1,9})(ms|s|m|h|d|w)").fullmatch
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_CURSOR = "cursor:"
HELP = "start, end, a seq, -N (N before the end), @time (ISO 8601, ms, or -5m), cursor:NAME or a printed position"


class CliPosition(click.ParamType[str]):
    name = "position"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text in ("start", "end") or (_SEQ(text) and abs(int(text)) <= limits.U64_MAX):
            return text
        if is_token(text):
            return text
        if text.startswith(_CURSOR) and is_topic_name(text.removeprefix(_CURSOR)):
            return text
        if not text.startswith("@"):
            self.fail(f"{text!r} is no position; give {HELP}", param, ctx)
        try:
            parse_time(text)
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is no time; give @2026-01-31T12:00, @1769860800000 or @-5m", param, ctx)
        return text


def parse_time(text: str) -> int:
    """Milliseconds of `@time`; a time without a zone is local, `-5m` is five minutes ago."""
    body = text.removeprefix("@")
    if _MS(body):
        return int(body)
    ago = _AGO(body)
    if ago is not None:
        return max(time.time_ns() // 1_000_000 - int(ago[1]) * _UNITS_MS[ago[2]], 0)
    return int(datetime.fromisoformat(body).astimezone(UTC).timestamp() * 1000)


def begin_at(topic: Topic, position: str) -> tuple[int | str, ReadFields]:
    """What to read behind, and the time to begin at if it is one: the next record is the first one wanted. Unlike a
    seq, a printed position stands behind its record, and knows its topic again."""
    if position.startswith("@"):
        return 0, {"from_ts": min(parse_time(position), limits.U64_MAX)}
    if position.startswith(_CURSOR):
        return topic.cursor(position.removeprefix(_CURSOR)).get().position, {}
    return position if is_token(position) else seq_before(topic, position), {}


def seq_before(topic: Topic, position: str) -> int:
    """The seq whose next record is the first one wanted."""
    if position == "start":
        return 0
    if is_token(position):
        return parse_token(position).seq
    if position.startswith(_CURSOR):
        return topic.cursor(position.removeprefix(_CURSOR)).get().seq
    if position.startswith("@"):
        return _seq_before_time(topic, parse_time(position))
    state = topic.state(touch=False)
    if position == "end":
        return state.head_seq
    number = int(position)
    if number < 0 or position == "-0":  # as many as there are: what retention took before is not asked for
        return max(state.head_seq + number, state.earliest_seq - 1)
    return max(number - 1, 0)


def _seq_before_time(topic: Topic, ts: int) -> int:
    """Before the first record of this time or later."""
    page = topic.page(from_ts=min(ts, limits.U64_MAX), limit=1)
    return page.records[0].seq - 1 if page.records else page.head_seq


Line = Callable[[str, Record], bytes]


def reading_options(command: F) -> F:
    for option in (
        click.option("-n", "--count", type=click.IntRange(min=0), help="Stop after this many records."),
        json_option,
        click.option("--data-only", is_flag=True, help="Only the payloads, one per line."),
        click.option("--gaps", is_flag=True, help="Show gaps among the records instead of ending with status 3."),
        click.option("--tag", metavar="TAG", help="Only records with this tag; a final * matches a prefix."),
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
    tag: str | None,
    exclude_node: tuple[str, ...],
) -> None:
    """Read records: as JSON lines, or, on a terminal, as lines for a person.

    \b
    topics read orders
    topics read orders --from -10
    topics read orders --from @2026-01-31T12:00 --to @2026-01-31T13:00 -n 100
    topics read orders --from @-5m --tag 'tenant42:*'
    topics read orders --from cursor:billing
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
    place, fields = begin_at(handle, start)
    fields |= {"tag": tag, "exclude_nodes": exclude_node}
    last = None if stop is None else _last_wanted(handle, stop)
    told: Gaps = "yield" if gaps else "raise"
    items = (
        handle.follow(place, gaps=told, **fields) if follow else handle.read(place, limit=count, gaps=told, **fields)
    )
    line_of = _line_of(as_json=as_json, data_only=data_only)
    seen = _print(((topic, item) for item in items), count=count, last=last, line_of=line_of, flushes=follow)
    if seen is not None and not data_only and line_of is not json_line:
        say(f"--from {seen} goes on from here")


@click.command()
@click.argument("topics", nargs=-1, required=True)
@click.option("--cursor", metavar="NAME", help="Go on behind this named cursor, and commit there what was shown.")
@click.option("--from", "start", type=CliPosition(), default="-10", show_default=True, metavar="POS", help=HELP)
@reading_options
@server_options
def tail(
    client: Client,
    topics: tuple[str, ...],
    *,
    start: str,
    cursor: str | None,
    count: int | None,
    data_only: bool,
    as_json: bool,
    gaps: bool,
    tag: str | None,
    exclude_node: tuple[str, ...],
) -> None:
    """The last records, and then whatever comes, of one topic or of several.

    \b
    topics tail orders
    topics tail orders payments --from @-10m --tag 'tenant42:*'
    topics tail orders --from end --data-only | jq .total
    topics tail orders --from start --cursor shipping --json | ship

    Of several topics each line names its own. With --cursor, --from says where a cursor begins that is not there yet.
    A record is committed when the next one is shown, so the last one comes again.
    """
    places: dict[str, int | str] = {}
    fields: FollowFields = {"tag": tag, "exclude_nodes": exclude_node}
    for topic in topics:
        places[topic], begin = begin_at(client.topic(topic), start)
        fields.update(begin)  # type: ignore[typeddict-item]
    if cursor is not None:
        fields |= {"cursor": cursor, "commit": "record"}
    items = client.follow(places, gaps="yield" if gaps else "raise", **fields)
    line_of = _line_of(as_json=as_json, data_only=data_only, names_topics=len(topics) > 1)
    _print(items, count=count, last=None, line_of=line_of, flushes=True)


@click.command()
@click.argument("topic")
@click.argument("position", required=False)
@click.option("--tag", metavar="TAG", help="The newest record with this tag; a final * matches a prefix.")
@click.option("--data-only", is_flag=True, help="Only the payload.")
@json_option
@server_options
def get(client: Client, topic: str, position: str | None, *, tag: str | None, data_only: bool, as_json: bool) -> None:
    """One record: by its seq or position, or the newest, of all or of a tag.

    \b
    topics get orders 4711
    topics get orders
    topics get orders --tag order:17 --data-only | jq .total
    """
    if position is not None and tag is not None:
        raise click.UsageError("give a seq or --tag, not both")
    handle = client.topic(topic)
    if position is None:
        record = handle.newest(tag=tag)
        if record is None:
            raise click.ClickException(f"{topic} has no record" + ("" if tag is None else f" with the tag {tag}"))
    else:
        record = handle.get(int(position) if _SEQ(position) else position)
    line = _line_of(as_json=as_json, data_only=data_only)(topic, record)
    click.echo(one_line(line))


@click.command()
@click.argument("topic")
@click.option("--tag", default="", metavar="PREFIX", help="Only tags that begin so.")
@click.option("-n", "--count", type=click.IntRange(min=0), help="Stop after this many records.")
@click.option("--data-only", is_flag=True, help="Only the payloads, one per line.")
@json_option
@server_options
def latest(client: Client, topic: str, *, tag: str, count: int | None, data_only: bool, as_json: bool) -> None:
    """The newest record of each tag, in the order of tags; a tag whose newest record is null is left out.

    \b
    topics latest customers
    topics latest customers --tag eu: --json
    """
    line_of = _line_of(as_json=as_json, data_only=data_only)
    records = ((topic, record) for record in client.topic(topic).latest(tag))
    _print(records, count=count, last=None, line_of=line_of, flushes=False)


def _last_wanted(topic: Topic, position: str) -> int:
    if position.startswith("@"):
        return _seq_before_time(topic, parse_time(position) + 1)
    if position in ("start", "end") or position.startswith(_CURSOR) or is_token(position) or int(position) < 0:
        return seq_before(topic, position)
    return int(position)


# --- showing ---------------------------------------------------------------------------------------------------------


def _print(
    items: Iterable[tuple[str, Record | Gap]], *, count: int | None, last: int | None, line_of: Line, flushes: bool
) -> int | str | None:
    """The position of the last record that was shown."""
    out, left, seen = sys.stdout.buffer, count, None
    try:
        for topic, item in items if left != 0 else ():
            if last is not None and (item.gap_from if isinstance(item, Gap) else item.seq) > last:
                break
            if isinstance(item, Gap):
                out.write(gap_line(item) + b"\n")
                continue
            out.write(one_line(line_of(topic, item)) + b"\n")
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


def _line_of(*, as_json: bool, data_only: bool, names_topics: bool = False) -> Line:
    if data_only:
        return lambda _, record: bytes(record.data)  # type: ignore[arg-type]
    if as_json or not sys.stdout.isatty():
        return _json_line_with_topic if names_topics else json_line
    return _line_with_topic if names_topics else _line_for_a_person


def _json_line_with_topic(topic: str, record: Record) -> bytes:
    return b'{"topic":"%b",%b' % (topic.encode(), json_line(topic, record)[1:])


def _line_with_topic(topic: str, record: Record) -> bytes:
    return f"{topic:16}  ".encode() + _line_for_a_person(topic, record)


def json_line(_: str, record: Record) -> bytes:
    """The record as the API shows it, and its position."""
    text = msgspec.json.encode(msgspec.structs.replace(record, epoch=0))
    return b'%b,"position":"%b"}' % (text[:-1], str(record.position).encode())


def _line_for_a_person(_: str, record: Record) -> bytes:
    when = datetime.fromtimestamp(record.ts / 1000).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    who = harmless(" ".join(filter(None, (record.tag, record.node and f"@{record.node}"))) or "-")
    head = click.style(f"{record.seq:>8}  {when}", dim=True)
    text = bytes(record.data) if isinstance(record.data, msgspec.Raw) else b""
    meta = b"  " + bytes(record.meta) if isinstance(record.meta, msgspec.Raw) else b""
    payload = harmless((text + meta).decode())
    return f"{head if has_colour() else click.unstyle(head)}  {who:16}  {payload}".encode()


def gap_line(gap: Gap) -> bytes:
    return msgspec.json.encode({"gap": plain(gap)})
