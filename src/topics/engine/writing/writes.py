"""Writes: the path of an append, from admission to the published batch (`docs/spec/semantics.md#sec-4-2`).

Always holds: a refused write has consumed no seq and left no trace; a write is acked only after `finish` published it.
The commonest write (existing topic, nothing due) goes straight through: one decision, one encoding, one submission."""

from __future__ import annotations

from array import array
from functools import partial

from topics.core.append import Busy, Repeat, Reservation, decide_append, make_append, release, reserve
from topics.core.apply import apply
from topics.core.lineage import epoch_of
from topics.core.retention.rules import due
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.floor_log import FloorLog
from topics.engine.ticket import Ticket, chain, either_way, resolved
from topics.engine.writing.coalesced import BYTES_MAX, RECORDS_EACH_MAX, AppendWaiter, CoalescedWrite, WriteTicket
from topics.engine.writing.commit import CommitTicket
from topics.engine.writing.encode import append_submission, submission
from topics.errors import CommitFailed, Throttled, TopicsError
from topics.formats.wal.frame import encode_appends
from topics.model.ops import RESIDENT, Append, HeadMark, Op
from topics.model.record import WriteBatch
from topics.model.results import Appended
from topics.model.submission import Submission

LEAST_MS = 0.001
"""A wait that happened is shown as more than nothing."""


