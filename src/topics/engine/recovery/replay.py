"""Replay: WAL frames back into state, through the same `apply` as live (`docs/spec/storage.md#sec-9-4`).

Fed file by file in the order of layout generations; inside a file each topic's frames are taken together, because only
their order among themselves has a meaning. Always holds: applying is idempotent, so overlap between snapshot, segments
and log changes nothing; a record whose predecessors are missing is held back until they come or are declared lost; an
append of an unknown topic is kept until `finish_unknown_topics` can say whether it was deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from topics.core.apply import apply
from topics.core.effects import OpResult
from topics.core.lineage import new_epoch
from topics.core.queue.leases import drop_dead_jobs
from topics.core.retention.ceiling import decide_restart, hole_op
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.recovery.decode import append_of, control_op
from topics.engine.recovery.router_recovery import RouterRecovery
from topics.engine.recovery.router_sources import Read
from topics.engine.routers.evidence import pin_of
from topics.formats.buffers import Buffer
from topics.formats.file_names import topic_dir_name
from topics.formats.wal import WalColumns
from topics.formats.wal.bodies import CkptMark, OpenMark, RouterCreate, TierMark, TopicMark
from topics.formats.wal.frame import FrameType
from topics.model import ops
from topics.model.config import DEFAULT_CONFIG
from topics.model.ops import Append, Evict, HeadMark, Op, RouterDelete, RouterMark, RouterPut, TopicCreate, TopicDelete

Rows = npt.NDArray[np.int64]


def recovered_name(topic_id: int) -> str:
    """The name of a topic of which only the id is known: that of its directory."""
    return f"recovered:{topic_dir_name(topic_id)}"


class Replay:
    """`created` is called with each topic that the log brings back, so that its segments can be attached to it,
    `progress` with the frames of each file that is done. Topics in `skipped` are left out, with the routers that feed
    them."""

    def __init__(
        self,
        state: State,
        *,
        created: Callable[[TopicLog], None],
        progress: Callable[[int], None],
        read: Read,
        skipped: frozenset[int] = frozenset(),
    ) -> None:
        self._state = state
        self._skipped = skipped
        self._created = created
        self._progress = progress
        self._known_ids = set(state.by_id)
        self._first_new_id = state.next_topic_id
        self._held: dict[int, list[Append]] = {}
        self._unknown: dict[int, list[Append]] = {}
        self._gone: set[int] = set()
        self.router_recovery = RouterRecovery(state, read)
        self.highest_ts = 0
        self.lost_seqs = 0
        self._proven: dict[int, bool] = {}
        self._were_ephemeral: set[int] = set()  # topics that were of this class for a while, in the log
        self.ephemeral_losses: dict[int, int] = {}
        """By topic id: the first seq that is in no file and that no start has declared lost. The topic was ephemeral,
        and a server that still runs has the records."""
        self.notices: list[str] = []

    def prepare(
        self,
        logs: Iterable[WalColumns],
        stored: Iterable[tuple[RouterPut, RouterMark]],
        marked: dict[int, int],
    ) -> None:
        """Take in the routers and their last marks, from the snapshot and from all logs in order, before anything is
        replayed: frames of their destinations have to wait for copies, and those of their sources have to be observed.
        `marked` says how far each topic lay in segments at the last mark."""
        routers, last_marks = self._state.routers, self.router_recovery.marks
        for put, mark in stored:
            if put.dest_id in self._skipped:
                continue
            routers.put(put)
            last_marks[mark.name] = mark
        for columns in logs:
            for row in sorted(columns.bodies):
                body = columns.bodies[row]
                if isinstance(body, RouterCreate) and body.dest_id in self._skipped:
                    continue
                if isinstance(body, RouterCreate | RouterDelete):
                    op = control_op(body, topic_id=0, seq=0, ts=int(columns.ts[row]))
                    known = routers.get(body.name)
                    apply(self._state, op)
                    if routers.get(body.name) is not known:
                        last_marks.pop(body.name, None)
                elif isinstance(body, CkptMark):
                    last_marks.update({mark.name: mark for mark in body.routers if routers.get(mark.name) is not None})
        self.router_recovery.begin(marked)
        for topic in self._state.by_id.values():
            self.router_recovery.watch(topic)

    # --- files ----------------------------------------------------------------------------------------------------

    def file(self, columns: WalColumns, *, buffer: Buffer, file: int) -> None:
        """All frames of one file. Topic 0 (routers) comes last: its frames name topics of every other group."""
        if not len(columns):
            return
        # Marks are left out: a file's first mark has the wall clock's time, which the engine may not have believed.
        is_timed = columns.type != FrameType.CHECKPOINT_MARK
        self.highest_ts = max(self.highest_ts, int(columns.ts.max(initial=0, where=is_timed)))
        for topic_id, rows in _rows_by_topic(columns):
            if topic_id not in self._skipped:
                self._topic_rows(topic_id, rows, columns, buffer, file)
        self._progress(len(columns))

    def _topic_rows(self, topic_id: int, rows: Rows, columns: WalColumns, buffer: Buffer, file: int) -> None:
        controls = np.flatnonzero(columns.type[rows] != FrameType.APPEND)
        start = 0
        for at in [*controls.tolist(), len(rows)]:
            for run in _seq_runs(columns, rows[start:at]):
                self._append(append_of(columns, _as_slice(run), buffer=buffer, file=file))
            if at < len(rows):
                self._control(topic_id, int(rows[at]), columns)
            start = at + 1

    def _control(self, topic_id: int, row: int, columns: WalColumns) -> None:
        body = columns.bodies[row]
        if isinstance(body, OpenMark | TierMark):
            return
        if isinstance(body, CkptMark):
            for mark in body.topics:
                self._mark(mark)
            return
        self._op(control_op(body, topic_id=topic_id, seq=int(columns.seq[row]), ts=int(columns.ts[row])))

    def _op(self, op: Op) -> None:
        if isinstance(op, ops.RouterPut | ops.RouterDelete):
            return  # known from `prepare`
        if isinstance(op, TopicDelete):
            self._gone.add(op.topic_id)
            self._unknown.pop(op.topic_id, None)
            self._held.pop(op.topic_id, None)
            self.router_recovery.held.pop(op.topic_id, None)
        if isinstance(op, TopicCreate) and op.topic_id in self._gone:
            return
        held = self.router_recovery.held.get(getattr(op, "topic_id", 0))
        if held is not None and not isinstance(op, TopicCreate):
            held.append(op)
        else:
            self._op_now(op)

    def _op_now(self, op: Op) -> None:
        if isinstance(op, Append):
            self._append_now(op)
            return
        self.router_recovery.observe(op)
        if isinstance(op, HeadMark):
            self._note_ephemeral(op)
        effect = apply(self._state, op)
        if isinstance(op, TopicCreate) and effect.fate is OpResult.APPLIED:
            self._welcome(self._state.by_id[op.topic_id])
        topic_id = getattr(op, "topic_id", 0)
        if topic_id in self._held:
            self._release(topic_id)

    def _note_ephemeral(self, op: HeadMark) -> None:
        topic = self._state.by_id.get(op.topic_id)
        if op.lost:
            self.ephemeral_losses.pop(op.topic_id, None)
        if topic is not None and topic.config.is_ephemeral and op.resume_at is not None:
            self._were_ephemeral.add(op.topic_id)
            self.ephemeral_losses.setdefault(op.topic_id, topic.floors.earliest_seq)

    def _welcome(self, topic: TopicLog) -> None:
        topic.replaying = True
        self._created(topic)
        self.router_recovery.watch(topic)
        for op in self._unknown.pop(topic.id, ()):
            self._append(op)

    def _mark(self, mark: TopicMark) -> None:
        """Floors that follow from the log alone (count caps) are written down only here."""
        topic = self._state.by_id.get(mark.id)
        if topic is None:
            return
        topic.ceiling = max(topic.ceiling, mark.ceiling)
        topic.floors.delete_below = max(topic.floors.delete_below, mark.delete_below)
        apply(
            self._state,
            Evict(
                topic_id=mark.id,
                evict_floor=mark.evict_floor,
                cap_lost=mark.cap_lost,
                ttl_lost=mark.ttl_lost,
                trim_lost=mark.trim_lost,
                restart_lost=mark.restart_lost,
                earliest_seq=mark.earliest_seq,
            ),
        )

    # --- appends --------------------------------------------------------------------------------------------------

    def _append(self, op: Append) -> None:
        held = self.router_recovery.held.get(op.topic_id)
        if held is not None:
            held.append(op)
        else:
            self._append_now(op)

    def _append_now(self, op: Append) -> None:
        if op.topic_id not in self._state.by_id:
            if op.topic_id not in self._gone:
                self._unknown.setdefault(op.topic_id, []).append(op)
            return
        self.router_recovery.observe(op)
        if apply(self._state, op).fate is OpResult.AHEAD:
            self._held.setdefault(op.topic_id, []).append(op)
        elif op.topic_id in self._held:
            self._release(op.topic_id)

    def _release(self, topic_id: int) -> None:
        """Apply what was held back, as far as it connects now."""
        held = sorted(self._held.pop(topic_id), key=lambda op: op.first_seq)
        still = [op for op in held if apply(self._state, op).fate is OpResult.AHEAD]
        if still:
            self._held[topic_id] = still

    # --- after the last file --------------------------------------------------------------------------------------

    def finish_unknown_topics(self) -> None:
        """Appends whose TopicCreate is gone: dropped if the topic was deleted, else kept under a name of our own."""
        for topic_id in [held for held in self.router_recovery.held if held not in self._state.by_id]:
            for op in self.router_recovery.held.pop(topic_id):
                self._op_now(op)
        for topic_id in sorted(self._unknown):
            appends = self._unknown[topic_id]
            if topic_id < self._first_new_id and topic_id not in self._known_ids:
                continue  # deleted before the snapshot, which therefore does not have it
            name = recovered_name(topic_id)
            self.notices.append(f"records of topic {topic_id:08X} have no TopicCreate; they are kept as {name!r}")
            first_ts = int(appends[0].ts[0])
            epoch = new_epoch(self._state, now=first_ts, chance=topic_id)
            apply(self._state, TopicCreate(topic_id, name, epoch, DEFAULT_CONFIG, first_ts))
            self._unknown[topic_id] = []
            self._welcome(self._state.by_id[topic_id])
            for op in appends:
                self._append(op)
        self._unknown.clear()

    def finish_routers(self) -> list[HeadMark]:
        """Copies that were in no segment are made again; frames of destinations take effect between them."""
        marks: list[HeadMark] = []

        def take(op: Op) -> None:
            if isinstance(op, HeadMark) and op.lost:
                marks.extend(self._close_holes(op.topic_id, op.lost[0][0]))
            self._op_now(op)

        self._proven = self.router_recovery.run(take)
        return marks

    def finish_holes(self) -> list[HeadMark]:
        """Records that are still held back come after a hole that nothing will fill: announce it, and apply them."""
        return [mark for topic_id in sorted(self._held) for mark in self._close_holes(topic_id)]

    def _close_holes(self, topic_id: int, next_seq: int = 0) -> list[HeadMark]:
        """Apply what is held back, and announce what is missing before it and below `next_seq`."""
        marks: list[HeadMark] = []
        held = sorted(self._held.pop(topic_id, ()), key=lambda op: op.first_seq)
        topic = self._state.by_id.get(topic_id)
        if topic is None or topic.config.is_ephemeral:  # an ephemeral topic announces its whole loss at once
            return marks
        for op in held:
            if op.first_seq > topic.head + 1:
                marks.append(self._lose(topic, hole_op(topic, op.first_seq)))
            apply(self._state, op)
        if next_seq > topic.head + 1:
            marks.append(self._lose(topic, hole_op(topic, next_seq)))
        return marks

    def finish_ceilings(self, *, same_boot: bool, behind: dict[int, int], set_aside: set[int]) -> list[HeadMark]:
        """Announce what a crash may have taken from the end of each topic.

        `behind` is the highest seq of each topic in log bytes that this start or an earlier one has set aside,
        `set_aside` the topics of this start's bytes. What an earlier start set aside it has announced, so that the head
        has passed it: it says nothing about what was written since."""
        marks: list[HeadMark] = []
        topics = list(self._state.by_id.values())
        cut = set_aside | {topic.id for topic in topics if behind.get(topic.id, 0) > topic.head}
        for topic in topics:
            is_whole = self._is_whole(topic, same_boot, cut, set())
            mark = decide_restart(topic, same_boot=same_boot, behind=behind.get(topic.id, 0), is_whole=is_whole)
            if mark is not None:
                marks += self._pinned(topic, self._lose(topic, mark))
        return marks

    def _is_whole(self, topic: TopicLog, same_boot: bool, cut: set[int], seen: set[int]) -> bool | None:
        """Is every record back that anyone may have seen? None: that is for the topic's class alone to say."""
        routers = self._state.routers.into(topic.id)
        if not routers:
            return True if topic.config.is_fsync else None
        if topic.id in seen:
            return True
        seen.add(topic.id)
        source = self._state.by_id[routers[0].source_id]
        if not self._proven.get(topic.id, False) or topic.id in cut or source.id in cut:
            return False
        if not (topic.config.is_fsync or same_boot):
            return False
        if self._state.routers.into(source.id):
            return self._is_whole(source, same_boot, cut, seen)
        return source.config.is_fsync or (same_boot and not source.config.is_ephemeral)

    def _pinned(self, topic: TopicLog, mark: HeadMark) -> list[HeadMark]:
        """Pins with the routers' cursors after a jump of their destination, so that the next start knows them too."""
        pins = [pin_of(router.mark(dest_head=topic.head)) for router in self._state.routers.into(topic.id)]
        if not pins:
            return [mark]
        first = msgspec.structs.replace(mark, pin=pins[0])
        return [first, *(HeadMark(topic_id=topic.id, ceiling=topic.ceiling, pin=pin) for pin in pins[1:])]

    def finish_ephemeral(self) -> list[HeadMark]:
        """What topics lost of the time they were ephemeral follows, at the first start after that time, from what is in
        files and from floors. Both change with time, so it is logged now."""
        marks: list[HeadMark] = []
        for topic in map(self._state.by_id.get, sorted(self._were_ephemeral)):
            lost = () if topic is None else tuple((r.lo, r.hi, r.reason) for r in topic.lost if r.reason == "restart")
            if topic is not None and lost:
                marks.append(HeadMark(topic_id=topic.id, ceiling=topic.ceiling, lost=lost))
        return marks

    def finish_queues(self) -> None:
        """Drop leases of jobs that are gone, now that it is known which jobs there are."""
        for topic in self._state.by_id.values():
            drop_dead_jobs(topic)

    def announce(self, marks: Iterable[HeadMark]) -> list[HeadMark]:
        """Apply losses that were found elsewhere."""
        return [self._lose(self._state.by_id[mark.topic_id], mark) for mark in marks]

    def _lose(self, topic: TopicLog, mark: HeadMark) -> HeadMark:
        self.lost_seqs += sum(last - first + 1 for first, last, _ in mark.lost)
        for first, last, reason in mark.lost:
            self.notices.append(
                f"topic {topic.name!r}: seqs {first}..{last} are lost ({reason}) and announced to readers"
            )
        apply(self._state, mark)
        return mark


def _rows_by_topic(columns: WalColumns) -> list[tuple[int, Rows]]:
    order = np.argsort(columns.topic_id, kind="stable")
    ids = columns.topic_id[order]
    bounds = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
    pieces = [(int(ids[lo]), order[lo:hi]) for lo, hi in pairwise(bounds)]
    return [*(piece for piece in pieces if piece[0]), *(piece for piece in pieces if not piece[0])]


def _seq_runs(columns: WalColumns, rows: Rows) -> Iterator[Rows]:
    """Rows split where their seqs do not follow each other."""
    if not len(rows):
        return
    seqs = columns.seq[_as_slice(rows)]
    breaks = np.flatnonzero(seqs[1:] - seqs[:-1] != 1) + 1
    yield from np.split(rows, breaks)


def _as_slice(rows: Rows) -> slice | Rows:
    """Neighbouring rows as a slice, which numpy need not copy."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows
