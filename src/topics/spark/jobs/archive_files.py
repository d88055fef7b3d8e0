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
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from topics.errors import ConfigError

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
    """Everything that names the files of the archive, onto the disk: Spark and Delta leave that to the system."""
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
    """Works for files, too."""
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
    """Spark writes whole paths. What lies above the archive does not count: it may have been moved or copied since."""
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
    """Once; before the first batch."""
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
