"""Losses on their way: how many routers a lost range in a topic has come through.

A lost range in a source becomes one in the destination; in a cycle it would go round for ever. So it has a hop count,
as copies have, kept in memory only: a restart begins anew at 0, and forwarding still ends. Forgotten once every router
of the topic has passed the range.

Shared read: what the routers of one source read in one turn.

Under a fan-out most of them stand at the same place and want the same copies, so the source is read once and its
records are taken apart once. Used by `engine.router_step` for steps that begin in the same moment, never later.

One step of a router: at most 1024 source records, by the first row of the table that fits
(`docs/spec/semantics.md#sec-15-3`).

    stand still while a frame of the source is on its way; settle the source's floors
    owed since a crash    admit, append
    lost in the source    a lost range of as many seqs in the destination, logged and synced first
    live                  read, choose, admit, append; too large for the destination's byte cap: a lost seq

Always holds: the cursor moves only when everything up to it is in the destination or passed over; what is passed over
because it was deleted stays deleted after any crash, else later copies could not be given their seqs again; order in
the destination is order in the source; a step that fails has changed nothing. One step per router at a time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import NamedTuple

from topics import limits
from topics.core.append import release, reserve
from topics.core.apply import apply
from topics.core.effects import OpResult
from topics.core.reading.walk import ReadOutcome, ReadRequest, ReadWalk, plan_read
from topics.core.router import RouterProgress
from topics.core.router_copy import Copy, admitted, chosen, hops_of
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.file_requests import FetchedRecords
from topics.engine.floor_log import FloorLog
from topics.engine.routers.copies import copies_op
from topics.engine.ticket import Ticket
from topics.engine.writing.encode import submission
from topics.engine.writing.quota import Quota
from topics.engine.writing.writes import Writes
from topics.errors import CommitFailed, Throttled
from topics.model.ops import HeadMark, LostReason, Pin
from topics.model.results import Appended
from topics.model.submission import Submission


class LostStretch(NamedTuple):
    """Lost seqs up to `last` that have one hop count."""

    last: int
    hops: int


class LossHops:
    def __init__(self, state: State) -> None:
        self._state = state
        self._ranges: dict[int, list[tuple[int, int, int]]] = {}

    def note(self, topic_id: int, first: int, last: int, *, hops: int) -> None:
        """A topic that is itself a source takes a range from a router."""
        routers = self._state.routers.from_source(topic_id)
        if not routers:
            return
        passed = min(router.cursor for router in routers)
        kept = [known for known in self._ranges.get(topic_id, ()) if known[1] > passed and known[0] != first]
        insort(kept, (first, last, hops))
        self._ranges[topic_id] = kept

    def stretch(self, topic_id: int, first: int, last: int) -> LostStretch:
        """The first part of `first..last` that is of one kind."""
        for lo, hi, hops in self._ranges.get(topic_id, ()):
            if lo <= first <= hi:
                return LostStretch(min(hi, last), hops)
            if first < lo <= last:
                return LostStretch(lo - 1, 0)
        return LostStretch(last, 0)


class SharedRead:
    """The newest read of one source. A place is the router's cursor and what a change of the source would change."""

    def __init__(self) -> None:
        self._place: tuple[int, ...] = ()
        self._outcome: ReadOutcome | None = None
        self._copies: dict[tuple[object, ...], list[Copy]] = {}

    def outcome(self, place: tuple[int, ...]) -> ReadOutcome | None:
        return self._outcome if self._place == place else None

    def keep(self, place: tuple[int, ...], outcome: ReadOutcome) -> None:
        self._place, self._outcome = place, outcome
        self._copies.clear()

    def copies(self, router: RouterProgress, choose: Callable[[], list[Copy]]) -> list[Copy]:
        """A copy of an `exactly_once` router is signed, so it is its own."""
        wanted = router.definition
        if wanted.guarantee == "exactly_once":
            return choose()
        key = (wanted.filter, wanted.preserve_node, wanted.preserve_tag)
        found = self._copies.get(key)
        if found is None:
            found = self._copies[key] = choose()
        return found


