"""Settling: floors that TTL or a byte cap moved are logged before anyone may see them (semantics.md section 6.4).

Every observer of a topic (read, state, list, delete, claim) asks for its topics to be settled first. Always holds when
the ticket resolves: nothing was due at the time of asking, or what was due is synced and applied."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from topics.core.apply import apply
from topics.core.extent import index_of
from topics.core.retention import due, floors_op, unlogged
from topics.core.topic import TopicState
from topics.engine.context import Context
from topics.engine.encode import submission
from topics.engine.ticket import Ticket, chain, failed, gathered, resolved, settled
from topics.errors import TopicsError
from topics.model.ops import Evict
from topics.model.submission import Submission

PATIENCE_MS = 1000
"""How long whoever can do without an index waits for it."""
IMPATIENCE_MS = 30_000
"""How long nobody waits, after somebody did so in vain."""


class Settling:
    def __init__(self, context: Context) -> None:
        self._ctx = context
        self._pending: dict[int, Ticket[None]] = {}
        self._waits: list[tuple[int, Ticket[None]]] = []  # until when, on the running clock
        self._impatient_until_ms = 0

    def tick(self) -> None:
        """A cold store that does not answer holds up nobody who only counts."""
        now = self._ctx.clock.running_ms()
        over = [wait for until_ms, wait in self._waits if until_ms <= now and not wait.done]
        self._waits = [(until_ms, wait) for until_ms, wait in self._waits if until_ms > now and not wait.done]
        if over:
            self._impatient_until_ms = now + IMPATIENCE_MS
        for wait in over:
            wait.resolve(None)

    def is_settled(self, topic: TopicState) -> bool:
        """Nothing is due and nothing is on its way; an ephemeral topic is settled on the spot."""
        if topic.id in self._pending:
            return False
        evict = self._due(topic)
        if evict is None:
            return True
        if topic.config.is_ephemeral:
            self._apply(topic, evict)
            return True
        return False

    def settle(self, topic: TopicState) -> Ticket[None]:
        """Log what is due. A floor that cannot be logged fails the ticket, and with it the observer."""
        if self.is_settled(topic):
            return resolved(None)
        pending = self._pending.get(topic.id)
        if pending is not None:
            return pending
        evict = self._due(topic)
        assert evict is not None
        return self._log(topic, evict)

    def settle_exactly(self, topic: TopicState) -> Ticket[None]:
        """As `settle`, and what only the index of a cold segment can tell is asked there. One that cannot be had, or
        not soon, is left out: whoever only counts goes on with what is known."""
        ticket = self.settle(topic)
        if ticket.done and not topic.awaiting:
            return ticket
        return chain(ticket, lambda _: self._load_awaited(topic, set()))

    def _load_awaited(self, topic: TopicState, asked: set[int]) -> Ticket[None]:
        waiting = [first for first in topic.awaiting if first not in asked]
        asked.update(waiting)
        if not waiting:
            return resolved(None)
        again = chain(self.load_indexes(topic, waiting), lambda _: self.settle(topic))
        return chain(again, lambda _: self._load_awaited(topic, asked))

    def load_indexes(self, topic: TopicState, firsts: Iterable[int]) -> Ticket[None]:
        """Have the indexes of these cold segments loaded, as far as that works and does not take long."""
        blocks = [block for first in firsts if (block := topic.sealed.by_first_seq(first)) is not None]
        fetch = self._ctx.jobs.fetch
        return self._patiently(gathered([settled(fetch(topic, index_of(block, block.first_seq))) for block in blocks]))

    def _patiently(self, loaded: Ticket[None]) -> Ticket[None]:
        clock = self._ctx.clock
        now = clock.running_ms()
        if loaded.done or now < self._impatient_until_ms:
            return resolved(None)
        wait: Ticket[None] = Ticket()
        self._waits.append((now + PATIENCE_MS, wait))
        self._ctx.wake_at(clock.now_ms() + PATIENCE_MS)
        loaded.then(lambda _: None if wait.done else wait.resolve(None), wait.abandon)
        return wait

    def _due(self, topic: TopicState) -> Evict | None:
        """A count cap's floors follow from the log, unless what moved them is not in any log (copies whose records an
        ephemeral topic upstream had), or a start cannot tell where they lie before a cold store has answered. Then they
        are logged like all others."""
        evict, config = due(topic, self._ctx.clock.now_ms()), topic.config
        if evict is not None or not config.cap_records or config.is_ephemeral:
            return evict
        if topic.floors.lost <= topic.logged_lost:
            return None
        from_memory = topic.id in self._ctx.fed and self._comes_from_memory(topic)
        return unlogged(topic) if from_memory or _lies_in_cold(topic) else None

    def _comes_from_memory(self, topic: TopicState) -> bool:
        state = self._ctx.state
        seen, above = {topic.id}, [topic.id]
        while above:
            for router in state.routers.into(above.pop()):
                source = state.by_id.get(router.source_id)
                if source is not None and source.config.is_ephemeral:
                    return True
                if source is not None and source.id not in seen:
                    seen.add(source.id)
                    above.append(source.id)
        return False

    def settle_all(self, topics: Iterable[TopicState]) -> Ticket[None]:
        """One ticket for many topics; the first failure fails it."""
        tickets = [ticket for ticket in map(self.settle, topics) if not (ticket.done and ticket.error is None)]
        if not tickets:
            return resolved(None)
        target: Ticket[None] = Ticket()
        left = len(tickets)

        def one_done(done: Ticket[None]) -> None:
            nonlocal left
            left -= 1
            if target.done:
                return
            if done.error is not None:
                target.fail(done.error)
            elif left == 0:
                target.resolve(None)

        for ticket in tickets:
            ticket.then(one_done)
        return target

    def settle_soon(self, topics: Iterable[TopicState]) -> Ticket[None]:
        """As `settle_possible`, for whoever does not wait for long either."""
        return self._patiently(self.settle_possible(topics))

    def settle_possible(self, topics: Iterable[TopicState]) -> Ticket[None]:
        """For whoever has to answer in any case: a floor that cannot be logged stays where it was."""
        return gathered([settled(ticket) for ticket in map(self._try_to_settle, topics) if not ticket.done])

    def _try_to_settle(self, topic: TopicState) -> Ticket[None]:
        try:
            return self.settle(topic)
        except TopicsError as error:
            return failed(error)

    def log_floors(self, topic: TopicState) -> Ticket[None]:
        """Log the floors as they are: a count cap moved them, and what comes next must not hide from replay why."""
        ctx, evict = self._ctx, floors_op(topic)
        sub = submission([evict], None, topic_id=topic.id, ts=ctx.clock.now_ms(), durable=True, client_frames=0)
        finish = partial(self._applied, topic, evict)
        try:
            return ctx.commit.submit(ctx.group_of(topic.id), sub, finish=finish, barrier=False, internal=True)
        except TopicsError as error:
            return failed(error)

    def _applied(self, topic: TopicState, evict: Evict, _sub: Submission) -> None:
        self._apply(topic, evict)

    def _log(self, topic: TopicState, evict: Evict) -> Ticket[None]:
        ctx = self._ctx
        evict = ctx.witness.sworn_evict(topic, evict)
        sub = submission([evict], None, topic_id=topic.id, ts=ctx.clock.now_ms(), durable=True, client_frames=0)
        ticket = ctx.commit.submit(
            ctx.group_of(topic.id), sub, finish=partial(self._finish, topic, evict), internal=True
        )
        self._pending[topic.id] = ticket
        ctx.witness.hold_until(topic, ticket)
        ticket.then(lambda _: self._over(topic))
        return ticket

    def _finish(self, topic: TopicState, evict: Evict, _sub: Submission) -> None:
        self._over(topic)
        self._apply(topic, evict)

    def _over(self, topic: TopicState) -> None:
        self._pending.pop(topic.id, None)

    def _apply(self, topic: TopicState, evict: Evict) -> None:
        effect = apply(self._ctx.state, evict)
        if effect.removal is not None:
            self._ctx.removed(topic, effect)


def _lies_in_cold(topic: TopicState) -> bool:
    """Whether the floor lies in a cold segment that has deletes: only its index tells how many live ones are below."""
    segment = topic.sealed.find(topic.floors.lost) if len(topic.sealed) else None
    return segment is not None and segment.tier == "cold" and segment.deleted != 0
