"""Read-only files of a data directory or cold root, local or anything that `pyarrow.fs` opens.

Both kinds answer the same few questions; an absent file or directory is `FileNotFoundError`, everything else an
`OSError`, as it comes. Nothing here writes, locks or caches: the server may be running. Called by the manifest reader
on the driver and by scans on executors, which open a `Files` anew from its root.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from topics.errors import ConfigError
from topics.spark.secret import without_secrets


class Files(Protocol):
    """Files below one root, named by paths relative to it."""

    @property
    def root(self) -> str:
        """What `open_files` was given."""

    def shown(self, path: str = "") -> str:
        """A file, or the root, for people."""

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory."""

    def size(self, path: str) -> int: ...

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes from `offset` on, fewer than `length` only at the end of the file."""

    def open(self, path: str) -> OpenFile:
        """One file, held open: it stays what it is when another takes its name."""


class OpenFile(Protocol):
    @property
    def size(self) -> int:
        """Length when it was opened."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly these bytes, fewer only behind the end of the file."""

    def view(self) -> memoryview:
        """The whole file; mapped where that is possible, so that only what is touched is read."""

    def close(self) -> None: ...


def open_files(root: str) -> Files:
    """The files below a path or URI."""
    scheme = urlsplit(root).scheme
    if scheme in ("", "file") or len(scheme) == 1:
        return LocalFiles(root)
    return ArrowFiles(root)


def local_path(root: str) -> str:
    """The path of a `file:` URI; other texts are paths already."""
    return unquote(urlsplit(root).path) if root.startswith("file:") else root


class LocalFiles:
    """Files of this machine."""

    def __init__(self, root: str) -> None:
        self._given = root
        self._root = local_path(root).rstrip("/") or "/"

    @property
    def root(self) -> str:
        return self._given

    def shown(self, path: str = "") -> str:
        return self.path(path)

    def path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(path)))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        return os.stat(self.path(path)).st_size

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return _read(self.open(path), offset, length)

    def open(self, path: str) -> OpenFile:
        return LocalFile(os.open(self.path(path), os.O_RDONLY))


class LocalFile:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = os.fstat(fd).st_size

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        found = os.pread(self._fd, length, offset)
        while 0 < len(found) < length and (more := os.pread(self._fd, length - len(found), offset + len(found))):
            found += more
        return found

    def view(self) -> memoryview:
        return memoryview(mmap.mmap(self._fd, self._size, prot=mmap.PROT_READ) if self._size else b"")

    def close(self) -> None:
        os.close(self._fd)


class ArrowFiles:
    """Files of an object store or of any other file system of `pyarrow.fs`."""

    def __init__(self, uri: str) -> None:
        import pyarrow as pa
        from pyarrow import fs

        self._given = uri
        try:
            self._fs, path = fs.FileSystem.from_uri(uri)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise ConfigError(f"path {without_secrets(uri)} cannot be opened: {error}") from None
        self._root = path.rstrip("/")

    @property
    def root(self) -> str:
        return self._given

    def shown(self, path: str = "") -> str:
        root = without_secrets(self._given).rstrip("/")
        return f"{root}/{path}" if path else root

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def list(self, path: str) -> list[str]:
        from pyarrow import fs

        selector = fs.FileSelector(self._path(path), recursive=False, allow_not_found=True)
        return sorted(str(info.base_name) for info in self._fs.get_file_info(selector))

    def size(self, path: str) -> int:
        from pyarrow import fs

        info = self._fs.get_file_info(self._path(path))
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(2, "no such object", self._path(path))
        return int(info.size)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return _read(self.open(path), offset, length)

    def open(self, path: str) -> OpenFile:
        # Some stores tell of an absent object only when it is read.
        size = self.size(path)
        return ArrowFile(self._fs.open_input_file(self._path(path)), size)


class ArrowFile:
    def __init__(self, file: Any, size: int) -> None:
        self._file = file
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        wanted = min(length, self._size - offset)
        return bytes(self._file.read_at(wanted, offset)) if wanted > 0 else b""

    def view(self) -> memoryview:
        return memoryview(self.read(0, self._size))

    def close(self) -> None:
        self._file.close()


def _read(file: OpenFile, offset: int, length: int | None) -> bytes:
    try:
        return file.read(offset, max(file.size - offset, 0) if length is None else length)
    finally:
        file.close()
