"""Results: what each call answers, as values. Field names are the contract's, so a struct encodes to its JSON keys.

Made by core and the engine, shown by the embedded library, and what a client decodes a response into. The performance
block is not a result: the HTTP door adds it. Byte-level replies for hot calls are in `topics.wire.outgoing.replies`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType, field

from topics.model.config import TopicConfig, TopicType
from topics.model.names import RouterName, TopicName
from topics.model.payload import decode_payload
from topics.model.position import token
from topics.model.values import ProgressReport, progress_report

# An open set for clients; these are the ones we send. `from_seq_too_old` is a label of watch streams only.
TombstoneReason = Literal["cap", "ttl", "mixed", "source_trim", "recreated", "restart"]


class Tombstone(msgspec.Struct, frozen=True):
    """An announced gap, `gap_from..gap_to`, both ends lost. Made by core's read plan, shown by every door."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class Appended(msgspec.Struct, frozen=True, gc=False):
    """What the engine answers a write with, once it is published; the doors make their replies of it.

    Times in milliseconds; `sync_ms` is above 0 for the class `fsync`, and 0 for every other. `epoch` is that of the
    last seq."""

    first_seq: int
    count: int
    head: int
    epoch: int
    deduped: bool = False
    append_ms: float = 0.0
    sync_ms: float = 0.0
    created: bool = False
    entered: EnteredJobs | None = None

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class EnteredJobs(msgspec.Struct, frozen=True, gc=False):
    """Of a write with unique keys: the job that stands for each record, the places of records that were not appended,
    and the jobs that were deleted for new ones."""

    seqs: list[int]
    kept: list[int]
    replaced: list[int]


