"""Files of an archive: which ones the sink has committed, and the manifest that vouches for them.

    DIR/topic=orders/date=2026-01-31/part-….parquet   the table
    DIR/_spark_metadata/                              Spark's log of committed files (Parquet sink)
    DIR/_delta_log/                                   Delta's (Delta sink)
    DIR/_checkpoint/                                  where the stream is
    DIR/_manifest/00000000000000000012.jsonl          one line per file: topic, epochs, seqs, rows, bytes, sha256
    DIR/_instance                                     the data directory whose topics these are
    DIR/_lock                                         held by the run that writes

A file without a manifest line is not part of the archive: a batch that was interrupted leaves such files behind. A
manifest file is written whole under another name and renamed, so a line is there or not.

Delta's half is our own: workers write the files of a batch, the driver commits them once through the `deltalake`
package. The commit carries the batch's number as an application transaction, and a batch whose number is already in the
table is not written again, which makes it exactly once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from topics.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MANIFEST_DIR: Final = "_manifest"
CHECKPOINT_DIR: Final = "_checkpoint"
SPARK_LOG_DIR: Final = "_spark_metadata"
DELTA_LOG_DIR: Final = "_delta_log"
LOCK_FILE: Final = "_lock"
INSTANCE_FILE: Final = "_instance"
_READ_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedFile:
    """One data file; `path` is relative to the archive."""

    path: str
    topic: str
    first_epoch: int
    last_epoch: int
    first_seq: int
    last_seq: int
    records: int
    bytes: int
    sha256: str


def manifest(folder: Path) -> dict[str, ArchivedFile]:
    """Every file that the archive vouches for, by path."""
    found: dict[str, ArchivedFile] = {}
    for name in sorted((folder / MANIFEST_DIR).glob("*.jsonl")):
        for line in name.read_text(encoding="utf-8").splitlines():
            entry = ArchivedFile(**json.loads(line))
            found[entry.path] = entry
    return found


def add_to_manifest(folder: Path, files: Iterable[ArchivedFile]) -> None:
    """One more manifest file, durable when this returns."""
    where = folder / MANIFEST_DIR
    where.mkdir(parents=True, exist_ok=True)
    number = max((int(name.stem) for name in where.glob("*.jsonl")), default=0) + 1
    text = "".join(json.dumps(asdict(file)) + "\n" for file in sorted(files, key=lambda f: (f.topic, f.first_seq)))
    temporary = where / f"{number:020d}.tmp"
    with temporary.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    temporary.rename(where / f"{number:020d}.jsonl")
    sync_folder(where)


def sync_logs(folder: Path) -> None:
    """Sync everything that names the files of the archive: Spark and Delta do not sync their logs."""
    for name in (SPARK_LOG_DIR, DELTA_LOG_DIR, CHECKPOINT_DIR):
        for path in (folder / name).rglob("*"):
            with suppress(FileNotFoundError):  # the stream goes on, and drops old entries
                sync_folder(path)
    for parent in {file.parent for file in _data_files(folder)}:
        for path in (parent, *parent.parents[: len(parent.relative_to(folder).parts)]):
            sync_folder(path)


def size_of(path: Path) -> int | None:
    """None for a file that is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def sync_folder(path: Path) -> None:
    """Sync a folder or a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def described(folder: Path, path: str) -> ArchivedFile:
    """Read one data file back: its bytes for the hash, its footer for the seqs."""
    import pyarrow.parquet as pq

    whole = folder / path
    digest, size = hashlib.sha256(), 0
    with whole.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
            size += len(piece)
        os.fsync(file.fileno())  # what a manifest vouches for, and a trim relies on, must be on the disk
    footer = pq.read_metadata(whole)
    epochs, seqs = _bounds(footer, "epoch"), _bounds(footer, "seq")
    return ArchivedFile(
        path=path,
        topic=topic_of(path),
        first_epoch=epochs[0],
        last_epoch=epochs[1],
        first_seq=seqs[0],
        last_seq=seqs[1],
        records=footer.num_rows,
        bytes=size,
        sha256=digest.hexdigest(),
    )


def _bounds(footer: Any, column: str) -> tuple[int, int]:
    """Smallest and largest value of a column, from the footer's statistics."""
    at = footer.schema.names.index(column)
    stats = [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
    known = [(s.min, s.max) for s in stats if s is not None and s.has_min_max]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else (0, 0)


def topic_of(path: str) -> str:
    """The topic that a file's folder names."""
    for part in path.split("/"):
        if part.startswith("topic="):
            return unquote(part.removeprefix("topic="))
    return ""


def committed_by_spark(folder: Path) -> list[str]:
    """Relative paths of the files that Spark's file sink has committed."""
    log = folder / SPARK_LOG_DIR
    batches = {int(name.name): name for name in log.glob("[0-9]*") if name.name.isdigit()}
    compacted = {int(name.name.removesuffix(".compact")): name for name in log.glob("[0-9]*.compact")}
    base = max(compacted, default=-1)
    sources = ([compacted[base]] if compacted else []) + [batches[n] for n in sorted(batches) if n > base]
    return [path for source in sources for path in _sink_entries(source)]


def _sink_entries(source: Path) -> Iterator[str]:
    """Spark writes absolute paths; only the part below the archive counts, because it may have been moved since."""
    for line in source.read_text(encoding="utf-8").splitlines()[1:]:
        entry = json.loads(line)
        if entry.get("action", "add") == "add":
            yield "topic=" + unquote(urlsplit(entry["path"]).path).rpartition("/topic=")[2]


def check_folder(folder: Path, log_dir: str) -> None:
    """Raises ConfigError for a folder that is not empty and not an archive with this log of commits.

    What a commit does not name is removed as the rest of an interrupted batch, so nothing may lie there that was
    committed elsewhere. The checkpoint is the first thing that an archive writes and never goes."""
    for other in {SPARK_LOG_DIR, DELTA_LOG_DIR} - {log_dir}:
        if (folder / other).exists():
            format_ = "delta" if other == DELTA_LOG_DIR else "parquet"
            raise ConfigError(f"{folder} is an archive in another format: give --format {format_}, or another folder")
    found = next(_data_files(folder), None) or next((folder / log_dir).glob("[0-9]*"), None)
    if found is not None and not (folder / CHECKPOINT_DIR).exists():
        raise ConfigError(f"{folder} holds a table but no {CHECKPOINT_DIR}: it is no archive; choose another folder")


def check_instance(folder: Path, instance: str) -> None:
    """Raises ConfigError where an archive is of another data directory: topics there may have the same epochs and seqs,
    so the stream would go on in the middle of them, and a trim would delete what it passed over."""
    file = folder / INSTANCE_FILE
    known = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    if instance and known and instance != known:
        raise ConfigError(f"{folder} is the archive of another server's topics; choose another folder")


def note_instance(folder: Path, instance: str) -> None:
    """Write down, once and before the first batch, whose archive this is."""
    file = folder / INSTANCE_FILE
    if instance and not file.exists():
        file.with_suffix(".tmp").write_text(f"{instance}\n", encoding="utf-8")
        file.with_suffix(".tmp").rename(file)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One run at a time: a second one would remove the files of a batch that the first has not committed yet."""
    with (folder / LOCK_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another run is archiving into {folder}; wait until it ends") from None
        yield


def orphans(folder: Path, committed: Iterable[str]) -> list[Path]:
    """Data files that no commit names: what an interrupted batch left behind."""
    known = set(committed)
    return [path for path in _data_files(folder) if str(path.relative_to(folder)) not in known]


def _data_files(folder: Path) -> Iterator[Path]:
    return folder.glob("topic=*/**/*.parquet")


def committed_offset(folder: Path) -> dict[str, Any] | None:
    """The end of the last batch that the checkpoint calls committed."""
    checkpoint = folder / CHECKPOINT_DIR
    commits = [int(name.name) for name in (checkpoint / "commits").glob("[0-9]*") if name.name.isdigit()]
    if not commits:
        return None
    lines = (checkpoint / "offsets" / str(max(commits))).read_text(encoding="utf-8").splitlines()
    offset = json.loads(lines[-1])
    # With named sources the line is a map of names to offsets.
    return offset if isinstance(offset, dict) else None


FILE_RECORDS_MAX: Final = 4_000_000
_DESCRIBED: Final = "path string, size long, topic string, date string, stats string"


def check_installed() -> None:
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise ConfigError("the Delta format needs the deltalake package: pip install 'topicsdb[spark]'") from None


def committer(folder: Path, app_id: str) -> Callable[[DataFrame, int], None]:
    """The function that a stream calls for each batch."""

    def commit(batch: DataFrame, batch_id: int) -> None:
        table = _table(folder)
        done = table.transaction_version(app_id) if table is not None else None
        if done is not None and done >= batch_id:
            return
        files = batch.mapInArrow(_writer(str(folder), batch_id), _DESCRIBED).collect()
        _commit(folder, table, [row.asDict() for row in files], app_id, batch_id)

    return commit


def _table(folder: Path) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(str(folder)) if DeltaTable.is_deltatable(str(folder)) else None


def _writer(folder: str, batch_id: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One task: a file for each topic and date among its rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        waiting: dict[tuple[str, str], list[pa.Table]] = {}
        described: list[dict[str, Any]] = []
        for batch in batches:
            table = pa.Table.from_batches([batch])
            keys = table.select(["topic", "date"]).group_by(["topic", "date"]).aggregate([]).to_pylist()
            for key in keys:
                is_key = pc.and_(pc.equal(table["topic"], key["topic"]), pc.equal(table["date"], key["date"]))
                part = table if len(keys) == 1 else table.filter(is_key)
                waiting.setdefault((key["topic"], key["date"]), []).append(part.drop_columns(["topic", "date"]))
            for place in [place for place, parts in waiting.items() if _rows(parts) >= FILE_RECORDS_MAX]:
                described.append(_write_file(folder, batch_id, place, waiting.pop(place)))
        described += [_write_file(folder, batch_id, place, parts) for place, parts in sorted(waiting.items())]
        if described:
            yield pa.RecordBatch.from_pylist(described, schema=_described_schema())

    return write


def _rows(parts: Iterable[pa.Table]) -> int:
    return sum(part.num_rows for part in parts)


def _described_schema() -> pa.Schema:
    import pyarrow as pa

    text = pa.string()
    return pa.schema([("path", text), ("size", pa.int64()), ("topic", text), ("date", text), ("stats", text)])


def _write_file(folder: str, batch_id: int, place: tuple[str, str], parts: list[pa.Table]) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    topic, date = place
    table = pa.concat_tables(parts)
    relative = f"topic={quote(topic, safe='')}/date={date}/part-{batch_id:05d}-{uuid.uuid4().hex}.parquet"
    path = Path(folder) / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="snappy")
    low, high = (pc.min_max(table["seq"]).as_py()[end] for end in ("min", "max"))
    stats = {
        "numRecords": table.num_rows,
        "minValues": {"seq": low},
        "maxValues": {"seq": high},
        "nullCount": {"seq": 0},
    }
    size = path.stat().st_size
    return {"path": relative, "size": size, "topic": topic, "date": date, "stats": json.dumps(stats)}


def _commit(folder: Path, table: Any, files: list[dict[str, Any]], app_id: str, batch_id: int) -> None:
    from deltalake import CommitProperties, Transaction
    from deltalake.transaction import AddAction, create_table_with_add_actions

    if not files and table is None:
        return
    now_ms = time.time_ns() // 1_000_000
    # Names as they are on the disk: the package encodes them for the log.
    actions = [AddAction(f["path"], f["size"], _values(f), now_ms, True, f["stats"]) for f in files]
    properties = CommitProperties(app_transactions=[Transaction(app_id, batch_id)])
    if table is None:
        create_table_with_add_actions(
            str(folder), _schema(), actions, partition_by=["topic", "date"], commit_properties=properties
        )
    else:
        table.create_write_transaction(
            actions, "append", table.schema(), partition_by=["topic", "date"], commit_properties=properties
        )


def _values(file: dict[str, Any]) -> dict[str, str | None]:
    return {"topic": file["topic"], "date": file["date"]}


def _schema() -> Any:
    from deltalake import Field, Schema
    from deltalake.schema import PrimitiveType

    kinds = {
        "topic": "string",
        "epoch": "long",
        "seq": "long",
        "ts": "timestamp",
        "node": "string",
        "tag": "string",
        "data": "string",
        "meta": "string",
        "date": "string",
    }
    return Schema([Field(name, PrimitiveType(kind), nullable=True) for name, kind in kinds.items()])


def committed_by_delta(folder: Path) -> list[str]:
    """Relative paths of the files in the table."""
    table = _table(folder)
    return ["topic=" + uri.rpartition("/topic=")[2] for uri in table.file_uris()] if table is not None else []
