"""The name of one life of a mounted file system: the same for as long as its page cache lives
(`docs/spec/storage.md#sec-5-3`).

Bytes that were written and not synced die with the kernel, and also with the file system alone: a volume that is
detached and attached again, a file system that shut down after an error and is mounted anew. The boot id is the same
then. Always holds: two calls give the same text only if the file system was not unmounted in between; "" says that
nobody knows.

    the file system's directory in sysfs     made at mount and gone at unmount; kernfs gives no inode number twice under
                                             one kernel, and containers see the same one (ext4, xfs, btrfs, f2fs)
    the unique id of the mount (Linux 6.8)   for all others (overlay, tmpfs, NFS); asked second, because a new container
                                             has another mount of the same file system

The mount ids of /proc/self/mountinfo are given again to the next mount and prove nothing; neither does st_dev. Called
through `OsFs`."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

SYS: Final = Path("/sys")
_GET_SYSFS_PATH: Final = 0x80811501  # FS_IOC_GETFSSYSFSPATH, Linux 6.9: u8 len, char name[128]
_SYSFS_PATH_BYTES: Final = 129
_STATX_MNT_ID_UNIQUE: Final = 0x4000
_STATX_BYTES: Final = 256
_STATX_MNT_ID_AT: Final = 144
_AT_FDCWD: Final = -100


def mount_ids(paths: Iterable[str]) -> set[str]:
    """The present lives of the file systems that these directories lie on; what is not there is left out."""
    return {mount_id(path) for path in paths if os.path.isdir(path)}


def mount_id(path: str, *, sys: Path = SYS) -> str:
    """The present life of the file system that `path` lies on; "" if the system does not tell."""
    try:
        return _by_sysfs(path, sys) or _by_statx(path)
    except OSError:
        return ""


def _by_sysfs(path: str, sys: Path) -> str:
    for name in [_sysfs_path(path), *_named_by_device(path, sys)]:
        try:
            if name:
                return f"{name}:{os.stat(sys / 'fs' / name).st_ino}"
        except OSError:
            continue
    return ""


def _sysfs_path(path: str) -> str:
    """Below /sys/fs, as the file system says itself."""
    answer = bytearray(_SYSFS_PATH_BYTES)
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _GET_SYSFS_PATH, answer)
    except OSError:
        return ""
    finally:
        os.close(fd)
    return bytes(answer[1 : 1 + answer[0]]).decode("ascii", "replace")


def _named_by_device(path: str, sys: Path) -> list[str]:
    """Where older kernels have it: under the name of the block device."""
    device = os.stat(path).st_dev
    block = (sys / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}").resolve().name
    kinds = sorted(found.name for found in (sys / "fs").iterdir()) if (sys / "fs").is_dir() else []
    return [f"{kind}/{block}" for kind in kinds if (sys / "fs" / kind / block).is_dir()]


def _by_statx(path: str) -> str:
    statx, answer = _statx(), ctypes.create_string_buffer(_STATX_BYTES)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_MNT_ID_UNIQUE, answer):
        return ""
    (mask,) = struct.unpack_from("=I", answer)
    (found,) = struct.unpack_from("=Q", answer, _STATX_MNT_ID_AT)
    return f"mount:{found}" if mask & _STATX_MNT_ID_UNIQUE else ""


@cache
def _statx() -> Any:
    return getattr(ctypes.CDLL(None), "statx", None)
