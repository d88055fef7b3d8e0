"""OrderFs: an `Fs` that raises when something happens before what it depends on is durable.

    monitor = OrderMonitor()
    fs = FaultFs(OrderFs(disk, monitor))      faults outside, so that the monitor sees what really happened
    ...
    monitor.acked(path, position)             at every fsync-class ack
    monitor.restarted(power_cut=True)         with every crash of the disk; the monitor outlives the process
    monitor.check()                           at the end

Rules and state are `OrderMonitor`'s; this file turns calls into what it is told.
"""

from collections.abc import Iterable, Sequence

from topics.storage.fs import PASSING, Buffer, File, Fs, LockHandle, Mode
from topics.testing.order_monitor import OrderMonitor, Tracked, clean_path


class OrderFile:
    """A file of an `OrderFs`."""

    def __init__(self, inner: File, monitor: OrderMonitor, tracked: Tracked) -> None:
        self._inner = inner
        self._monitor = monitor
        self._tracked = tracked
        self.name = inner.name
        self.pread = inner.pread
        self.pread_into = inner.pread_into
        self.allocate = inner.allocate
        self.size = inner.size
        self.inode = inner.inode
        self.mmap = inner.mmap
        self.close = inner.close

    def pwrite(self, off: int, buf: Buffer) -> int:
        data = bytes(buf)
        self._monitor.writing(self._tracked, off, data, self._inner)
        try:
            done = self._inner.pwrite(off, data)
        except OSError as error:
            if error.errno not in PASSING:
                self.write_failed(off, len(data))
            raise
        self._monitor.wrote(self._tracked, off, data[:done])
        return done

    def pwritev(self, off: int, bufs: Sequence[Buffer]) -> int:
        return self.pwrite(off, b"".join(bufs))

    def truncate(self, n: int) -> None:
        self._inner.truncate(n)
        self._monitor.truncated(self._tracked, n)

    def datasync(self) -> None:
        self._sync(full=False)

    def fsync(self) -> None:
        self._sync(full=True)

    def _sync(self, *, full: bool) -> None:
        stamp = self._monitor.sync_begins()
        try:
            if full:
                self._inner.fsync()
            else:
                self._inner.datasync()
        except OSError as error:
            if error.errno not in PASSING:
                self._monitor.sync_failed(self._tracked)
            raise
        self._monitor.synced(self._tracked, stamp, self._inner, full=full)

    def sync_failed(self) -> None:
        """A sync failed above us."""
        self._monitor.sync_failed(self._tracked)
        listener = getattr(self._inner, "sync_failed", None)
        if listener is not None:
            listener()

    def write_failed(self, off: int, size: int) -> None:
        """A write failed above us."""
        self._monitor.write_failed(self._tracked, off, size)


class OrderFs:
    """`inner`, watched."""

    def __init__(self, inner: Fs, monitor: OrderMonitor | None = None) -> None:
        self._inner = inner
        self.monitor = monitor or OrderMonitor()
        self.listdir = inner.listdir
        self.stat_len = inner.stat_len
        self.file_id = inner.file_id
        self.exists = inner.exists
        self.is_dir = inner.is_dir
        self.inode = inner.inode

    def open(self, path: str, mode: Mode = "r") -> OrderFile:
        made = mode not in ("r", "rw") and not self._inner.exists(path)
        file = self._inner.open(path, mode)
        tracked = self.monitor.opened(clean_path(path), made=made, emptied=mode == "create")
        return OrderFile(file, self.monitor, tracked)

    def mkdir(self, path: str) -> None:
        self._inner.mkdir(path)
        self.monitor.made(clean_path(path))

    def rename(self, src: str, dst: str) -> None:
        self.monitor.renaming(clean_path(src))
        self._inner.rename(src, dst)
        self.monitor.renamed(clean_path(src), clean_path(dst))

    def unlink(self, path: str) -> None:
        self.monitor.unlinking(clean_path(path), self._inner)
        self._inner.unlink(path)
        self.monitor.unlinked(clean_path(path))

    def rmdir(self, path: str) -> None:
        self._inner.rmdir(path)
        self.monitor.unlinked(clean_path(path))

    def sync_dir(self, path: str) -> None:
        covered = self.monitor.names_in(clean_path(path))
        self._inner.sync_dir(path)
        self.monitor.names_synced(covered)

    def mount_ids(self, paths: Iterable[str]) -> set[str]:
        return self._inner.mount_ids(paths)

    def lock(self, path: str) -> LockHandle:
        made = not self._inner.exists(path)
        file = self._inner.lock(path).file
        return LockHandle(
            OrderFile(file, self.monitor, self.monitor.opened(clean_path(path), made=made, emptied=False))
        )
