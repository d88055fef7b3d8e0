"""A small engine with a cold tier on a simulated disk, and what it promised: `World` for folder and object store.

The object store is the real `ObjectStore` over a `pyarrow` file system whose objects lie on the same simulated disk: an
object is there whole or not at all, and a PUT that returned is durable."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import msgspec
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType, PyFileSystem

from topics.core.reading.walk import ReadRequest
from topics.engine.reading.reads import ReadDone
from topics.formats.wal.blob import split_blob
from topics.model.config import patch_from, resolve_config
from topics.model.names import parse_match
from topics.model.record import RecordIn, build_batch
from topics.runtime.recovery.recover import OpenCold
from topics.storage.fs import Fs, install, make_dirs, parent, read_file
from topics.storage.tiers.cold_tier import ColdRoot, open_cold_root
from topics.storage.tiers.object_store import ObjectRoot
from topics.testing import FOREVER, FaultFs, SimFs
from topics.testing.clock import SimClock, SimHost
from topics.testing.driver import SimKernel

SMALL: dict[str, Any] = {
    "data_dir": "data",
    "cold_dir": "cold",
    "wal_shards": 1,
    "wal_file_bytes": 4096,
    "segment_max_events": 4,
    "seq_reserve": 8,
    "hot_retain_segments": 1,
    "relocate_interval_ms": 1000,
    "rewrite_min_dead_bytes": 1,
    "rewrite_dead_ratio": 0.5,
}


class _Upload(io.BytesIO):
    """Becomes an object when it is closed, as a multipart upload does."""

    def __init__(self, fs: Fs, path: str) -> None:
        super().__init__()
        self._fs = fs
        self._path = path

    def close(self) -> None:
        if not self.closed:
            make_dirs(self._fs, parent(self._path))
            install(self._fs, self._path, self.getvalue())
        super().close()


class DiskObjects(FileSystemHandler):  # type: ignore[misc]
    """Objects as files of an `Fs`."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs

    def get_type_name(self) -> str:
        return "objects"

    def normalize_path(self, path: str) -> str:
        return path

    def open_output_stream(self, path: str, metadata: object) -> Any:
        import pyarrow as pa

        return pa.PythonFile(_Upload(self._fs, path), mode="w")

    def open_input_file(self, path: str) -> Any:
        import pyarrow as pa

        return pa.BufferReader(read_file(self._fs, path))

    open_input_stream = open_input_file

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> FileInfo:
        if self._fs.is_dir(path):
            return FileInfo(path, FileType.Directory)
        if not self._fs.exists(path):
            return FileInfo(path, FileType.NotFound)
        return FileInfo(path, FileType.File, size=self._fs.stat_len(path))

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        try:
            names = self._fs.listdir(selector.base_dir)
        except FileNotFoundError:
            return []
        names = [name for name in names if not name.endswith(".tmp")]
        return [self._info(f"{selector.base_dir}/{name}") for name in names]

    def delete_file(self, path: str) -> None:
        self._fs.unlink(path)
        self._fs.sync_dir(parent(path))

    def _never(self, *_: object, **__: object) -> None:
        raise NotImplementedError

    append = open_append_stream = copy_file = move = _never
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _never


def open_objects(location: str, fs: Fs) -> ColdRoot:
    return ObjectRoot(PyFileSystem(DiskObjects(fs)), location, label=f"objects://{location}")


OPENERS: dict[str, OpenCold] = {"folder": open_cold_root, "objects": open_objects}


class Promises:
    """What was acked: records by seq, and deletes. `doubt` are deletes under way."""

    def __init__(self) -> None:
        self.records: dict[int, str] = {}
        self.deleted: set[int] = set()
        self.doubt: set[int] = set()

    def copy(self) -> Promises:
        other = Promises()
        other.records, other.deleted, other.doubt = dict(self.records), set(self.deleted), set(self.doubt)
        return other

    def check(self, found: dict[int, str]) -> None:
        for seq, token in self.records.items():
            if seq in self.deleted:
                assert seq not in found, f"record {seq} was deleted and is back"
            elif seq not in self.doubt:
                assert found.get(seq) == token, f"record {seq} is {found.get(seq)!r}, not {token!r}"


