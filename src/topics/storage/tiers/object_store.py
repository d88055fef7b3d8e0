"""ObjectStore: segments as objects of any store that `pyarrow.fs` opens (`docs/spec/storage.md#sec-13-1`).

An object is there whole or not at all, and a PUT that returned counts as durable; bytes never change in place. Every
call waits for the network, within the time-outs set here, so only pool threads of the cold tier make them. Failures are
`OSError`, as with files; an absent object is `NotFound`, a range behind its end `RangeOutOfBounds`.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from topics.errors import ConfigError
from topics.formats.file_names import OWNER, parse_segment, parse_topic_dir, segment_name, topic_dir_name
from topics.storage.fs import Buffer
from topics.storage.tiers.stores import PARTS, NoSuchObject, Part, RangeOutOfBounds

CONNECT_TIMEOUT_S: Final = 3.0
REQUEST_TIMEOUT_S: Final = 20.0
ATTEMPTS_MAX: Final = 2
PROBE: Final = "OWNER.probe"
S3_OPTIONS: Final = frozenset({"region", "scheme", "endpoint_override"})

Files = Any
"""A `pyarrow.fs.FileSystem`; pyarrow ships no types."""


class ObjectStore:
    """One topic below a prefix."""

    in_place = False

    def __init__(self, files: Files, path: str, *, label: str) -> None:
        self._files = files
        self._path = path
        self.label = label

    def _object(self, id: int, part: Part) -> str:
        return f"{self._path}/{segment_name(id, part)}"

    def put(self, id: int, data: Buffer, idx: Buffer) -> None:
        put_object(self._files, self._object(id, "data"), data)
        put_object(self._files, self._object(id, "idx"), idx)

    def read_range(self, id: int, part: Part, offset: int, length: int) -> bytes:
        path = self._object(id, part)
        try:
            with self._files.open_input_file(path) as file:
                if offset + length > file.size():
                    raise RangeOutOfBounds(f"{path}: {offset}+{length}")
                found: bytes = file.read_at(length, offset)
        except FileNotFoundError as error:
            raise NoSuchObject(path) from error
        if len(found) != length:
            raise OSError(f"{path}: {len(found)} of {length} bytes came")
        return found

    def delete(self, id: int) -> None:
        for part in PARTS:
            delete_object(self._files, self._object(id, part))

    def list(self) -> builtins.list[int]:
        return sorted(id for id, found in self._parts().items() if found >= set(PARTS))

    def list_any(self) -> builtins.list[int]:
        return sorted(self._parts())

    def _parts(self) -> dict[int, set[str]]:
        parts: dict[int, set[str]] = {}
        for name in names_below(self._files, self._path):
            parsed = parse_segment(name)
            if parsed is not None and parsed.part != "tags" and name == segment_name(*parsed):
                parts.setdefault(parsed.first_seq, set()).add(parsed.part)
        return parts

    def exists(self, id: int, part: Part) -> bool:
        return _size(self._files, self._object(id, part)) is not None

    def len(self, id: int, part: Part) -> int:
        size = _size(self._files, self._object(id, part))
        if size is None:
            raise NoSuchObject(self._object(id, part))
        return size

    def mark_deleted(self, id: int, offsets: Sequence[int], *, slots: Sequence[int] = ()) -> None:
        raise AssertionError("objects do not change in place")


class ObjectRoot:
    """A prefix that holds a whole cold tier."""

    in_place = False

    def __init__(self, files: Files, path: str, *, label: str, options: str = "") -> None:
        self._files = files
        self._path = path.rstrip("/")
        self._options = options
        self.label = label

    def store(self, topic_id: int) -> ObjectStore:
        return ObjectStore(self._files, f"{self._path}/topics/{topic_dir_name(topic_id)}", label=self.label)

    def uri(self, topic_id: int) -> str:
        """Where others may look for a topic's objects: with how to find the store, without the keys to it."""
        return f"{self.label}/topics/{topic_dir_name(topic_id)}{self._options}"

    def is_data_dir(self) -> bool:
        return False  # a data directory needs files that change in place

    def read_owner(self) -> str | None:
        path = f"{self._path}/{OWNER}"
        if _size(self._files, path) is None:
            return None
        with self._files.open_input_file(path) as file:
            return bytes(file.read()).decode("ascii", "replace").strip()

    def write_owner(self, instance: str) -> None:
        put_object(self._files, f"{self._path}/{OWNER}", instance.encode("ascii") + b"\n")

    def probe(self) -> None:
        """Can objects be made here?"""
        put_object(self._files, f"{self._path}/{PROBE}", b"may this be written\n")
        delete_object(self._files, f"{self._path}/{PROBE}")

    def topic_ids(self) -> list[int]:
        found = map(parse_topic_dir, names_below(self._files, f"{self._path}/topics"))
        return sorted(topic_id for topic_id in found if topic_id is not None)

    def remove_topic(self, topic_id: int) -> None:
        store = self.store(topic_id)
        for first_seq in store.list_any():
            store.delete(first_seq)


def put_object(files: Files, path: str, content: Buffer) -> None:
    stream = files.open_output_stream(path)
    stream.write(content)  # after a failure it is not closed: closing would finish a torn upload
    stream.close()


def delete_object(files: Files, path: str) -> None:
    try:
        files.delete_file(path)
    except FileNotFoundError:
        pass


def names_below(files: Files, path: str) -> list[str]:
    from pyarrow.fs import FileSelector

    return [info.base_name for info in files.get_file_info(FileSelector(path, allow_not_found=True))]


def _size(files: Files, path: str) -> int | None:
    from pyarrow.fs import FileType

    info = files.get_file_info(path)
    return int(info.size) if info.type == FileType.File else None


# --- where it is ------------------------------------------------------------------------------------------------------


def open_object_root(uri: str) -> ObjectRoot:
    """The root that a URI names; ConfigError when it names none. Nothing is asked of the store yet."""
    try:
        files, path = _open_s3(uri) if uri.startswith("s3://") else _open_any(uri)
    except ImportError as error:
        raise ConfigError("TOPICS_COLD_DIR is a URI, which needs pyarrow: pip install 'topicsdb[cold]'") from error
    except (ValueError, OSError, NotImplementedError) as error:
        raise ConfigError(f"TOPICS_COLD_DIR is no location that can be opened: {error}") from error
    if not path.strip("/"):
        raise ConfigError("TOPICS_COLD_DIR names no bucket")
    query = urlsplit(uri).query if uri.startswith("s3://") else ""  # S3_OPTIONS: none of them is a secret
    return ObjectRoot(files, path, label=without_secrets(uri), options=f"?{query}" if query else "")


def _open_any(uri: str) -> tuple[Files, str]:
    from pyarrow.fs import FileSystem

    files, path = FileSystem.from_uri(uri)
    return files, str(path)


def _open_s3(uri: str) -> tuple[Files, str]:
    """As `FileSystem.from_uri`, with time-outs, which a URI cannot carry."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    parts = urlsplit(uri)
    user, at, bucket = parts.netloc.rpartition("@")
    key, _, secret = user.partition(":")
    options = dict(parse_qsl(parts.query))
    if unknown := options.keys() - S3_OPTIONS:
        raise ValueError(f"unknown option {min(unknown)!r}")
    keys = {"access_key": unquote(key), "secret_key": unquote(secret)} if at else {}
    files = S3FileSystem(
        **keys,
        **options,
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS_MAX),
    )
    return files, f"{bucket}{parts.path}".rstrip("/")


def without_secrets(uri: str) -> str:
    """The URI as it may be shown: no keys, no options."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
