"""Writes: the path of an append, from its decision to its answer (`docs/spec/semantics.md#sec-4-2`).

    append   -> join       a plain write: nothing to decide but its seqs. It travels with others of its topic and turn
                           as one submission, `CoalescedWrite`, whether it came alone or as one of many
             -> _decide    every other write: a key, many records, a cap that refuses, a ceiling in front, no file
    commit   -> seal       the runtime takes the submission to write it: its frames are encoded
             -> finish     its class is satisfied: apply, publish; then everyone who waits is answered

Always holds: a refused write has consumed no seq and left no trace; a write is acked only after it was published."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from topics.core.append import (
    ExpectedCheck,
    IndexNeeded,
    Repeat,
    Reservation,
    decide_append,
    note_tags,
    release,
    reserve,
    total_bytes,
)
from topics.core.apply import apply
from topics.core.delete import decide_delete_seqs
from topics.core.lineage import epoch_of
from topics.core.queue.entering import jobs_op
from topics.core.retention.rules import due, unlogged
from topics.core.slots.extent import index_of
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.floor_log import FloorLog
from topics.engine.ticket import Ticket, chain, either_way, resolved
from topics.engine.writing.coalesced_write import BYTES_MAX, AppendWaiter, CoalescedWrite, WriteTicket
from topics.engine.writing.commit import CommitTicket
from topics.engine.writing.encode import append_submission, encode_append, submission
from topics.engine.writing.job_controls import job_controls
from topics.engine.writing.riding import ALONE, Riding
from topics.errors import CommitFailed, Throttled, TopicsError
from topics.model.ops import RESIDENT, Append, HeadMark, Op
from topics.model.record import WriteBatch
from topics.model.results import Appended
from topics.model.submission import Submission

LEAST_MS = 0.001
"""A wait that happened is shown as more than nothing."""
RECORDS_EACH_MAX = 256
"""Of one write that travels with others; a larger one gains nothing by it."""


class Writes:
    def __init__(self, context: Context, floor_log: FloorLog) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._total_bytes_max = context.settings.max_total_bytes
        self._by_key: dict[tuple[int, bytes], Ticket[Appended]] = {}
        self.enter_jobs: Callable[[TopicLog, WriteBatch], Ticket[Appended]]
        """The way of writes with job fields; set by `EnteringWrites`."""

    def append(self, topic: TopicLog, batch: WriteBatch) -> Ticket[Appended]:
        """Append to a topic that exists and is not on hold. Refusals are raised."""
        if batch.jobs is not None:
            return self.enter_jobs(topic, batch)
        now = self._ctx.clock.now_ms()
        if batch.key is None and batch.expected is None and batch.count <= RECORDS_EACH_MAX:
            ticket = WriteTicket()
            if self._join(topic, batch, ticket, [batch.count], now):
                return ticket
        return self.decide(topic, batch, now)

    # --- plain writes travel together -----------------------------------------------------------------------------

    def join(self, topic: TopicLog, records: WriteBatch, waiter: AppendWaiter, runs: list[int]) -> bool:
        """Plain writes, `runs` of records that have one waiter. False, and nothing has happened, if some of them have
        to be decided by themselves."""
        return self._join(topic, records, waiter, runs, self._ctx.clock.now_ms())

    def _join(self, topic: TopicLog, records: WriteBatch, waiter: AppendWaiter, runs: list[int], now: int) -> bool:
        """Into the submission of the topic that still grows, or as the first writes of a new one."""
        if records.jobs is not None:
            return False
        coalesced = self._ctx.commit.growing.get(topic.id)
        if coalesced is None or not self._reserve_in(coalesced, records, now, writes=len(runs)):
            coalesced = self._open(topic, records, now, writes=len(runs))
            if coalesced is None:
                return False
        coalesced.add(records, waiter, runs)
        # Only now: a mark of the topic is a submission of its own, and what grows must not grow behind it.
        if topic.ceiling - topic.reserved_head < topic.block >> 1:
            self._ctx.ceilings.refill(topic, coalesced.group, coalesced.ts)
        return True

    def _reserve_in(self, coalesced: CoalescedWrite, records: WriteBatch, now: int, *, writes: int) -> bool:
        ctx, topic, count, size = self._ctx, coalesced.topic, records.count, records.total_bytes
        config, last_seq = coalesced.config, topic.reserved_head + count
        if not coalesced.takes(writes, size) or (last_seq > topic.ceiling and not coalesced.durable):
            return False
        if (config.cap_bytes and records.max_bytes > config.cap_bytes) or not self.fits(size):
            return False
        if not ctx.commit.grow(coalesced.group, coalesced, writes):
            return False
        if now > coalesced.ts:
            coalesced.move_on(now)
            topic.reserved_ts = now
        topic.reserved_head = last_seq
        topic.staged_count += count
        topic.staged_bytes += size
        ctx.state.staged_bytes += size
        if records.tags is not None:
            note_tags(topic, last_seq - count + 1, records.tags)
        return True

    def _open(self, topic: TopicLog, records: WriteBatch, now: int, *, writes: int) -> CoalescedWrite | None:
        """A submission that begins with these writes, which are to be added at once; None if some are not plain, or if
        there is no place for all of them: each may find one for itself."""
        ctx, config, size = self._ctx, topic.config, records.total_bytes
        if config.durability == "ephemeral" or config.discard == "reject" or topic.id in ctx.fed:
            return None
        if config.durability != "fsync" and topic.reserved_head + records.count > topic.ceiling:
            return None
        if size > BYTES_MAX or (config.cap_bytes and records.max_bytes > config.cap_bytes) or not self.fits(size):
            return None
        group = ctx.group_of(topic.id)
        if not ctx.commit.has_room(group, writes):
            return None
        reservation = reserve(topic, count=records.count, size=size, now=now, tags=records.tags)
        ts = reservation.ts
        coalesced = CoalescedWrite(
            [],
            0,
            0,
            durable=config.durability == "fsync",
            topic_id=topic.id,
            writes=writes,
            topic=topic,
            config=config,
            group=group,
            first_seq=reservation.first_seq,
            ts=ts,
            moments=[(ts, 0)],
        )
        try:
            ctx.commit.submit(
                group,
                coalesced,
                finish=self._finish_coalesced,
                on_failure=lambda error: self._release(topic, coalesced.reservation(), error),
                answer=coalesced.answer,
            )
        except TopicsError:
            release(topic, reservation, reuse_seqs=True)
            return None
        ctx.state.staged_bytes += size
        ctx.commit.growing[topic.id] = coalesced
        return coalesced

    def _finish_coalesced(self, coalesced: Submission) -> float:
        """The class is satisfied: publish all of them at once. Gives the time their sync took."""
        assert isinstance(coalesced, CoalescedWrite)
        self._ctx.state.staged_bytes -= coalesced.bytes
        op: Append = coalesced.ops[0]  # type: ignore[assignment]
        op.file = coalesced.file
        op.base = coalesced.offset
        self._publish(coalesced.topic, op)
        return _sync_ms(coalesced) if coalesced.durable else 0.0

    def _publish(self, topic: TopicLog, op: Append) -> None:
        effect = apply(self._ctx.state, op)
        self._ctx.published(topic)
        if effect.removal is not None:
            self._ctx.removed(topic, effect)

    # --- writes that are decided by themselves --------------------------------------------------------------------

    def append_with(self, topic: TopicLog, batch: WriteBatch, plan: Callable[[], Riding]) -> Ticket[Appended]:
        """Append together with what `plan` says when the write is decided; without a key and unique keys."""
        self._ctx.check_exists(topic)
        now = self._ctx.clock.now_ms()
        wait = self._ctx.changing.get(topic.id) or self.wait_before(topic, batch, now)
        if wait is not None:
            return chain(wait, lambda _: self.append_with(topic, batch, plan))
        return self.decide(topic, batch, now, riding=plan())

    def decide(
        self,
        topic: TopicLog,
        batch: WriteBatch,
        now: int,
        replaced: tuple[int, ...] = (),
        riding: Riding = ALONE,
        check: ExpectedCheck | None = None,
    ) -> Ticket[Appended]:
        """`replaced` are jobs that are deleted in the same submission; `check` has looked for some of what the write
        expects already."""
        wait = self.wait_before(topic, batch, now)
        if wait is not None:
            return chain(wait, lambda _: self.append_again(topic, batch, check))
        decision = decide_append(topic, batch, now, check)
        if isinstance(decision, Repeat):
            memo = decision.memo
            epoch = epoch_of(topic, memo.first_seq + memo.count - 1)
            return resolved(Appended(memo.first_seq, memo.count, memo.head, epoch, deduped=True))
        if isinstance(decision, IndexNeeded):
            loaded = self._ctx.files.fetch(topic, index_of(decision.block, decision.block.first_seq))
            return chain(loaded, lambda _: self.append_again(topic, batch, decision.check))
        assert isinstance(decision, Reservation), "a write whose key is busy was waited for"
        try:
            self.check_quota(batch.total_bytes)
            ticket = self._commit(topic, batch, decision, replaced, riding)
        except BaseException:
            release(topic, decision, reuse_seqs=True)
            self._ctx.ceilings.forget(topic.id)  # a mark that was refused with it is not on its way
            raise
        if decision.key is not None and not ticket.done:
            self._by_key[topic.id, decision.key] = ticket
            ticket.then(partial(self._key_is_free, topic.id, decision.key))
        return ticket

    def wait_before(self, topic: TopicLog, batch: WriteBatch, now: int) -> Ticket[None] | None:
        """What to wait for before a write can be decided; None if nothing."""
        config = topic.config
        asks_for_tags = batch.expected is not None and bool(batch.expected.tags)
        if (asks_for_tags or (config.ttl_ms and config.discard == "reject")) and due(topic, now) is not None:
            # Expired records make place for new ones and have no version, so their floor must be logged before the
            # decision.
            return self._floor_log.ensure_logged(topic)
        if batch.key is not None and batch.key in topic.idem.staged and not self.is_known(topic, batch):
            # Wait for the write that has the key now, then look again: it has appended, or failed without a trace.
            return either_way(self._by_key[topic.id, batch.key])
        return None

    def _key_is_free(self, topic_id: int, key: bytes, _: Ticket[Appended]) -> None:
        self._by_key.pop((topic_id, key), None)

    def append_again(self, topic: TopicLog, batch: WriteBatch, check: ExpectedCheck | None = None) -> Ticket[Appended]:
        """A config that is in the log already would come between the decision and the records, so it is waited for. A
        drop is not: whoever came before it may go with the topic."""
        self._ctx.check_exists(topic)
        change = self._ctx.changing.get(topic.id)
        if change is not None and not self.is_known(topic, batch):
            return chain(change, lambda _: self.append_again(topic, batch, check))
        if check is not None:
            return self.decide(topic, batch, self._ctx.clock.now_ms(), check=check)
        return self.append(topic, batch)

    def is_known(self, topic: TopicLog, batch: WriteBatch) -> bool:
        window_ms = topic.config.idempotency_window_ms
        if batch.key is None or not window_ms:
            return False
        return topic.idem.find(batch.key, now=self._ctx.clock.now_ms(), window_ms=window_ms) is not None

    def check_quota(self, size: int) -> None:
        if not self.fits(size):
            raise Throttled.cap("max_total_bytes", max=self._total_bytes_max)

    def fits(self, size: int) -> bool:
        """Whether so many bytes more are within the quota of all topics."""
        cap, state = self._total_bytes_max, self._ctx.state
        return not cap or state.total_bytes + state.staged_bytes + size <= cap

    def _commit(
        self,
        topic: TopicLog,
        batch: WriteBatch,
        reservation: Reservation,
        replaced: tuple[int, ...],
        riding: Riding,
    ) -> Ticket[Appended]:
        ctx, config = self._ctx, topic.config
        group = ctx.group_of(topic.id)
        mark = None
        last_seq = reservation.last_seq
        if last_seq > topic.ceiling and (not config.is_fsync or topic.id in ctx.fed):
            mark = ctx.ceilings.raise_over(topic, last_seq, reservation.ts)
        if config.is_ephemeral:
            op = encode_append(topic, batch, reservation, durable=False)
            op.jobs = None if batch.jobs is None else jobs_op(topic, batch.jobs, op.first_seq, reservation.ts)
            if replaced:
                self._apply_control(topic, decide_delete_seqs(topic, replaced, reason="ack"))
            return self._commit_resident(topic, op, reservation, group, mark, riding)
        controls = self._controls(topic, reservation, mark)
        durable = config.is_fsync or bool(controls) or riding.durable
        if batch.jobs is not None:
            controls += job_controls(ctx, topic, batch.jobs, reservation, replaced)
        op = encode_append(topic, batch, reservation, durable=durable)
        sub = (
            submission(
                [*controls, *riding.ops],
                op,
                topic_id=topic.id,
                ts=reservation.ts,
                durable=durable,
                client_frames=batch.count,
            )
            if controls or riding.ops
            else append_submission(op, durable=durable)
        )
        sub.rider_topic_id = riding.topic_id
        # Above the applied ceiling although no mark of its own: a mark submitted earlier has yet to be synced.
        waits = not durable and last_seq > topic.ceiling
        ticket = ctx.commit.submit(
            group,
            sub,
            finish=partial(self._finish, topic, batch.total_bytes, len(controls), riding),
            on_failure=partial(self._release, topic, reservation),
            gate=(lambda: op.last_seq > topic.ceiling) if waits else None,
        )
        ctx.state.staged_bytes += batch.total_bytes
        if replaced:
            ctx.evidence.hold_until(topic, ticket)
        if mark is None and topic.ceiling - last_seq < topic.block >> 1:
            ctx.ceilings.refill(topic, group, reservation.ts)
        return ticket

    def _controls(self, topic: TopicLog, reservation: Reservation, mark: HeadMark | None) -> list[Op]:
        """Control frames in front of the records: the ceiling, and the cursors of the routers that feed the topic."""
        if topic.id not in self._ctx.fed:
            return [] if mark is None else [mark]
        ceiling = topic.ceiling if mark is None else mark.ceiling
        pins = self._ctx.evidence.pins(topic, last_seq=reservation.last_seq)
        return [HeadMark(topic_id=topic.id, ceiling=ceiling, pin=pin) for pin in pins]

    def _apply_control(self, topic: TopicLog, control: Op) -> None:
        effect = apply(self._ctx.state, control)
        if effect.removal is not None:
            late = not topic.config.is_ephemeral and unlogged(topic) is not None
            self._ctx.removed(topic, effect, flag_after=self._floor_log.log_floors(topic) if late else None)

    def _finish(self, topic: TopicLog, size: int, controls: int, riding: Riding, sub: Submission) -> Appended:
        """The class is satisfied: publish."""
        self._ctx.state.staged_bytes -= size
        op: Append = sub.ops[-1]  # type: ignore[assignment]
        if controls:
            for control in sub.ops[:controls]:
                self._apply_control(topic, control)  # type: ignore[arg-type]
            self._ctx.ceilings.release(topic)
        riding.finish()
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
                sync_ms = _sync_ms(sub)
        return Appended(op.first_seq, op.count, op.last_seq, topic.epoch, append_ms=append_ms, sync_ms=sync_ms)

    def _release(self, topic: TopicLog, reservation: Reservation, error: BaseException) -> None:
        certain = not isinstance(error, CommitFailed) or error.outcome == "not_committed"
        release(topic, reservation, reuse_seqs=certain)
        self._ctx.state.staged_bytes -= reservation.size
        self._ctx.ceilings.forget(topic.id)

    # --- records that lie in no file: of ephemeral topics, and router copies ----------------------------------------

    def append_copies(self, topic: TopicLog, op: Append, reservation: Reservation) -> Ticket[Appended]:
        """Router copies: no record frames, in any class; the ceiling above them is what makes their seqs safe."""
        mark = self._ctx.ceilings.raise_over(topic, reservation.last_seq, reservation.ts)
        return self._commit_resident(topic, op, reservation, self._ctx.group_of(topic.id), mark)

    def _commit_resident(
        self,
        topic: TopicLog,
        op: Append,
        reservation: Reservation,
        group: int,
        mark: HeadMark | None,
        riding: Riding = ALONE,
    ) -> Ticket[Appended]:
        """Only the ceiling above the records is logged, if there is one to log, and what rides with them."""
        op.file = RESIDENT
        is_above_ceiling = reservation.last_seq > topic.ceiling
        if not is_above_ceiling and reservation.first_seq == topic.head + 1 and not riding.ops:
            self._ctx.ceilings.refill(topic, group, reservation.ts)
            riding.finish()
            return resolved(self.publish(topic, op, None))
        # Without a mark the submission is empty. It keeps the order behind writes that are being committed; and if a
        # mark on its way has yet to cover the records, it shares the sync of that mark.
        durable = is_above_ceiling or riding.durable
        controls: list[Op] = [*riding.ops] if mark is None else [mark, *riding.ops]
        sub = submission(controls, None, topic_id=topic.id, ts=reservation.ts, durable=durable, client_frames=0)
        sub.rider_topic_id = riding.topic_id
        ticket = self._ctx.commit.submit(
            group,
            sub,
            finish=partial(self._finish_resident, topic, op, mark, riding),
            on_failure=partial(self._release, topic, reservation),
        )
        self._ctx.state.staged_bytes += reservation.size
        return ticket

    def _finish_resident(
        self, topic: TopicLog, op: Append, mark: HeadMark | None, riding: Riding, _: Submission
    ) -> Appended:
        self._ctx.state.staged_bytes -= total_bytes(op.sizes)
        if mark is not None:
            apply(self._ctx.state, mark)
            self._ctx.ceilings.release(topic)
        riding.finish()
        return self.publish(topic, op, None)


def _sync_ms(sub: Submission) -> float:
    ticket: CommitTicket = sub.ticket  # type: ignore[assignment]
    return max(ticket.sync_ms, LEAST_MS)