# --- records ---------------------------------------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record as read. `data` and `meta` are JSON texts; `value` and `headers` decode them, None if absent. `epoch` is
    the life of the topic it was read from; 0 if the server did not say."""

    seq: int = field(name="$seq")
    ts: int = field(name="$ts")
    node: str | None = field(name="$node", default=None)
    tag: str | None = field(name="$tag", default=None)
    data: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = UNSET
    epoch: int = field(name="$epoch", default=0)

    def __repr__(self) -> str:
        return _shown("Record", self, ("seq", "ts", "tag", "node", "data", "meta"))

    @property
    def position(self) -> int | str:
        """Where a reader stands that has seen it: to be stored, and given as `after`. It knows its topic again, unlike
        the bare seq."""
        return token(self.seq, self.epoch) if self.epoch else self.seq

    @property
    def value(self) -> Any:
        """`data` as a Python value."""
        return decode_payload(self.data)

    @property
    def headers(self) -> Any:
        """`meta` as a Python value."""
        return decode_payload(self.meta)


def _shown(kind: str, item: Any, fields: Sequence[str]) -> str:
    """What `print` shows of a record or a job: JSON texts as they are, and nothing that is absent."""
    given = ((name, getattr(item, name)) for name in fields)
    texts = (
        f"{name}={bytes(value).decode(errors='replace') if isinstance(value, Raw) else repr(value)}"
        for name, value in given
        if value is not None and value is not UNSET
    )
    return f"{kind}({', '.join(texts)})"


class AppendResult(msgspec.Struct, frozen=True):
    """`position` is that of the last record. Of a write with unique keys, `kept` are the places of records that were
    not appended because another job has their key, and `replaced` the seqs of jobs that were deleted for them."""

    topic: TopicName
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool = False
    deduped: bool = False
    position: str | None = None
    kept: list[int] = []
    replaced: list[int] = []
    standing: list[int] | None = field(name="seqs", default=None)

    @property
    def seqs(self) -> Sequence[int]:
        """Of the records, in the order in which they were given; for one that was kept out, of the job that stands."""
        return range(self.first_seq, self.last_seq + 1) if self.standing is None else self.standing


class ReadResult(msgspec.Struct, frozen=True):
    """`records` may be made only when they are looked at; they compare and behave like a list that nobody changes.
    `next` is `next_from_seq` as a position; None if the server did not say."""

    topic: TopicName
    records: Sequence[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int
    next: str | None = None

    @property
    def position(self) -> int | str:
        """Where a reader stands that has seen the page: to be stored, and given as `after`."""
        return self.next_from_seq if self.next is None else self.next


class LatestResult(msgspec.Struct, frozen=True):
    """A page of the newest record of each tag, exact for `position`; `next` is the tag after which others follow."""

    topic: TopicName
    records: Sequence[Record]
    next: str | None
    head_seq: int
    position: str


class DeleteResult(msgspec.Struct, frozen=True):
    topic: TopicName
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


# --- topics ----------------------------------------------------------------------------------------------------------


class QueueCounters(msgspec.Struct, frozen=True, omit_defaults=True):
    """`lost_in_flight` are leased jobs that a cap or TTL took, since the server's start. `oldest_ms` is the age of the
    oldest job, `next_due` when the next lease or delay is over."""

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int
    lost_in_flight: int = 0
    oldest_ms: int | None = None
    next_due: int | None = None


class TopicState(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: TopicName
    type: TopicType
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    queue: QueueCounters | None = None


class TopicSummary(msgspec.Struct, frozen=True):
    topic: TopicName
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    type: TopicType = "log"  # an earlier server does not say
    last_write_ts: int | None = None


class TopicPage(msgspec.Struct, frozen=True, omit_defaults=True):
    topics: list[TopicSummary]
    next_cursor: str | None = None


class PutTopicResult(msgspec.Struct, frozen=True):
    topic: TopicName
    created: bool
    config: TopicConfig


class DeleteTopicResult(msgspec.Struct, frozen=True):
    topic: TopicName
    deleted: bool
    routers_removed: list[RouterName]


# --- queues ----------------------------------------------------------------------------------------------------------


class Job(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """A leased record. Acking it deletes it."""

    seq: int = field(name="$seq")
    lease_id: str
    deadline: int
    ts: int = field(name="$ts")
    deliveries: int
    data: Raw
    tag: str | None = field(name="$tag", default=None)
    meta: Raw | UnsetType = UNSET

    def __repr__(self) -> str:
        return _shown("Job", self, ("seq", "deliveries", "tag", "data", "meta"))

    @property
    def value(self) -> Any:
        """`data` as a Python value."""
        return decode_payload(self.data)

    @property
    def headers(self) -> Any:
        """`meta` as a Python value."""
        return decode_payload(self.meta)

    def progress(self, fraction: float | None = None, text: str | None = None) -> None:
        """Say how far the work is: `fraction` from 0 to 1, and a text, cut to 256 bytes. The list of jobs shows it
        about a second later; calls in between replace each other. Good from any thread. A job that no worker holds, as
        in a test of your function, ignores it."""
        report = progress_report(fraction, text)
        tell: ProgressListener | None = self.__dict__.get("tell")
        if tell is not None:
            tell(self, report)

    def tells(self, tell: ProgressListener) -> None:
        """Whom `progress` tells from now on: the worker that holds it."""
        self.__dict__["tell"] = tell


ProgressListener = Callable[[Job, ProgressReport], None]


class ClaimResult(msgspec.Struct, frozen=True):
    topic: TopicName
    claimed: list[Job]
    count: int
    ready: int


class LostJob(msgspec.Struct, frozen=True):
    """A job that retention took while its worker held it; `reason` as a tombstone shows it."""

    seq: int
    reason: str


class AckResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """`lost` are those of the `skipped` that retention took while this node held them."""

    topic: TopicName
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int
    lost: list[LostJob] = []


class NackResult(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: TopicName
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int
    lost: list[LostJob] = []


class ExtendResult(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: TopicName
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]  # seq -> new deadline; JSON shows the seqs as strings
    lost: list[LostJob] = []


JobState = Literal["ready", "delayed", "in_flight"]


class JobProgress(ProgressReport, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=False):
    """How far its holder said a job is, and when."""

    ts: int


def lease_text(lease_id: int) -> str:
    """A lease id as every door shows it, and takes it back."""
    return f"lease_{lease_id:x}"


class JobInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job as a list shows it. `due` is when its delay is over."""

    seq: int
    state: JobState
    ts: int
    deliveries: int
    priority: int
    tag: str | None = None
    node: str | None = None
    lease_id: str | None = None
    deadline: int | None = None
    due: int | None = None
    unique: str | None = None
    error: str | None = None
    progress: JobProgress | None = None


