"""JointWrite: single-record writes of one topic and one moment that travel as one submission.

On a busy topic the writes of a turn differ in nothing but their records, so they are encoded, written, applied and
published together; each is still a run of its own in the log and is answered for itself. Always holds: the seqs of its
writes are consecutive, in order of arrival; all have one timestamp, one class and one config. Opened and filled by
`engine.writes`, sealed by `engine.commit`."""

from __future__ import annotations

from array import array
from time import perf_counter

from topics.core.append import Reservation, make_append
from topics.core.topic import TopicState
from topics.engine.commit import CommitTicket
from topics.engine.ticket import Ticket
from topics.formats.frame import encode_appends
from topics.model.appended import Appended
from topics.model.ops import Append
from topics.model.record import WriteBatch
from topics.model.submission import Submission

WRITES_MAX = 1024
"""What grows must end before it holds up the turn that writes it."""


class WriteTicket(Ticket[Appended]):
    """The ticket of one of the writes."""

    __slots__ = ("submitted_s",)

    def __init__(self) -> None:
        self.done = False
        self.value = None
        self.error = None
        self._waiters = None
        self.submitted_s = perf_counter()


class JointWrite(Submission):
    __slots__ = ("_blobs", "_nodes", "_sizes", "_tags", "_tickets", "bytes", "config", "first_seq", "topic", "ts")

    def __init__(self, topic: TopicState, *, first_seq: int, ts: int, durable: bool) -> None:
        super().__init__([], frame_count=0, durable=durable, topic_id=topic.id, size=0)
        self.topic = topic
        self.config = topic.config
        self.first_seq = first_seq
        self.ts = ts
        self.bytes = 0  # accounted
        self._blobs: list[bytes] = []
        self._sizes: list[int] = []
        self._tags: list[bytes | None] = []
        self._nodes: list[bytes | None] = []
        self._tickets: list[WriteTicket] = []

    def takes(self, now: int) -> bool:
        """Whether a write that comes now is like the others: all that would differ is checked here."""
        return now <= self.ts and self.config is self.topic.config and len(self._tickets) < WRITES_MAX

    def add(self, batch: WriteBatch) -> WriteTicket:
        """Take in a write of one record, whose seq is the next one."""
        self._blobs += batch.blobs
        self._sizes.append(batch.total_bytes)
        self._tags.append(None if batch.tags is None else batch.tags[0])
        nodes = batch.nodes
        self._nodes.append(nodes[0] if isinstance(nodes, list) else nodes)
        self.bytes += batch.total_bytes
        ticket = WriteTicket()
        self._tickets.append(ticket)
        return ticket

    def reservation(self) -> Reservation:
        return Reservation(self.first_seq, len(self._tickets), self.bytes, self.ts, None)

    def seal(self) -> None:
        """All are there: encode them. The op is `ops[0]` from now on."""
        reservation, batch = self.reservation(), self._batch()
        encoded = encode_appends(
            topic_id=self.topic_id,
            first_seq=self.first_seq,
            ts=self.ts,
            datas=batch.blobs,
            nodes=batch.nodes,
            tags=batch.tags,
            durable=self.durable,
            alone=True,
        )
        op = make_append(
            self.topic,
            reservation,
            batch,
            frames=encoded.buffer,
            offs=array("I", encoded.offsets),
            lens=array("I", encoded.lengths),
        )
        self.ops.append(op)
        self.frames.append(encoded.buffer)
        self.size = len(encoded.buffer)
        self.frame_count = self.client_frames = reservation.count

    def _batch(self) -> WriteBatch:
        tags, nodes, sizes = self._tags, self._nodes, self._sizes
        count = len(sizes)
        return WriteBatch(
            self._blobs,
            sizes,
            None if tags.count(None) == count else tags,
            nodes[0] if nodes.count(nodes[0]) == count else nodes,
            None,
            count,
            self.bytes,
            max(sizes),
        )

    @property
    def op(self) -> Append:
        op = self.ops[0]
        assert isinstance(op, Append)
        return op

    def answer(self, done: Ticket[float]) -> None:
        """It is committed, or failed: so are all of its writes."""
        commit: CommitTicket = self.ticket  # type: ignore[assignment]
        self.ticket = None  # the ticket knows us: a cycle would be left to the collector
        if done.error is not None:
            for ticket in self._tickets:
                ticket.fail(done.error)
            return
        written_s, sync_ms = commit.written_s, done.value or 0.0
        for seq, ticket in enumerate(self._tickets, self.first_seq):
            append_ms = (written_s - ticket.submitted_s) * 1e3
            ticket.resolve(Appended(seq, 1, seq, append_ms=append_ms, sync_ms=sync_ms))
