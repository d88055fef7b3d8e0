"""A data directory made by the real kernel on one thread and virtual time, and what a full diff of it gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from topics.core.reading.walk import ReadOutcome, ReadRequest
from topics.formats.wal.blob import split_blob
from topics.model.config import patch_from, resolve_config
from topics.model.names import parse_match
from topics.model.record import RecordIn, build_batch
from topics.model.router import RouterDef
from topics.spark.options import ReadOptions, read_options
from topics.spark.planning.batch import now_ms, plan_batch, read_spec
from topics.spark.planning.tasks import Task
from topics.spark.scanning.schema import table_fields
from topics.spark.scanning.task_scan import scan
from topics.storage.fs import Mode
from topics.storage.osfs import OsFile, OsFs
from topics.testing.clock import SimClock
from topics.testing.driver import SimKernel


class Row(NamedTuple):
    """A record as everybody sees it."""

    seq: int
    ts: int
    node: str | None
    tag: str | None
    data: str
    meta: str | None


class UnsyncedFile(OsFile):
    def datasync(self) -> None:
        return

    def fsync(self) -> None:
        return


class UnsyncedFs(OsFs):
    """The real file system without the wait for the disk: no test here cuts the power."""

    def open(self, path: str, mode: Mode = "r") -> OsFile:
        file = super().open(path, mode)
        file.__class__ = UnsyncedFile
        return file

    def sync_dir(self, path: str) -> None:
        return


class World:
    """A directory with a kernel on it; `rows` is the oracle."""

    def __init__(self, path: Path, *, clock: SimClock | None = None, **settings: Any) -> None:
        self.path = path
        self.clock = clock or SimClock()
        self.settings = {"segment_max_events": 20, "wal_shards": 1, "wal_file_bytes": 1 << 16, **settings}
        self.kernel: SimKernel | None = None
        self.start()

    @property
    def sim(self) -> SimKernel:
        assert self.kernel is not None
        return self.kernel

    def start(self, **changed: Any) -> None:
        self.settings |= changed
        self.kernel = SimKernel.open(UnsyncedFs(), clock=self.clock, data_dir=str(self.path / "data"), **self.settings)

    def stop(self) -> None:
        self.sim.close()
        self.kernel = None

    def kill(self) -> None:
        """The process dies: what is written stays, nothing is tidied up."""
        self.sim.kernel.store.close()
        self.kernel = None

    @property
    def data_dir(self) -> str:
        return str(self.path / "data")

    # --- what a client does -------------------------------------------------------------------------------------------

    def put(self, topic: str, **config: Any) -> None:
        self.sim.call(lambda engine: engine.put_topic(topic, resolve_config(patch_from(config))))

    def drop(self, topic: str) -> None:
        self.sim.call(lambda engine: engine.drop_topic(topic))

    def write(
        self, topic: str, *records: Any, tag: str | None = None, node: str | None = None, meta: Any = None
    ) -> None:
        made = [record if isinstance(record, RecordIn) else record_in(record, tag, node, meta) for record in records]
        self.sim.call(lambda engine: engine.write(topic, build_batch(made)))

    def route(self, source: str, dest: str) -> None:
        definition = RouterDef(name=f"{source}->{dest}", source=source, dest=dest)
        self.sim.call(lambda engine: engine.routers.put(definition))

    def delete(self, topic: str, *, before: int | None = None, match: str | None = None) -> None:
        parsed = parse_match(match) if match is not None else None
        self.sim.call(lambda engine: engine.delete_records(topic, before_seq=before, match=parsed))

    # --- what there is ------------------------------------------------------------------------------------------------

    def rows(self, topic: str) -> list[Row]:
        """A full diff."""
        rows: list[Row] = []
        cursor, caught_up = 0, False
        while not caught_up:
            outcome = self._read(topic, cursor)
            rows += [row_of(record) for run in outcome.runs for record in run.records()]
            cursor, caught_up = outcome.next_from_seq, outcome.caught_up
        return rows

    def _read(self, topic: str, cursor: int) -> ReadOutcome:
        request = ReadRequest(from_seq=cursor, limit=1000, budget_bytes=8 << 20)
        return self.sim.call(lambda engine: engine.read(topic, request)).outcome

    def earliest(self, topic: str) -> int:
        return self.sim.call(lambda engine: engine.topic_state(topic)).earliest_seq


def record_in(value: Any, tag: str | None = None, node: str | None = None, meta: Any = None) -> RecordIn:
    text = msgspec.Raw(value if isinstance(value, bytes) else json.dumps(value).encode())
    meta_text = msgspec.UNSET if meta is None else msgspec.Raw(json.dumps(meta).encode())
    return RecordIn(text, tag=tag, node=node, meta=meta_text)


def row_of(record: Any) -> Row:
    data, meta = split_blob(record.blob)
    return Row(record.seq, record.ts, _text(record.node), _text(record.tag), data.decode(), _text(meta))


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()


# --- the source without Spark ----------------------------------------------------------------------------------------


def options(world: World | str, topics: str, **given: str) -> ReadOptions:
    path = world if isinstance(world, str) else world.data_dir
    if isinstance(world, World) and "cold_dir" in world.settings:
        given.setdefault("coldPath", world.settings["cold_dir"])
    return read_options({"path": path, "subscribe": topics, **given}, streaming=False)


def read_tasks(tasks: list[Task], wanted: ReadOptions, columns: tuple[str, ...] | None = None) -> pa.Table:
    fields = table_fields(columns or wanted.table_columns, with_loss=wanted.on_data_loss == "rows")
    spec = read_spec(wanted, fields)
    batches = [batch for task in tasks for batch in scan(task, spec)]
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(spec.schema)
    return pa.Table.from_batches(batches, schema=spec.schema)


def read_path(world: World | str, topics: str, **given: str) -> pa.Table:
    """What a DataFrame over the directory would hold."""
    wanted = options(world, topics, **given)
    clock = now_ms if isinstance(world, str) else world.clock.wall_ms
    return read_tasks(plan_batch(wanted, clock=clock), wanted)


def rows_in(table: pa.Table) -> list[Row]:
    ts = table.column("ts").cast(pa.int64())
    columns = [table.column(name).to_pylist() for name in ("seq", "node", "tag", "data", "meta")]
    seq, node, tag, data, meta = columns
    return [Row(*row) for row in zip(seq, (t // 1000 for t in ts.to_pylist()), node, tag, data, meta, strict=True)]