BUDGET_BYTES = 4 << 20  # of one step's records: what a step may hold the loop for


class StepOutcome(Enum):
    LEVEL = "level"
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
        # Up to where it is synced what is dead, and what was alive there when that sync was asked for.
        self._sure: tuple[int, frozenset[int]] = (0, frozenset())
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
            self._end(StepOutcome.LEVEL)
            return
        source, dest = topics
        if self._must_wait(source, dest):
            return
        if self._router.cursor >= source.head:
            self._end(StepOutcome.LEVEL)
            return
        lost_to = self._lost_to(source)
        owed = self._owed()
        if owed:
            self._send(dest, owed, owed[-1].source_seq)
        elif lost_to is not None:
            self._pass_on_loss(source, dest, lost_to)
        else:
            self._read(source)

    def _owed(self) -> list[Copy]:
        """Copies that a crash took and that the source can no longer give, the next of them."""
        router = self._router
        if router.owed:
            router.owed = [copy for copy in router.owed if copy.source_seq > router.cursor]
        return router.owed[: limits.ROUTER_BATCH_RECORDS]

    def _topics(self) -> tuple[TopicLog, TopicLog] | None:
        state, router = self._ctx.state, self._router
        source, dest = state.by_id.get(router.source_id), state.by_id.get(router.dest_id)
        if source is None or dest is None or state.routers.get(router.name) is not router:
            return None
        return source, dest

    def _must_wait(self, source: TopicLog, dest: TopicLog) -> bool:
        witness = self._ctx.witness
        if witness.is_held(source.id):
            witness.when_free(source.id, self.run)
            return True
        needs_room = dest.config.ttl_ms and dest.config.discard == "reject"
        for topic in (source, dest) if needs_room else (source,):
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
        """The last seq of what is lost right behind the cursor."""
        following = self._router.cursor + 1
        if following < source.evict_floor:
            return source.evict_floor - 1
        lost = source.lost.find(following) if len(source.lost) else None
        return None if lost is None else lost.hi

    def _read(self, source: TopicLog) -> None:
        place = (self._router.cursor, source.head, source.count, source.earliest_seq)
        known = None if self._shared is None else self._shared.outcome(place)
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
                self._shared.keep(place, outcome)
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
        self._ctx.jobs.fetch(source, extent).then(partial(self._fetched, source, walk), self._fail)

    def _fetched(self, source: TopicLog, walk: ReadWalk, done: Ticket[FetchedRecords]) -> None:
        try:
            fetched = done.result()
            if fetched.run is None:
                self._ctx.check_exists(source)
                walk.replan()
            else:
                walk.feed(fetched.run, seq_next=fetched.seq_next)
            self._fetch(source, walk)
        except Exception as error:
            self._fail(error)

    # --- copying --------------------------------------------------------------------------------------------------

    def _copy(self, outcome: ReadOutcome) -> None:
        topics = self._topics()
        if topics is None:
            self._end(StepOutcome.LEVEL)
            return
        source, dest = topics
        if self._walk is not None:  # time has passed since the records were looked at
            if self._must_wait(source, dest):
                return
            if self._lost_to(source) is not None:
                self.run()
                return
        upto = outcome.next_from_seq
        copies = self._choose(source, outcome)
        if outcome.tombstone is not None:  # dead slots up to a lost range: the next step takes that
            upto, copies = outcome.tombstone.gap_from - 1, []
        unsure = self._first_unsure(source, dest, outcome, upto)
        if unsure is None:
            self._send(dest, copies, upto)
        elif unsure > self._router.cursor + 1:
            self._send(dest, [copy for copy in copies if copy.source_seq < unsure], unsure - 1)
        else:
            self._sync_deletes(source, outcome, upto)

    def _first_unsure(self, source: TopicLog, dest: TopicLog, outcome: ReadOutcome, upto: int) -> int | None:
        """The first record that was deleted before its turn and that a power cut could bring back."""
        if source.config.syncs_deletes or source.config.is_ephemeral or dest.config.is_ephemeral:
            return None
        commit, group = self._ctx.commit, self._ctx.group_of(source.id)
        if commit.synced_lsn(group) >= commit.written_lsn(group):
            return None
        live = self._live(source, outcome)
        sure_to, were_live = self._sure
        died = were_live.difference(live)
        following = max(sure_to, self._router.cursor) + 1
        for seq in live:
            following += seq == following
        return min((seq for seq in (*died, following) if seq <= upto), default=None)

    def _sync_deletes(self, source: TopicLog, outcome: ReadOutcome, upto: int) -> None:
        """What is dead now is so for good behind the next sync; what dies meanwhile is for the one after it."""
        sure = upto, frozenset(self._live(source, outcome))

        def synced(done: Ticket[None]) -> None:
            self._sure = sure
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
            self._look_for_room(dest)
            return
        reservation = reserve(dest, count=len(copies), size=size, now=self._ctx.clock.now_ms())
        try:
            ticket = self._writes.append_copies(dest, copies_op(dest, reservation, copies), reservation)
        except BaseException:
            release(dest, reservation, reuse_seqs=True)
            raise
        self._router.reserve(cursor=upto, count=len(copies))
        ticket.then(self._appended, self._fail)

    def _look_for_room(self, dest: TopicLog) -> None:
        """What has expired counts until somebody looks; then the step begins anew, once."""
        quota, self._quota = self._quota, None
        if quota is None:
            raise Throttled.cap("max_total_bytes", max=self._ctx.settings.max_total_bytes)
        quota.make_room(dest.name).then(self._resume, self._fail)

    def _appended(self, done: Ticket[Appended]) -> None:
        self._arrived(done.error)

    def _arrived(self, error: BaseException | None) -> None:
        if error is not None:
            self._router.failed()
            self._fail(error)
        else:
            self._router.arrived()
            self._end(StepOutcome.MOVED)

    # --- losing ---------------------------------------------------------------------------------------------------

    def _pass_on_loss(self, source: TopicLog, dest: TopicLog, lost_to: int) -> None:
        """Losses go round a cycle as records do, and end as they do: after so many hops nobody is told any more."""
        first = self._router.cursor + 1
        stretch = self._losses.stretch(source.id, first, lost_to)
        if stretch.hops >= limits.ROUTER_HOPS_MAX:
            self._lose(dest, 0, cursor=stretch.last, reason="source_trim")
        else:
            count = stretch.last - first + 1
            self._losses.note(dest.id, dest.reserved_head + 1, dest.reserved_head + count, hops=stretch.hops + 1)
            self._lose(dest, count, cursor=stretch.last, reason="source_trim")

    def _lose(self, dest: TopicLog, count: int, *, cursor: int, reason: LostReason) -> None:
        """The destination takes a lost range, synced before the cursor passes what it stands for. Without any seqs in
        it, the log only learns that the cursor passed."""
        ctx, router = self._ctx, self._router
        first = dest.reserved_head + 1
        last = dest.reserved_head + count
        router.reserve(cursor=cursor, count=count)
        place = router.reserved_mark(dest_head=last)
        pin = Pin(
            router=place.name,
            cursor=place.cursor,
            forwarded_total=place.forwarded_total,
            dest_base=place.dest_base,
        )
        mark = HeadMark(
            topic_id=dest.id,
            ceiling=max(ctx.ceilings.staged(dest), last),
            lost=((first, last, reason),) if count else (),
            pin=pin,
        )
        dest.reserved_head = last
        sub = submission([mark], None, topic_id=dest.id, ts=ctx.clock.now_ms(), durable=True, client_frames=0)
        try:
            ticket = ctx.commit.submit(
                ctx.group_of(dest.id),
                sub,
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
