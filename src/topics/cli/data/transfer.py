"""`topics export`, `import`: a topic into a file and back, exactly: data, meta, tag and node of each record, byte for
byte, in JSON lines or Parquet.

A file appears under its name when it is whole; until then it is `NAME.part`, where an export in JSON lines goes on.
An import says the head that it expects with each write, so that neither a retry nor another writer puts a record twice
or between; what an interrupted one has appended is found by the topic's head, and compared before it goes on.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from topics.cli.data.reading import HELP, CliPosition, begin_at, gap_line, json_line
from topics.cli.data.records import WRITE_BYTES, events_of, lines_of
from topics.cli.remote import EXIT_DATA_LOSS, echo_json, json_option, progress, say, server_options
from topics.client import Client, Topic, blocking_handles
from topics.client.arrow_pages import needs_pyarrow
from topics.errors import DataLoss, InvalidRequest, TopicNotFound, TopicsError, VersionConflict
from topics.model.paging import Gap
from topics.model.results import Record
from topics.model.values import Event, Json, json_text

Format = Literal["jsonl", "parquet"]
BATCH = 1000
_TEXTS = ("data", "tag", "node", "meta")


def format_of(path: str, given: str | None) -> Format:
    found = given or ("parquet" if path.endswith((".parquet", ".pq")) else "jsonl")
    if found == "parquet":
        needs_pyarrow("Parquet")
        return "parquet"
    return "jsonl"


_format_option = click.option(
    "--format", "kind", type=click.Choice(["jsonl", "parquet"]), help="By the name of the file, if it is not given."
)


# --- export ----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("topic")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--from", "start", type=CliPosition(), default="start", show_default=True, metavar="POS", help=HELP)
@click.option("--tag", help="Only records with this tag; a final * matches a prefix.")
@click.option("--gaps", is_flag=True, help="Note gaps in the file instead of ending with status 3.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@_format_option
@json_option
@server_options
def export(
    client: Client,
    topic: str,
    file: str,
    *,
    start: str,
    tag: str | None,
    gaps: bool,
    force: bool,
    kind: str | None,
    as_json: bool,
) -> None:
    """Write a topic into a file: JSON lines, or Parquet.

    \b
    topics export orders orders.jsonl
    topics export orders orders.parquet --from @2026-01-31T12:00
    topics export orders eu.jsonl --tag 'eu:*' --json

    The file has every record up to the head of this moment; `topics import` makes the same records of it. An export in
    JSON lines that was interrupted goes on where it was when it is started again; one in Parquet begins anew.
    """
    target, part = Path(file), Path(f"{file}.part")
    if target.exists() and not force:
        raise InvalidRequest(f"{file} exists; give another name, or --force to replace it")
    written = format_of(file, kind)
    handle = client.topic(topic)
    export_into = _export_lines if written == "jsonl" else _export_parquet
    try:
        count, position = export_into(handle, part, start=start, tag=tag, gaps=gaps)
    except DataLoss as loss:
        say(f"topics: {loss}; --gaps goes on behind it")
        raise click.exceptions.Exit(EXIT_DATA_LOSS) from None
    os.replace(part, target)
    if as_json:
        echo_json({"topic": topic, "file": file, "format": written, "count": count, "next": position})
    else:
        say(f"{count} records of {topic} in {file}; --from {position} goes on from here")


def _export_lines(topic: Topic, part: Path, *, start: str, tag: str | None, gaps: bool) -> tuple[int, str]:
    after, fields = begin_at(topic, start)
    position, count = str(after), 0
    known = _last_position(part)
    if known is not None:
        count, position, after, fields = known[0], known[1], known[1], {}
        say(f"going on behind {count} records that are in {part}")
    head = topic.state(touch=False).head_seq
    fields["tag"] = tag
    with part.open("ab") as out, progress(f"exporting {topic.name}", head, unit="seqs") as advance:
        seen = 0
        for item in topic.read(after, gaps="yield" if gaps else "raise", **fields):
            if isinstance(item, Gap):
                out.write(gap_line(item) + b"\n")
                continue
            out.write(exact_line(item) + b"\n")
            count, position = count + 1, str(item.position)
            advance(item.seq - seen)
            seen = item.seq
        out.flush()
        os.fsync(out.fileno())
    return count, position


def _last_position(part: Path) -> tuple[int, str] | None:
    """Records and the last position in what an interrupted export has left, without a line that is not whole."""
    if not part.exists():
        return None
    text = part.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        with part.open("r+b") as file:
            file.truncate(len(whole))
    lines = whole.splitlines()
    if not lines:
        return None
    try:
        last = msgspec.json.decode(lines[-1])
        position = last["gap"]["next"] if "gap" in last else last["position"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        raise InvalidRequest(f"{part} is not what an interrupted export left; remove it") from None
    return sum(not line.startswith(b'{"gap":') for line in lines), str(position)


def exact_line(record: Record) -> bytes:
    """The line of `topics read`. A payload with line ends between its tokens goes as a text, so that it comes back."""
    line = json_line("", record)
    if b"\n" not in line and b"\r" not in line:
        return line
    texts = {"data_text": bytes(record.data).decode()}  # type: ignore[arg-type]
    if isinstance(record.meta, msgspec.Raw):
        texts["meta_text"] = bytes(record.meta).decode()
    bare = {"$seq": record.seq, "$ts": record.ts, "$node": record.node, "$tag": record.tag, "position": record.position}
    given = {name: value for name, value in bare.items() if value is not None}
    return msgspec.json.encode({**given, **texts})


def _export_parquet(topic: Topic, part: Path, *, start: str, tag: str | None, gaps: bool) -> tuple[int, str]:
    import pyarrow.parquet as pq

    after, fields = begin_at(topic, start)
    pages = topic._verbs._table_pages(after, tag=tag, gaps="warn" if gaps else "raise", from_ts=fields.get("from_ts"))
    count, position, lost, writer = 0, str(after), list[Gap](), None
    head = topic.state(touch=False).head_seq
    try:
        with progress(f"exporting {topic.name}", head, unit="records") as advance:
            for table, met, end in blocking_handles.each(_one_by_one(pages)):
                writer = writer or pq.ParquetWriter(part, table.schema, compression="zstd")
                writer.write_table(table)
                lost += met
                count, position = count + table.num_rows, str(end)
                advance(table.num_rows)
            assert writer is not None
            told = {
                "topics.topic": topic.name,
                "topics.next": position,
                "topics.gaps": msgspec.json.encode(lost).decode(),
            }
            writer.add_key_value_metadata(told)
    finally:
        if writer is not None:
            writer.close()
    for gap in lost:
        say(f"topics: records {gap.gap_from}..{gap.gap_to} are lost ({gap.reason}); the file notes it")
    with part.open("rb") as file:
        os.fsync(file.fileno())
    return count, position


async def _one_by_one(pages: Any) -> Any:
    async for page in pages:
        yield [page]


# --- import ----------------------------------------------------------------------------------------------------------


@click.command(name="import")
@click.argument("file", type=click.Path(dir_okay=False))
@click.argument("topic")
@click.option("--append", "anyway", is_flag=True, help="Behind whatever the topic has.")
@_format_option
@json_option
@server_options
def import_(client: Client, file: str, topic: str, *, anyway: bool, kind: str | None, as_json: bool) -> None:
    """Append the records of a file that `topics export` wrote.

    \b
    topics import orders.parquet orders
    topics import orders.jsonl orders.copy
    topics import more.jsonl orders --append

    Data, meta, tag and node are those of the file, byte for byte; seq and time are new. The topic has to be new or
    empty. If it has the first records of the file, from an import that was interrupted, the rest is appended.
    """
    handle = client.topic(topic)
    events = _from_parquet(file) if format_of(file, kind) == "parquet" else _from_lines(file)
    head = 0 if anyway else _skipped(handle, events, file)
    total = 0
    try:
        with progress(f"appending to {topic}", 0, unit="records") as advance:
            for chunk in _chunked(events):
                done = handle.append_many(chunk) if anyway else handle.append_many(chunk, if_head=head + total)
                total += done.count
                advance(done.count)
    except VersionConflict:
        raise InvalidRequest(
            f"somebody else writes to {topic!r}: {total} records were appended, then it had more"
        ) from None
    except (TopicsError, KeyboardInterrupt):
        if total:
            say(f"at least {head + total} records of {file} are in {topic}; start it again to go on")
        raise
    if as_json:
        echo_json({"topic": topic, "file": file, "count": total, "skipped": head})
    else:
        say(f"{total} records appended to {topic}" + (f" behind {head} that it had" if head else ""))


def _skipped(topic: Topic, events: Iterator[Event], file: str) -> int:
    """Pass over the records that the topic has; raises if they are others."""
    try:
        head = topic.state(touch=False).head_seq
    except TopicNotFound:
        return 0
    if not head:
        return 0
    last = deque(islice(events, head), maxlen=1)
    found = [item for item in topic.read(head - 1, limit=1, gaps="yield") if isinstance(item, Record)]
    if not last or not found or not _is_same(found[0], last[0]):
        mine = f"topic {topic.name!r} has records that are not the first of {file}"
        raise InvalidRequest(f"{mine}; --append goes behind them")
    say(f"going on behind {head} records that are in {topic.name}")
    return head


def _is_same(record: Record, event: Event) -> bool:
    meta = bytes(record.meta) if isinstance(record.meta, msgspec.Raw) else None
    given = None if event.meta is None else bytes(json_text(event.meta))
    stored = bytes(record.data)  # type: ignore[arg-type]
    return (stored, meta, record.tag, record.node) == (bytes(json_text(event.data)), given, event.tag, event.node)


def _from_lines(file: str) -> Iterator[Event]:
    with open(file, "rb") as lines:
        for line in lines_of([lines]):
            yield from events_of([line], tag=None, node=None, raw=False, verbatim=False)


def _from_parquet(file: str) -> Iterator[Event]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        opened = pq.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"{file} is no Parquet file: {error}") from None
    columns = [name for name in _TEXTS if name in opened.schema_arrow.names]
    if "data" not in columns:
        raise InvalidRequest(f"{file} has no column data; its columns are {', '.join(opened.schema_arrow.names)}")
    for batch in opened.iter_batches(columns=columns):
        for row in batch.to_pylist():
            meta = row.get("meta")
            yield Event(
                Json(row["data"].encode()),
                tag=row.get("tag"),
                node=row.get("node"),
                meta=None if meta is None else Json(meta.encode()),
            )


def _chunked(events: Iterable[Event]) -> Iterator[list[Event]]:
    chunk: list[Event] = []
    size = 0
    for event in events:
        chunk.append(event)
        size += len(bytes(json_text(event.data)))
        if len(chunk) == BATCH or size >= WRITE_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
