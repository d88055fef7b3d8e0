"""ProcessStats: what the operating system says of this process and of the disk under the data directory.

`read` takes some twenty microseconds and never waits for a disk: `/proc` is memory. The free space does wait, on a file
system that hangs, so `DiskSpace` asks for it on a background thread and shows what it was told last."""

from __future__ import annotations

import os
import resource
import time
from functools import cache

import msgspec

from topics.runtime.drivers.driver import Driver


class ProcessStats(msgspec.Struct, frozen=True, kw_only=True):
    """None: this system does not tell."""

    cpu_s: float
    max_fds: int
    start_time_s: float | None = None
    resident_bytes: int | None = None
    virtual_bytes: int | None = None
    open_fds: int | None = None

    @classmethod
    def read(cls) -> ProcessStats:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s, max_fds = usage.ru_utime + usage.ru_stime, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        try:
            virtual, resident = _read("/proc/self/statm").split()[:2]
            page = os.sysconf("SC_PAGE_SIZE")
            return cls(
                cpu_s=cpu_s,
                max_fds=max_fds,
                start_time_s=_start_time_s(),
                resident_bytes=int(resident) * page,
                virtual_bytes=int(virtual) * page,
                open_fds=_open_fds(),
            )
        except (OSError, ValueError):
            return cls(cpu_s=cpu_s, max_fds=max_fds)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


@cache
def _start_time_s() -> float:
    """Field 22 of `stat` counts clock ticks since the machine started; the name in field 2 may contain blanks."""
    ticks = int(_read("/proc/self/stat").rpartition(")")[2].split()[19])
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since_boot_s + ticks / os.sysconf("SC_CLK_TCK")


def _open_fds() -> int:
    """Linux 6.2 and newer tell the number as the size of the directory; before, the names have to be counted."""
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))


class DiskSpace:
    """Of the file system under `path`, as of the last `refresh` that came back; None before the first."""

    def __init__(self, path: str, driver: Driver) -> None:
        self._path = path
        self._driver = driver
        self._asking = False
        self.free_bytes: int | None = None
        self.size_bytes = 0

    def refresh(self) -> None:
        """Ask, unless the last question has no answer yet."""
        if not self._asking:
            self._asking = True
            self._driver.run(lambda: os.statvfs(self._path), self._told)

    def _told(self, found: os.statvfs_result | None, error: BaseException | None) -> None:
        self._asking = False
        if found is not None:
            self.free_bytes = found.f_bavail * found.f_frsize
            self.size_bytes = found.f_blocks * found.f_frsize
