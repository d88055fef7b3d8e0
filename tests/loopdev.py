"""A file system of its own in a file, which can be made to die: for root, where there are loop devices."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final

_SHUTDOWN: Final = 0x8004587D  # FS_IOC_SHUTDOWN, of xfs first; ext4 and f2fs have it too
FLUSH, LOG_FLUSH, NO_LOG_FLUSH = 0, 1, 2
"""How it dies: with everything written back, with the journal written back, with nothing written back."""
MAKE: Final = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
MEGABYTES: Final = {"ext4": 192, "xfs": 320}
"""xfs takes nothing below 300."""
GONE_WITHIN_S: Final = 30.0


@cache
def why_no_loop(kind: str = "ext4") -> str:
    """Why there can be no such file system here, in one sentence; "" if there can."""
    if os.geteuid() != 0:
        return "a file system in a loop device needs root"
    for program in (MAKE[kind][0], "losetup", "mount", "umount"):
        if shutil.which(program) is None:
            return f"a file system in a loop device needs {program}"
    found = subprocess.run(["losetup", "--find"], capture_output=True, text=True, check=False)
    if found.returncode or not Path(found.stdout.strip()).exists():
        return "a file system in a loop device needs a free /dev/loop"
    return ""


class LoopDisk:
    """A mounted file system below `folder`. `shutdown` ends it as a dead device does; `remount` brings it back."""

    def __init__(self, folder: Path, kind: str, *, megabytes: int = 0) -> None:
        self.kind = kind
        self.image = folder / f"{kind}.img"
        self.path = folder / f"{kind}-mounted"
        self.path.mkdir()
        with self.image.open("wb") as image:
            image.truncate((megabytes or MEGABYTES[kind]) << 20)
        _run(*MAKE[kind], str(self.image))
        self.device = _run("losetup", "--find", "--show", str(self.image))
        self.mounted = False
        self.mount()

    def mount(self) -> None:
        _run("mount", "-t", self.kind, self.device, str(self.path))
        self.mounted = True

    def unmount(self) -> None:
        """Waits until the file system is gone: the namespace of a dead process may hold it for a moment."""
        if not self.mounted:
            return
        _run("umount", str(self.path))
        self.mounted = False
        alive = Path("/sys/fs") / self.kind / Path(self.device).name
        until = time.monotonic() + GONE_WITHIN_S
        while alive.exists():
            if time.monotonic() > until:
                raise OSError(f"{self.device} is still in use")
            time.sleep(0.005)

    def remount(self) -> None:
        self.unmount()
        self.mount()

    def shutdown(self, how: int) -> None:
        """Every call fails from here on, and what was not written back never will be."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("=I", how))
        finally:
            os.close(fd)

    def __enter__(self) -> LoopDisk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unmount()
        _run("losetup", "--detach", self.device)
        self.image.unlink()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()
