"""DataDirLock: one process per data directory, and what the last one left in the lock file (storage.md 2.4, 5.3).

The text is `pid=<pid>` and `boot=<boot id> <mount ids>`. A boot line equal to the present one proves that the kernel
and the file systems lived on since it was written, so every byte written then is still there; missing, unreadable or
`-` proves nothing. Holds: the line never claims more than that, so a failed sync rewrites it as `boot=-` first
(`mark_boot_unknown`). Taken before any other access to the directory, held for the life of the process; `is_in_place`
tells whether the path still leads to it, without which nothing may be written below the directory's name.
"""

from __future__ import annotations

from threading import Lock

from topics.errors import DataDirLocked
from topics.storage.fs import Fs, LockHandle, is_in_place

BOOT_UNKNOWN = "-"


class DataDirLock:
    """A lock that is held. `old_boot` is the boot id its former holder left, or None."""

    def __init__(self, handle: LockHandle, fs: Fs, path: str, *, pid: int) -> None:
        self._fs = fs
        self._path = path
        self._handle = handle
        self._pid = pid
        self._mutex = Lock()
        self._unknown = False
        self.old_boot = parse_boot(handle.read_text())

    @classmethod
    def take(cls, fs: Fs, path: str, *, pid: int) -> DataDirLock:
        """Lock or raise DataDirLocked; the text stays as it is until `claim`."""
        try:
            handle = fs.lock(path)
        except DataDirLocked as error:
            raise DataDirLocked(f"{path} is held by another process; stop it or choose another directory") from error
        try:
            return cls(handle, fs, path, pid=pid)
        except BaseException:
            handle.close()
            raise

    def same_boot(self, boot_id: str) -> bool:
        """Whether everything the former holder wrote is still there."""
        return bool(boot_id) and self.old_boot == boot_id

    def claim(self, boot_id: str, *, vouches: bool = True) -> None:
        """Recovery is done: from here on the text speaks for this process. Unless it `vouches`, the boot line stays as
        the former holder left it, so that the next start judges what it finds as this one did."""
        with self._mutex:
            proven = boot_id if vouches else self.old_boot
            self._handle.overwrite_text(self._text(BOOT_UNKNOWN if self._unknown else proven))

    def mark_boot_unknown(self) -> None:
        """A sync failed: written bytes are not safe any more, not even while the kernel lives."""
        with self._mutex:
            self._unknown = True
            self._handle.replace_text(self._text(BOOT_UNKNOWN))

    def is_in_place(self) -> bool:
        """Whether the directory at our path is still the one we hold. Asked by any thread."""
        return is_in_place(self._fs, self._path, self._handle.file)

    def _text(self, boot_id: str | None) -> str:
        return f"pid={self._pid}\nboot={boot_id or BOOT_UNKNOWN}\n"

    def close(self) -> None:
        """Give the lock up."""
        self._handle.close()


def parse_boot(text: str) -> str | None:
    """The boot id of a lock file's text; None when it proves nothing."""
    for line in text.splitlines(keepends=True):
        if line.startswith("boot=") and line.endswith("\n"):
            boot_id = line[5:].strip()
            return boot_id if boot_id and boot_id != BOOT_UNKNOWN else None
    return None
