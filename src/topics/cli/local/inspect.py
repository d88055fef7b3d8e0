"""`topics inspect`: inside a data directory, without a server and without changing a byte.

What the newest snapshot says of topics and segments, and what the log holds behind it. Where a server runs on the
directory, both are a little behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from topics.cli.remote import say, show_rows, table_options
from topics.errors import TopicsError

if TYPE_CHECKING:
    from topics.formats.snapshot import Snapshot
    from topics.storage.fs import Mode
    from topics.storage.wal.group_scan import GroupScan

TOPIC_COLUMNS = ("topic", "id", "durability", "head", "earliest", "count", "bytes", "segments")
SEGMENT_COLUMNS = ("first", "last", "bytes", "sealed", "tier", "live", "live_bytes")
WAL_COLUMNS = ("group", "file", "bytes", "frames", "records", "topics", "end")
FRAME_COLUMNS = ("group", "file", "offset", "length", "type", "topic_id", "seq", "ts")


@click.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option("--topic", "name", help="The segments of one topic.")
@click.option("--wal", is_flag=True, help="The log behind the snapshot, file by file, and how it ends.")
@click.option("--frames", is_flag=True, help="The log behind the snapshot, frame by frame.")
@table_options
def inspect(path: str, *, name: str | None, wal: bool, frames: bool, as_json: bool) -> None:
    """Look inside a data directory, read-only, whether a server runs on it or not.

    \b
    topics inspect /var/lib/topics
    topics inspect /var/lib/topics --topic orders --json
    topics inspect /var/lib/topics --wal
    topics inspect /var/lib/topics --frames | tail
    """
    if sum((name is not None, wal, frames)) > 1:
        raise click.UsageError("give one of --topic, --wal and --frames")
    snapshot = _snapshot(path)
    if snapshot is not None:
        say(f"snapshot {snapshot.id} of instance {snapshot.instance}, clean stop: {str(snapshot.clean).lower()}")
    if wal:
        show_rows(WAL_COLUMNS, _wal_rows(path, snapshot), as_json=as_json)
    elif frames:
        show_rows(FRAME_COLUMNS, _frame_rows(path, snapshot), as_json=as_json)
    elif snapshot is None:
        raise TopicsError(f"{path} holds no snapshot; is it a data directory? --wal shows what its log holds")
    elif name is not None:
        show_rows(SEGMENT_COLUMNS, _segment_rows(snapshot, name), as_json=as_json)
    else:
        show_rows(TOPIC_COLUMNS, _topic_rows(snapshot), as_json=as_json)


def _snapshot(path: str) -> Snapshot | None:
    from topics.storage.data_dir import DataDir
    from topics.storage.osfs import OsFs
    from topics.storage.snapshots import SnapshotStore

    loaded = SnapshotStore(OsFs(), DataDir(path).meta).load()
    for rejected in loaded.rejected:
        say(f"topics: snapshot {rejected.name} is passed over: {rejected.reason}")
    return loaded.snapshot


def _topic_rows(snapshot: Snapshot) -> Iterator[tuple[Any, ...]]:
    for topic in sorted(snapshot.topics, key=lambda topic: topic.name):
        yield (
            topic.name,
            f"{topic.id:08X}",
            topic.config["durability"],
            topic.head,
            topic.earliest_seq,
            topic.count,
            topic.bytes,
            len(topic.segments),
        )


def _segment_rows(snapshot: Snapshot, name: str) -> Iterator[tuple[Any, ...]]:
    found = next((topic for topic in snapshot.topics if topic.name == name), None)
    if found is None:
        raise TopicsError(f"the newest snapshot knows no topic {name!r}")
    for part in found.segments:
        last = part.first + part.count - 1
        yield part.first, last, part.data_len, part.sealed, part.tier, part.live, part.live_bytes


# --- the log ---------------------------------------------------------------------------------------------------------


def _scans(path: str, snapshot: Snapshot | None) -> Iterator[GroupScan]:
    from topics.storage.data_dir import DataDir
    from topics.storage.osfs import OsFile, OsFs
    from topics.storage.snapshots import positions_of
    from topics.storage.wal.file_scan import scan_group
    from topics.storage.wal.group_scan import discover
    from topics.storage.wal.wal_files import WalFiles

    class ReadOnlyScanFs(OsFs):
        """A scan opens the log to go on with it; here it may lie on a disk that can only be read."""

        def open(self, path: str, mode: Mode = "r") -> OsFile:
            return super().open(path, "r")

    fs, files = ReadOnlyScanFs(), WalFiles()
    starts = {} if snapshot is None else positions_of(snapshot)
    gen = 0 if snapshot is None else snapshot.gen
    try:
        for listing in discover(fs, DataDir(path)):
            yield scan_group(fs, listing, files, start=starts.get(listing.key), snapshot_gen=gen, salvage=True)
    finally:
        files.close()


def _wal_rows(path: str, snapshot: Snapshot | None) -> Iterator[tuple[Any, ...]]:
    from topics.formats.wal.frame import FrameType

    for scan in _scans(path, snapshot):
        for notice in scan.notices:
            say(f"topics: {notice}")
        for at, scanned in enumerate(scan.files, 1):
            columns = scanned.columns
            kinds = Counter(columns.type.tolist())
            records = kinds[int(FrameType.APPEND)]
            topics = len(set(columns.topic_id[columns.type == int(FrameType.APPEND)].tolist()))
            end = "" if at < len(scan.files) else f"{scan.end.kind} {scan.end.reason}".strip()
            yield scan.key, scanned.number, columns.end, len(columns), records, topics, end


def _frame_rows(path: str, snapshot: Snapshot | None) -> Iterator[tuple[Any, ...]]:
    from topics.formats.wal.frame import FrameType

    for scan in _scans(path, snapshot):
        for scanned in scan.files:
            found = scanned.columns
            fields = (found.offset, found.length, found.type, found.topic_id, found.seq, found.ts)
            for offset, length, kind, topic_id, seq, ts in zip(*(field.tolist() for field in fields), strict=True):
                name = FrameType(kind).name.lower()
                yield scan.key, scanned.number, offset, length, name, f"{topic_id:08X}", seq, ts
