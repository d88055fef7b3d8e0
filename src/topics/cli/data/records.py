"""`topics produce`, `delete`: records in, and records away.

`produce` knows the lines of `topics read` again (`ExportedRecord`), so that a topic goes through a file or a pipe and
comes out with the data, tags, nodes and meta it had.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import IO

import click
import msgspec
from msgspec import UNSET, UnsetType, field

from topics import limits
from topics.cli.remote import (
    confirm,
    echo_json,
    json_option,
    plain,
    progress,
    rehearse,
    say,
    server_options,
    show_fields,
    sure_options,
)
from topics.client import Client, Topic
from topics.client.routes import payload_decoder
from topics.errors import InvalidRequest, TopicsError
from topics.model.names import parse_match
from topics.model.paging import Gap
from topics.model.results import Record
from topics.model.values import Event, Json, json_text

WRITE_BYTES = 4 * limits.MIB
"""A write ends here at the latest, however many records it was to have."""
LINE_BYTES_MAX = 4 * limits.RECORD_BYTES_MAX
"""No record can be that long; a line without an end must not fill the memory."""

# --- produce ---------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.File("rb"))
@click.option("--tag", help="Tag of every record.")
@click.option("--node", help="Node of every record.")
@click.option(
    "--batch", default=1000, show_default=True, type=click.IntRange(1, 10_000), help="Records per write, at most."
)
@click.option("--raw", is_flag=True, help="Each line is a text, not JSON.")
@click.option("--verbatim", is_flag=True, help="Each line is data, also one that `topics read` wrote.")
@json_option
@server_options
def produce(
    client: Client,
    topic: str,
    files: tuple[IO[bytes], ...],
    *,
    tag: str | None,
    node: str | None,
    batch: int,
    raw: bool,
    verbatim: bool,
    as_json: bool,
) -> None:
    """Append JSON lines from files or stdin, one record per line.

    \b
    echo '{"id": 1}' | topics produce orders
    topics produce orders --tag import orders.jsonl
    tail -f app.log | topics produce logs --raw --batch 1
    topics read orders | topics produce orders.copy

    A line that `topics read` wrote, {"$seq":..., "$ts":..., "data":...}, becomes the record that it was read from:
    data, meta, tag and node, unless --tag or --node replace them. Seq and time are new.
    """
    handle, total, last = client.topic(topic), 0, 0
    try:
        with progress(f"appending to {topic}", bytes_of(files), unit="bytes") as advance:
            for chunk in chunks_of(lines_of(files or (sys.stdin.buffer,)), batch):
                events = list(events_of(chunk, tag=tag, node=node, raw=raw, verbatim=verbatim))
                if events:
                    done = handle.append_many(events)
                    total, last = total + done.count, done.last_seq
                advance(sum(len(text) + 1 for _, text in chunk))
    except (TopicsError, KeyboardInterrupt):
        if total:
            say(f"at least {total} records appended to {topic}: the first {total} lines that are not blank")
        raise
    if as_json:
        echo_json({"topic": topic, "count": total, "last_seq": last})
    else:
        say(f"{total} records appended to {topic}" + (f", up to seq {last}" if total else ""))


def bytes_of(files: Iterable[IO[bytes]]) -> int:
    """0 if nobody can know, as with a pipe."""
    sizes = [os.fstat(file.fileno()).st_size for file in files if file is not sys.stdin.buffer]
    return sum(sizes) if sizes and all(sizes) else 0


def lines_of(files: Iterable[IO[bytes]]) -> Iterator[tuple[str, bytes]]:
    for file in files:
        for number, line in enumerate(iter(partial(file.readline, LINE_BYTES_MAX + 1), b""), 1):
            if len(line) > LINE_BYTES_MAX:
                raise InvalidRequest(f"{getattr(file, 'name', '-')}:{number} has more than {LINE_BYTES_MAX} bytes")
            text = line.rstrip(b"\r\n")
            if text.strip():
                yield f"{getattr(file, 'name', '-')}:{number}", text


def chunks_of(lines: Iterator[tuple[str, bytes]], size: int) -> Iterator[list[tuple[str, bytes]]]:
    """Up to so many lines, fewer if they are long."""
    chunk: list[tuple[str, bytes]] = []
    chunk_bytes = 0
    for line in lines:
        chunk.append(line)
        chunk_bytes += len(line[1])
        if len(chunk) == size or chunk_bytes >= WRITE_BYTES:
            yield chunk
            chunk, chunk_bytes = [], 0
    if chunk:
        yield chunk


class ExportedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of `topics read`. Whatever has another field is data."""

    seq: int = field(name="$seq")
    ts: int = field(name="$ts")
    data: Json | UnsetType = UNSET
    node: str | None = field(name="$node", default=None)
    tag: str | None = field(name="$tag", default=None)
    meta: Json | UnsetType = UNSET
    position: str | int = ""
    topic: str = ""
    data_text: str | UnsetType = UNSET
    """The data of a line of `topics export`, as text, where white space in it would break the line."""
    meta_text: str | UnsetType = UNSET

    def event(self, *, tag: str | None, node: str | None) -> Event:
        data = self.data if isinstance(self.data_text, UnsetType) else Json(self.data_text.encode())
        meta = self.meta if isinstance(self.meta_text, UnsetType) else Json(self.meta_text.encode())
        return Event(data, tag=tag or self.tag, node=node or self.node, meta=None if meta is UNSET else meta)


