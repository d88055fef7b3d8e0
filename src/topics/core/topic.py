"""TopicState: everything one topic instance is, published and reserved.

What always holds once recovery has ended: `1 <= evict_floor <= earliest_seq <= head + 1`; `count` and `bytes` are those
of the live records; `head <= reserved_head`; every slot at or below `head` lies in `sealed`, in `tail`, in a lost range
or in nothing (an empty hole). Only `core.apply` and the checkpoint transitions change published fields; `decide_*`
functions change the reservations (`reserved_*`, `staged_*`). Touched on the owner's thread only.
"""

from __future__ import annotations

from collections import deque

from topics.core.idempotency import IdemWindow
from topics.core.queue.queue import QueueState
from topics.core.queue.queue_rules import QueueRules
from topics.core.reading.recent import Resident
from topics.core.retention.floors import SEQ_BASE, Floors, LostRanges
from topics.core.slots.sealed_slots import SealedRun
from topics.core.slots.tail import Tail, TailTags
from topics.errors import ColdUnavailable
from topics.model.config import TopicConfig
from topics.model.cursor import NamedCursor
from topics.model.ops import DELETED, Delete
from topics.model.schedules.schedule import StoredSchedule


class Totals:
    """Live bytes over all topics of a state; a topic that belongs to none has its own."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


SEQ_RESERVE = 256  # seqs of a ceiling block to begin with; the engine grows it for busy topics


class TopicLog:
    __slots__ = (
        "ancestors",
        "awaiting",
        "block",
        "bytes",
        "ceiling",
        "ckpt_seq",
        "compacted_to",
        "config",
        "count",
        "created_ts",
        "cursors",
        "epoch",
        "failed_from",
        "first_ts",
        "floors",
        "head",
        "id",
        "idem",
        "last_consumed",
        "last_read_ts",
        "last_ts",
        "last_write_ts",
        "logged_lost",
        "lost",
        "name",
        "queue",
        "replay_head",
        "replaying",
        "reserved_head",
        "reserved_ts",
        "resident",
        "schedules",
        "sealed",
        "staged_bytes",
        "staged_count",
        "staged_tags",
        "tags",
        "tail",
        "totals",
    )

    def __init__(self, *, topic_id: int, name: str, epoch: int, config: TopicConfig, created_ts: int) -> None:
        self.id = topic_id
        self.name = name
        self.epoch = epoch
        self.ancestors: tuple[tuple[int, int], ...] = ()  # epoch and head, oldest first (`core.lineage`)
        self.config = config
        self.created_ts = created_ts

        # published
        self.head = 0
        self.last_ts = 0
        self.floors = Floors()
        self.lost = LostRanges()
        self.count = 0
        self.bytes = 0
        self.totals = Totals()
        self.first_ts: int | None = None  # of the record at `earliest_seq`, once somebody asked; None: not known
        self.tail = Tail()
        self.sealed = SealedRun()
        self.tags = TailTags()
        self.resident = Resident()
        self.idem = IdemWindow()
        self.queue = QueueState(QueueRules(config, topic_id)) if config.is_queue else None  # the type never changes
        self.cursors: dict[str, NamedCursor] = {}
        self.schedules: dict[str, StoredSchedule] = {}
        self.awaiting: dict[int, list[Delete]] = {}  # cold segments (first seq) to be settled once their index is here
        self.replay_head = 0  # while replaying: the head at that point of the log; segments may hold later records
        self.replaying = False  # recovery is still bringing records; `earliest_seq` waits for it

        # durable seq state
        self.ceiling = 0
        self.block = SEQ_RESERVE
        self.ckpt_seq = 0  # highest seq in segments
        self.logged_lost = 0  # `floors.lost` as the log or a snapshot has it

        # reserved by writes that are being committed
        self.reserved_head = 0
        self.reserved_ts = 0
        self.staged_count = 0
        self.staged_bytes = 0
        self.staged_tags: deque[tuple[int, list[bytes | None]]] = deque()  # of runs of records, by their first seq
        self.failed_from = 0  # the first seq of a write that failed while others were behind it, until they failed too

        # use; never logged
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        self.last_consumed: int | None = None
        self.compacted_to = 0  # up to here compaction has taken what is superseded; a start begins anew

    def count_in(self, count: int, size: int) -> None:
        """So many live records and bytes more; negative for less. The only way these totals change."""
        self.count += count
        self.bytes += size
        self.totals.bytes += size

    # --- watermarks ----------------------------------------------------------------------------------------------

    @property
    def earliest_seq(self) -> int:
        return min(self.floors.earliest_seq, self.head + 1)

    @property
    def evict_floor(self) -> int:
        return self.floors.evict_floor(self.head)

    @property
    def next_seq(self) -> int:
        return self.head + 1

    @property
    def base_seq(self) -> int:
        """Lowest seq with a slot; `head + 1` without any."""
        bases = [run.first_seq for run in self.tail.runs[:1]] + [sealed.first_seq for sealed in list(self.sealed)[:1]]
        return min(bases, default=self.head + 1)

    # --- slots ---------------------------------------------------------------------------------------------------

    def has_slot(self, seq: int) -> bool:
        """Is this seq accounted for, live or not? Only a seq without a slot may still be filled in by recovery."""
        if seq > self.head:
            return False
        if SEQ_BASE <= seq < self.floors.earliest_seq or self.tail.find(seq) is not None:
            return True
        return self.sealed.find(seq) is not None or self.lost.find(seq) is not None

    def live(self, seq: int) -> bool:
        if not self.floors.earliest_seq <= seq <= self.head:
            return False
        run = self.tail.find(seq)
        if run is not None:
            return not run.flags[seq - run.first_seq] & DELETED
        sealed = self.sealed.find(seq)
        return sealed is not None and not sealed.is_dead(seq - sealed.first_seq)

    def may_be_live(self, seq: int) -> bool:
        """As `live`; also True where only the index of a cold segment could tell, and it is not loaded."""
        try:
            return self.live(seq)
        except ColdUnavailable:
            return True

    def ts_of(self, seq: int) -> int:
        """Timestamp of a seq that has a slot."""
        run = self.tail.find(seq)
        if run is not None:
            return run.ts[seq - run.first_seq]
        sealed = self.sealed.find(seq)
        assert sealed is not None, "a seq without a slot was asked for its time"
        return sealed.first_ts if seq == sealed.first_seq else int(sealed.view.ts[seq - sealed.first_seq])

    def touch(self, now: int, *, read: bool) -> None:
        """Somebody consumed the topic; `read` also counts as a read of its records or state."""
        self.last_consumed = now
        if read:
            self.last_read_ts = now
