"""A rig for core tests: what the engine does around core, in the plainest way, over the disk of `tests.core.disk`.

Every change is an op: logged, then applied, in one order per topic. Observers settle retention first. `restart` throws
the state away and rebuilds it from the last snapshot, the segments and the log behind it, as recovery does.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from tests.core.disk import Disk, FakeView

from topics.core import append, capture, delete
from topics.core import create_drop as lifecycle
from topics.core.apply import apply
from topics.core.effects import Effect, OpResult
from topics.core.reading.walk import ReadOutcome, ReadRequest, plan_read
from topics.core.retention import ceiling as seqs
from topics.core.retention import rules as retention
from topics.core.slots import checkpoint
from topics.core.slots import restore as load
from topics.core.slots.extent import RecordPlace
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.formats.wal.frame import encode_appends
from topics.model.config import TopicConfig
from topics.model.names import TagMatch
from topics.model.ops import RESIDENT, Append, ConfigUpdate, Delete, HeadMark, Op, TopicCreate
from topics.model.record import RecordIn, WriteBatch, build_batch
from topics.model.run import EMPTY_RUN, StoredRecord

BLOCK = 8  # seqs of a ceiling block: small, so that crashes find ranges to lose


def records(*datas: bytes | str, tag: str | None = None, node: str | None = None) -> WriteBatch:
    return batch_of([(data if isinstance(data, bytes) else data.encode(), tag, node) for data in datas])


def batch_of(rows: Iterable[tuple[bytes, str | None, str | None]], key: str | None = None) -> WriteBatch:
    given = [RecordIn(msgspec.Raw(data), tag=tag, node=node) for data, tag, node in rows]
    return build_batch(given, idempotency_key=key)


@dataclass
class Snapshot:
    image: capture.TopicImage
    log_from: int


@dataclass
class Logged:
    """What the log has of one topic."""

    create: TopicCreate
    ops: list[Op] = field(default_factory=list)
    synced: int = 0  # ops before this one survive a power cut
    checkpointed: int = 0  # ops before this one are in segments
    has_checkpoint: bool = False  # of this run
    config_then: TopicConfig | None = None
    snapshot: Snapshot | None = None
    ceiling: int = 0  # staged


class Rig:
    def __init__(self, now: int = 1_000_000, recent_bytes: int = 1 << 20) -> None:
        self.now = now
        self.recent_bytes = recent_bytes
        self.state = State(recent_bytes=recent_bytes)
        self.disk = Disk()
        self.logs: dict[int, Logged] = {}
        self.index_loads = 0

    def topic(self, name: str) -> TopicLog:
        return self.state.topic(name)

    # --- topics ---------------------------------------------------------------------------------------------------

    def create(self, name: str, config: TopicConfig | None = None) -> TopicLog:
        ops, created = lifecycle.decide_put(self.state, name, config or TopicConfig(), now=self.now)
        assert created
        op = ops[0]
        assert isinstance(op, TopicCreate)
        apply(self.state, op)
        self.logs[op.topic_id] = Logged(op, config_then=op.config)
        return self.topic(name)

    def set_config(self, name: str, config: TopicConfig) -> None:
        self.settle(name)
        ops, created = lifecycle.decide_put(self.state, name, config, now=self.now)
        assert not created
        for op in ops:
            self.do(op, synced=True)
        self.settle(name)

    def drop(self, name: str, *, if_empty: bool = False) -> None:
        self.settle(name)
        op = lifecycle.decide_delete_topic(self.topic(name), if_empty=if_empty)
        apply(self.state, op)
        self.disk.active.pop(op.topic_id, None)
        self.disk.sealed.pop(op.topic_id, None)
        del self.logs[op.topic_id]

    # --- ops ------------------------------------------------------------------------------------------------------

    def do(self, op: Op, *, synced: bool) -> Effect:
        """Log an op, then apply it; flags and drops on disk follow at once."""
        log = self.logs[op.topic_id]  # type: ignore[union-attr]
        topic = self.state.by_id[log.create.topic_id]
        ephemeral = topic.config.is_ephemeral
        if isinstance(op, Append):
            if ephemeral:
                op.file = RESIDENT
            else:
                self.disk.log(op)
        if not ephemeral or isinstance(op, HeadMark | ConfigUpdate):
            log.ops.append(op)
            if synced:
                log.synced = len(log.ops)
        effect = apply(self.state, op)
        assert effect.fate is OpResult.APPLIED
        self._after(topic, effect)
        return effect

    def _after(self, topic: TopicLog, effect: Effect) -> None:
        """Flags on disk follow a removal at once, hot ones durably; whole dead segments stay until `drop_dead`."""
        removal = effect.removal
        for first_seq, slots in removal.flips if removal is not None else ():
            segment = topic.sealed.by_first_seq(first_seq)
            assert segment is not None
            if isinstance(segment.view, FakeView) and segment.view.tier == "hot":
                segment.view.flip(slots)
                checkpoint.flagged(topic, first_seq)
        for seqs_ in removal.active_flips if removal is not None else ():
            self.disk.flag_active(topic, seqs_)
        self._load_awaited(topic)

    def _load_awaited(self, topic: TopicLog) -> None:
        while topic.awaiting:
            first_seq = next(iter(topic.awaiting))
            segment = topic.sealed.by_first_seq(first_seq)
            if segment is not None:
                assert isinstance(segment.view, FakeView)
                segment.view.loaded = True
                self.index_loads += 1
            delete.finish_cold_delete(topic, first_seq)

    def settle(self, name: str) -> None:
        """Retention at `now`, logged before anyone sees it."""
        topic = self.topic(name)
        op = retention.due(topic, self.now)
        self._load_awaited(topic)
        op = retention.due(topic, self.now) if op is None else op
        if op is not None:
            self.do(op, synced=True)
            assert retention.due(topic, self.now) is None

    # --- writes ---------------------------------------------------------------------------------------------------

    def put(
        self, name: str, batch: WriteBatch
    ) -> append.Reservation | append.Repeat | append.Busy | append.IndexNeeded:
        self.settle(name)
        decision = append.decide_append(self.topic(name), batch, self.now)
        if isinstance(decision, append.Reservation):
            for op in self.ops_of(name, batch, decision):
                self.commit(op)
        return decision

    def ops_of(self, name: str, batch: WriteBatch, reservation: append.Reservation) -> list[Op]:
        """The frames of a write: a ceiling in front if it needs one."""
        topic = self.topic(name)
        encoded = encode_appends(
            topic_id=topic.id,
            first_seq=reservation.first_seq,
            ts=reservation.ts,
            datas=batch.blobs,
            nodes=batch.nodes,
            tags=batch.tags,
            durable=topic.config.is_fsync,
        )
        op = append.make_append(
            topic,
            reservation,
            batch,
            frames=encoded.buffer,
            offs=array("I", encoded.offsets),
            lens=array("I", encoded.lengths),
        )
        log = self.logs[topic.id]
        log.ceiling = max(log.ceiling, topic.ceiling)
        if topic.config.is_fsync or op.last_seq <= log.ceiling:
            return [op]
        log.ceiling = op.last_seq + BLOCK
        return [HeadMark(topic_id=topic.id, ceiling=log.ceiling), op]

    def commit(self, op: Op) -> Effect:
        topic = self.state.by_id[op.topic_id]  # type: ignore[union-attr]
        synced = not isinstance(op, Append) or topic.config.is_fsync
        if isinstance(op, Delete):
            synced = topic.config.durability != "memory"
        effect = self.do(op, synced=synced)
        self.settle(topic.name)
        return effect

    # --- deletes --------------------------------------------------------------------------------------------------

    def delete(self, name: str, *, before_seq: int | None = None, match: TagMatch | None = None) -> Effect:
        self.settle(name)
        self.log_floors(name)
        self.load_for_delete(name, before_seq, match)
        return self.commit(delete.decide_delete(self.topic(name), before_seq=before_seq, match=match))

    def delete_seqs(self, name: str, seqs_: Sequence[int]) -> Effect:
        self.settle(name)
        self.log_floors(name)
        self._load(self.topic(name), delete.unsearchable_seqs(self.topic(name), tuple(seqs_)))
        return self.commit(delete.decide_delete_seqs(self.topic(name), tuple(seqs_), reason="ack"))

    def load_for_delete(self, name: str, before_seq: int | None, match: TagMatch | None) -> None:
        topic = self.topic(name)
        self._load(topic, delete.unsearchable(topic, before_seq=before_seq, match=match))

    def load_index(self, name: str, first_seq: int) -> None:
        """The index of a cold segment comes."""
        self._load(self.topic(name), [first_seq])

    def _load(self, topic: TopicLog, first_seqs: Iterable[int]) -> None:
        for first_seq in first_seqs:
            topic.awaiting.setdefault(first_seq, [])
        self._load_awaited(topic)

    def log_floors(self, name: str) -> None:
        """Floors that a count cap moved go in front of a delete."""
        op = retention.unlogged(self.topic(name))
        if op is not None:
            self.do(op, synced=True)

    # --- reads ----------------------------------------------------------------------------------------------------

    def read(self, name: str, request: ReadRequest | int = 0) -> ReadOutcome:
        self.settle(name)
        topic = self.topic(name)
        wanted = ReadRequest(from_seq=request, limit=1000) if isinstance(request, int) else request
        walk = plan_read(topic, wanted, self.state.recent, now=self.now)
        while (extent := walk.need()) is not None:
            if extent.place is RecordPlace.INDEX:
                assert isinstance(extent.view, FakeView)
                extent.view.loaded = True
                self._load_awaited(topic)
                walk.feed(EMPTY_RUN)
            else:
                walk.feed(self.disk.fetch(topic, extent))
        return walk.result()

    # --- segments -------------------------------------------------------------------------------------------------

    def checkpoint(self, name: str) -> None:
        """As the mark of a checkpoint does, the log then holds the floors: empty slots depend on them."""
        topic = self.topic(name)
        log = self.logs[topic.id]
        log.checkpointed = len(log.ops)
        log.has_checkpoint = True
        log.config_then = topic.config
        if not topic.config.is_ephemeral:
            self.disk.checkpoint(topic)
            log.ops.append(retention.floors_op(topic))
            topic.logged_lost = topic.floors.lost
        log.synced = len(log.ops)

    def seal(self, name: str) -> None:
        self.checkpoint(name)
        self.disk.seal(self.topic(name))

    def rewrite(self, name: str) -> None:
        topic = self.topic(name)
        for segment in topic.sealed:
            if segment.view.tier == "hot" and segment.deleted > 0:
                assert isinstance(segment.view, FakeView)
                self._swap(topic, segment.view, segment.view.rewritten(segment.dead(0, segment.count)))

    def move(self, name: str) -> None:
        """The oldest hot segment goes cold; nobody has its index there yet."""
        topic = self.topic(name)
        for segment in topic.sealed:
            if segment.view.tier == "hot":
                assert isinstance(segment.view, FakeView)
                self._swap(topic, segment.view, segment.view.moved("cold"))
                return

    def _swap(self, topic: TopicLog, old: FakeView, new: FakeView) -> None:
        views = self.disk.sealed[topic.id]
        views[views.index(old)] = new
        checkpoint.replaced(topic, new)

    def drop_dead(self, name: str) -> None:
        topic = self.topic(name)
        for first_seq in checkpoint.droppable(topic):
            checkpoint.dropped(topic, first_seq)
            views = self.disk.sealed[topic.id]
            self.disk.sealed[topic.id] = [view for view in views if view.first_seq != first_seq]

    def snapshot(self, name: str, *, clean: bool = False) -> None:
        """Positions are those of this run's last checkpoint, everything else is of now."""
        topic = self.topic(name)
        log = self.logs[topic.id]
        if not log.has_checkpoint:
            self.checkpoint(name)
        image = capture.capture(topic, config=None if clean else log.config_then, clean=clean)
        log.snapshot = Snapshot(image, log.checkpointed)

    # --- restart --------------------------------------------------------------------------------------------------

    def restart(self, name: str, *, same_boot: bool, cut: bool = False) -> int:
        """Rebuild one topic. `cut` loses the log behind the last sync. Returns the highest recovered seq."""
        old = self.topic(name)
        log = self.logs[old.id]
        if cut:
            del log.ops[log.synced :]
        self.state.remove(old)
        topic, replay_from = self._restored(log)
        topic.replaying = True
        log.has_checkpoint = False
        self.state.add(topic)
        self._load_segments(topic, log, trusted=same_boot)
        for op in log.ops[replay_from:]:
            self._replay(op)
        recovered = max(topic.head, topic.floors.earliest_seq - 1)
        self._load_awaited(topic)
        mark = seqs.decide_restart(topic, same_boot=same_boot)
        if mark is not None:
            log.ops.append(mark)
            apply(self.state, mark)
        log.synced = len(log.ops)
        log.ceiling = topic.ceiling
        self._load_awaited(topic)
        return recovered

    def _replay(self, op: Op) -> None:
        """As read from the log: without frames, without key, and told twice, for applying is idempotent."""
        if isinstance(op, Append):
            op = msgspec.structs.replace(op, frames=None, key=None)
        first = apply(self.state, op).fate
        assert first is not OpResult.AHEAD
        if not isinstance(op, ConfigUpdate):
            again = apply(self.state, op)
            assert again.removed_count == 0

    def _restored(self, log: Logged) -> tuple[TopicLog, int]:
        if log.snapshot is not None:
            # Through plain values, as it would go through a file.
            image = msgspec.convert(msgspec.to_builtins(log.snapshot.image), capture.TopicImage)
            return capture.restore(image), log.snapshot.log_from
        create = log.create
        topic = TopicLog(
            topic_id=create.topic_id,
            name=create.name,
            epoch=create.epoch,
            config=create.config,
            created_ts=create.created_ts,
        )
        return topic, 0

    def _load_segments(self, topic: TopicLog, log: Logged, *, trusted: bool) -> None:
        image = log.snapshot.image if log.snapshot is not None else None
        dead = list(image.dead) if image is not None else []
        noted = {row[0]: row for row in image.segments} if image is not None and trusted else {}
        for view in self.disk.sealed.get(topic.id, []):
            row = noted.get(view.first_seq)
            # Other lengths: rewritten since, and what is gone was counted in the row.
            totals = (row[5], row[6]) if row is not None and row[2] == view.data_len else None
            view.loaded = view.tier == "hot" or totals is None
            load.load_sealed(topic, view, dead=dead, totals=totals)
        active = self.disk.active_columns(topic.id)
        if active is not None:
            load.load_active(topic, active, dead=dead)


def seqs_of(outcome: ReadOutcome) -> list[int]:
    return [record.seq for run in outcome.runs for record in run.records()]


def stored(outcome: ReadOutcome) -> list[StoredRecord]:
    return [record for run in outcome.runs for record in run.records()]


def as_array(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.fromiter(values, np.int64)
