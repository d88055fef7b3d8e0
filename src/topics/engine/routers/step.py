"""One step of a router: at most 1024 source records, by the first row of the table that fits
(`docs/spec/semantics.md#sec-15-3`).

    stand still while a frame of the source is being logged; log the source's due floors
    copies to restore     admit, append: a crash took them, and the source has lost their records since
    lost in the source    a lost range of as many seqs in the destination, logged and synced first
    live                  read, choose, admit, append; too large for the destination's byte cap: a lost seq

Always holds: the cursor moves only when everything up to it is in the destination or skipped; a record that is skipped
because it was deleted stays deleted after any crash, else later copies could not be given their seqs again; order in
the destination is order in the source; a step that fails has changed nothing. One step per router at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial

from topics import limits
from topics.core.append import note_tags, release, reserve
from topics.core.apply import apply
from topics.core.effects import OpResult
from topics.core.reading.walk import ReadOutcome, ReadRequest, ReadWalk, plan_read
from topics.core.router import RouterProgress
from topics.core.router_copy import Copy, admitted, chosen, hops_of
from topics.core.topic import TopicLog
from topics.engine.context import Context, FetchedRecords
from topics.engine.floor_log import FloorLog
from topics.engine.routers.copies import LossHops, SharedRead, copies_op
from topics.engine.routers.evidence import pin_of
from topics.engine.ticket import Ticket
from topics.engine.writing.quota import Quota
from topics.engine.writing.writes import Writes
from topics.errors import CommitFailed, Throttled
from topics.model.ops import HeadMark, LostReason
from topics.model.submission import Submission

BUDGET_BYTES = 4 << 20  # of one step's records: bounds how long a step occupies the owner's thread


class StepOutcome(Enum):
    CAUGHT_UP = "caught_up"
    """Nothing left to do."""
    MOVED = "moved"
    BLOCKED = "blocked"
    """The destination is full."""
    COLD = "cold"
    """The records are in the cold store; the step goes on, but nobody should wait for it."""
    FAILED = "failed"


class Step:
    """`ticket` tells those who wait; `over` is called when the router may step again."""

    def __init__(
        self,
        context: Context,
        floor_log: FloorLog,
        writes: Writes,
        quota: Quota | None,
        losses: LossHops,
        router: RouterProgress,
        over: Callable[[StepOutcome, BaseException | None], None],
        shared: SharedRead | None = None,
    ) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._writes = writes
        self._quota = quota
        self._losses = losses
        self._router = router
        self._over = over
        self._shared = shared
        self._walk: ReadWalk | None = None
        # Deletes up to this source seq are synced; with the seqs that were live when that sync was requested.
        self._deletes_synced: tuple[int, frozenset[int]] = (0, frozenset())
        self._ended = False
        self.ticket: Ticket[StepOutcome] = Ticket()

    def run(self) -> None:
        try:
            self._advance()
        except Exception as error:
            self._fail(error)
        self._shared = None

    def _advance(self) -> None:
        topics = self._topics()
        if topics is None:
            self._end(StepOutcome.CAUGHT_UP)
            return
        source, dest = topics
        if self._must_wait(source, dest):
            return
        if self._router.cursor >= source.head:
            self._end(StepOutcome.CAUGHT_UP)
            return
        lost_to = self._lost_to(source)
        restored = self._next_to_restore()
        if restored:
            self._send(dest, restored, restored[-1].source_seq)
        elif lost_to is not None:
            self._pass_on_loss(source, dest, lost_to)
        else:
            self._read(source)

    def _next_to_restore(self) -> list[Copy]:
        """The next copies that a crash took and whose source records are lost."""
        router = self._router
        if router.copies_to_restore:
            router.copies_to_restore = [copy for copy in router.copies_to_restore if copy.source_seq > router.cursor]
        return router.copies_to_restore[: limits.ROUTER_BATCH_RECORDS]

    def _topics(self) -> tuple[TopicLog, TopicLog] | None:
        state, router = self._ctx.state, self._router
        source, dest = state.by_id.get(router.source_id), state.by_id.get(router.dest_id)
        if source is None or dest is None or state.routers.get(router.name) is not router:
            return None
        return source, dest

    def _must_wait(self, source: TopicLog, dest: TopicLog) -> bool:
        evidence = self._ctx.evidence
        if evidence.is_held(source.id):
            evidence.when_free(source.id, self.run)
            return True
        needs_space = dest.config.ttl_ms and dest.config.discard == "reject"
        for topic in (source, dest) if needs_space else (source,):
            if not self._floor_log.is_logged(topic):
                self._floor_log.ensure_logged(topic).then(self._resume, self._fail)
                return True
        return False

    def _resume(self, done: Ticket[None]) -> None:
        if done.error is not None:
            self._fail(done.error)
        else:
            self.run()

    # --- reading --------------------------------------------------------------------------------------------------

    def _lost_to(self, source: TopicLog) -> int | None:
        """The last seq of the lost range that follows the cursor; None if none does."""
        following = self._router.cursor + 1
        if following < source.evict_floor:
            return source.evict_floor - 1
        lost = source.lost.find(following) if len(source.lost) else None
        return None if lost is None else lost.hi

    def _read(self, source: TopicLog) -> None:
        key = (self._router.cursor, source.head, source.count, source.earliest_seq)
        known = None if self._shared is None else self._shared.outcome(key)
        if known is not None:
            self._copy(known)
            return
        request = ReadRequest(
            from_seq=self._router.cursor, limit=limits.ROUTER_BATCH_RECORDS, budget_bytes=BUDGET_BYTES, touch=False
        )
        walk = plan_read(source, request, self._ctx.state.recent, now=self._ctx.clock.now_ms())
        if walk.need() is None:
            outcome = walk.result()
            if self._shared is not None:
                self._shared.keep(key, outcome)
            self._copy(outcome)
        else:
            self._walk = walk
            self._fetch(source, walk)

    def _fetch(self, source: TopicLog, walk: ReadWalk) -> None:
        extent = walk.need()
        if extent is None:
            self._copy(walk.result())
            return
        if extent.view is not None and extent.view.tier == "cold" and not self.ticket.done:
            self.ticket.resolve(StepOutcome.COLD)
        self._ctx.files.fetch(source, extent).then(partial(self._fetched, source, walk), self._fail)

    def _fetched(self, source: TopicLog, walk: ReadWalk, done: Ticket[FetchedRecords]) -> None:
        try:
            self._ctx.feed(source, walk, done.result())
            self._fetch(source, walk)
        except Exception as error:
            self._fail(error)

    # --- copying --------------------------------------------------------------------------------------------------

    def _copy(self, outcome: ReadOutcome) -> None:
        topics = self._topics()
        if topics is None:
            self._end(StepOutcome.CAUGHT_UP)
            return
        source, dest = topics
        if self._walk is not None:  # time has passed since the records were located
            if self._must_wait(source, dest):
                return
            if self._lost_to(source) is not None:
                self.run()
                return
        upto = outcome.next_from_seq
        copies = self._choose(source, outcome)
        if outcome.tombstone is not None:  # dead slots up to a lost range: the next step takes that
            upto, copies = outcome.tombstone.gap_from - 1, []
        unsynced = self._first_unsynced_delete(source, dest, outcome, upto)
        if unsynced is None:
            self._send(dest, copies, upto)
        elif unsynced > self._router.cursor + 1:
            self._send(dest, [copy for copy in copies if copy.source_seq < unsynced], unsynced - 1)
        else:
            self._sync_deletes(source, outcome, upto)

    def _first_unsynced_delete(self, source: TopicLog, dest: TopicLog, outcome: ReadOutcome, upto: int) -> int | None:
        """The first record that was deleted before its turn and that a power cut could bring back."""
        if source.config.syncs_deletes or source.config.is_ephemeral or dest.config.is_ephemeral:
            return None
        commit, group = self._ctx.commit, self._ctx.group_of(source.id)
        if commit.synced_lsn(group) >= commit.written_lsn(group):
            return None
        live = self._live(source, outcome)
        synced_to, were_live = self._deletes_synced
        died = were_live.difference(live)
        following = max(synced_to, self._router.cursor) + 1
        for seq in live:
            following += seq == following
        return min((seq for seq in (*died, following) if seq <= upto), default=None)

    def _sync_deletes(self, source: TopicLog, outcome: ReadOutcome, upto: int) -> None:
        """Records that are dead now stay dead after the next sync; what dies meanwhile needs another one."""
        seen = upto, frozenset(self._live(source, outcome))

        def synced(done: Ticket[None]) -> None:
            self._deletes_synced = seen
            self._walk = None
            self._resume(done)

        self._floor_log.log_floors(source).then(synced, self._fail)

    def _live(self, source: TopicLog, outcome: ReadOutcome) -> list[int]:
        seqs = [run.seq(at) for run in outcome.runs for at in range(len(run))]
        return seqs if self._walk is None else [seq for seq in seqs if source.live(seq)]

    def _choose(self, source: TopicLog, outcome: ReadOutcome) -> list[Copy]:
        if self._shared is None or self._walk is not None:
            return self._chosen(source, outcome)
        return self._shared.copies(self._router, partial(self._chosen, source, outcome))

    def _chosen(self, source: TopicLog, outcome: ReadOutcome) -> list[Copy]:
        copies: list[Copy] = []
        fed = source.id in self._ctx.fed
        for run in outcome.runs:
            hops = hops_of(source, [run.seq(at) for at in range(len(run))]) if fed else [0] * len(run)
            copies += chosen(self._router, source, run, hops)
        if self._walk is not None:
            copies = [copy for copy in copies if source.live(copy.source_seq)]
        return copies

    def _send(self, dest: TopicLog, copies: list[Copy], upto: int) -> None:
        count, obstacle = admitted(dest, copies)
        if obstacle is not None:
            upto = copies[count].source_seq - 1
        if count:
            self._append(dest, copies[:count], upto)
        elif obstacle == "cap":
            self._pass(upto)
            self._lose(dest, 1, cursor=upto + 1, reason="cap")
        else:
            self._pass(upto)
            self._end(StepOutcome.MOVED if obstacle is None else StepOutcome.BLOCKED)

    def _pass(self, upto: int) -> None:
        """Nothing up to there is for the destination."""
        self._router.reserve(cursor=upto, count=0)
        self._router.arrived()

    def _append(self, dest: TopicLog, copies: list[Copy], upto: int) -> None:
        size = sum(copy.size for copy in copies)
        if not self._writes.fits(size):
            self._make_room(dest)
            return
        reservation = reserve(dest, count=len(copies), size=size, now=self._ctx.clock.now_ms())
        op = copies_op(dest, reservation, copies)
        if op.tags is not None:
            note_tags(dest, reservation.first_seq, op.tags)
        try:
            ticket = self._writes.append_copies(dest, op, reservation)
        except BaseException:
            release(dest, reservation, reuse_seqs=True)
            raise
        self._router.reserve(cursor=upto, count=len(copies))
        ticket.then(lambda done: self._arrived(done.error), self._fail)

    def _make_room(self, dest: TopicLog) -> None:
        """Expired records count against the quota until their floors are logged: log them, then step again, once."""
        quota, self._quota = self._quota, None
        if quota is None:
            raise Throttled.cap("max_total_bytes", max=self._ctx.settings.max_total_bytes)
        quota.make_room(dest.name).then(self._resume, self._fail)

    def _arrived(self, error: BaseException | None) -> None:
        if error is not None:
            self._router.failed()
            self._fail(error)
        else:
            self._router.arrived()
            self._end(StepOutcome.MOVED)

    # --- losing ---------------------------------------------------------------------------------------------------

    def _pass_on_loss(self, source: TopicLog, dest: TopicLog, lost_to: int) -> None:
        """Losses go round a cycle as records do, and end as they do: after ROUTER_HOPS_MAX hops they are not passed
        on."""
        first = self._router.cursor + 1
        loss = self._losses.first_run(source.id, first, lost_to)
        count = loss.last - first + 1 if loss.hops < limits.ROUTER_HOPS_MAX else 0
        if count:
            self._losses.note(dest.id, dest.reserved_head + 1, dest.reserved_head + count, hops=loss.hops + 1)
        self._lose(dest, count, cursor=loss.last, reason="source_trim")

    def _lose(self, dest: TopicLog, count: int, *, cursor: int, reason: LostReason) -> None:
        """Give the destination a lost range of `count` seqs, synced before the cursor passes the source records that it
        stands for. With no seqs in it, the log only learns that the cursor passed."""
        ctx, router = self._ctx, self._router
        first = dest.reserved_head + 1
        last = dest.reserved_head + count
        router.reserve(cursor=cursor, count=count)
        mark = HeadMark(
            topic_id=dest.id,
            ceiling=max(ctx.ceilings.staged(dest), last),
            lost=((first, last, reason),) if count else (),
            pin=pin_of(router.reserved_mark(dest_head=last)),
        )
        dest.reserved_head = last
        try:
            ticket = ctx.log(
                dest.id,
                [mark],
                finish=partial(self._lost, dest, mark),
                on_failure=partial(_give_back, dest, first, last),
                internal=True,
            )
        except BaseException as error:
            _give_back(dest, first, last, error)
            router.failed()
            raise
        ticket.then(lambda done: self._arrived(done.error), self._fail)

    def _lost(self, dest: TopicLog, mark: HeadMark, _: Submission) -> None:
        effect = apply(self._ctx.state, mark)
        if effect.fate is OpResult.IGNORED:  # the destination is gone, and so is the router
            return
        self._ctx.ceilings.release(dest)
        self._ctx.published(dest)
        if effect.removal is not None:
            self._ctx.removed(dest, effect)

    # --- the end --------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        self._end(StepOutcome.FAILED, error)

    def _end(self, outcome: StepOutcome, error: BaseException | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        self._over(outcome, error)
        if not self.ticket.done:
            self.ticket.resolve(outcome)


def _give_back(dest: TopicLog, first: int, last: int, error: BaseException) -> None:
    certain = not isinstance(error, CommitFailed) or error.outcome == "not_committed"
    if certain and dest.reserved_head == last:
        dest.reserved_head = first - 1
