"""Opening the writers of a layout after recovery (step 8; storage.md sections 9.2 and 9.5).

A group goes on in its last file when that file belongs to the present generation and nothing forbids appending to it;
otherwise it starts a new file. Called by the runtime once per group, with the group repaired.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.clock import Clock
from topics.storage.fs import Fs, make_dirs, parent
from topics.storage.layout import DataDir
from topics.storage.wal.files import WalFiles
from topics.storage.wal.group import WalGroup
from topics.storage.wal.reader import GroupScan
from topics.storage.wal.repair import Repaired
from topics.storage.wal.rotation import Layout


def open_group(
    fs: Fs,
    data: DataDir,
    key: str,
    *,
    scan: GroupScan | None,
    repaired: Repaired | None,
    layout: Layout,
    files: WalFiles,
    file_bytes: int,
    clock: Clock,
    sync_failed: Callable[[], None],
    recorded: int = 0,
) -> WalGroup:
    """The writer of group `key`. `scan` and `repaired` are None for a group that was not on disk.

    `recorded` is the highest file number that any kept snapshot has for the key. A group without files starts above
    it, else an older snapshot would take its new frames for absorbed."""
    dir = data.group(key)
    make_dirs(fs, dir)
    fs.sync_dir(parent(dir))  # it may be there and not durable: a killed process made it
    next_number = max(1, recorded + 1)
    if scan is not None:
        next_number = scan.next_number if scan.last is not None else max(scan.next_number, next_number)
    group = WalGroup(
        fs,
        key=key,
        dir=dir,
        files=files,
        layout=layout,
        file_bytes=file_bytes,
        clock=clock,
        sync_failed=sync_failed,
        next_number=next_number,
    )
    if scan is None or repaired is None or not _may_append(scan, layout) or scan.last is None:
        group.begin()
        return group
    group.resume(scan.last, tail=scan.tail, frames=scan.frames, capacity=repaired.capacity)
    if repaired.no_space:
        group.latch("no_space")
    return group


def _may_append(scan: GroupScan, layout: Layout) -> bool:
    return scan.last is not None and not scan.beyond and scan.last_gen == layout.gen