class _ExportedLine(msgspec.Struct, frozen=True):
    records: list[ExportedRecord]


class _GapLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `topics read --gaps` writes where something was lost."""

    gap: Gap


_decode_exported = payload_decoder(_ExportedLine, "records")
_decode_gap = msgspec.json.Decoder(_GapLine).decode


def events_of(
    lines: Iterable[tuple[str, bytes]], *, tag: str | None, node: str | None, raw: bool, verbatim: bool
) -> Iterator[Event]:
    for at, text in lines:
        found = None if raw or verbatim else _exported(text)
        if found is None:
            yield Event(_data(text, raw=raw, at=at), tag=tag, node=node)
        elif isinstance(found, Gap):
            lost = f"{found.gap_from} to {found.gap_to} ({found.reason})"
            say(f"topics: {at}: nothing is appended for the gap of its source, {lost}")
        else:
            yield found.event(tag=tag, node=node)


def _exported(text: bytes) -> ExportedRecord | Gap | None:
    try:
        if b'"$seq"' in text and b'"$ts"' in text:
            found = _decode_exported(b'{"records":[%b]}' % text).records
            is_one = len(found) == 1 and (found[0].data is UNSET) != (found[0].data_text is UNSET)
            return found[0] if is_one else None
        if text.startswith(b'{"gap":'):
            return _decode_gap(text).gap
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    return None


def _data(text: bytes, *, raw: bool, at: str) -> object:
    if raw:
        return _text_of(text, at=at)
    try:
        return json_text(Json(text))
    except InvalidRequest as error:
        raise InvalidRequest(f"{at}: {error}") from None


def _text_of(line: bytes, *, at: str) -> str:
    """JSON carries Unicode only. One odd byte must not end the import of a log, and must not pass in silence."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        say(f"topics: {at} is not UTF-8; its odd bytes are stored as U+FFFD")
        return line.decode("utf-8", "replace")


# --- delete ----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("topic")
@click.option("--before", type=click.IntRange(min=0), metavar="SEQ", help="Records below this seq.")
@click.option("--match", metavar="TAG", help="Records with this tag; a final * matches a prefix.")
@sure_options
@json_option
@server_options
def delete(
    client: Client, topic: str, *, before: int | None, match: str | None, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Delete records below a seq, by tag, or both. Permanent, and silent to readers.

    \b
    topics delete orders --before 1000 --dry-run
    topics delete orders --match 'tenant42:*' --yes
    """
    if before is None and match is None:
        raise click.UsageError("give --before, --match or both")
    what = " and ".join(
        text
        for text in (f"below seq {before}" if before is not None else "", f"tagged {match}" if match else "")
        if text
    )
    handle = client.topic(topic)
    if dry_run:
        found = _count(handle, before, match)
        told = f"would delete {found:,} records of {topic} {what}"
        rehearse(told, {"topic": topic, "deleted": found}, as_json=as_json)
        return
    confirm(f"Delete the records of {topic} {what}?", yes=yes)
    show_fields(plain(handle.delete(before_seq=before, match=match)), as_json=as_json)


def _count(topic: Topic, before: int | None, match: str | None) -> int:
    """How many records a delete would hit now. It reads them all, which is why a bar is shown."""
    head = topic.state(touch=False).head_seq
    wanted = None if match is None else parse_match(match)
    end = head + 1 if before is None else min(before, head + 1)
    found = cursor = 0
    with progress("counting", end, unit="records") as advance:
        while True:
            page = topic.page(cursor, limit=limits.DIFF_LIMIT.high)
            records = [record for record in page.records if record.seq < end]
            found += sum(wanted is None or wanted.matches(_tag(record)) for record in records)
            advance(page.next_from_seq - cursor)
            cursor = page.next_from_seq
            if page.caught_up or len(records) < len(page.records) or cursor >= end:
                return found


def _tag(record: Record) -> bytes | None:
    return None if record.tag is None else record.tag.encode()