class Writes:
    def __init__(self, context: Context, floor_log: FloorLog) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._total_bytes_max = context.settings.max_total_bytes
        self._by_key: dict[tuple[int, bytes], Ticket[Appended]] = {}

    def append(self, topic: TopicLog, batch: WriteBatch) -> Ticket[Appended]:
        """Append to a topic that exists and is not on hold. Refusals are raised."""
        now = self._ctx.clock.now_ms()
        if batch.key is None and batch.count <= RECORDS_EACH_MAX:
            joint = self._ctx.commit.growing.get(topic.id)
            if joint is not None and (ticket := self._join(joint, batch, now)) is not None:  # type: ignore[arg-type]
                return ticket
        if self._admission_needs_room(topic) and due(topic, now) is not None:
            return chain(self._floor_log.ensure_logged(topic), lambda _: self._append_again(topic, batch))
        decision = decide_append(topic, batch, now)
        if isinstance(decision, Repeat):
            memo = decision.memo
            epoch = epoch_of(topic, memo.first_seq + memo.count - 1)
            return resolved(Appended(memo.first_seq, memo.count, memo.head, epoch, deduped=True))
        if isinstance(decision, Busy):
            return self._take_turns(topic, batch, decision.key)
        try:
            self.check_quota(batch.total_bytes)
            ticket = self._commit(topic, batch, decision)
        except BaseException:
            release(topic, decision, reuse_seqs=True)
            self._ctx.ceilings.forget(topic.id)  # a mark that was refused with it is not on its way
            raise
        if decision.key is not None:
            self._remember_turn(topic, decision.key, ticket)
        return ticket

    @staticmethod
    def _admission_needs_room(topic: TopicLog) -> bool:
        """Expired records of a `reject` topic make room, so their floor must be logged before the decision."""
        return bool(topic.config.ttl_ms) and topic.config.discard == "reject"

    # --- idempotency: concurrent writes with one key take turns ---------------------------------------------------

    def _remember_turn(self, topic: TopicLog, key: bytes, ticket: Ticket[Appended]) -> None:
        if not ticket.done:
            self._by_key[topic.id, key] = ticket
            ticket.then(lambda _: self._turn_over(topic.id, key))

    def _turn_over(self, topic_id: int, key: bytes) -> None:
        self._by_key.pop((topic_id, key), None)

    def _take_turns(self, topic: TopicLog, batch: WriteBatch, key: bytes) -> Ticket[Appended]:
        """Wait for the write that has the key now, then look again: it has appended, or failed without a trace."""
        first = self._by_key[topic.id, key]
        return chain(either_way(first), lambda _: self._append_again(topic, batch))

    def _append_again(self, topic: TopicLog, batch: WriteBatch) -> Ticket[Appended]:
        """A config that is in the log already would come between the decision and the records, so it is waited for. A
        drop is not: whoever came before it may go with the topic."""
        self._ctx.check_exists(topic)
        change = self._ctx.changing.get(topic.id)
        if change is not None and not self._is_known(topic, batch):
            return chain(change, lambda _: self._append_again(topic, batch))
        return self.append(topic, batch)

    def _is_known(self, topic: TopicLog, batch: WriteBatch) -> bool:
        window_ms = topic.config.idempotency_window_ms
        if batch.key is None or not window_ms:
            return False
        return topic.idem.find(batch.key, now=self._ctx.clock.now_ms(), window_ms=window_ms) is not None

    # --- commit ---------------------------------------------------------------------------------------------------

    def _commit(self, topic: TopicLog, batch: WriteBatch, reservation: Reservation) -> Ticket[Appended]:
        ctx = self._ctx
        group = ctx.group_of(topic.id)
        config = topic.config
        mark = None
        last_seq = reservation.first_seq + reservation.count - 1
        if last_seq > topic.ceiling and (not config.is_fsync or topic.id in ctx.fed):
            mark = ctx.ceilings.raise_over(topic, last_seq, reservation.ts)
        if config.is_ephemeral:
            op = self.encode(topic, batch, reservation, durable=False)
            return self._commit_resident(topic, op, reservation, group, mark)
        if mark is None and self._is_plain(topic, batch, reservation):
            return self._add(self._open_joint(topic, reservation, group), batch)
        controls = self._pins(topic, reservation, mark) if mark is not None or topic.id in ctx.fed else ()
        durable = config.durability == "fsync" or bool(controls)
        op = self.encode(topic, batch, reservation, durable=durable)
        sub = (
            submission(controls, op, topic_id=topic.id, ts=reservation.ts, durable=durable, client_frames=batch.count)
            if controls
            else append_submission(op, durable=durable)
        )
        # Above the applied ceiling although no mark of its own: a mark submitted earlier has yet to be synced.
        waits = not durable and last_seq > topic.ceiling
        ticket = ctx.commit.submit(
            group,
            sub,
            finish=partial(self._finish, topic, batch.total_bytes),
            on_failure=partial(self._release, topic, reservation),
            gate=(lambda: op.last_seq > topic.ceiling) if waits else None,
        )
        ctx.state.staged_bytes += batch.total_bytes
        if mark is None and topic.ceiling - last_seq < topic.block >> 1:
            self._refill(topic, group, reservation.ts)
        return ticket

    # --- small writes travel together -------------------------------------------------------------------------------

    def _is_plain(self, topic: TopicLog, batch: WriteBatch, reservation: Reservation) -> bool:
        if reservation.key is not None or batch.count > RECORDS_EACH_MAX:
            return False
        return self._may_join(topic, size=batch.total_bytes, last_seq=reservation.last_seq)

    def _may_join(self, topic: TopicLog, *, size: int, last_seq: int) -> bool:
        """A plain write: small, no ceiling to wait for, nothing to decide but its seqs."""
        if size > BYTES_MAX or topic.config.discard == "reject" or topic.id in self._ctx.fed:
            return False
        return topic.config.is_fsync or last_seq <= topic.ceiling

    def _open_joint(self, topic: TopicLog, reservation: Reservation, group: int, *, writes: int = 1) -> CoalescedWrite:
        """Refused like any submission; the first writes are to be added at once."""
        commit = self._ctx.commit
        joint = CoalescedWrite(
            topic,
            group=group,
            first_seq=reservation.first_seq,
            ts=reservation.ts,
            durable=topic.config.is_fsync,
            writes=writes,
        )
        commit.submit(
            group,
            joint,
            finish=self._finish_joint,
            on_failure=lambda error: self._release(topic, joint.reservation(), error),
        ).then(joint.answer)
        self._ctx.state.staged_bytes += reservation.size
        commit.accept_more(topic.id, joint)
        return joint

    def join(self, topic: TopicLog, records: WriteBatch, writer: AppendWaiter, *, runs: list[int]) -> bool:
        """Plain writes of so many records each, with others of their turn or as the first of them; False, and nothing
        has happened, if some have to go the long way."""
        now = self._ctx.clock.now_ms()
        joint: CoalescedWrite | None = self._ctx.commit.growing.get(topic.id)  # type: ignore[assignment]
        if joint is None or not self._reserve_in(joint, records, now, writes=len(runs)):
            joint = self._begin(topic, records, now, writes=len(runs))
        if joint is None:
            return False
        joint.add(records, writer, runs=runs)
        self._refill_ahead(joint)
        return True

    def _begin(self, topic: TopicLog, records: WriteBatch, now: int, *, writes: int) -> CoalescedWrite | None:
        """A submission that begins with plain writes; None if some are not plain enough."""
        config, count, size = topic.config, records.count, records.total_bytes
        if config.is_ephemeral or (config.cap_bytes and records.max_bytes > config.cap_bytes) or not self.fits(size):
            return None
        if not self._may_join(topic, size=size, last_seq=topic.reserved_head + count):
            return None
        group = self._ctx.group_of(topic.id)
        if not self._ctx.commit.has_room(group, writes):  # for all of them; each may find a place for itself
            return None
        reservation = reserve(topic, count=count, size=size, now=now)
        try:
            return self._open_joint(topic, reservation, group, writes=writes)
        except TopicsError:
            release(topic, reservation, reuse_seqs=True)
            return None

    def _join(self, joint: CoalescedWrite, batch: WriteBatch, now: int) -> Ticket[Appended] | None:
        """The short way of a write that differs in nothing but its records; None if it has to go the long one."""
        if not self._reserve_in(joint, batch, now, writes=1):
            return None
        return self._add(joint, batch)

    def _add(self, joint: CoalescedWrite, batch: WriteBatch) -> Ticket[Appended]:
        ticket = WriteTicket()
        joint.add(batch, ticket, runs=[batch.count])
        self._refill_ahead(joint)
        return ticket

    def _reserve_in(self, joint: CoalescedWrite, batch: WriteBatch, now: int, *, writes: int) -> bool:
        ctx, topic, count, size = self._ctx, joint.topic, batch.count, batch.total_bytes
        config, last_seq = joint.config, topic.reserved_head + count
        if not joint.takes(writes, size) or (last_seq > topic.ceiling and not config.is_fsync):
            return False
        if (config.cap_bytes and batch.max_bytes > config.cap_bytes) or not self.fits(size):
            return False
        if not ctx.commit.grow(joint.group, joint, writes):
            return False
        if now > joint.ts:
            joint.move_on(now)
            topic.reserved_ts = now
        topic.reserved_head = last_seq
        topic.staged_count += count
        topic.staged_bytes += size
        ctx.state.staged_bytes += size
        return True

    def _finish_joint(self, joint: Submission) -> float:
        """The class is satisfied: publish all of them at once. Gives the time their sync took."""
        assert isinstance(joint, CoalescedWrite)
        self._ctx.state.staged_bytes -= joint.bytes
        op = joint.op
        op.file = joint.file
        op.base = joint.offset
        self._publish(joint.topic, op)
        return _sync_ms(joint.ticket) if joint.durable else 0.0  # type: ignore[arg-type]

    def _refill_ahead(self, joint: CoalescedWrite) -> None:
        """After what was reserved was added: a mark of the topic is a submission of its own, behind this one."""
        topic = joint.topic
        if topic.ceiling - topic.reserved_head < topic.block >> 1:
            self._refill(topic, joint.group, joint.ts)

    # --- control frames in front --------------------------------------------------------------------------------------

    def _pins(self, topic: TopicLog, reservation: Reservation, mark: HeadMark | None) -> list[Op]:
        """Control frames in front of the records: the ceiling, and the places of the routers that feed the topic."""
        if topic.id not in self._ctx.fed:
            return [] if mark is None else [mark]
        ceiling = topic.ceiling if mark is None else mark.ceiling
        pins = self._ctx.evidence.pins(topic, last_seq=reservation.last_seq)
        return [HeadMark(topic_id=topic.id, ceiling=ceiling, pin=pin) for pin in pins]

    @staticmethod
    def encode(topic: TopicLog, batch: WriteBatch, reservation: Reservation, *, durable: bool) -> Append:
        encoded = encode_appends(
            topic_id=topic.id,
            first_seq=reservation.first_seq,
            ts=reservation.ts,
            datas=batch.blobs,
            nodes=batch.nodes,
            tags=batch.tags,
            durable=durable,
        )
        return make_append(
            topic,
            reservation,
            batch,
            frames=encoded.buffer,
            offs=array("I", encoded.offsets),
            lens=array("I", encoded.lengths),
        )

    def _finish(self, topic: TopicLog, size: int, sub: Submission) -> Appended:
        """The class is satisfied: publish."""
        state = self._ctx.state
        state.staged_bytes -= size
        op: Append = sub.ops[-1]  # type: ignore[assignment]
        if len(sub.ops) > 1:
            for control in sub.ops[:-1]:
                apply(state, control)  # type: ignore[arg-type]
            self._ctx.ceilings.release(topic)
        op.file = sub.file
        op.base += sub.offset
        return self.publish(topic, op, sub)

    def publish(self, topic: TopicLog, op: Append, sub: Submission | None) -> Appended:
        """Make a committed batch visible; times come from its submission, if it needed one."""
        self._publish(topic, op)
        append_ms = sync_ms = 0.0
        if sub is not None:
            ticket: CommitTicket = sub.ticket  # type: ignore[assignment]
            append_ms = ticket.append_ms
            if topic.config.is_fsync:
                sync_ms = _sync_ms(ticket)
        return Appended(op.first_seq, op.count, op.last_seq, topic.epoch, append_ms=append_ms, sync_ms=sync_ms)

    def _publish(self, topic: TopicLog, op: Append) -> None:
        effect = apply(self._ctx.state, op)
        self._ctx.published(topic)
        if effect.removal is not None:
            self._ctx.removed(topic, effect)

    def _release(self, topic: TopicLog, reservation: Reservation, error: BaseException) -> None:
        certain = not isinstance(error, CommitFailed) or error.outcome == "not_committed"
        release(topic, reservation, reuse_seqs=certain)
        self._ctx.state.staged_bytes -= reservation.size
        self._ctx.ceilings.forget(topic.id)

    def check_quota(self, size: int) -> None:
        if not self.fits(size):
            raise Throttled.cap("max_total_bytes", max=self._total_bytes_max)

    def fits(self, size: int) -> bool:
        """Whether so many bytes more are within the quota of all topics."""
        cap, state = self._total_bytes_max, self._ctx.state
        return not cap or state.total_bytes + state.staged_bytes + size <= cap

    # --- ephemeral topics and copies ------------------------------------------------------------------------------

    def append_copies(self, topic: TopicLog, op: Append, reservation: Reservation) -> Ticket[Appended]:
        """Router copies: no record frames, in any class; the ceiling above them is what makes their seqs safe."""
        mark = self._ctx.ceilings.raise_over(topic, reservation.last_seq, reservation.ts)
        return self._commit_resident(topic, op, reservation, self._ctx.group_of(topic.id), mark)

    def _commit_resident(
        self, topic: TopicLog, op: Append, reservation: Reservation, group: int, mark: HeadMark | None
    ) -> Ticket[Appended]:
        """Records that are written nowhere: only the ceiling above them is."""
        op.file = RESIDENT
        if mark is not None:
            sub = submission([mark], None, topic_id=topic.id, ts=reservation.ts, durable=True, client_frames=0)
        elif reservation.last_seq > topic.ceiling:
            # A mark on its way covers it: an empty submission keeps the order and shares that mark's sync.
            sub = submission([], None, topic_id=topic.id, ts=reservation.ts, durable=True, client_frames=0)
        elif reservation.first_seq != topic.head + 1:
            # Copies behind writes that are being committed: an empty submission keeps the order.
            sub = submission([], None, topic_id=topic.id, ts=reservation.ts, durable=False, client_frames=0)
        else:
            self._refill(topic, group, reservation.ts)
            return resolved(self.publish(topic, op, None))
        ticket = self._ctx.commit.submit(
            group,
            sub,
            finish=partial(self._finish_resident, topic, op, reservation.size),
            on_failure=partial(self._release, topic, reservation),
        )
        self._ctx.state.staged_bytes += reservation.size
        return ticket

    def _finish_resident(self, topic: TopicLog, op: Append, size: int, sub: Submission) -> Appended:
        self._ctx.state.staged_bytes -= size
        for control in sub.ops:
            apply(self._ctx.state, control)  # type: ignore[arg-type]
            self._ctx.ceilings.release(topic)
        return self.publish(topic, op, None)

    # --- ceilings in the background -------------------------------------------------------------------------------

    def _refill(self, topic: TopicLog, group: int, now: int) -> None:
        """Reserve the next block before it is needed, so that writers rarely wait."""
        if topic.config.is_fsync and topic.id not in self._ctx.fed:
            return
        mark = self._ctx.ceilings.refill(topic, now)
        if mark is None:
            return
        sub = submission([mark], None, topic_id=topic.id, ts=now, durable=True, client_frames=0)
        self._ctx.commit.submit(
            group,
            sub,
            finish=partial(self._finish_ceiling, topic),
            on_failure=lambda _: self._ctx.ceilings.forget(topic.id),
            barrier=False,
            internal=True,
        )

    def _finish_ceiling(self, topic: TopicLog, sub: Submission) -> None:
        apply(self._ctx.state, sub.ops[0])  # type: ignore[arg-type]
        self._ctx.ceilings.release(topic)


def _sync_ms(ticket: CommitTicket) -> float:
    return max(ticket.sync_ms, LEAST_MS)