class World:
    """One topic `t` of class fsync, one fact per record: its token, tagged by its parity."""

    def __init__(
        self,
        disk: SimFs | None = None,
        *,
        store: str = "folder",
        told: Promises | None = None,
        boot: str = "boot-1",
        wall_ms: int = 1_755_000_000_000,
        down: bool = False,
        wrap: Callable[[SimFs], Fs] = lambda disk: disk,
        **more: Any,
    ) -> None:
        self.disk = SimFs() if disk is None else disk
        self.faults = FaultFs(wrap(self.disk))
        self.store = store
        self.told = told or Promises()
        self.more = more
        self.clock = SimClock(wall_ms)
        self.is_down = False
        if down:
            self.store_down()
        self.sim = SimKernel.open(
            self.faults, clock=self.clock, host=SimHost(boot), open_cold=OPENERS[store], **{**SMALL, **more}
        )

    def restart(self, *, boot: str = "boot-1", **more: Any) -> World:
        """As after a kill."""
        self.disk.kill()
        return World(
            self.disk.reboot(),
            store=self.store,
            told=self.told,
            boot=boot,
            wall_ms=self.clock.wall_ms() + 1000,
            **{"down": self.is_down, **self.more, **more},
        )

    def store_down(self) -> None:
        """Every call into the cold store fails from now on."""
        self.is_down = True
        self.faults.fail("*", "cold*", times=FOREVER)

    def store_up(self) -> World:
        self.is_down = False
        self.faults.clear()
        return self

    # --- verbs ------------------------------------------------------------------------------------------------------

    def create(self, name: str = "t", **config: Any) -> World:
        resolved = resolve_config(patch_from({"durability": "fsync", **config}))
        self.sim.call(lambda engine: engine.put_topic(name, resolved))
        return self

    def write(self, count: int, *, size: int = 8, name: str = "t") -> World:
        base = self.sim.engine.state.topic(name).head
        tokens = [f"{base + at + 1}:{'x' * size}" for at in range(count)]
        records = [
            RecordIn(data=msgspec.Raw(msgspec.json.encode(token)), tag="odd" if (base + at + 1) % 2 else "even")
            for at, token in enumerate(tokens)
        ]
        done = self.sim.call(lambda engine: engine.write(name, build_batch(records)))
        if name == "t":
            self.told.records.update(zip(range(done.first_seq, done.last_seq + 1), tokens, strict=True))
        return self

    def delete(self, *, match: str | None = None, before_seq: int | None = None) -> World:
        doomed = {
            seq
            for seq, token in self.told.records.items()
            if (match is None or (int(token.partition(":")[0]) % 2 == 1) == (match == "odd"))
            and (before_seq is None or seq < before_seq)
        }
        self.told.doubt |= doomed
        selector = None if match is None else parse_match(match)
        self.sim.call(lambda engine: engine.delete_records("t", before_seq=before_seq, match=selector))
        self.told.deleted |= doomed
        return self

    def checkpoint(self) -> World:
        self.sim.checkpoint()
        return self

    def snapshot(self) -> World:
        self.sim.snapshot()
        return self

    def tick(self, advance_ms: int = 1_100) -> World:
        self.clock.advance(advance_ms)
        self.sim.tick()
        return self

    def prepared(self, count: int = 18) -> World:
        """A topic with sealed segments that nothing has moved yet; the first snapshot named the instance."""
        self.sim.tick()
        return self.create().write(count).checkpoint().snapshot()

    # --- looking ----------------------------------------------------------------------------------------------------

    def read(self, from_seq: int = 0, *, limit: int = 7, name: str = "t") -> ReadDone:
        return self.sim.call(lambda engine: engine.read(name, ReadRequest(from_seq=from_seq, limit=limit)))

    def read_all(self) -> dict[int, str]:
        found: dict[int, str] = {}
        at = 0
        while True:
            outcome = self.read(at).outcome
            for run in outcome.runs:
                for stored in run.records():
                    found[stored.seq] = msgspec.json.decode(split_blob(stored.blob)[0])
            at = outcome.next_from_seq
            if outcome.caught_up:
                return found

    def check(self) -> World:
        self.told.check(self.read_all())
        return self

    def tiers(self) -> dict[int, str]:
        return {segment.first_seq: segment.view.tier for segment in self.sim.engine.state.topic("t").sealed}

    def files(self, root: str = "cold") -> list[str]:
        return sorted(path for path in self.disk.dump() if path.startswith(root))
