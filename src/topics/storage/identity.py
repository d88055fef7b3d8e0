"""Identity: is this the data directory that was written, or a copy of it? (storage.md section 2.5)

    identity          id=<32 hex digits>, never written again once it is there
    identity.place    the same id, and which files are meant: inode and ctime of `identity`, and the inode of the
                      newest log file of each group at the last start

A copy made by cp, tar or rsync, and a backup put back, has other files under the same names; a renamed directory has
the same. Always holds: what is written down was true when it was written, so a match means that nothing was put in its
place since. A mismatch may be a false alarm; what follows of it (a fork of every topic) harms no reader. Called by
recovery only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from topics.formats import names
from topics.storage.data_dir import DataDir
from topics.storage.fs import Fs, install, read_file

_ID: Final = re.compile(r"id=([0-9a-f]{32})\n").fullmatch
_PLACE: Final = re.compile(r"id=([0-9a-f]{32})\nfile=([0-9]+:[0-9]+)\n((?:log=[^\n]+\n)*)").fullmatch
_BYTES_MAX: Final = 1 << 16


class LogFile(NamedTuple):
    """The newest file of a log group: its path below the data directory."""

    path: str

    @classmethod
    def of(cls, key: str, number: int) -> LogFile:
        below = f"{names.WAL_DIR}/{key}" if key != names.FLAT_GROUP else names.WAL_DIR
        return cls(f"{below}/{names.wal_name(number)}")


class Identity:
    """What the directory says about itself, read once. `is_copy`: it is not the one that was written."""

    def __init__(self, fs: Fs, data: DataDir) -> None:
        self._fs = fs
        self._data = data
        self._id = _read(fs, data.identity)
        self._place = _read(fs, data.identity_place)
        self.is_copy = (self._id is not None or self._place is not None) and not self._is_in_place()

    def _is_in_place(self) -> bool:
        own, place = _ID(self._id or ""), _PLACE(self._place or "")
        if own is None or place is None or own[1] != place[1]:
            return False
        return place[2] == self._file() and all(map(self._is_same_log, place[3].splitlines()))

    def _file(self) -> str:
        inode, ctime_ns = self._fs.file_id(self._data.identity)
        return f"{inode}:{ctime_ns}"

    def _is_same_log(self, line: str) -> bool:
        """A log file that is gone was absorbed; one that is there must be the one that was meant."""
        path, _, inode = line.removeprefix("log=").rpartition(":")
        path = f"{self._data.root}/{path}"
        return not self._fs.exists(path) or str(self._fs.file_id(path)[0]) == inode

    def settle(self, new_id: str, logs: Iterable[LogFile]) -> None:
        """Write down what is true now, as far as it is not there already. A copy has logged its forks before."""
        if self.is_copy or self._id is None:
            install(self._fs, self._data.identity, f"id={new_id}\n".encode())
            self._id = f"id={new_id}\n"
        root = self._data.root
        lines = [f"log={log.path}:{self._fs.file_id(f'{root}/{log.path}')[0]}\n" for log in logs]
        place = f"{self._id}file={self._file()}\n{''.join(lines)}"
        if place != self._place:
            install(self._fs, self._data.identity_place, place.encode())
            self._place = place
        self.is_copy = False


def _read(fs: Fs, path: str) -> str | None:
    """None if there is no such file; what is no text of ours matches nothing."""
    if not fs.exists(path):
        return None
    return read_file(fs, path)[:_BYTES_MAX].decode("utf-8", "replace")