class JobPage(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: TopicName
    jobs: list[JobInfo]
    next_cursor: str | None = None


class WorkerInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node that holds leases, has work streams, waits in claims, or called a while ago."""

    node: str
    in_flight: int
    streams: int
    waiting: int
    first_deadline: int | None = None
    last_seen: int | None = None


class WorkerPage(msgspec.Struct, frozen=True):
    topic: TopicName
    workers: list[WorkerInfo]


class CancelResult(msgspec.Struct, frozen=True):
    topic: TopicName
    cancelled: int
    skipped: list[int]


class RetryResult(msgspec.Struct, frozen=True):
    topic: TopicName
    retried: int
    skipped: list[int]


class MoveResult(msgspec.Struct, frozen=True):
    topic: TopicName
    to: TopicName
    moved: int
    skipped: list[int]


class RedriveResult(msgspec.Struct, frozen=True):
    """`skipped` are letters that match and whose queue is not there."""

    topic: TopicName
    examined: int
    matched: int
    redriven: int
    skipped: list[int]
    next_from_seq: int
    caught_up: bool


class PauseResult(msgspec.Struct, frozen=True):
    topic: TopicName
    paused: bool


# --- watch -----------------------------------------------------------------------------------------------------------


class WatchStart(msgspec.Struct, frozen=True):
    """Where a subscription begins, as `POST /v0/watch` and the WebSocket's `subscribed` show it."""

    from_seq: int
    head_seq: int
    earliest_seq: int


class AccessResult(msgspec.Struct, frozen=True):
    """What a key may do. Without authentication: everything."""

    auth: bool
    scopes: list[str]
    prefixes: list[str]


class WatchResult(msgspec.Struct, frozen=True):
    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[TopicName, WatchStart]


# --- named cursors ---------------------------------------------------------------------------------------------------


class CursorLag(msgspec.Struct, frozen=True):
    """Live records behind a position, their bytes, and the age of the oldest of them."""

    records: int
    bytes: int
    ms: int


class CursorState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reader of a topic: a named cursor, a router or a queue. `moved` and `created` are there in the answer to a
    commit or a put."""

    topic: TopicName
    cursor: str
    kind: Literal["cursor", "router", "queue"]
    seq: int
    position: str
    lag: CursorLag
    updated_ts: int | None
    fence: int = 0
    owner: str | None = None
    hold: dict[str, int] | None = None
    meta: Raw | UnsetType = UNSET
    moved: bool | UnsetType = UNSET
    created: bool | UnsetType = UNSET


class CursorAnswer(CursorState, frozen=True, kw_only=True, omit_defaults=True):
    """A cursor as the whole answer to a call."""


class CursorPage(msgspec.Struct, frozen=True):
    cursors: list[CursorState]
    next_cursor: str | None


class CursorDropped(msgspec.Struct, frozen=True):
    topic: TopicName
    cursor: str
    deleted: bool


class CommitResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one of many commits: where the cursor stands, or why it was refused."""

    topic: TopicName
    cursor: str
    seq: int | None = None
    moved: bool = False
    error: dict[str, Any] | None = None


class CommitResults(msgspec.Struct, frozen=True):
    results: list[CommitResult]
